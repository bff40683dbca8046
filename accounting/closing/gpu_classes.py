"""Computes the class of every GPU of a node at every moment, for the closing of hours. Makes no queries.

A GPU that a gang holds has one of these classes:

- *assembling* until all workers of the gang run
- *idle* while Fairlot observes no use of the GPU
- *busy* otherwise

A GPU that no gang holds has one of these classes:

- *down* if its node is down or the GPU failed
- *others* if a process outside Fairlot uses the GPU
- *drained* if nothing new may start on the node
- *free* otherwise

Held GPUs always count in the capacity, even on a node that is down, because they are billed. All times are whole
microseconds, so that no rounding occurs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import pairwise


class Availability(StrEnum):
    """Says whether new leases may use the free GPUs of a node."""

    READY = "ready"
    DRAINED = "drained"  # no new lease starts on the node
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Condition:
    """Represents the state of a node from `since` until the node's next Condition begins."""

    since: int
    generation: int
    gpus: int
    availability: Availability
    failed: int = 0
    others: int = 0


@dataclass(frozen=True, slots=True)
class Allocation:
    """Represents GPUs of one node that a gang held from `begins` to `ends`. This time may extend beyond the computed
    hour.

    `assembled`: the time at which all workers of the gang ran; None if that never happened. `unused`: the intervals in
    which Fairlot observed no use of the GPUs.
    """

    generation: int
    gpus: int
    begins: int
    ends: int
    assembled: int | None
    unused: Sequence[tuple[int, int]] = ()


@dataclass(slots=True)
class Classes:
    """Counts GPU time by class, in GPU-microseconds. The class is a GPU's state, such as busy, idle or free."""

    busy: int = 0
    idle: int = 0
    assembling: int = 0
    free: int = 0
    others: int = 0
    drained: int = 0
    down: int = 0

    @property
    def held(self) -> int:
        return self.busy + self.idle + self.assembling

    @property
    def capacity(self) -> int:
        return self.held + self.free + self.others + self.drained + self.down

    def add(self, more: Classes) -> None:
        for name in NAMES:
            setattr(self, name, getattr(self, name) + getattr(more, name))


NAMES = tuple(one.name for one in fields(Classes))
HELD = ("busy", "idle", "assembling")


@dataclass(slots=True)
class _Change:
    """Represents the changes on a node at one moment.

    `held`: the change in the number of GPUs that gangs hold, by (generation, class). `condition`: the new condition of
    the node; None if the condition does not change.
    """

    held: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    condition: Condition | None = None


def classify(
    bounds: Mapping[int, Sequence[int]], conditions: Iterable[Condition], allocations: Iterable[Allocation]
) -> dict[tuple[int, int], Classes]:
    """Returns the GPU time of one node in one hour by class, for each generation and each interval with a constant
    price.

    The keys of the result are (generation, index of the interval).

    `bounds`: for each generation, the start of the hour, the times at which its price changes, and the end of the hour,
    in microseconds. `conditions`: the states of the node. Before the first one, only GPUs in `allocations` count.
    """
    begins, ends = (next(iter(bounds.values()))[at] for at in (0, -1))
    changes: dict[int, _Change] = defaultdict(_Change)
    for condition in sorted(conditions, key=lambda one: one.since):
        if condition.since < ends:
            changes[max(condition.since, begins)].condition = condition
    for allocation in allocations:
        for name, held_from, held_until in _stretches(allocation):
            start, end = max(held_from, begins), min(held_until, ends)
            if start < end:
                changes[start].held[allocation.generation, name] += allocation.gpus
                changes[end].held[allocation.generation, name] -= allocation.gpus
    for edge in {edge for edges in bounds.values() for edge in edges}:
        changes.setdefault(edge, _Change())
    return _sweep(bounds, changes)


def _stretches(allocation: Allocation) -> Iterable[tuple[str, int, int]]:
    """Yields (class, start, end) for each interval of the allocation, in order of time and without overlaps."""
    assembled = allocation.ends if allocation.assembled is None else allocation.assembled
    assembled = min(max(assembled, allocation.begins), allocation.ends)
    yield "assembling", allocation.begins, assembled
    at = assembled
    for unused_from, unused_until in sorted(allocation.unused):
        start, end = max(unused_from, at), min(unused_until, allocation.ends)
        if start < end:
            yield "busy", at, start
            yield "idle", start, end
            at = end
    yield "busy", at, allocation.ends


def _sweep(
    bounds: Mapping[int, Sequence[int]], changes: Mapping[int, _Change]
) -> dict[tuple[int, int], Classes]:
    found: dict[tuple[int, int], Classes] = defaultdict(Classes)
    held: dict[tuple[int, str], int] = defaultdict(int)
    piece = dict.fromkeys(bounds, -1)
    condition: Condition | None = None
    for at, until in pairwise(sorted(changes)):
        for key, count in changes[at].held.items():
            held[key] += count
        condition = changes[at].condition or condition
        for generation, edges in bounds.items():
            if piece[generation] + 1 < len(edges) and edges[piece[generation] + 1] == at:
                piece[generation] += 1
        lasted = until - at
        for (generation, name), count in held.items():
            if count:
                classes = found[generation, piece[generation]]
                setattr(classes, name, getattr(classes, name) + count * lasted)
        if condition is not None:
            left = max(0, condition.gpus - sum(held.values()))
            for name, count in _unheld(condition, left):
                classes = found[condition.generation, piece[condition.generation]]
                setattr(classes, name, getattr(classes, name) + count * lasted)
    return dict(found)


def _unheld(condition: Condition, left: int) -> Iterable[tuple[str, int]]:
    """Yields (class, number of GPUs) for the GPUs of a node that no gang holds. `left`: the number of these GPUs."""
    if not left:
        return
    if condition.availability is Availability.DOWN:
        yield "down", left
        return
    others = min(condition.others, left)
    failed = min(condition.failed, left - others)
    yield "others", others
    yield "down", failed
    yield ("drained" if condition.availability is Availability.DRAINED else "free"), left - others - failed
