"""Orders to jobs of one worker that run as pods without a Job over them, for bursts of many short ones.

A Job costs its controllers half a dozen requests a turn, of which they may make some twenty a second. Such a pod costs
one to make and one to end, both Fairlot's. Its name is the same for every turn of its job, so the API server itself
lets no two of them be there at once; the epoch that it bears says which turn has the name. What has ended keeps it,
as a suspended Job would: so ends are seen though nobody watched, and late requests for a turn that is over find that.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from scheduling.backends.kubernetes import objects, secret_objects
from scheduling.backends.kubernetes.api import Api, Changed, Invalid, Missing, Object, Taken
from scheduling.backends.kubernetes.objects import Turn
from scheduling.backends.kubernetes.orders import PODS, Outcome, StillThere, delete_pod, look_up, tries


@dataclass(frozen=True, slots=True)
class BareOrders:
    """As Orders, for pods in one namespace. Unreachable and Refused: to be given again later."""

    api: Api
    namespace: str
    owner: str  # marks what is ours

    def find(self, job_id: int) -> Object | None:
        """The job's pod, of whichever turn; raises NotOurs."""
        return look_up(self.api, self._path(job_id), namespace=self.namespace, owner=self.owner)

    def start(self, job_id: int, pod: objects.Pod, turn: Turn) -> Outcome:
        """The job's worker is there for `turn`; raises StillThere while an earlier turn's has not ended."""
        if len(turn.nodes) != 1 or secret_objects.is_needed(pod.secrets):
            raise ValueError("gangs, and what needs Secrets, have a Job")
        wanted = objects.new_pod(job_id, pod, owner=self.owner, turn=turn)
        for _ in tries():
            try:
                self.api.create(PODS.format(self.namespace), wanted)
            except Taken:
                there = self.find(job_id)
            else:
                return Outcome.DONE
            if there is None:
                continue  # it has only just gone
            at = objects.epoch_of(there)
            if at > turn.epoch:
                return Outcome.OVERTAKEN
            if at == turn.epoch:
                return Outcome.OVERTAKEN if objects.is_told_to_end(there) else Outcome.DONE
            if not objects.has_ended(there):
                if not objects.is_told_to_end(there):  # nobody waits for its end any more
                    with suppress(Invalid, Missing, Changed):
                        self._end(there)
                raise StillThere(f"the pod of turn {at} of job {job_id} is still there")
            delete_pod(self.api, there)
        raise StillThere(f"the pod of job {job_id} is made and removed by others again and again")

    def stop(self, job_id: int, *, epoch: int, token: str, because: str = "") -> Outcome:
        """The pod of the lease `epoch` ends, or of one before it.

        Where there is none, nothing is left that would keep a start of this lease from coming later, which a start
        only does whose sender was believed dead; what comes up then has no lease, and is found by that.
        """
        for last in tries():
            there = self.find(job_id)
            if there is None:
                return Outcome.MISSING
            if objects.epoch_of(there) > epoch:
                return Outcome.OVERTAKEN
            if objects.has_ended(there):
                return Outcome.FINISHED
            try:
                if not objects.is_told_to_end(there):
                    self._end(there, because)
            except (Invalid, Missing, Changed):
                if last:
                    raise
            else:
                return Outcome.DONE
        raise AssertionError("unreachable")

    def _end(self, pod: Object, because: str = "") -> None:
        """As it was read: Invalid, Missing or Changed when it has ended or begun since, or another has its name."""
        about, at, path = pod["metadata"], objects.epoch_of(pod), self._path(objects.job_id_of(pod))
        if objects.has_started(pod):
            self.api.patch(path, objects.end(about["uid"], at=at, because=because))
            return
        if because:
            about = self.api.patch(path, objects.note_why(about["uid"], at=at, because=because))["metadata"]
        self.api.delete(path, uid=about["uid"], version=about["resourceVersion"])

    def _path(self, job_id: int) -> str:
        return f"{PODS.format(self.namespace)}/{objects.pod_name(job_id)}"
