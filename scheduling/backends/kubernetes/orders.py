"""Orders to Jobs. An order takes effect once, even if its request or its answer is lost or repeated.

Each order names its lease. The Job records the last lease that it was ordered to run. There are three cases:

- The order is for an older lease than the recorded one: nothing happens.
- The order has already taken effect: nothing happens, and the order counts as done.
- Otherwise, one patch changes the Job. The patch fails if the Job has changed since Fairlot read it.

A caller that receives no answer repeats the order.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from scheduling.backends.kubernetes import objects, rendezvous, secret_objects
from scheduling.backends.kubernetes.api import Api, Changed, Invalid, Missing, Object, Refused, Taken
from scheduling.backends.kubernetes.objects import Attempt
from scheduling.backends.kubernetes.podgroups import PodGroups

JOBS = "/apis/batch/v1/namespaces/{}/jobs"
PODS = "/api/v1/namespaces/{}/pods"
# Another process may patch a Job between this process's read and patch. After this many conflicts the order fails.
TRIES = 4
FORBIDDEN = 403


class Outcome(Enum):
    """The effect of an order to start or stop a job."""

    DONE = "done"  # this order, or an earlier identical one, took effect
    # The order is void: the Job was ordered to run a later lease, or to stop this lease.
    OVERTAKEN = "overtaken"
    FINISHED = "finished"  # the Job had already completed, or the bare pod had already ended
    MISSING = "missing"  # the Job does not exist


class NotOurs(Exception):
    """Raised when a Job or pod has the expected name but was not created by this installation of Fairlot."""


class StillThere(Exception):
    """Raised when the caller must repeat the order later, usually because pods of an earlier lease still exist."""


class Commands(Protocol):
    """The interface for orders to the jobs of one namespace, which run as Jobs or as bare pods."""

    def find(self, job_id: int) -> Object | None:
        """Returns the Job or bare pod of the job; None if there is none. Raises NotOurs if someone else created the
        object."""

    def start(self, job_id: int, pod: objects.Pod, attempt: Attempt) -> Outcome:
        """Starts the job for `attempt`, and returns the effect of the order.

        Raises StillThere while pods of an earlier lease exist.
        """

    def stop(self, job_id: int, *, epoch: int, token: str, because: str = "") -> Outcome:
        """Stops the pods of the lease that `epoch` and `token` identify, and returns the effect of the order.

        `because` says why the backend itself stops the lease; "" if the scheduler ordered it.
        """

    def of_part(self, number: int) -> Commands:
        """Returns the orders to the Job of one part of gangs with roles."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Gives orders to the Jobs of one namespace. If a method raises Unreachable or Refused, the caller must repeat the
    call later."""

    api: Api
    namespace: str
    owner: str  # marks the objects of this installation of Fairlot
    groups: PodGroups = field(default_factory=PodGroups)
    part: int = 0  # of a gang with roles, whose roles have a Job each

    def prepare(
        self,
        job_id: int,
        pod: objects.Pod,
        *,
        workers: int,
        epoch: int = 0,
        begin: Attempt | None = None,
        grouped: bool = False,
        may_have_run: bool = False,
    ) -> Object:
        """Returns the job's Kubernetes Job; creates it if it does not exist. A new Job starts the attempt `begin`; if
        `begin` is None, the new Job is suspended.

        - `epoch`: the number of the last attempt that may have run in an earlier Job; 0 if there is none.
        - `grouped`: whether the new Job's pods refer to a PodGroup. Ignored if the cluster does not offer PodGroups.
        - `may_have_run`: whether an earlier Job may have started pods. If true, raises StillThere instead of creating a
          Job while such pods run.

        Raises NotOurs if someone else created an object of this name.
        """
        there = self.find(job_id)
        if there is not None:
            return there
        if may_have_run and self._left_behind(job_id, pod.part):
            raise StillThere(f"pods of job {job_id} still exist, although its Kubernetes Job is gone")
        wanted = objects.new_job(
            job_id,
            pod,
            workers=workers,
            owner=self.owner,
            epoch=epoch,
            begin=begin,
            grouped=grouped and bool(self.groups.version(self.api)),
        )
        try:
            return self.api.create(JOBS.format(self.namespace), wanted)
        except Taken:
            if (there := self.find(job_id)) is None:
                raise
            return there

    def find(self, job_id: int) -> Object | None:
        """Returns the Kubernetes Job of a job; None if there is none. Raises NotOurs if someone else created a Job of
        this name."""
        return look_up(self.api, self._path(job_id), namespace=self.namespace, owner=self.owner)

    def start(self, job_id: int, pod: objects.Pod, attempt: Attempt) -> Outcome:
        """Starts the job for `attempt`, and returns the effect of the order.

        Raises StillThere while pods of an earlier lease exist.
        """
        # A Job that needs no other objects is created in the running state. This takes one write, which can succeed
        # only once because of the name.
        grouped = len(attempt.nodes) > 1
        begin = None if grouped or pod.part or secret_objects.is_needed(pod.secrets) else attempt
        for last in tries():
            job = self.prepare(
                job_id,
                pod,
                workers=len(attempt.nodes),
                epoch=attempt.epoch - 1,
                begin=begin,
                grouped=grouped,
                may_have_run=attempt.may_have_begun or attempt.epoch > 1,
            )
            at = objects.epoch_of(job)
            if at > attempt.epoch or (at == attempt.epoch and objects.is_suspended(job)):
                return Outcome.OVERTAKEN
            if at == attempt.epoch:
                return Outcome.DONE
            complete = objects.condition(job, "Complete")
            if complete and pod.part is None:
                return Outcome.FINISHED
            # A role whose workers had all succeeded starts again with its gang.
            failed = objects.condition(job, "Failed") or complete
            if not failed and not objects.is_suspended(job):
                # No other order will end the earlier attempt.
                old = str(job["metadata"]["annotations"][objects.LEASE])
                self.api.patch(self._path(job_id), objects.stop(_uid(job), at=at, epoch=at, token=old))
                raise StillThere(f"attempt {at} of job {job_id} was still running and is now being stopped")
            if objects.holds_gpus(job):
                raise StillThere(f"pods of attempt {at} of job {job_id} still exist")
            resized = not objects.is_of_size(job, pod, len(attempt.nodes))
            if failed or resized or objects.has_counted_ends(job):
                # A failed Job runs no other attempt. A Job with counted ends would run without the workers that it
                # counts as succeeded, or fail for workers that it counts as failed. An elastic gang that starts with
                # another size has other variables, which cannot be changed.
                self._delete(job)
                continue
            if not self.groups.ensure(self.api, self.namespace, job):
                # The Job's pods would wait forever for the missing PodGroup. The pods of a new Job will name none.
                self._delete(job)
                grouped = False
                continue
            self._create_attachments(job, pod, attempt)
            try:
                self.api.patch(self._path(job_id), objects.start(_uid(job), at=at, attempt=attempt))
            except (Invalid, Missing) as refusal:
                if _cannot_move(job, refusal):
                    self._delete(job)
                elif last:
                    raise
            else:
                return Outcome.DONE
        raise StillThere(f"job {job_id} cannot start, because its Kubernetes Job was deleted again and again")

    def stop(self, job_id: int, *, epoch: int, token: str, because: str = "") -> Outcome:
        """Suspends the Kubernetes Job of a job, which stops its pods. Returns the effect of the order.

        For a gang with roles, the order then goes to the Jobs of all other parts.

        `epoch` and `token` identify the lease to stop. After the call, a late order to start this lease has no effect.
        `because` says why the backend itself stops the lease; "" if the scheduler ordered it.
        """
        outcome, parts = self._stop(job_id, epoch, token, because)
        if outcome is Outcome.DONE and self.part == 0:
            for number in range(1, parts):
                replace(self, part=number).stop(job_id, epoch=epoch, token=token)
        return outcome

    def of_part(self, number: int) -> Orders:
        """Returns the orders to part `number` of gangs with roles."""
        return replace(self, part=number)

    def _stop(self, job_id: int, epoch: int, token: str, because: str) -> tuple[Outcome, int]:
        """Suspends one Job. Returns the effect of the order, and how many parts the job's gang has."""
        for last in tries():
            job = self.find(job_id)
            if job is None:
                return Outcome.MISSING, 0
            at, parts = objects.epoch_of(job), objects.parts_of(job)
            if at > epoch:
                return Outcome.OVERTAKEN, parts
            if at == epoch and objects.is_suspended(job):
                return Outcome.DONE, parts
            order = objects.stop(_uid(job), at=at, epoch=epoch, token=token, because=because)
            try:
                self.api.patch(self._path(job_id), order)
            except (Invalid, Missing):
                if last:
                    raise
            else:
                return Outcome.DONE, parts
        raise AssertionError("unreachable")

    def _create_attachments(self, job: Object, pod: objects.Pod, attempt: Attempt) -> None:
        """Creates the other objects that the attempt's pods need: the gang's Service and ConfigMap, and Secrets.

        The caller calls this method before the pods exist.
        """
        if (len(attempt.nodes) > 1 or pod.part) and not objects.has_begun(job):
            name = str(job["metadata"]["name"])
            whole = rendezvous.hosts(name, workers=len(attempt.nodes), gpus=pod.gpus)
            self._create_names(job, pod.part.hosts if pod.part else whole)
        marks = {objects.EPOCH: str(attempt.epoch)}
        secret_objects.write(self.api, self.namespace, job, pod.secrets, annotations=marks)

    def _create_names(self, job: Object, slots: str) -> None:
        """Creates the Service and the ConfigMap by which a gang's workers find each other.

        `slots` is the host list. Raises StillThere if the
        objects cannot be created for this Job, for example because a new Job has replaced it.
        """
        is_current = rendezvous.prepare(self.api, self.namespace, job, job_label=objects.JOB, slots=slots)
        if not is_current:
            raise StillThere(f"the Job {job['metadata']['name']} was created again by someone else")

    def _delete(self, job: Object) -> None:
        """Deletes the Job if it has not changed since it was read. Otherwise does nothing."""
        path, version = self._path(objects.job_id_of(job)), job["metadata"]["resourceVersion"]
        with suppress(Missing, Changed):
            self.api.delete(path, uid=_uid(job), version=version)

    def _left_behind(self, job_id: int, part: objects.Part | None) -> bool:
        """Returns whether pods of the job, or of a part of its gang, still run. Called only if their Kubernetes Job
        does not exist."""
        which = f"{objects.JOB}={job_id}" + (f",{objects.PART}={part.number}" if part else "")
        pods = self.api.get(PODS.format(self.namespace), labelSelector=which)["items"]
        return any(not objects.has_ended(pod) for pod in pods)

    def _path(self, job_id: int) -> str:
        return f"{JOBS.format(self.namespace)}/{objects.job_name(job_id, self.part)}"


def look_up(api: Api, path: str, *, namespace: str, owner: str) -> Object | None:
    """Returns the object at `path`; None if the object or its namespace does not exist.

    `owner` identifies this installation of Fairlot. Raises NotOurs if the object does not carry this owner in its
    label.
    """
    try:
        there = api.get(path)
    except Missing:
        return None
    except Refused as refusal:
        # Rights are granted per namespace, so without the namespace the API server answers that reading is forbidden.
        if refusal.code == FORBIDDEN and _is_missing(api, namespace):
            return None
        raise
    if there["metadata"].get("labels", {}).get(objects.OWNER) != owner:
        raise NotOurs(
            f"the {there['kind']} {there['metadata']['name']} in the namespace {namespace} does not belong to this"
            " Fairlot"
        )
    return there


def _is_missing(api: Api, namespace: str) -> bool:
    try:
        api.get(f"/api/v1/namespaces/{namespace}")
    except Missing:
        return True
    return False


def delete_pod(api: Api, pod: Object, *, grace_seconds: int | None = None) -> None:
    """Deletes this pod. Does nothing if the pod is gone or a newer pod has its name.

    `grace_seconds` is the grace period; None for the pod's own.
    """
    about = pod["metadata"]
    with suppress(Missing, Changed):
        api.delete(
            f"{PODS.format(about['namespace'])}/{about['name']}",
            uid=about["uid"],
            grace_seconds=grace_seconds,
        )


def _cannot_move(job: Object, refusal: Refused) -> bool:
    """Returns whether the API server refused to start the Job because the Job would get other nodes.

    Before Kubernetes 1.36, the node affinity of a Job that has run is immutable.
    """
    return "field is immutable" in refusal.message and objects.condition(job, "Suspended") is not None


def _uid(job: Object) -> str:
    return str(job["metadata"]["uid"])


def tries() -> list[bool]:
    """Returns a list with one item per try of an order: True for the last try, False for the others."""
    return [False] * (TRIES - 1) + [True]
