"""Why what runs is stopped: as a kind that can be counted, and in words with numbers."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property

import numpy as np

from fairshare import model as fs
from fairshare.guarantees import ROUNDING, held_by
from scheduling.core.reason_labels import OF_LIMITS, SHORT
from scheduling.models import Job
from scheduling.shares.snapshot import SnapshotIndex


class Cause(StrEnum):
    """Why a job lost its GPUs, or why nobody answered; kept with the event that says so."""

    CLAIMED = "claimed"  # others claim what is guaranteed to them, or it is their turn
    OWN_JOBS = "own_jobs"  # other jobs of the same account go first
    LIMIT = "limit"
    MOVED = "moved"  # it goes on elsewhere
    DRAINED = "drained"
    LOST = "lost"  # its processes or their node vanished
    ARCHIVED = "team_archived"
    NO_RIGHT = "owner_may_not"
    PORTAL_STOPPED = "portal_stopped"
    PERSON = "person"
    REPLACED = "replaced"  # a roll-out or scaling ended it
    ENDED = "ended"  # by itself
    UNREADY = "not_ready"


# Nodes that are not there any more for what ran on them, as a plan has it.
_AWAY = frozenset({fs.Reason.NODES_AWAY, fs.Reason.NEVER_NO_SUCH_GENERATION, fs.Reason.NEVER_TOO_LARGE})


class Causes:
    """Says of jobs that a round stops why, as everybody may read it who sees the job."""

    def __init__(self, view: fs.Snapshot, plan: fs.Decision, legend: SnapshotIndex) -> None:
        self._view, self._plan, self._legend = view, plan, legend

    @cached_property
    def _row(self) -> dict[int, int]:
        """By job; few rounds stop any."""
        return {job: i for i, job in enumerate(self._legend.jobs)}

    def why(self, job: Job) -> tuple[Cause, str]:
        """The kind of cause, and the words."""
        row = self._row.get(job.pk)
        reason = fs.Reason.SHARE_IN_USE if row is None else fs.Reason(int(self._plan.reason[row]))
        if reason is fs.Reason.OWN_JOBS_AHEAD:
            return Cause.OWN_JOBS, f"Preempted: other jobs of {job.owner.get_username()} go first"
        if reason in OF_LIMITS - {fs.Reason.PREEMPTIBLE} or reason is fs.Reason.NEVER_OVER_QUOTA:
            return Cause.LIMIT, f"Preempted: {SHORT[reason]}"
        if reason in _AWAY:
            return Cause.LOST, f"Preempted: {SHORT[reason]}"
        if reason is fs.Reason.PREEMPTIBLE:
            return Cause.CLAIMED, "Preempted: it ran on idle GPUs, and others want them"
        beyond = "" if row is None else self._beyond(job, row, self._held_before)
        return Cause.CLAIMED, f"Preempted: {beyond or 'it is the turn of others'}{self._claims}"

    def lent_to(self, job: Job, row: int) -> str:
        """In words, that the owner's guarantee does not suffice for what it has from this round on."""
        picked = np.zeros(len(self._view.jobs), dtype=bool)
        picked[self._plan.run] = True
        return self._beyond(job, row, held_by(self._view, picked))

    def _beyond(self, job: Job, row: int, held: fs.Floats) -> str:
        if self._plan.guaranteed is None:
            return ""
        account = int(self._view.jobs.account[row])
        gpus, guaranteed = held[account], self._plan.guaranteed[account].sum()
        if gpus <= guaranteed + ROUNDING:
            return ""
        has = f"{round(gpus)} GPU{'' if round(gpus) == 1 else 's'}"
        return f"{job.owner.get_username()} has {has}, of which {round(guaranteed, 1):g} are guaranteed"

    @cached_property
    def _held_before(self) -> fs.Floats:
        """(T,)"""
        return held_by(self._view, self._view.jobs.running_on != fs.NOWHERE)

    @cached_property
    def _claims(self) -> str:
        """For how many GPUs others take their place."""
        jobs, run = self._view.jobs, self._plan.run
        new = run[jobs.running_on[run] == fs.NOWHERE]
        gpus = int((jobs.workers * jobs.gpus)[new].sum())
        return f"; jobs that waited get {gpus}" if gpus else ""
