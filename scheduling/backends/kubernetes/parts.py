"""Gangs with roles: each role is a part of the gang with its own Job. Combines the parts' states to that of the gang.

Orders reach the first part (the lead) first, and the lead's Job keeps why the gang ends. So whatever the other parts do
after the gang was ordered to end does not change how it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduling.backends.base import End, Phase
from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.api import Object
from scheduling.backends.kubernetes.gang_status import GangStatus

INCOMPLETE = "Jobs of some of the gang's roles are missing in the cluster"


@dataclass(frozen=True, slots=True)
class PartState:
    """One part of a gang, with its status."""

    number: int
    role: str
    ends_job: bool
    status: GangStatus

    @property
    def has_ended(self) -> bool:
        return self.status.phase is Phase.ENDED

    @property
    def has_succeeded(self) -> bool:
        return self.has_ended and self.status.end is End.SUCCEEDED


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a gang ends."""

    end: End
    exit_code: int | None
    message: str


def state_of(job: Object, status: GangStatus) -> PartState:
    return PartState(objects.part_of(job), objects.role_of(job), objects.ends_gang(job), status)


def latest(parts: Sequence[PartState]) -> list[PartState]:
    """Returns the parts that belong to the gang's latest attempt, the lead first."""
    epoch = max(part.status.epoch for part in parts)
    return sorted((part for part in parts if part.status.epoch == epoch), key=lambda part: part.number)


def verdict(parts: Sequence[PartState], of: int) -> Verdict | None:
    """Returns how the gang ends; None while nothing has decided it. `parts` are those of its latest attempt.

    `of` is the number of the gang's parts. In this order:

    - The lead was stopped, has failed or is lost: so is the gang.
    - All parts of roles that end the job have succeeded: the gang has.
    - Another part was stopped, has failed or is lost: so is the gang.
    - All parts have succeeded: the gang has.
    """
    codes = [part.status.exit_code for part in parts if part.has_ended and part.status.exit_code]
    lost = [part for part in parts if part.has_ended and not part.has_succeeded]
    if lost and lost[0].number == 0:
        return _verdict_of(lost[0], codes)
    deciding = [part for part in parts if part.ends_job]
    if deciding and all(part.has_succeeded for part in deciding):
        roles = " and ".join(part.role for part in deciding)
        return Verdict(End.SUCCEEDED, 0, f"every worker of {roles} exited with code 0")
    if lost:
        return _verdict_of(min(lost, key=lambda part: part.status.end is not End.FAILED), codes)
    if len(parts) == of and all(part.has_succeeded for part in parts):
        return Verdict(End.SUCCEEDED, 0, parts[0].status.message)
    return None


def _verdict_of(part: PartState, codes: Sequence[int]) -> Verdict:
    end = part.status.end or End.LOST
    code = part.status.exit_code or next(iter(codes), None) if end is End.FAILED else None
    return Verdict(end, code, part.status.message)


def combined(parts: Sequence[PartState], of: int, leading: int) -> GangStatus:
    """Returns the status of the gang. `leading` is the number of the part with the worker whose port counts.

    The gang runs when all workers of all parts do, and has ended when no worker of any part is left.
    """
    now = latest(parts)
    ran = [part.status.ran_since for part in now]
    whole = replace(
        next(
            (part.status for part in now if part.number == leading), replace(now[0].status, ready_since=None)
        ),
        ran_since=max(at for at in ran if at) if len(now) == of and all(ran) else None,
    )
    if any(not part.has_ended for part in parts):
        has_run = len(now) == of and all(part.status.ran_since or part.has_ended for part in now)
        phase = Phase.RUNNING if has_run else Phase.STARTING
        return replace(whole, phase=phase, since=whole.ran_since, end=None, exit_code=None, message="")
    found = verdict(now, of) or Verdict(End.LOST, None, INCOMPLETE)
    ends = [part.status.since for part in now if part.status.since]
    return replace(
        whole,
        phase=Phase.ENDED,
        since=max(ends, default=None),
        end=found.end,
        exit_code=found.exit_code,
        message=found.message,
        ready_since=None,
    )
