"""The class of every GPU at every moment: the arithmetic of closed books, without a database.

A GPU that a gang holds is *assembling* until all workers run, then *busy*, or *idle* while no use of it is observed.
A GPU that nobody holds is *down* with its node or after it failed, used by *others* than Fairlot, *drained* if
nothing new may start on its node, or *free*. Held GPUs count as present whatever the state of their node, because
they are billed. All times are whole microseconds, so that nothing is lost between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import pairwise


class Availability(StrEnum):
    """What may be done with the GPUs of a node that nobody holds."""

    READY = "ready"
    DRAINED = "drained"  # nothing new starts there
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Condition:
    """The state of a node from one moment until its next condition."""

    since: int
    generation: int
    gpus: int
    availability: Availability
    failed: int = 0
    others: int = 0


@dataclass(frozen=True, slots=True)
class Allocation:
    """GPUs of one node that a gang held; times may reach beyond the hour.

    `assembled` is when all workers ran; None: never while it was held. `unused` are the times without observed use.
    """

    generation: int
    gpus: int
    begins: int
    ends: int
    assembled: int | None
    unused: Sequence[tuple[int, int]] = ()


@dataclass(slots=True)
class Classes:
    """GPU-microseconds in each class."""

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
    """The changes at one moment: of held GPUs by generation and class, and of the node's condition."""

    held: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    condition: Condition | None = None


def classify(
    bounds: Mapping[int, Sequence[int]], conditions: Iterable[Condition], allocations: Iterable[Allocation]
) -> dict[tuple[int, int], Classes]:
    """Returns the classes of one node's GPUs, by generation and interval.

    `bounds` has the sorted edges of each generation's intervals; the first and last edge are the same for all.
    Intervals count from 0. A node without any condition yet has no GPUs except those that are held.
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
    """Yields the allocation's time by class, without overlaps."""
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
    """Yields the classes of the `left` GPUs that nobody holds."""
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
