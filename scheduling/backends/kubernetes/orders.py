"""Orders to Jobs that have the effect of once, whatever becomes of the request or of its answer.

An order says from which epoch to the next it leads. When the answer is lost, or says that a test of the
patch failed, the Job itself tells which of the two it is at: then the order has been carried out, or may
be given again, or was overtaken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.api import Api, Invalid, Missing, Object, Taken, Unreachable
from scheduling.backends.kubernetes.objects import Operation

JOBS = "/apis/batch/v1/namespaces/{}/jobs"


class Outcome(Enum):
    """What is known of an order after it was given."""

    DONE = "done"  # the Job is where the order leads, by this order or by the same one given before
    OVERTAKEN = "overtaken"  # the Job is at another epoch, or it is another Job: the order is void
    MISSING = "missing"  # somebody has deleted the Job


class NotOurs(Exception):
    """A Job of this name is there that Fairlot did not make for this job."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Gives orders to the Jobs of one namespace. Unreachable and Refused: to be given again later."""

    api: Api
    namespace: str

    def prepare(self, job_id: int, pod: objects.Pod, *, workers: int, token: str) -> Object:
        """The job's Job, made if it is not there; raises NotOurs when its name is taken by another's.

        `token` is one secret of the job, the same whenever it is prepared.
        """
        wanted = objects.new_job(job_id, pod, workers=workers, token=token)
        try:
            return self.api.create(JOBS.format(self.namespace), wanted)
        except (Taken, Unreachable) as trouble:
            try:
                there = self.api.get(self._path(job_id))
            except Missing:
                raise trouble from None
        annotations = there["metadata"].get("annotations", {})
        if annotations.get(objects.TOKEN) != token or objects.EPOCH not in annotations:
            raise NotOurs(f"a Job {there['metadata']['name']} of somebody else is in {self.namespace}")
        return there

    def start(self, job_id: int, uid: str, *, epoch: int, nodes: Sequence[str]) -> Outcome:
        """From `epoch` to the next, running on these nodes."""
        return self._order(job_id, uid, objects.start(uid, epoch=epoch, nodes=nodes), epoch, suspended=False)

    def stop(self, job_id: int, uid: str, *, epoch: int) -> Outcome:
        """From `epoch` to the next, suspended."""
        return self._order(job_id, uid, objects.stop(uid, epoch=epoch), epoch, suspended=True)

    def _order(
        self, job_id: int, uid: str, patch: Sequence[Operation], epoch: int, *, suspended: bool
    ) -> Outcome:
        try:
            self.api.patch(self._path(job_id), patch)
        except Missing:
            return Outcome.MISSING
        except (Invalid, Unreachable) as trouble:
            return self._look(job_id, uid, epoch, trouble, suspended=suspended)
        return Outcome.DONE

    def _look(self, job_id: int, uid: str, epoch: int, trouble: Exception, *, suspended: bool) -> Outcome:
        """What the Job says of an order whose answer did not say it; raises `trouble` when it had no effect."""
        try:
            job = self.api.get(self._path(job_id))
        except Missing:
            return Outcome.MISSING
        if job["metadata"]["uid"] != uid:
            return Outcome.OVERTAKEN
        at = objects.epoch_of(job)
        if at == epoch:
            raise trouble
        # Each epoch has one order, so that the same epoch with the other state is somebody's hand.
        done = at == epoch + 1 and bool(job["spec"].get("suspend")) == suspended
        return Outcome.DONE if done else Outcome.OVERTAKEN

    def _path(self, job_id: int) -> str:
        return f"{JOBS.format(self.namespace)}/{objects.job_name(job_id)}"
