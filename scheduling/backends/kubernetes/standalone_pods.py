"""Orders to one-worker jobs that run as bare pods (pods without a Job), for bursts of many short jobs.

A Job costs the cluster's controllers half a dozen requests per attempt, and the controllers make only about twenty
requests a second. A bare pod costs one request to create it and one to end it, both from Fairlot.

A job's pod has the same name in every attempt, so the API server never lets two of a job's pods exist at the same time.
The pod's epoch says to which attempt it belongs.

A pod that has ended stays in the cluster for a while. Fairlot therefore learns of its end even if no process watched
the cluster at that time. A late order for a past attempt finds the ended pod and changes nothing.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from scheduling.backends.kubernetes import objects, secret_objects
from scheduling.backends.kubernetes.api import Api, Changed, Invalid, Missing, Object, Taken
from scheduling.backends.kubernetes.objects import Attempt
from scheduling.backends.kubernetes.orders import PODS, Outcome, StillThere, delete_pod, look_up, tries


@dataclass(frozen=True, slots=True)
class BarePodOrders:
    """Gives orders to the bare pods of one namespace. If a method raises Unreachable or Refused, the caller must repeat
    the call later."""

    api: Api
    namespace: str
    owner: str  # marks the objects of this installation of Fairlot

    def find(self, job_id: int) -> Object | None:
        """Returns the job's pod, of any attempt; None if there is none. Raises NotOurs if someone else created a pod of
        this name."""
        return look_up(self.api, self._path(job_id), namespace=self.namespace, owner=self.owner)

    def start(self, job_id: int, pod: objects.Pod, attempt: Attempt) -> Outcome:
        """Creates the job's pod for `attempt`, and returns the effect of the order.

        Raises StillThere while the pod of an earlier attempt has not ended.
        """
        if len(attempt.nodes) != 1 or secret_objects.is_needed(pod.secrets):
            raise ValueError("a gang, or a job that needs Secrets, must run as a Kubernetes Job")
        wanted = objects.new_pod(job_id, pod, owner=self.owner, attempt=attempt)
        for _ in tries():
            try:
                self.api.create(PODS.format(self.namespace), wanted)
            except Taken:
                there = self.find(job_id)
            else:
                return Outcome.DONE
            if there is None:
                continue  # the pod was deleted between the two requests
            at = objects.epoch_of(there)
            if at > attempt.epoch:
                return Outcome.OVERTAKEN
            if at == attempt.epoch:
                return Outcome.OVERTAKEN if objects.is_ordered_to_end(there) else Outcome.DONE
            if not objects.has_ended(there):
                if not objects.is_ordered_to_end(there):  # no other order will end the earlier attempt
                    with suppress(Invalid, Missing, Changed):
                        self._end(there)
                raise StillThere(f"the pod of attempt {at} of job {job_id} still exists")
            delete_pod(self.api, there)
        raise StillThere(f"the pod of job {job_id} was repeatedly created and removed by someone else")

    def stop(self, job_id: int, *, epoch: int, token: str, because: str = "") -> Outcome:
        """Ends the job's pod if the pod belongs to attempt `epoch` or an earlier one. Returns the effect of the order.

        `because` says why the backend itself stops the lease; "" if the scheduler ordered it. `token` is ignored.
        """
        for last in tries():
            there = self.find(job_id)
            if there is None:
                # A delayed order may still start the lease. Fairlot then stops the pod, which has no open lease.
                return Outcome.MISSING
            if objects.epoch_of(there) > epoch:
                return Outcome.OVERTAKEN
            if objects.has_ended(there):
                return Outcome.FINISHED
            try:
                if not objects.is_ordered_to_end(there):
                    self._end(there, because)
            except (Invalid, Missing, Changed):
                if last:
                    raise
            else:
                return Outcome.DONE
        raise AssertionError("unreachable")

    def of_part(self, number: int) -> BarePodOrders:
        """Returns the same orders, because a bare pod is a gang of one worker without roles."""
        return self

    def _end(self, pod: Object, because: str = "") -> None:
        """Ends the pod.

        - If the pod's program has started: the kubelet ends the program, and the pod stays in the cluster (see
          `objects.end`).
        - Otherwise: deletes the pod.

        `because` says why the backend itself stops the lease; "" if the scheduler ordered it. Raises Invalid, Missing
        or Changed if the pod has changed since it was read.
        """
        about, at, path = pod["metadata"], objects.epoch_of(pod), self._path(objects.job_id_of(pod))
        if objects.has_started(pod):
            self.api.patch(path, objects.end(about["uid"], at=at, because=because))
            return
        if because:
            about = self.api.patch(path, objects.note_reason(about["uid"], at=at, because=because))[
                "metadata"
            ]
        self.api.delete(path, uid=about["uid"], version=about["resourceVersion"])

    def _path(self, job_id: int) -> str:
        return f"{PODS.format(self.namespace)}/{objects.pod_name(job_id)}"
