"""Tests of the policy interface: options, versions, records of earlier rounds, and plans that are rejected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairshare.codec import decode_decision, decode_snapshot, encode
from fairshare.driver import Situation, owed_now, realigned
from fairshare.model import NOWHERE, Decision, Snapshot
from fairshare.policies import UnknownPolicy, policy_named, policy_of, policy_type, versions
from fairshare.policies.base import InvalidOption, options_of
from fairshare.validate import InvalidPlan, validate
from tests.fairshare.build import Account, Job, decide, snapshot, snapshots, with_closed

RECORDS = Path(__file__).parent / "records"


@pytest.mark.parametrize("ordering", ["stride", "lottery"])
def test_a_round_recorded_by_the_first_release_is_repeated_exactly(ordering: str) -> None:
    given = decode_snapshot((RECORDS / f"{ordering}.snapshot").read_bytes())
    stored = (RECORDS / f"{ordering}.decision").read_bytes()
    again = Situation.first(policy_of(given.settings, version=1), given).decide(20260101)
    assert encode(again) == encode(decode_decision(stored))


def test_options_have_defaults_bounds_and_a_line_of_explanation() -> None:
    kind = policy_type("gandiva_fair", 1)
    assert policy_named("gandiva_fair", 1).options == kind.options_type()
    assert policy_named("gandiva_fair", 1, {"memory": 60, "trading": False}).options.memory == 60.0
    assert all(one.doc for one in options_of(kind))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"ordering": "dice"}, "ordering: must be one of stride, lottery, not 'dice'"),
        ({"memory": -1}, "memory: must be at least 0, not -1"),
        ({"memory": "long"}, "memory: must be a number, not 'long'"),
        ({"memory": float("nan")}, "memory: must be at least 0, not nan"),
        ({"trading": 1}, "trading: must be true or false, not 1"),
        ({"memory": True}, "memory: must be a number, not True"),
        (
            {"colour": "red"},
            "colour: gandiva_fair has no option with this name. Available options: ordering, trading",
        ),
    ],
)
def test_an_option_that_a_policy_does_not_accept_is_refused(given: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        policy_named("gandiva_fair", 1, given)
    assert str(refused.value).startswith(problem)


def test_a_policy_or_a_version_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownPolicy, match=r"'fifo' is not a policy\. Available: gandiva_fair"):
        policy_named("fifo")
    with pytest.raises(UnknownPolicy, match="gandiva_fair has no version 99"):
        policy_named("gandiva_fair", 99)


@pytest.mark.parametrize("version", versions("gandiva_fair"))
@settings(max_examples=60, deadline=None)
@given(given=snapshots(), seed=st.integers(0, 3))
def test_caches_from_the_last_plan_change_no_decision(given: Snapshot, seed: int, version: int) -> None:
    kept = policy_of(given.settings, version=version)
    Situation.first(kept, given).decide(seed)
    other = replace(given, jobs=replace(given.jobs, blocked=np.where(given.jobs.blocked == 0, 11, 0)))
    for seen in (given, other, given):
        fresh = Situation.first(policy_of(given.settings, version=version), seen).decide(seed)
        assert encode(Situation.first(kept, seen).decide(seed)) == encode(fresh)


def test_amounts_follow_their_accounts_and_generations() -> None:
    rows, columns = np.array([2, NOWHERE, 0]), np.array([NOWHERE, 1])
    amounts = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert realigned(amounts, rows, columns).tolist() == [[0, 6], [0, 0], [0, 2]]
    assert realigned(amounts[:, 0], rows, columns).tolist() == [5, 0, 1]
    assert realigned(np.zeros((0, 0)), np.array([NOWHERE]), np.array([NOWHERE])).tolist() == [[0]]


def test_debts_without_a_generation_are_divided_as_the_share_is() -> None:
    given = snapshot([(0, 4), (1, 4)], [Account(), Account()], [Job(0, accepts=(0,)), Job(1), Job(1)])
    plan = replace(planned(given), share=np.array([[1.0, 0.0], [0.0, 0.0]]))
    of_each = Situation(policy_named(version=1), given, {"owed": np.array([[5.0, -5.0], [1.0, 2.0]])})
    assert owed_now(of_each, plan).tolist() == [[5, -5], [1, 2]]
    in_all = replace(of_each, state={**of_each.state, "total": np.array([3.0, -8.0])})
    assert owed_now(in_all, plan).tolist() == [[3, 0], [-4, -4]]
    assert owed_now(replace(of_each, state={}), plan).tolist() == [[0, 0], [0, 0]]


def crowd(**settings: object) -> Snapshot:
    """Returns a cluster with three nodes of four GPUs, two of them of generation 0, and three jobs.

    The first job runs on the two nodes of generation 0, the second waits, and the third is blocked.
    """
    jobs = [Job(0, workers=2, gpus=2, on=(0, 1)), Job(1, workers=2, gpus=2), Job(1, gpus=1, blocked=18)]
    return snapshot([(0, 4), (0, 4), (1, 4)], [Account(), Account(cap={0: 4.0})], jobs, **settings)


def planned(given: Snapshot, *gangs: tuple[int, int, tuple[int, ...]]) -> Decision:
    """Returns the decision that runs the given gangs. A gang is (job, generation, the node of each worker)."""
    run = np.array([job for job, _, _ in gangs], dtype=np.int64)
    reason = np.ones(len(given.jobs), dtype=np.int64)
    reason[run] = 0
    nothing = np.zeros_like(given.accounts.owed)
    return Decision(
        run=run,
        generation=np.array([kind for _, kind, _ in gangs], dtype=np.int64),
        place_start=np.cumsum([0, *(len(nodes) for _, _, nodes in gangs)], dtype=np.int64),
        place_node=np.array([node for _, _, nodes in gangs for node in nodes], dtype=np.int64),
        reason=reason,
        share=nothing,
        trades=(),
    )


STAYS = (0, 0, (0, 1))


@pytest.mark.parametrize("name", ["share", "guaranteed", "reason", "generation", "place_start", "place_node"])
def test_a_plan_with_arrays_of_wrong_shapes_is_refused(name: str) -> None:
    given = crowd()
    plan = planned(given, STAYS)
    plan = replace(plan, guaranteed=plan.share)
    validate(plan, given)
    with pytest.raises(InvalidPlan, match="do not match"):
        validate(replace(plan, **{name: getattr(plan, name)[:-1]}), given)


@pytest.mark.parametrize(("seconds", "is_fine"), [(None, True), (1.0, True), (0.0, False), (-5.0, False),
                                                  (float("nan"), False), (float("inf"), False)])  # fmt: skip
def test_a_policy_may_ask_for_the_next_round_but_not_at_once(seconds: float | None, is_fine: bool) -> None:
    given = crowd()
    plan = replace(planned(given, STAYS), ask_again=seconds)
    if is_fine:
        validate(plan, given)
        assert decode_decision(encode(plan)).ask_again == seconds
        return
    with pytest.raises(InvalidPlan, match="asks for the next round in"):
        validate(plan, given)


@pytest.mark.parametrize(
    ("gangs", "problem"),
    [
        ([STAYS, STAYS], "picks a job twice"),
        ([(1, 0, (0,))], "job 1 runs with a wrong number of workers"),
        ([(1, 0, (0, 2))], "job 1 has a worker on a node with other GPUs than the job was assigned"),
        ([(1, 1, (0, 1))], "job 1 has a worker on a node with other GPUs than the job was assigned"),
        ([(1, 0, (0, 7))], "node that does not exist"),
        ([STAYS, (1, 0, (0, 0))], "node 0 has 4 GPUs, but the plan allocates 6"),
        ([STAYS, (2, 1, (2,))], "job 2 is blocked but runs"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(
    gangs: list[tuple[int, int, tuple[int, ...]]], problem: str
) -> None:
    given = crowd()
    with pytest.raises(InvalidPlan, match=problem):
        validate(planned(given, *gangs), given)


def test_a_reclaim_round_that_stops_a_gang_within_a_guarantee_is_refused() -> None:
    given = crowd(reclaim=True)
    other = replace(
        planned(given, (1, 0, (0, 1))),
        guaranteed=np.array([[4.0, 0.0], [4.0, 4.0]]),
        share=np.full((2, 2), 4.0),
    )
    with pytest.raises(InvalidPlan, match="job 0 is stopped although it is within its account's guarantee"):
        validate(other, given)
    validate(replace(other, guaranteed=other.guaranteed - 1), given)
    validate(other, crowd())


def test_a_reclaim_round_may_stop_a_gang_beyond_a_limit() -> None:
    given = crowd(reclaim=True)
    given.accounts.cap_total[0] = 3
    other = planned(given, (1, 0, (0, 1)))
    validate(replace(other, guaranteed=np.full((2, 2), 4.0), share=np.full((2, 2), 4.0)), given)


@settings(max_examples=80, deadline=None)
@given(given=snapshots(), seed=st.integers(0, 3))
def test_rounds_between_quanta_are_reclaim_rounds(given: Snapshot, seed: int) -> None:
    given.accounts.cap[:], given.accounts.cap_total[:] = np.inf, np.inf
    Situation.first(policy_of(given.settings), given).fill(seed)  # raises InvalidPlan


def without_reason(plan: Decision) -> Decision:
    return replace(plan, reason=np.zeros_like(plan.reason))


def test_a_job_that_waits_without_a_reason_is_refused() -> None:
    given = crowd()
    with pytest.raises(InvalidPlan, match="job 1 waits without a reason"):
        validate(without_reason(planned(given, STAYS)), given)


@pytest.mark.parametrize("gangs", [[], [(0, 0, (1, 1))], [(0, 0, (0, 0))]])
def test_a_fill_round_that_stops_or_moves_a_gang_is_refused(
    gangs: list[tuple[int, int, tuple[int, ...]]],
) -> None:
    given = crowd(may_preempt=False)
    with pytest.raises(InvalidPlan, match="job 0 is stopped or moved although no quantum has ended"):
        validate(planned(given, *gangs), given)
    validate(planned(crowd(), *gangs), crowd())
    validate(planned(given, (0, 0, (1, 0))), given)  # the workers may swap nodes


def test_a_plan_that_starts_a_gang_beyond_a_limit_is_refused_but_running_ones_may_stay() -> None:
    jobs = [Job(0, gpus=3, on=(0,)), Job(0), Job(1)]
    given = snapshot([(0, 8)], [Account(cap_total=3.0), Account(cap={0: 0.0})], jobs, may_preempt=False)
    lowered = replace(given, accounts=replace(given.accounts, cap_total=np.array([2.0, np.inf])))
    validate(planned(lowered, (0, 0, (0,))), lowered)
    for view, job, account in ((given, 1, 0), (lowered, 1, 0), (given, 2, 1)):
        with pytest.raises(InvalidPlan, match=f"account {account} gets more GPUs than its limits allow"):
            validate(planned(view, (0, 0, (0,)), (job, 0, (0,))), view)


def test_a_plan_that_starts_a_gang_on_a_closed_node_is_refused() -> None:
    given = with_closed(crowd(), {0, 1})
    validate(planned(given, STAYS), given)
    with pytest.raises(InvalidPlan, match="job 1 starts on a node that takes no new jobs"):
        validate(planned(given, (1, 0, (0, 1))), given)


SPOILERS: list[Callable[[Decision], Decision]] = [
    lambda plan: replace(plan, run=np.append(plan.run[:-1], plan.run[:1])),
    without_reason,
]


@settings(max_examples=60, deadline=None)
@given(snapshots(), st.sampled_from(SPOILERS))
def test_a_spoilt_plan_is_refused_whatever_the_cluster(
    given: Snapshot, spoil: Callable[[Decision], Decision]
) -> None:
    spoilt = spoil(decide(given, 1))
    if len(spoilt.run) > 1 and len(spoilt.run) < len(given.jobs):
        with pytest.raises(InvalidPlan):
            validate(spoilt, given)


def test_a_gang_beyond_a_limit_may_change_its_node_but_not_get_more() -> None:
    beyond = [Account(cap_total=1)]
    given = snapshot([(0, 4), (0, 4)], beyond, [Job(0, gpus=2, on=(0,))])
    validate(planned(given, (0, 0, (1,))), given)
    waits = snapshot([(0, 4), (0, 4)], beyond, [Job(0, gpus=2)])
    with pytest.raises(InvalidPlan, match="more GPUs than its limits"):
        validate(planned(waits, (0, 0, (1,))), waits)
