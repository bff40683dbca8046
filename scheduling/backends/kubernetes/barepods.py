"""Orders to jobs of one worker that run as pods without a Job over them, for bursts of many short ones.

A Job costs its controller a dozen requests, of which a cluster's controllers may make some twenty a second. Such a
pod costs one to make and one to stop, both Fairlot's. Its name is the same for every turn of its job, so the API
server itself lets no two of them be there at once; the epoch that it bears tells which turn has the name.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from scheduling.backends.kubernetes import handover, objects
from scheduling.backends.kubernetes.api import Api, Invalid, Missing, Object, Taken
from scheduling.backends.kubernetes.objects import Turn
from scheduling.backends.kubernetes.orders import PODS, NotOurs, Outcome, StillThere, delete_pod


@dataclass(frozen=True, slots=True)
class BareOrders:
    """As Orders, for pods in one namespace. Unreachable and Refused: to be given again later."""

    api: Api
    namespace: str
    owner: str  # marks what is ours

    def find(self, job_id: int) -> Object | None:
        """The job's pod, of whichever turn; raises NotOurs."""
        try:
            there = self.api.get(self._path(job_id))
        except Missing:
            return None
        if there["metadata"].get("labels", {}).get(objects.OWNER) != self.owner:
            raise NotOurs(f"a pod {there['metadata']['name']} of somebody else is in {self.namespace}")
        return there

    def start(self, job_id: int, pod: objects.Pod, turn: Turn) -> Outcome:
        """The job's worker is there for `turn`; raises StillThere while an earlier turn's is."""
        if len(turn.nodes) != 1 or handover.is_needed(pod.secrets):
            raise ValueError("gangs, and what needs Secrets, have a Job")
        wanted = objects.new_pod(job_id, pod, owner=self.owner, turn=turn)
        try:
            self.api.create(PODS.format(self.namespace), wanted)
        except Taken:
            there = self.find(job_id)
        else:
            return Outcome.DONE
        if there is None:
            raise StillThere(f"the pod of an earlier turn of job {job_id} has only just gone")
        at = objects.epoch_of(there)
        if at > turn.epoch:
            return Outcome.OVERTAKEN
        if at == turn.epoch:
            return Outcome.OVERTAKEN if _is_going(there) else Outcome.DONE
        # Nobody waits for its end any more; what has ended only keeps the name.
        delete_pod(self.api, there)
        raise StillThere(f"the pod of turn {at} of job {job_id} was still there")

    def stop(self, job_id: int, *, epoch: int, token: str, because: str = "") -> Outcome:
        """The pod of the lease `epoch` goes, and those of earlier ones.

        Nothing is left that would keep a start of this lease from coming later: as long as the order is not void
        in the database, it is refused there; after that whatever came up is found by the next reconciliation.
        """
        there = self.find(job_id)
        if there is None:
            return Outcome.MISSING
        at = objects.epoch_of(there)
        if at > epoch:
            return Outcome.OVERTAKEN
        if _is_going(there):
            return Outcome.DONE
        if objects.has_ended(there):
            return Outcome.FINISHED  # it stays for a while, and keeps late starts off
        if because:
            with suppress(Invalid, Missing):  # by its uid: it is another one by now, or gone
                self._note(there, because)
        delete_pod(self.api, there)
        return Outcome.DONE

    def _note(self, pod: Object, because: str) -> None:
        uid, at = pod["metadata"]["uid"], objects.epoch_of(pod)
        path = self._path(objects.job_id_of(pod))
        self.api.patch(path, objects.note_why(uid, epoch=at, because=because))

    def _path(self, job_id: int) -> str:
        return f"{PODS.format(self.namespace)}/{objects.pod_name(job_id)}"


def _is_going(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]
