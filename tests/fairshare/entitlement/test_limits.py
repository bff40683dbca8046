"""Tests of a round's limits: what remains of GPU-hours, which jobs run only on GPUs left over, and how much may be
borrowed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fairshare.codec import decode_snapshot, encode
from fairshare.driver import Situation, between_quanta
from fairshare.entitlement import entitlements
from fairshare.model import NOWHERE, Bools, Decision, Reason, Settings, Snapshot
from fairshare.policies import all_versions, names, policy_named
from fairshare.policies.base import Policy
from fairshare.quotas import with_room
from fairshare.tree import Tree
from tests.fairshare.build import Account, Job, decide, place_of, situation, snapshot, snapshots

EXAMPLES = settings(max_examples=60, deadline=None)
ROUNDS = ["quantum", "between", "fill"]


def limited(given: Snapshot, **caps: dict[int, float]) -> Snapshot:
    """Returns the snapshot with limits for some accounts. `caps` maps the name of a limit to its values by account.

    - `room_total`: the GPUs that the account may still use in this round.
    - `claim_total`: the GPUs up to which the account takes part in the sharing. Beyond them its jobs get only GPUs that
      are left over.
    - `borrow`: the GPUs of each generation beyond the entitlement, as a fraction of the entitlement.
    """
    shape = given.accounts.owed.shape
    arrays = {}
    for name, values in caps.items():
        arrays[name] = np.full(shape if name == "borrow" else shape[0], np.inf)
        for account, value in values.items():
            arrays[name][account] = value
    return replace(given, accounts=replace(given.accounts, **arrays))


def used(given: Snapshot, decision: Decision, *, sharing: bool = False) -> np.ndarray:
    """Returns the GPUs that each account uses together with all accounts below it, as an array (T, K).

    With `sharing`, GPUs of preemptible jobs do not count.
    """
    jobs, amounts = given.jobs, np.zeros_like(given.accounts.owed)
    sizes = (jobs.workers * jobs.gpus)[decision.run]
    if sharing and jobs.preemptible is not None:
        sizes = sizes * ~jobs.preemptible[decision.run]
    np.add.at(amounts, (jobs.account[decision.run], decision.generation), sizes)
    return Tree.of(given.accounts.parent).sums(amounts)


def in_round(kind: str, policy: Policy, chosen: Settings) -> Settings:
    """Returns the settings for a round at the end of a quantum, between two quanta, or that only fills free GPUs."""
    if kind == "between":
        return between_quanta(policy, chosen)
    return replace(chosen, may_preempt=kind == "quantum", reclaim=False)


@st.composite
def nearly_spent(draw: st.DrawFn) -> Snapshot:
    """Draws a cluster in which each team may use about as many GPUs in this round as its gangs have.

    Only there do running gangs and gangs that could start compete under a limit.
    """
    given = draw(snapshots())
    accounts, jobs = given.accounts, given.jobs
    if draw(
        st.sampled_from([True, True, False])
    ):  # no limits of GPUs at once, which keep most gangs from starting
        free = replace(
            accounts,
            cap=np.full_like(accounts.cap, np.inf),
            cap_total=np.full_like(accounts.cap_total, np.inf),
        )
        given = replace(given, accounts=free)
    held = np.zeros(len(accounts.parent))
    runs = jobs.running_on != NOWHERE
    np.add.at(held, jobs.account[runs], (jobs.workers * jobs.gpus)[runs])
    held = Tree.of(accounts.parent).sums(held)
    teams = np.flatnonzero(accounts.parent == NOWHERE).tolist()
    return limited(given, room_total={t: max(float(held[t]) - draw(st.integers(0, 3)), 1.0) for t in teams})


def some_limits(draw: st.DrawFn, given: Snapshot, *, least: float = 0.0) -> dict[int, float]:
    accounts = range(len(given.accounts.parent))
    return {t: least + draw(st.integers(0, 6)) for t in accounts if draw(st.booleans())}


@EXAMPLES
@given(st.data())
def test_no_account_gets_more_than_its_limits_leave_for_the_round(data):
    given = data.draw(snapshots(may_preempt=True))
    given = limited(given, room_total=some_limits(data.draw, given))
    decision = decide(given, seed=1)
    assert (used(given, decision).sum(axis=1) <= given.accounts.room_total).all()


@settings(max_examples=400, deadline=None)
@given(st.data(), st.sampled_from(all_versions()), st.sampled_from(ROUNDS), st.integers(0, 3))
def test_under_no_policy_and_in_no_round_does_an_account_get_more_than_it_has_beyond_a_limit(
    data, policy, kind, seed
):
    given, chosen = data.draw(nearly_spent()), policy_named(*policy)
    given = replace(given, settings=in_round(kind, chosen, given.settings))
    plan, jobs = Situation.first(chosen, given).decide(seed), given.jobs
    runs = np.flatnonzero(jobs.running_on != NOWHERE)
    held = used(given, replace(plan, run=runs, generation=jobs.running_on[runs]))
    has, starts = used(given, plan), jobs.running_on[plan.run] != plan.generation
    new = used(given, replace(plan, run=plan.run[starts], generation=plan.generation[starts]))
    accounts = with_room(given.accounts)
    assert (has <= np.maximum(accounts.cap, held)).all()
    assert (has.sum(axis=1) <= np.maximum(accounts.cap_total, held.sum(axis=1))).all()
    if kind == "quantum":
        assert (has.sum(axis=1) <= accounts.cap_total).all()
    # No gang starts under a limit while others are beyond it.
    assert not ((new > 0) & (has > accounts.cap)).any()
    assert not (new.any(axis=1) & (has.sum(axis=1) > accounts.cap_total)).any()


@pytest.mark.parametrize("name", names())
def test_between_quanta_a_gang_leaves_its_place_under_a_limit_to_a_claim_of_the_same_team(name):
    accounts = [Account(), Account(), Account(parent=0), Account(parent=0)]
    waits = Job(2, gpus=2)
    given = limited(
        snapshot([(0, 8)], accounts, [Job(3, gpus=2, on=(0,), preemptible=True), waits]), room_total={0: 2}
    )
    assert Situation.first(policy_named(name), given).fill(1).run.tolist() == [1]
    alone = limited(
        snapshot([(0, 8)], accounts, [Job(3, gpus=2, on=(0,), preemptible=True)]), room_total={0: 1}
    )
    assert Situation.first(policy_named(name), alone).fill(1).run.tolist() == [0]  # the quantum is not over
    assert Situation.first(policy_named(name), alone).decide(1).run.tolist() == []


@EXAMPLES
@given(st.data())
def test_the_cost_of_all_gpus_is_within_what_the_round_leaves(data):
    given = data.draw(snapshots(may_preempt=True))
    kinds = given.accounts.cap.shape[1]
    price = np.array(data.draw(st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=kinds, max_size=kinds)))
    given = limited(given, room_cost=some_limits(data.draw, given))
    given = replace(given, accounts=replace(given.accounts, price=price))
    decision = decide(given, seed=1)
    assert (used(given, decision) @ price <= given.accounts.room_cost + 1e-6).all()


def test_a_cost_limit_allows_the_generation_that_it_suffices_for() -> None:
    given = snapshot([(0, 4), (1, 4)], [Account()], [Job(0, gpus=1) for _ in range(8)])
    given = limited(given, room_cost={0: 4.0})
    given = replace(given, accounts=replace(given.accounts, price=np.array([3.0, 1.0])))
    decision = decide(given, seed=0)
    spent = used(given, decision)[0]
    assert (spent @ [3.0, 1.0], spent.sum()) in {(4.0, 2.0), (4.0, 4.0)}
    assert Reason.QUOTA_IN_USE in decision.reason.tolist()


def test_a_limit_reached_in_this_round_is_not_a_never_reason() -> None:
    given = limited(snapshot([(0, 8)], [Account()], [Job(0, gpus=4)]), room_total={0: 3})
    assert decide(given, seed=0).reason.tolist() == [Reason.QUOTA_IN_USE]


@EXAMPLES
@given(st.data())
def test_an_account_without_a_claim_has_no_entitlement(data):
    given = data.draw(snapshots())
    given = limited(given, claim_total=some_limits(data.draw, given))
    decision = decide(given, seed=1)
    held = decision.share.sum(axis=1)
    assert (held <= given.accounts.claim_total + 1e-6).all()


def with_one_gpu_jobs(given: Snapshot) -> Snapshot:
    """Returns the snapshot without limits on GPUs, in which every gang has one GPU and none is running."""
    ones = np.ones(len(given.jobs), dtype=np.int64)
    free = np.full_like(given.accounts.cap, np.inf)
    jobs = replace(
        given.jobs,
        workers=ones,
        gpus=ones,
        running_on=ones * -1,
        place_start=np.zeros(len(given.jobs) + 1, dtype=np.int64),
        place_node=np.empty(0, dtype=np.int64),
    )
    return replace(given, jobs=jobs, accounts=replace(given.accounts, cap=free, cap_total=free[:, 0]))


@EXAMPLES
@given(st.data())
def test_preemptible_gangs_run_where_no_gang_with_a_claim_waits(data):
    given = with_one_gpu_jobs(data.draw(snapshots()))
    leaves = sorted(set(given.jobs.account.tolist()))
    idle = {t for t in leaves if data.draw(st.booleans())}
    given = limited(given, claim_total=dict.fromkeys(idle, 0.0))
    decision = decide(given, seed=1)
    by_wish = given.jobs.preemptible
    preemptible = np.isin(given.jobs.account, sorted(idle)) | (False if by_wish is None else by_wish)
    kinds = {
        int(k)
        for job, k in zip(decision.run.tolist(), decision.generation.tolist(), strict=True)
        if preemptible[job]
    }
    assert set(decision.run[preemptible[decision.run]].tolist()) <= set(
        () if decision.preemptible is None else decision.preemptible.tolist()
    )
    for job in np.flatnonzero(decision.reason == Reason.SHARE_IN_USE).tolist():
        assert not preemptible[job]
        assert not kinds & set(np.flatnonzero(given.jobs.accepts[job]).tolist())


@EXAMPLES
@given(st.data())
def test_preemptible_jobs_change_nothing_for_others(data):
    given = data.draw(snapshots(min_hold=0.0, may_preempt=True))
    assume(given.jobs.preemptible is not None)
    decision = decide(given, seed=1)
    takes_part = np.flatnonzero(~given.jobs.preemptible)
    # If preemptible jobs hold nothing, all other jobs get exactly the same places.
    waits = replace(given.jobs, running_on=np.where(given.jobs.preemptible, NOWHERE, given.jobs.running_on))
    waiting = decide(replace(given, jobs=waits), seed=1)
    alone = decide(without(given, given.jobs.preemptible), seed=1)
    assert entitlements(given).tolist() == entitlements(without(given, given.jobs.preemptible)).tolist()
    for one in (decision, waiting):
        assert one.share.tolist() == alone.share.tolist()
        assert one.trades == alone.trades
    picked = [job for job in waiting.run.tolist() if not given.jobs.preemptible[job]]
    assert picked == takes_part[alone.run].tolist()
    for p, job in enumerate(alone.run.tolist()):
        expected = alone.place_node[alone.place_start[p] : alone.place_start[p + 1]].tolist()
        assert place_of(waiting, int(takes_part[job])) == expected


def without(given: Snapshot, left_out: Bools) -> Snapshot:
    """Returns the snapshot without some jobs. `left_out` (J,): whether a job is left out."""
    stays = np.flatnonzero(~left_out)
    jobs, start = given.jobs, given.jobs.place_start
    places = [jobs.place_node[start[job] : start[job + 1]] for job in stays.tolist()]
    columns = (
        "account",
        "workers",
        "gpus",
        "accepts",
        "rate",
        "priority",
        "running_on",
        "resident",
        "blocked",
    )
    fewer = {name: getattr(jobs, name)[stays] for name in columns}
    fewer["place_start"] = np.cumsum([0, *map(len, places)], dtype=np.int64)
    fewer["place_node"] = np.concatenate([np.empty(0, dtype=np.int64), *places])
    return replace(given, jobs=replace(jobs, **fewer, preemptible=None))


def test_a_preemptible_job_gives_its_gpus_back_at_once() -> None:
    accounts = [Account(), Account()]
    alone = snapshot([(0, 4)], accounts, [Job(0, gpus=4, preemptible=True)])
    there = decide(alone, seed=0)
    assert there.preemptible is not None
    assert (there.run.tolist(), there.preemptible.tolist()) == ([0], [0])
    assert not entitlements(alone).any()  # its account is entitled to nothing and owed nothing
    lately = [Job(0, gpus=4, on=(0,), resident=1.0, preemptible=True), Job(1, gpus=4)]
    both = snapshot([(0, 4)], accounts, lately, min_hold=60.0)
    decision = decide(both, seed=0)
    assert (decision.run.tolist(), decision.reason.tolist()) == ([1], [Reason.PREEMPTIBLE, Reason.NONE])
    filling = replace(both, settings=replace(both.settings, may_preempt=False))
    assert decide(filling, seed=0).run.tolist() == [0]


def test_an_account_that_may_borrow_little_may_use_idle_gpus() -> None:
    given = snapshot([(0, 4)], [Account(), Account()], [Job(0, gpus=2, preemptible=True), Job(1)])
    assert decide(limited(given, borrow={0: 0.0}), seed=0).run.tolist() == [0, 1]
    too_many = limited(given, borrow={0: 0.0}, room_total={0: 1.0})
    assert decide(too_many, seed=0).reason.tolist() == [Reason.QUOTA_IN_USE, Reason.NONE]


def test_gangs_on_idle_gpus_do_not_count_as_share_in_a_fill_round() -> None:
    jobs = [Job(0, gpus=4, on=(0,), preemptible=True), Job(0, gpus=4), Job(1, gpus=4)]
    given = snapshot([(0, 8)], [Account(), Account()], jobs, owed={(0, 0): 60.0}, may_preempt=False)
    decision = decide(given, seed=0)
    # job 1 runs, because its account is owed more and job 0 does not count as its share
    assert decision.run.tolist() == [0, 1]
    claimed = decide(limited(given, claim_total={0: 4.0}), seed=0)
    assert (claimed.run.tolist(), list(claimed.preemptible)) == ([0, 1], [])
    capped = decide(limited(given, room_total={0: 4.0}), seed=0)
    assert capped.run.tolist() == [0, 2]  # limits count preemptible jobs too


def test_a_gang_on_idle_gpus_continues_though_its_account_wants_another_first() -> None:
    jobs = [Job(0, gpus=3, preemptible=True, priority=1), Job(0, gpus=2, preemptible=True, on=(0,))]
    jobs += [Job(1, gpus=2, preemptible=True, on=(0,)), Job(2, gpus=2, preemptible=True)]
    given = snapshot([(0, 4)], [Account(), Account(), Account()], jobs)
    assert all(decide(given, seed=seed).run.tolist() == [1, 2] for seed in range(20))


def test_within_an_account_preemptible_jobs_go_last() -> None:
    """Proves that preemptible jobs come after the account's other jobs, whatever their priority and position in the
    list."""
    jobs = [Job(0, gpus=2, preemptible=True, priority=9), Job(0, gpus=2), Job(0, gpus=2)]
    decision = decide(snapshot([(0, 4)], [Account()], jobs), seed=0)
    assert decision.run.tolist() == [1, 2]
    assert decision.reason.tolist() == [Reason.PREEMPTIBLE, Reason.NONE, Reason.NONE]


def test_idle_gpus_stay_with_running_gangs_or_go_by_a_lottery_of_tickets() -> None:
    jobs = [Job(0, preemptible=True), Job(1, preemptible=True)]
    given = snapshot([(0, 1)], [Account(3.0), Account(1.0)], jobs)
    won = sum(decide(given, seed=seed).run.tolist() == [0] for seed in range(400))
    assert 260 < won < 340  # 300 are expected
    there = snapshot([(0, 1)], [Account(3.0), Account(1.0)], [jobs[0], Job(1, preemptible=True, on=(0,))])
    assert all(decide(there, seed=seed).run.tolist() == [1] for seed in range(40))


def test_idle_gpus_are_used_and_given_back_at_once() -> None:
    """Proves that a gang without a claim runs on unused GPUs, but only until a gang with a claim needs them.

    The next quantum round preempts the gang even if it has just started.
    """
    accounts = [Account(), Account()]
    alone = limited(snapshot([(0, 4)], accounts, [Job(0, gpus=4)]), claim_total={0: 0.0})
    there = decide(alone, seed=0)
    assert there.preemptible is not None
    assert (there.run.tolist(), there.preemptible.tolist()) == ([0], [0])
    lately = [Job(0, gpus=4, on=(0,), resident=1.0), Job(1, gpus=4)]
    both = limited(snapshot([(0, 4)], accounts, lately, min_hold=60.0), claim_total={0: 0.0})
    decision = decide(both, seed=0)
    assert (decision.run.tolist(), decision.reason.tolist()) == ([1], [Reason.PREEMPTIBLE, Reason.NONE])
    # A fill round preempts nothing, so the gang stays until the quantum ends.
    filling = replace(both, settings=replace(both.settings, may_preempt=False))
    assert decide(filling, seed=0).run.tolist() == [0]


def test_an_account_shares_up_to_its_claim_and_uses_idle_gpus_beyond() -> None:
    jobs = [*(Job(0) for _ in range(4)), *(Job(1) for _ in range(2))]
    given = limited(snapshot([(0, 4)], [Account(3.0), Account(1.0)], jobs), claim_total={0: 1.0})
    # By tickets the first account would have 3 GPUs. It claims 1 and the other account uses 2, so that 1 is idle.
    decision = decide(given, seed=0)
    assert used(given, decision).ravel().tolist() == [2, 2]
    assert decision.preemptible is not None
    assert given.jobs.account[decision.preemptible].tolist() == [0]
    assert set(decision.preemptible.tolist()) <= set(decision.run.tolist())


@EXAMPLES
@given(st.data())
def test_no_account_borrows_more_than_its_limit_and_what_it_is_owed(data):
    given = data.draw(snapshots(may_preempt=True))
    given = limited(given, borrow={t: n / 4 for t, n in some_limits(data.draw, given).items()})
    decision = decide(given, seed=1)
    owed = np.maximum(Tree.of(given.accounts.parent).sums(given.accounts.owed), 0)
    bounded = np.isfinite(given.accounts.borrow)
    extra = np.where(bounded, given.accounts.borrow, 0.0)
    most = entitlements(given) * (1 + extra) + owed / given.settings.quantum
    assert (used(given, decision, sharing=True) <= most + 1e-6)[bounded].all()


def test_gpus_of_an_absent_lender_are_not_borrowed_beyond_the_limit() -> None:
    jobs = [*(Job(0) for _ in range(8)), Job(1)]
    given = limited(snapshot([(0, 8)], [Account(), Account()], jobs), borrow={0: 0.5})
    decision = decide(given, seed=0)
    assert used(given, decision).ravel().tolist() == [6, 1]
    assert set(decision.reason.tolist()) == {Reason.NONE, Reason.BORROWED_ENOUGH}


def test_a_gang_larger_than_the_entitlement_runs_part_of_the_time() -> None:
    """Proves that a gang of 8 runs half of the time if its account is entitled to 4 GPUs and may borrow none."""
    accounts, jobs = [Account(), Account()], [Job(0, gpus=8), *(Job(1) for _ in range(8))]
    given = limited(snapshot([(0, 8)], accounts, jobs), borrow={0: 0.0})
    total, now, rounds = np.zeros((2, 1)), situation(given), 40
    for seed in range(rounds):
        decision = now.decide(seed)
        total += used(now.view, decision)
        now = now.after(decision)
    assert 0.4 <= total[0, 0] / total.sum() <= 0.55
    assert total.sum() == rounds * 8


@EXAMPLES
@given(st.data())
def test_limits_are_kept_in_the_record(data):
    given = data.draw(snapshots())
    given = limited(given, claim_total=some_limits(data.draw, given), borrow={0: 0.5})
    again = decode_snapshot(encode(given))
    assert encode(decide(again, seed=3)) == encode(decide(given, seed=3))
    assert again.accounts.room is None


def test_gangs_that_swap_generations_stay_within_limits_together():
    few = [
        Job(0, 2, 2, (0, 1)),
        Job(0, 1, 4),
        Job(0, 1, 2, rate={2: 0.5}),
        Job(0, 1, 4, rate={1: 0.5, 2: 0.5}),
    ]
    nodes = [(0, 2), (0, 2), (1, 8), (2, 2), (2, 4), (2, 4)]
    given = snapshot(nodes, [Account(cap={1: 5.0})], [*few, Job(0, 3, 2)], owed={(0, 1): -390.0})
    decide(given, seed=0)  # raises InvalidPlan
