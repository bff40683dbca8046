"""Tests that every microsecond of every GPU is in exactly one class. The expected values come from a slow, obvious
count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from accounting.closing.gpu_classes import NAMES, Allocation, Availability, Classes, Condition, classify

HOUR = 24  # so few that the test can count each moment
K80, A100 = 1, 2
times = st.integers(-5, HOUR + 5)
conditions = st.lists(
    st.builds(
        Condition,
        since=times,
        generation=st.sampled_from([K80, A100]),
        gpus=st.integers(0, 4),
        availability=st.sampled_from(Availability),
        failed=st.integers(0, 3),
        others=st.integers(0, 3),
    ),
    max_size=6,
    unique_by=lambda one: one.since,
)


@st.composite
def allocations(draw: st.DrawFn) -> Allocation:
    begins = draw(times)
    ends = draw(st.integers(begins, HOUR + 8))
    edges = sorted(draw(st.lists(times, max_size=6, unique=True)))
    return Allocation(
        generation=draw(st.sampled_from([K80, A100])),
        gpus=draw(st.integers(1, 3)),
        begins=begins,
        ends=ends,
        assembled=draw(st.none() | times),
        unused=list(zip(edges[::2], edges[1::2], strict=False)),
    )


edges_of_pieces = st.lists(st.integers(1, HOUR - 1), max_size=2, unique=True).map(
    lambda inner: [0, *sorted(inner), HOUR]
)


def class_of(allocation: Allocation, at: int) -> str:
    if allocation.assembled is None or at < allocation.assembled:
        return "assembling"
    return "idle" if any(start <= at < end for start, end in allocation.unused) else "busy"


def counted(
    bounds: dict[int, list[int]], conditions: Sequence[Condition], allocations: Sequence[Allocation]
) -> Counter[tuple[int, int, str]]:
    """Returns the GPU-microseconds by (generation, index of the interval, class), counted one microsecond at a time.

    `bounds` maps each generation to the bounds of the intervals into which the hour is divided, in microseconds. For
    example, [0, 5, 24] divides the hour (24 microseconds in this test) into the intervals 0 to 5 and 5 to 24.
    """
    found: Counter[tuple[int, int, str]] = Counter()
    for at in range(HOUR):
        piece = {pk: max(i for i, edge in enumerate(edges) if edge <= at) for pk, edges in bounds.items()}
        held = [one for one in allocations if one.begins <= at < one.ends]
        for one in held:
            found[one.generation, piece[one.generation], class_of(one, at)] += one.gpus
        known = [one for one in conditions if one.since <= at]
        if not known:
            continue
        now = max(known, key=lambda one: one.since)
        for _ in range(max(0, now.gpus - sum(one.gpus for one in held))):
            others = found[now.generation, -1, f"others at {at}"]
            failed = found[now.generation, -1, f"failed at {at}"]
            if now.availability is Availability.DOWN:
                name = "down"
            elif others < now.others:
                found[now.generation, -1, f"others at {at}"] += 1
                name = "others"
            elif failed < now.failed:
                found[now.generation, -1, f"failed at {at}"] += 1
                name = "down"
            else:
                name = "drained" if now.availability is Availability.DRAINED else "free"
            found[now.generation, piece[now.generation], name] += 1
    return Counter({key: count for key, count in found.items() if key[1] >= 0})


@given(conditions, st.lists(allocations(), max_size=5), edges_of_pieces, edges_of_pieces)
def test_classes_are_what_one_counts_moment_by_moment(
    conditions: list[Condition], allocations: list[Allocation], of_k80: list[int], of_a100: list[int]
) -> None:
    bounds = {K80: of_k80, A100: of_a100}
    found = classify(bounds, conditions, allocations)
    told = Counter(
        {
            (*key, name): getattr(classes, name)
            for key, classes in found.items()
            for name in NAMES
            if getattr(classes, name)
        }
    )
    assert told == counted(bounds, conditions, allocations)


@given(conditions, st.lists(allocations(), max_size=5), st.integers(1, HOUR - 1))
def test_pieces_add_up_to_the_whole(
    conditions: list[Condition], allocations: list[Allocation], cut: int
) -> None:
    whole = classify({K80: [0, HOUR], A100: [0, HOUR]}, conditions, allocations)
    parts = classify({K80: [0, cut, HOUR], A100: [0, cut, HOUR]}, conditions, allocations)
    for generation in (K80, A100):
        sums = Classes()
        for piece in (0, 1):
            sums.add(parts.get((generation, piece), Classes()))
        assert sums == whole.get((generation, 0), Classes())


def test_what_is_held_counts_as_there_though_its_node_is_down_or_smaller_now() -> None:
    down = Condition(0, K80, 4, Availability.DOWN)
    held = Allocation(generation=K80, gpus=3, begins=0, ends=10, assembled=2)
    found = classify({K80: [0, HOUR]}, [down], [held])[K80, 0]
    assert found == Classes(assembling=6, busy=24, down=10 + 4 * 14)
    gone = Condition(0, K80, 0, Availability.DOWN)
    assert classify({K80: [0, HOUR]}, [gone], [held])[K80, 0].capacity == 30
