"""Computes the class of every GPU at every moment: the arithmetic of closed books, without a database.

A GPU that a gang holds is *assembling* until all workers run. After that it is *busy*, or *idle* while Fairlot
observes no use of it. A GPU that no gang holds is *down* if its node is down or the GPU failed, *others* if somebody
else than Fairlot uses it, *drained* if nothing new may start on its node, and otherwise *free*. Held GPUs count in
the capacity whatever the state of their node, because they are billed. All times are whole microseconds, so that
rounding loses nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import pairwise


class Availability(StrEnum):
    """Whether new leases may use the free GPUs of a node."""

    READY = "ready"
    DRAINED = "drained"  # no new lease starts on the node
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Condition:
    """The state of a node from `since` until the node's next condition."""

    since: int
    generation: int
    gpus: int
    availability: Availability
    failed: int = 0
    others: int = 0


@dataclass(frozen=True, slots=True)
class Allocation:
    """GPUs of one node that a gang held; the times may lie outside the hour.

    `assembled` is when all workers ran; None if they never all ran. `unused` contains the intervals without observed
    use.
    """

    generation: int
    gpus: int
    begins: int
    ends: int
    assembled: int | None
    unused: Sequence[tuple[int, int]] = ()


@dataclass(slots=True)
class Classes:
    """GPU-microseconds in each class of GPUs."""

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
    """The changes at one moment: differences of held GPUs by (generation, class), and the node's new condition, if
    any."""

    held: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    condition: Condition | None = None


def classify(
    bounds: Mapping[int, Sequence[int]], conditions: Iterable[Condition], allocations: Iterable[Allocation]
) -> dict[tuple[int, int], Classes]:
    """Returns the classes of one node's GPUs, by (generation, index of the interval).

    `bounds` has the sorted edges of each generation's intervals; the first edge and the last edge are the same for
    all generations. Before its first condition, a node has only the GPUs that are held.
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
    """Yields (class, start, end) for each interval of the allocation, in order and without overlaps."""
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
    """Yields (class, number of GPUs) for the `left` GPUs of a node that no gang holds."""
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
