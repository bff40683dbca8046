"""Explains why a round stops running jobs: with a Cause for statistics, and with a message for people."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from fairshare import model as fs
from fairshare.guarantees import ROUNDING, held_by
from scheduling.core.reason_labels import OF_LIMITS
from scheduling.models import Job
from scheduling.models.event_codes import Cause, EventCode, Message
from scheduling.shares.snapshot import SnapshotIndex

# Reasons that a plan gives to running jobs whose nodes no longer exist.
_AWAY = frozenset({fs.Reason.NODES_AWAY, fs.Reason.NEVER_NO_SUCH_GENERATION, fs.Reason.NEVER_TOO_LARGE})


class Causes:
    """Explains why one round stops jobs. Explanations contain only what every user who sees the job may know."""

    def __init__(self, view: fs.Snapshot, plan: fs.Decision, legend: SnapshotIndex) -> None:
        self._view, self._plan, self._legend = view, plan, legend

    @cached_property
    def _row(self) -> dict[int, int]:
        """Returns, by job id, the index of each job in the round's snapshot. Computed only on first use, because most
        rounds stop no job and do not need it."""
        return {job: i for i, job in enumerate(self._legend.jobs)}

    def why(self, job: Job) -> tuple[Cause, Message]:
        """Returns why the round stops `job`: the Cause, and the message for the job's history."""
        row = self._row.get(job.pk)
        reason = fs.Reason.SHARE_IN_USE if row is None else fs.Reason(int(self._plan.reason[row]))
        if reason is fs.Reason.OWN_JOBS_AHEAD:
            return Cause.OWN_JOBS, Message.of(EventCode.OWN_JOBS, owner=job.owner.get_username())
        if reason in OF_LIMITS - {fs.Reason.PREEMPTIBLE} or reason is fs.Reason.NEVER_OVER_QUOTA:
            return Cause.LIMIT, Message.of(EventCode.PREEMPTED, reason=int(reason))
        if reason in _AWAY:
            return Cause.LOST, Message.of(EventCode.PREEMPTED, reason=int(reason))
        if reason is fs.Reason.PREEMPTIBLE:
            return Cause.CLAIMED, Message.of(EventCode.NOT_IDLE)
        beyond = {} if row is None else self._beyond(job, row, self._held_before)
        return Cause.CLAIMED, Message.of(EventCode.CLAIMED, waited=self._waited, **beyond)

    def lent_to(self, job: Job, row: int) -> dict[str, Any]:
        """Returns parameters for a message about the GPUs that the job's account holds beyond its guarantee.

        Returns an empty dict if the account holds no such GPUs. `row` is the job's index in the round's snapshot. The
        parameters are:

        - `owner`: the name of the job's owner.
        - `gpus`: the GPUs that the account holds after this round.
        - `guaranteed`: the GPUs that the account is guaranteed.
        """
        picked = np.zeros(len(self._view.jobs), dtype=bool)
        picked[self._plan.run] = True
        return self._beyond(job, row, held_by(self._view, picked))

    def _beyond(self, job: Job, row: int, held: fs.Floats) -> dict[str, Any]:
        if self._plan.guaranteed is None:
            return {}
        account = int(self._view.jobs.account[row])
        gpus, guaranteed = held[account], self._plan.guaranteed[account].sum()
        if gpus <= guaranteed + ROUNDING:
            return {}
        return {
            "owner": job.owner.get_username(),
            "gpus": round(gpus),
            "guaranteed": round(float(guaranteed), 1),
        }

    @cached_property
    def _held_before(self) -> fs.Floats:
        """Returns the number of GPUs that each account held before the round, as an array by account."""
        return held_by(self._view, self._view.jobs.running_on != fs.NOWHERE)

    @cached_property
    def _waited(self) -> int:
        """Returns the total number of GPUs that the round gives to jobs that were waiting."""
        jobs, run = self._view.jobs, self._plan.run
        return int(self._plan.gpus(jobs)[jobs.running_on[run] == fs.NOWHERE].sum())
