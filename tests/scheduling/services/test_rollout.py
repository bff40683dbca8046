"""The rollout controller keeps the limits on extra and unavailable replicas at every step, and the rollout
completes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduling.services.rollout import Plan, Replica, Wanted, plan


@dataclass
class Play:
    """A simulated service, whose replicas are rows in memory. Tests change its replicas and its revision, a number."""

    wanted: Wanted
    revision: int = 1
    replicas: dict[int, tuple[Replica, int]] = field(default_factory=dict)  # (replica, its revision) by id
    resting: set[int] = field(default_factory=set)
    made: int = 0

    def seen(self) -> list[Replica]:
        return [
            replace(replica, is_current=revision == self.revision)
            for replica, revision in self.replicas.values()
        ]

    @property
    def ready(self) -> int:
        return sum(replica.is_ready and not replica.is_ending for replica in self.seen())

    def step(self) -> Plan:
        """Carries out one plan of the controller, checks that it keeps the bounds, and returns the plan."""
        before, ready = len(self.replicas), self.ready
        todo = plan(self.wanted, self.seen(), self.resting)
        most = self.wanted.replicas + self.wanted.max_surge
        assert not set(todo.make) & self.resting
        assert not todo.make or before + len(todo.make) <= most
        assert len(set(todo.end)) == len(todo.end)
        for pk in todo.end:
            replica, revision = self.replicas[pk]
            assert not replica.is_ending
            self.replicas[pk] = replace(replica, is_ending=True), revision
        least = max(0, self.wanted.replicas - self.wanted.max_unavailable)
        assert self.ready >= min(ready, least), "fewer are ready by the controller's own doing"
        for slot in todo.make:
            assert slot < most
            assert slot not in {replica.slot for replica in self.seen()}
            self.made += 1
            self.replicas[self.made] = Replica(self.made, slot, True, False), self.revision
        return todo

    def flip(self, chance: int) -> None:
        """Makes a random replica unready if it is ready, otherwise ready."""
        if self.replicas:
            pk = sorted(self.replicas)[chance % len(self.replicas)]
            replica, revision = self.replicas[pk]
            self.replicas[pk] = replace(replica, is_ready=not replica.is_ready), revision

    def lose(self, chance: int) -> None:
        """Removes a random replica.

        If `chance` is odd, a running replica of the current revision counts as crashed: the controller must leave its
        slot empty until `settle` is called.
        """
        if self.replicas:
            pk = sorted(self.replicas)[chance % len(self.replicas)]
            replica, revision = self.replicas.pop(pk)
            if chance % 2 and revision == self.revision and not replica.is_ending:
                self.resting.add(replica.slot)

    def settle(self) -> None:
        """Brings the service to rest: removes all stopping replicas, makes the others ready, and lets the controller
        fill slots again that were left empty after crashes."""
        self.resting.clear()
        self.replicas = {
            pk: (replace(replica, is_ready=True), revision)
            for pk, (replica, revision) in self.replicas.items()
            if not replica.is_ending
        }


sizes = st.integers(0, 6)
bounds = st.builds(Wanted, st.integers(1, 6), st.integers(0, 3), st.integers(0, 3))
happenings = st.one_of(
    st.tuples(st.just("step"), st.just(0)),
    st.tuples(st.just("flip"), st.integers(0, 50)),
    st.tuples(st.just("lose"), st.integers(0, 50)),
    st.tuples(st.just("rest"), st.just(0)),
    st.tuples(st.just("update"), st.integers(1, 4)),
    st.tuples(st.just("scale"), sizes),
)


@settings(deadline=None, max_examples=600)
@given(bounds, st.lists(happenings, max_size=60))
def test_bounds_hold_at_every_step_and_it_converges(wanted: Wanted, story: list[tuple[str, int]]) -> None:
    assume(wanted.max_surge or wanted.max_unavailable)
    play = Play(wanted)
    for what, chance in story:
        match what:
            case "step":
                play.step()
            case "flip":
                play.flip(chance)
            case "lose":
                play.lose(chance)
            case "rest":
                play.resting.clear()
            case "update":
                play.revision = chance  # back to an earlier revision: a rollback
            case "scale":
                play.wanted = replace(play.wanted, replicas=chance)
    for _ in range(60):
        play.settle()
        todo = play.step()
        if not todo.make and not todo.end:
            break
    else:
        raise AssertionError(f"no end: {play}")
    play.settle()
    assert {revision for _, revision in play.replicas.values()} <= {play.revision}
    assert len(play.replicas) == play.wanted.replicas
    assert play.ready == play.wanted.replicas


@given(bounds, st.lists(happenings, max_size=40))
def test_a_step_that_was_done_is_not_done_again(wanted: Wanted, story: list[tuple[str, int]]) -> None:
    assume(wanted.max_surge or wanted.max_unavailable)
    play = Play(wanted)
    for what, chance in story:
        if what in ("flip", "lose"):
            getattr(play, what)(chance)
        play.step()
        again = play.step()
        assert not again.make
        assert not again.end


def replica(number: int, *, current: bool = True, ready: bool = True, **more: bool) -> Replica:
    return Replica(number, number, current, ready, **more)


def test_fewer_are_wanted_unready_ones_go_first_and_then_the_newest() -> None:
    there = [replica(0), replica(1, ready=False), replica(2), replica(3)]
    assert plan(Wanted(3, 1, 0), there).end == [1]
    assert plan(Wanted(2, 1, 0), there).end == [1, 3]
    assert plan(Wanted(0, 1, 0), there).end == [1, 3, 2, 0]


def test_without_surge_one_goes_before_its_successor_is_made() -> None:
    old = [replica(number, current=False) for number in range(3)]
    first = plan(Wanted(3, 0, 1), old)
    assert (first.make, first.end) == ([], [2])
    going = [*old[:2], replica(2, current=False, is_ending=True)]
    assert plan(Wanted(3, 0, 1), going) == Plan([], []), "it holds its GPUs until it is gone"
    assert plan(Wanted(3, 0, 1), old[:2]).make == [2]


def test_with_surge_an_old_one_goes_when_a_new_one_is_ready() -> None:
    old = [replica(number, current=False) for number in range(3)]
    assert plan(Wanted(3, 1, 0), old) == Plan([3], [])
    assert plan(Wanted(3, 1, 0), [*old, replica(3, ready=False)]) == Plan([], [])
    assert plan(Wanted(3, 1, 0), [*old, replica(3)]) == Plan([], [2])


@pytest.mark.parametrize("surge", [0, 1, 3])
def test_a_replica_that_ended_keeps_its_place_while_it_backs_off(surge: int) -> None:
    there = [replica(0), replica(2)]
    assert plan(Wanted(3, surge, 1), there, {1}).make == []
    assert plan(Wanted(3, surge, 1), there).make == [1]
