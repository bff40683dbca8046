"""Decides which replicas of a service to create and to end. The decision depends only on the state of the replicas.

During a rollout, the rules are those of Kubernetes Deployments (pkg/controller/deployment/rolling.go):

- Replicas of other revisions than the current one are ended, unready ones first.
- A ready replica is ended only if at least `replicas - max_unavailable` ready replicas then remain.
- There are at most `replicas + max_surge` replicas. Unlike in a Deployment, this includes replicas that are ending,
  because they hold GPUs until they are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replica:
    """The state of one replica of a service. The replica has not ended."""

    id: int  # a later replica has a greater id
    slot: int
    is_current: bool  # of the current revision
    is_ready: bool
    is_ending: bool = False  # it was cancelled, so it ends and does not resume


@dataclass(frozen=True, slots=True)
class Wanted:
    """The desired number of replicas, and the bounds within which a rollout may deviate from it."""

    replicas: int
    max_surge: int
    max_unavailable: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One step of a rollout: which replicas to create and to end now."""

    make: Sequence[int]  # slots to fill
    end: Sequence[int]  # ids of the replicas to end


def plan(wanted: Wanted, replicas: Sequence[Replica], resting: Collection[int] = ()) -> Plan:
    """Returns the next step of a rollout. `replicas` must contain all replicas that have not ended.

    `resting` are the slots (numbered positions of replicas) in back-off: the last replica there ended by itself and
    must not be replaced yet.
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
    """Returns the ids of `count` replicas to end, in this order: unready replicas before ready ones, newer before older
    ones."""
    ordered = sorted(replicas, key=lambda replica: (replica.is_ready, -replica.id))
    return [replica.id for replica in ordered[: max(0, count)]]


def _outdated(wanted: Wanted, new: Sequence[Replica], old: Sequence[Replica]) -> list[int]:
    if not wanted.replicas:
        return [replica.id for replica in old]
    least = max(0, wanted.replicas - wanted.max_unavailable)
    # Ready replicas of the new revision beyond the desired number do not count, because they end.
    ready = min(wanted.replicas, sum(replica.is_ready for replica in new))
    coming = min(wanted.replicas, len(new)) - ready
    unready_old = [replica for replica in old if not replica.is_ready]
    ready_old = [replica for replica in old if replica.is_ready]
    spare = min(wanted.replicas, len(new)) + len(old) - least - coming
    gone = _surplus(unready_old, spare)
    spare = min(spare - len(gone), ready + len(ready_old) - least)
    return gone + _surplus(ready_old, spare)
