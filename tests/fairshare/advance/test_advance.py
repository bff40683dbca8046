"""Advance reservations hold under every policy: nobody else has their GPUs while a window is open."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairshare import codec
from fairshare.driver import Situation, between_quanta
from fairshare.model import NOWHERE, Advance, Reason, Snapshot
from fairshare.policies import names, policy_named
from fairshare.reasons import open_to_all
from fairshare.tree import Tree
from tests.fairshare.build import (
    Account,
    Job,
    decide,
    place_of,
    situation,
    snapshot,
    snapshots,
    used_on_nodes,
)

INF = float("inf")
TEAMS = [Account(), Account(), Account(parent=0), Account(parent=1)]  # two teams with one user each


def reserved(view: Snapshot, *rows: tuple[int, int, int, float, bool], lead: float = 100.0) -> Snapshot:
    """Returns the view with reservations: (node, GPUs, account, when the window begins, whether it lends)."""
    columns = list(zip(*rows, strict=True))
    advance = Advance(
        node=np.array(columns[0], dtype=np.int64),
        gpus=np.array(columns[1], dtype=np.int64),
        account=np.array(columns[2], dtype=np.int64),
        opens=np.array(columns[3], dtype=np.float64),
        closes=np.array(columns[3], dtype=np.float64) + 1000.0,
        held=np.array(columns[3], dtype=np.float64) - lead,
        lends=np.array(columns[4], dtype=bool),
    )
    return replace(view, advance=advance)


def keeping(view: Snapshot, jobs: list[int], until: float = INF) -> Snapshot:
    """Returns the view in which these jobs are services or sessions that end at `until`."""
    keeps = np.isin(np.arange(len(view.jobs)), jobs)
    return replace(
        view, jobs=replace(view.jobs, keeps=keeps, unwarned=keeps, until=np.where(keeps, until, INF))
    )


def test_the_teams_gangs_have_the_gpus_and_others_wait_for_the_reservation() -> None:
    view = snapshot([(0, 4)], TEAMS, [Job(3, gpus=4), Job(2, gpus=2), Job(3, gpus=2)])
    plan = decide(reserved(view, (0, 3, 0, 0.0, False)), 1)
    assert plan.run.tolist() == [1]
    assert [Reason(one) for one in plan.reason.tolist()] == [Reason.RESERVED, Reason.NONE, Reason.RESERVED]


def test_others_are_stopped_when_the_window_is_near_also_between_quanta() -> None:
    view = snapshot([(0, 4)], TEAMS, [Job(3, gpus=4, on=(0,)), Job(2, gpus=4)])
    for settings in (view.settings, between_quanta(situation(view).policy, view.settings)):
        far = reserved(replace(view, settings=settings), (0, 4, 0, 150.0, False))
        assert len(decide(far, 1).run) == 1
        near = reserved(replace(view, settings=settings), (0, 4, 0, 90.0, False))
        assert (decide(near, 1).run.tolist(), decide(near, 1).reason[0]) == ([], Reason.RESERVED)
        begun = reserved(replace(view, settings=settings), (0, 4, 0, 0.0, False))
        assert decide(begun, 1).run.tolist() == [1]


def test_a_gang_of_the_team_that_runs_there_before_the_window_goes_on() -> None:
    view = snapshot([(0, 4)], TEAMS, [Job(2, gpus=2, on=(0,)), Job(2, gpus=2)])
    assert decide(reserved(view, (0, 4, 0, 90.0, False)), 1).run.tolist() == [0]
    assert sorted(decide(reserved(view, (0, 4, 0, 0.0, False)), 1).run.tolist()) == [0, 1]


def test_lent_gpus_are_borrowed_and_given_back_at_once() -> None:
    lent = (0, 4, 0, 0.0, True)
    alone = snapshot([(0, 4)], TEAMS, [Job(3, gpus=4)])
    assert decide(reserved(alone, lent), 1).run.tolist() == [0]
    both = snapshot([(0, 4)], TEAMS, [Job(3, gpus=4, on=(0,)), Job(2, gpus=2)])
    fill = replace(both, settings=between_quanta(situation(both).policy, both.settings))
    assert decide(reserved(fill, lent), 1).run.tolist() == [1]


def test_services_and_sessions_start_only_where_they_end_before_the_window() -> None:
    view = snapshot([(0, 4), (0, 4)], TEAMS, [Job(3, gpus=4), Job(3, gpus=4)])
    soon = (0, 4, 0, 5000.0, False)
    assert plan_of(keeping(reserved(view, soon), [0, 1], until=4000.0)) == [0, 1]
    plan = decide(keeping(reserved(view, soon), [0, 1]), 1)
    [starts] = plan.run.tolist()
    assert place_of(plan, starts) == [1]  # the node without a reservation
    assert plan.reason[1 - starts] == Reason.RESERVED
    assert plan_of(keeping(reserved(view, soon), [0])) == [0, 1]  # gangs that take turns run there until then
    # Lent GPUs are not for them at all, because they could not be returned within a turn.
    lent = reserved(view, (0, 4, 0, 0.0, True), (1, 4, 0, 0.0, True))
    assert plan_of(keeping(lent, [0])) == [1]
    running = snapshot(
        [(0, 4)], TEAMS, [Job(3, gpus=4, on=(0,))]
    )  # and those that run there go on until then
    assert plan_of(keeping(reserved(running, soon), [0])) == [0]


def plan_of(view: Snapshot) -> list[int]:
    return sorted(decide(view, 1).run.tolist())


def test_after_the_window_everything_returns() -> None:
    view = reserved(snapshot([(0, 4)], TEAMS, [Job(3, gpus=4)]), (0, 4, 0, 0.0, False))
    assert plan_of(replace(view, now=999.0)) == []
    assert plan_of(replace(view, now=1000.0)) == [0]


def test_limits_bind_inside_a_window() -> None:
    accounts = [Account(cap_total=2), Account(), Account(parent=0), Account(parent=1)]
    view = snapshot([(0, 4)], accounts, [Job(2, gpus=2), Job(2, gpus=1), Job(2, gpus=1)])
    plan = decide(reserved(view, (0, 4, 0, 0.0, False)), 1)
    assert int(view.jobs.gpus[plan.run].sum()) == 2


def test_a_limit_that_is_set_in_a_window_binds_when_the_quantum_is_over() -> None:
    accounts = [Account(cap_total=2), Account(), Account(parent=0), Account(parent=1)]
    view = snapshot([(0, 4)], accounts, [Job(2, gpus=2, on=(0,)), Job(2, gpus=2, on=(0,))])
    view = reserved(view, (0, 4, 0, 0.0, False))
    assert plan_of(view) == [0]
    between = between_quanta(situation(view).policy, view.settings)
    assert plan_of(replace(view, settings=between)) == [0, 1]


def test_when_a_quantum_is_over_the_higher_priority_has_the_reserved_gpus() -> None:
    runs, waits = Job(2, gpus=4, on=(0,), resident=1e4), Job(2, gpus=4, priority=5)
    view = reserved(snapshot([(0, 4)], TEAMS, [runs, waits]), (0, 4, 0, 0.0, False))
    assert plan_of(view) == [1]
    between = between_quanta(situation(view).policy, view.settings)
    assert plan_of(replace(view, settings=between)) == [0]
    assert plan_of(replace(view, settings=replace(view.settings, min_hold=1e5))) == [0]
    assert plan_of(keeping(view, [0])) == [0]


def test_a_gang_of_higher_priority_takes_free_reserved_gpus_before_those_of_others() -> None:
    low, high = Job(2, gpus=2, on=(0,), resident=1e4), Job(2, gpus=2, priority=5)
    view = reserved(
        snapshot([(0, 2), (0, 2)], TEAMS, [low, high]), (0, 2, 0, 0.0, False), (1, 2, 0, 0.0, False)
    )
    plan = decide(view, 1)
    assert (place_of(plan, 0), place_of(plan, 1)) == ([0], [1])
    same = reserved(snapshot([(0, 2)], TEAMS, [low, Job(2, gpus=2)]), (0, 2, 0, 0.0, False))
    assert plan_of(same) == [0]


def test_a_reservation_on_a_drained_node_or_of_a_team_without_jobs_harms_nobody() -> None:
    view = snapshot([(0, 4), (0, 4)], TEAMS, [Job(3, gpus=4)], away=(0,))
    assert plan_of(reserved(view, (0, 4, 0, 0.0, False))) == [0]
    assert plan_of(reserved(view, (1, 2, NOWHERE, 0.0, False))) == []
    assert plan_of(reserved(view, (1, 2, NOWHERE, 0.0, True))) == [0]


def test_a_record_has_the_reservations_and_decides_the_same() -> None:
    view = reserved(snapshot([(0, 4)], TEAMS, [Job(3, gpus=2), Job(2)]), (0, 3, 0, 0.0, False))
    again = codec.decode_snapshot(codec.encode(view))
    assert codec.encode(decide(again, 3)) == codec.encode(decide(view, 3))
    plain = replace(view, advance=None)
    assert codec.decode_snapshot(codec.encode(plain)).advance is None


@st.composite
def _with_reservations(draw: st.DrawFn) -> Snapshot:
    view = draw(snapshots())
    nodes = len(view.cluster.capacity)
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, nodes - 1),
                st.integers(1, 6),
                st.integers(NOWHERE, len(view.accounts.parent) - 1),
                st.sampled_from([0.0, 50.0, 500.0]),
                st.booleans(),
            ),
            min_size=1,
            max_size=5,
        )
    )
    keeps = draw(st.lists(st.integers(0, max(len(view.jobs) - 1, 0)), max_size=4))
    return keeping(reserved(view, *rows), keeps, until=draw(st.sampled_from([100.0, INF])))


@given(_with_reservations(), st.sampled_from(names()), st.integers(0, 9), st.booleans())
def test_at_no_round_do_others_have_reserved_gpus(
    view: Snapshot, name: str, seed: int, is_fill: bool
) -> None:
    policy = policy_named(name, None, {})
    if is_fill:
        view = replace(view, settings=between_quanta(policy, view.settings))
    plan = Situation.first(policy, view).decide(seed)
    assert view.advance is not None
    advance, jobs, tree = view.advance, view.jobs, Tree.of(view.accounts.parent)
    assert (used_on_nodes(view, plan) <= view.cluster.capacity).all()
    assert ((plan.reason == 0) == np.isin(np.arange(len(jobs)), plan.run)).all()
    held = (advance.held <= view.now) & ~advance.lends
    room = open_to_all(view.cluster)
    for node in np.unique(advance.node[held]).tolist():
        rows = held & (advance.node == node)
        owners = advance.account[rows].tolist()
        if advance.gpus[(advance.held <= view.now) & (advance.node == node)].sum() > room[node]:
            continue  # more than the node has now: the earlier window has what there is
        outside = sum(
            int(jobs.gpus[job]) * place_of(plan, job).count(node)
            for job in plan.run.tolist()
            if not set(tree.path(int(jobs.account[job]))) & set(owners)
        )
        assert outside <= max(int(room[node]) - int(advance.gpus[rows].sum()), 0)
    again = Situation.first(policy, view).decide(seed)
    assert codec.encode(again) == codec.encode(plan)
