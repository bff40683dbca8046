"""Orders to Jobs that have the effect of once, whatever becomes of the request or of its answer.

Each order names the lease that it is for. The Job itself says how far it is: an order for an older lease
is void, one that it has followed is done, and any other is one patch that tests what was read. So an
order whose answer was lost is simply given again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from scheduling.backends.kubernetes import objects, rendezvous, secret_objects
from scheduling.backends.kubernetes.api import Api, Changed, Invalid, Missing, Object, Refused, Taken
from scheduling.backends.kubernetes.objects import Turn
from scheduling.backends.kubernetes.podgroups import PodGroups

JOBS = "/apis/batch/v1/namespaces/{}/jobs"
PODS = "/api/v1/namespaces/{}/pods"
# Between reading a Job and patching it others may have patched it; who loses so often gives way.
TRIES = 4
FORBIDDEN = 403


class Outcome(Enum):
    """What is known of an order after it was given."""

    DONE = "done"  # the Job is where the order leads, by this order or by the same one given before
    OVERTAKEN = "overtaken"  # the Job has heard of a later lease, or of this one's end: the order is void
    FINISHED = "finished"  # the Job has come to its own end before
    MISSING = "missing"  # there is no such Job


class NotOurs(Exception):
    """A Job, or a pod, of this name is there that this Fairlot did not make."""


class StillThere(Exception):
    """Pods of an earlier lease are still there."""


class Commands(Protocol):
    """What can be ordered of the jobs of one namespace, in whichever way they run there."""

    def find(self, job_id: int) -> Object | None:
        """What stands for the job there; raises NotOurs."""

    def start(self, job_id: int, pod: objects.Pod, turn: Turn) -> Outcome:
        """The job runs as `turn` says; raises StillThere while an earlier lease has not ended."""

    def stop(self, job_id: int, *, epoch: int, token: str, because: str = "") -> Outcome:
        """The pods of the lease `epoch` go; `because` is why, when nobody decided it."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Gives orders to the Jobs of one namespace. Unreachable and Refused: to be given again later."""

    api: Api
    namespace: str
    owner: str  # marks what is ours
    groups: PodGroups = field(default_factory=PodGroups)

    def prepare(
        self,
        job_id: int,
        pod: objects.Pod,
        *,
        workers: int,
        epoch: int = 0,
        begin: Turn | None = None,
        grouped: bool = False,
        may_have_run: bool = False,
    ) -> Object:
        """The job's Job; made if it is not there, suspended or with the turn `begin`.

        Turns up to `epoch` were another Job's. If there `may_have_run` one, raises StillThere while pods of it have
        outlived it; NotOurs when the name is taken by another's. `grouped`: its pods name a PodGroup, where there
        are any.
        """
        there = self.find(job_id)
        if there is not None:
            return there
        if may_have_run and self._left_behind(job_id):
            raise StillThere(f"pods of job {job_id} have outlived its Job")
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
        """The job's Job, if it is there; raises NotOurs."""
        return look_up(self.api, self._path(job_id), namespace=self.namespace, owner=self.owner)

    def start(self, job_id: int, pod: objects.Pod, turn: Turn) -> Outcome:
        """The job runs as `turn` says; raises StillThere while an earlier lease has not ended."""
        # What nothing has to be made ready for is made running: one write, which its name lets through once.
        grouped = len(turn.nodes) > 1
        begin = None if grouped or secret_objects.is_needed(pod.secrets) else turn
        for last in tries():
            job = self.prepare(
                job_id,
                pod,
                workers=len(turn.nodes),
                epoch=turn.epoch - 1,
                begin=begin,
                grouped=grouped,
                may_have_run=turn.may_have_begun or turn.epoch > 1,
            )
            at = objects.epoch_of(job)
            if at > turn.epoch or (at == turn.epoch and objects.is_suspended(job)):
                return Outcome.OVERTAKEN
            if at == turn.epoch:
                return Outcome.DONE
            if objects.condition(job, "Complete") or objects.condition(job, "Failed"):
                return Outcome.FINISHED
            if not objects.is_suspended(job):
                # Nobody waits for its end any more.
                old = str(job["metadata"]["annotations"][objects.LEASE])
                self.api.patch(self._path(job_id), objects.stop(_uid(job), at=at, epoch=at, token=old))
                raise StillThere(f"turn {at} of job {job_id} was still running")
            if objects.holds_gpus(job):
                raise StillThere(f"pods of turn {at} of job {job_id} are still there")
            if objects.has_counted_ends(job):
                # It would run without the workers that it takes for done, or fail for those that it takes for failed.
                self._delete(job)
                continue
            if not self.groups.ensure(self.api, self.namespace, job):
                # Its pods would wait for that group for ever: those of a Job made anew need none.
                self._delete(job)
                grouped = False
                continue
            self._hand_over(job, pod, turn)
            try:
                self.api.patch(self._path(job_id), objects.start(_uid(job), at=at, turn=turn))
            except (Invalid, Missing) as refusal:
                if _stays_where_it_was(job, refusal):
                    self._delete(job)
                elif last:
                    raise
            else:
                return Outcome.DONE
        raise StillThere(f"the Job of job {job_id} has to be made anew again and again")

    def stop(self, job_id: int, *, epoch: int, token: str, because: str = "") -> Outcome:
        """The job's pods go, and the lease `epoch` starts no more, even if its start comes later than this."""
        for last in tries():
            job = self.find(job_id)
            if job is None:
                return Outcome.MISSING
            at = objects.epoch_of(job)
            if at > epoch:
                return Outcome.OVERTAKEN
            if at == epoch and objects.is_suspended(job):
                return Outcome.DONE
            order = objects.stop(_uid(job), at=at, epoch=epoch, token=token, because=because)
            try:
                self.api.patch(self._path(job_id), order)
            except (Invalid, Missing):
                if last:
                    raise
            else:
                return Outcome.DONE
        raise AssertionError("unreachable")

    def _hand_over(self, job: Object, pod: objects.Pod, turn: Turn) -> None:
        """What the turn's pods find there, before there is any."""
        if len(turn.nodes) > 1 and not objects.has_begun(job):
            self._introduce(job, len(turn.nodes), pod.gpus)
        marks = {objects.EPOCH: str(turn.epoch)}
        secret_objects.write(self.api, self.namespace, job, pod.secrets, annotations=marks)

    def _introduce(self, job: Object, workers: int, gpus: int) -> None:
        """The workers of a gang to each other; raises StillThere when others have made its Job anew meanwhile."""
        is_told = rendezvous.prepare(
            self.api, self.namespace, job, job_label=objects.JOB, workers=workers, gpus=gpus
        )
        if not is_told:
            raise StillThere(f"the Job {job['metadata']['name']} was made anew by others")

    def _delete(self, job: Object) -> None:
        """As it was read; one that others have changed or deleted meanwhile is to be looked at again."""
        path, version = self._path(objects.job_id_of(job)), job["metadata"]["resourceVersion"]
        with suppress(Missing, Changed):
            self.api.delete(path, uid=_uid(job), version=version)

    def _left_behind(self, job_id: int) -> bool:
        """Whether pods run on whose Job was deleted without them."""
        pods = self.api.get(PODS.format(self.namespace), labelSelector=f"{objects.JOB}={job_id}")["items"]
        return any(not objects.has_ended(pod) for pod in pods)

    def _path(self, job_id: int) -> str:
        return f"{JOBS.format(self.namespace)}/{objects.job_name(job_id)}"


def look_up(api: Api, path: str, *, namespace: str, owner: str) -> Object | None:
    """What is there of that name, if anything is; NotOurs when another has made it."""
    try:
        there = api.get(path)
    except Missing:
        return None
    except Refused as refusal:
        # Rights are given namespace by namespace: where there is none, there are none.
        if refusal.code == FORBIDDEN and _is_missing(api, namespace):
            return None
        raise
    if there["metadata"].get("labels", {}).get(objects.OWNER) != owner:
        raise NotOurs(f"{there['kind']} {there['metadata']['name']} of somebody else is in {namespace}")
    return there


def _is_missing(api: Api, namespace: str) -> bool:
    try:
        api.get(f"/api/v1/namespaces/{namespace}")
    except Missing:
        return True
    return False


def delete_pod(api: Api, pod: Object, *, grace_seconds: int | None = None) -> None:
    """This very pod; one of the same name that came after it stays."""
    about = pod["metadata"]
    with suppress(Missing, Changed):
        api.delete(
            f"{PODS.format(about['namespace'])}/{about['name']}",
            uid=about["uid"],
            grace_seconds=grace_seconds,
        )


def _stays_where_it_was(job: Object, refusal: Refused) -> bool:
    """Before Kubernetes 1.36 a Job that has run once is not to be moved, though nothing of it is left."""
    return "field is immutable" in refusal.message and objects.condition(job, "Suspended") is not None


def _uid(job: Object) -> str:
    return str(job["metadata"]["uid"])


def tries() -> list[bool]:
    """For each try whether it is the last."""
    return [False] * (TRIES - 1) + [True]
