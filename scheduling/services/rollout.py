"""Which replicas of a service to make and which to end. No database, no clock: what is there in, what to do out.

The rules for changing revisions are those of Kubernetes' Deployments (pkg/controller/deployment/rolling.go):
unready replicas of other revisions go before ready ones, and none goes while fewer would be ready, or could
soon be, than `replicas - max_unavailable`. Other than there, a replica that is ending counts until it is gone,
for it holds GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replica:
    """One that has not ended."""

    id: int  # grows with the time of making
    slot: int
    is_current: bool  # of the revision that is wanted
    is_ready: bool
    is_ending: bool = False  # told to go for good


@dataclass(frozen=True, slots=True)
class Wanted:
    """How it should be, and within what bounds it may change."""

    replicas: int
    max_surge: int
    max_unavailable: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. What follows from it is seen by the next one."""

    make: Sequence[int]  # slots
    end: Sequence[int]  # ids


def plan(wanted: Wanted, replicas: Sequence[Replica], resting: Collection[int] = ()) -> Plan:
    """The next step for `replicas`, all that have not ended.

    `resting` are slots whose last replica ended by itself and is to be made anew, but not yet.
    """
    staying = [replica for replica in replicas if not replica.is_ending]
    new = [replica for replica in staying if replica.is_current]
    old = [replica for replica in staying if not replica.is_current]
    end = _surplus(new, len(new) - wanted.replicas)
    return Plan(_missing(wanted, replicas, len(new), resting), end + _outdated(wanted, new, old))


def _missing(
    wanted: Wanted, replicas: Sequence[Replica], new: int, resting: Collection[int]
) -> Sequence[int]:
    most = wanted.replicas + wanted.max_surge if wanted.replicas else 0
    taken = {replica.slot for replica in replicas}
    free = [slot for slot in range(most) if slot not in taken]
    waiting = sum(slot in resting for slot in free)
    count = min(wanted.replicas - new, most - len(replicas)) - waiting
    return [slot for slot in free if slot not in resting][: max(0, count)]


def _surplus(replicas: Sequence[Replica], count: int) -> list[int]:
    """The first `count` to go: those that are not ready, then the newest."""
    ordered = sorted(replicas, key=lambda replica: (replica.is_ready, -replica.id))
    return [replica.id for replica in ordered[: max(0, count)]]


def _outdated(wanted: Wanted, new: Sequence[Replica], old: Sequence[Replica]) -> list[int]:
    if not wanted.replicas:
        return [replica.id for replica in old]
    least = max(0, wanted.replicas - wanted.max_unavailable)
    # Of the new ones no more than are wanted stay.
    ready = min(wanted.replicas, sum(replica.is_ready for replica in new))
    coming = min(wanted.replicas, len(new)) - ready
    unready_old = [replica for replica in old if not replica.is_ready]
    ready_old = [replica for replica in old if replica.is_ready]
    spare = min(wanted.replicas, len(new)) + len(old) - least - coming
    gone = _surplus(unready_old, spare)
    spare = min(spare - len(gone), ready + len(ready_old) - least)
    return gone + _surplus(ready_old, spare)
