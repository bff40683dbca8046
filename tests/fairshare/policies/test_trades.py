"""Tests that trades have fair prices, make no team slower, reach most of the possible gain, and keep limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairshare.check.policies import NEWEST
from fairshare.model import Floats, Ints, Settings, Snapshot, Trade
from fairshare.policies.gandiva_fair.own_order import Rows
from fairshare.policies.gandiva_fair.trade_prices import LEAST_TRADE
from fairshare.policies.gandiva_fair.trades import trade
from fairshare.quotas import with_claims
from fairshare.trading.limits import TradeLimits, parties_of
from fairshare.tree import Tree
from tests.fairshare import bench_trades
from tests.fairshare.build import INF, Account, Job, snapshot
from tests.fairshare.policies.teams import (
    ORDERS,
    Held,
    Order,
    by_tickets,
    most_progress,
    own_progress,
    teams,
    traded,
)
from tests.fairshare.synthetic import synthetic_snapshot

SPREADS = (0.1, 0.3, 0.6)
INSTANCES = [(seed, count) for seed in range(13) for count in (2, 3, 5)]
SLACK = 1e-6
CAPTURED: list[tuple[Order, float, float]] = [
    ("in order", 0.1, 0.72),
    ("in order", 0.3, 0.32),
    ("evenly", 0.1, 0.85),
    ("evenly", 0.3, 0.65),
]


def alike(*speed_up_of: float, gpus: int = 8, **options: object) -> Snapshot:
    """Returns teams of one-GPU jobs, one team for each given speed-up. All jobs of a team have the same speed-up.

    Each team has as many jobs as the cluster has GPUs.
    """
    return teams([np.tile([1.0, s], (2 * gpus, 1)) for s in speed_up_of], (gpus, gpus), **options)


def amounts(done: tuple[Trade, ...]) -> list[tuple[int, int, float, float]]:
    return [(one.seller, one.buyer, one.fast_gpus, one.price) for one in done]


# ---- prices


def test_second_prices_of_three_teams() -> None:
    """Proves that trades equal those of an independent implementation, for shares .33 .33 .34 and speed-ups 4, 6 and
    8."""
    share, done = traded(alike(4, 6, 8, gpus=100, tickets=[33, 33, 34], pricing="second_price"))
    assert share / 100 == pytest.approx(np.array([[1, 0.190833], [0, 0.4125], [0, 0.396667]]), abs=1e-6)
    assert sorted(amounts(done)) == [
        (0, 1, pytest.approx(8.25), pytest.approx(4.0)),
        (0, 2, pytest.approx(5.6667, abs=1e-4), pytest.approx(6.0)),
    ]


def test_second_prices_of_four_teams() -> None:
    share, done = traded(alike(1.22, 2, 4, 6, pricing="second_price"))
    assert share == pytest.approx(np.array([[6.61, 0], [1.39, 2.5], [0, 3], [0, 2.5]]))
    assert sorted(amounts(done)) == [
        (0, 1, pytest.approx(0.5), pytest.approx(1.22)),
        (0, 2, pytest.approx(1.0), pytest.approx(2.0)),
        (0, 3, pytest.approx(0.5), pytest.approx(4.0)),
    ]


def test_a_price_in_between_gives_both_sides_the_same_relative_gain() -> None:
    share, (one,) = traded(alike(1, 4))
    assert one.price / one.seller_speedup == pytest.approx(one.buyer_speedup / one.price)
    assert share == pytest.approx(np.array([[8, 2], [0, 6]]))


def test_the_price_between_two_close_speed_ups_is_in_the_middle() -> None:
    _, (one,) = traded(alike(2.0, 2.0 * 1.2, least_gain=1.2))
    assert one.price == pytest.approx((2.0 * 2.4) ** 0.5)


def test_similar_buyers_get_similar_amounts() -> None:
    """Proves that two buyers with similar speed-ups get similar amounts.

    One buyer's speed-up is slightly higher. The fast GPUs that are for sale would be enough for only one of the buyers.
    """
    share, _ = traded(alike(1.5, 1.5, 5.0, 5.1, gpus=12, tickets=[1, 1, 4, 4]))
    assert share[2, 1] == pytest.approx(share[3, 1], rel=0.1)
    assert share[3, 1] > share[2, 1]


def test_speed_ups_below_one_trade_as_well() -> None:
    _, (one,) = traded(alike(0.25, 0.8))
    assert (one.slow, one.fast, one.seller, one.buyer) == (1, 0, 1, 0)
    assert (one.seller_speedup, one.buyer_speedup) == (pytest.approx(1.25), pytest.approx(4.0))


@pytest.mark.parametrize("speed_ups", [(2.0, 2.0), (2.0, 2.05)])
def test_a_trade_that_gains_too_little_is_not_made(speed_ups: tuple[float, ...]) -> None:
    assert traded(alike(*speed_ups))[1] == ()


# ---- which jobs trade


def test_own_jobs_are_matched_to_generations_by_comparative_speed() -> None:
    """Proves that a team's jobs are matched to generations so that its total speed is highest.

    Four jobs gain nothing by fast GPUs, and four are nine times as fast there. On four GPUs of each generation they
    make 40 steps.
    """
    own = [Job(0, rate={0: 1.0, 1: 1.0}), Job(0, rate={0: 1.0, 1: 9.0})] * 4
    one = snapshot([(0, 4), (1, 4)], [Account(trades=True)], own)
    rows = Rows.of(one.jobs, one.jobs.accepts, np.array([8.0]))
    row, use = rows.run(np.array([[4.0, 4.0]]), np.array([0]))
    assert (use * one.jobs.rate[rows.job[row]]).sum() == pytest.approx(40)


def test_a_team_trades_for_the_jobs_at_the_margin_and_not_for_their_mean() -> None:
    """Proves that a team trades by the speed-ups of the jobs that run, not by the mean of all its jobs.

    The mean of the team's speed-ups is 5, but all its running jobs are nine times as fast.
    """
    first = np.array([[1.0, 9.0]] * 8 + [[1.0, 1.0]] * 8)
    share, (one,) = traded(teams([first, np.tile([1.0, 5.5], (16, 1))], (8, 4)))
    assert (one.seller, one.buyer) == (1, 0)
    assert (one.seller_speedup, one.buyer_speedup) == (pytest.approx(5.5), pytest.approx(9))
    assert share[0, 1] > 2


def test_jobs_that_were_not_measured_do_not_trade() -> None:
    accounts = [Account(trades=True), Account(trades=False), Account(trades=True)]
    jobs = [Job(0, rate={0: 1.0, 1: 1.0}) for _ in range(9)]
    jobs += [Job(1, rate={0: 1.0, 1: 9.0}) for _ in range(9)]
    jobs += [Job(2, rate={1: 9.0}) for _ in range(9)]
    assert traded(snapshot([(0, 3), (1, 3)], accounts, jobs))[1] == ()


def test_a_team_without_waiting_jobs_sells_nothing_for_more_gpus() -> None:
    """Proves that a team without waiting jobs does not sell fast GPUs for a larger number of slow GPUs.

    Its jobs would only become slower, because no job could use the additional GPUs.
    """
    few, many = np.tile([1.0, 2.0], (8, 1)), np.tile([1.0, 4.0], (16, 1))
    assert traded(teams([few, many], (8, 8)))[1] == ()


def test_similar_users_of_a_team_give_and_get_similar_amounts() -> None:
    accounts = [
        Account(trades=True),
        Account(trades=True),
        Account(3, parent=0),
        Account(1, parent=0),
        Account(parent=1),
    ]
    jobs = [Job(t, rate={0: 1.0, 1: 1.0 if t < 4 else 4.0}) for t in (2, 3, 4) for _ in range(20)]
    share, (one,) = traded(snapshot([(0, 8), (1, 8)], accounts, jobs))
    assert (one.seller, one.buyer) == (0, 1)
    assert share[0, 0] == pytest.approx(8)
    assert share[2] == pytest.approx(share[3] * 3)
    assert share[2] + share[3] == pytest.approx(share[0])


def test_users_of_one_team_exchange_without_a_line_in_the_book() -> None:
    accounts = [Account(trades=True), Account(parent=0), Account(parent=0)]
    jobs = [Job(t, rate={0: 1.0, 1: s}) for t, s in ((1, 1.0), (2, 4.0)) for _ in range(20)]
    share, done = traded(snapshot([(0, 8), (1, 8)], accounts, jobs))
    assert done == ()
    assert share[0] == pytest.approx([8, 8])
    assert share[1, 0] == pytest.approx(8)


# ---- no team loses


def random_teams(seed: int, count: int, spread: float, capacity: tuple[int, ...] = (12, 12)) -> list[Floats]:
    """Returns the rates of random teams, as an array (jobs, K) for each team.

    There are twice as many jobs as GPUs in total. The speed-ups of a team's jobs spread by a factor of e^(±spread).
    """
    chance = np.random.default_rng([seed, count, len(capacity)])
    step, jobs = np.log(chance.uniform(1, 6, count)) / (len(capacity) - 1), 2 * sum(capacity) // count
    return [np.exp(np.arange(len(capacity)) * (own + spread * chance.normal(size=(jobs, 1)))) for own in step]


def evenly(one: Snapshot) -> Snapshot:
    return replace(one, accounts=replace(one.accounts, evenly=np.ones(len(one.accounts.parent), dtype=bool)))


def losers(rates: list[Floats], before: Floats, after: Floats, order: Order) -> int:
    then, now = (own_progress(rates, share, order) for share in (before, after))
    return int((now < then * (1 - 1e-6)).sum())


def full_speed(rates: list[Floats]) -> list[Floats]:
    return [some / some.max(axis=1, keepdims=True) for some in rates]


def share_of(one: Snapshot, order: Order) -> Floats:
    return traded(evenly(one) if order == "evenly" else one)[0]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("spread", SPREADS)
def test_no_team_makes_less_progress_by_its_own_order(spread: float, order: Order) -> None:
    gained = 0.0
    for seed, count in INSTANCES:
        rates = random_teams(seed, count, spread)
        one = teams(rates, (12, 12))
        before, after = by_tickets(one).share, share_of(one, order)
        assert losers(rates, before, after, order) == 0
        assert losers(full_speed(rates), before, after, order) == 0
        full = full_speed(rates)
        gained += own_progress(full, after, order).sum() / own_progress(full, before, order).sum() - 1
    assert gained > 0.02 * len(INSTANCES)


def test_a_buyer_that_forgets_what_it_pays_with_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that some teams lose progress if the market does not compare their progress before and after trades.

    So test_no_team_makes_less_progress_by_its_own_order passes because of this comparison.
    """
    monkeypatch.setattr(Rows, "progress", lambda self, row, use: np.ones((2, len(self.account))))
    lost = 0
    for seed, count in INSTANCES[:12]:
        rates = random_teams(seed, count, 0.6)
        one = teams(rates, (12, 12))
        lost += losers(rates, by_tickets(one).share, traded(one)[0], "in order")
    assert lost > 0


@pytest.mark.parametrize("order", ORDERS)
def test_with_three_generations_no_team_loses_more_than_a_little(order: Order) -> None:
    """Proves that with three generations no team loses more than a little by trades.

    Jobs are matched to generations pair by pair, which is not always the best use of three generations.
    """
    for seed, count in INSTANCES[:18]:
        rates = random_teams(seed, count, 0.3, (4, 8, 4))
        one = teams(rates, (4, 8, 4))
        full, before, after = full_speed(rates), by_tickets(one).share, share_of(one, order)
        assert (own_progress(full, after, order) > 0.98 * own_progress(full, before, order)).all()
        assert (own_progress(rates, after, order) > 0.95 * own_progress(rates, before, order)).all()


def test_jobs_do_not_return_to_a_generation_whose_time_their_team_sold() -> None:
    """Proves that waiting jobs do not return to the generation where they last ran if their team sold its time there.

    Otherwise the team would lose the time that it bought on another generation.
    """
    economy = bench_trades.teams(0.1, 31)
    alone = replace(economy, settings=replace(economy.settings, trading=False))
    with_trades, without = (bench_trades.progress(one, NEWEST) for one in (economy, alone))
    assert (with_trades > 0.98 * without).all()


def test_no_team_loses_in_a_large_market() -> None:
    """Proves that no team loses in a market of 80 teams.

    The fast GPUs that are for sale are not enough for all buyers, so the team with the highest speed-up buys first.
    """
    rates, gpus = random_teams(1, 80, 0.3, (400, 400)), (400, 400)
    one = teams(rates, gpus)
    before, (after, done) = by_tickets(one).share, traded(one)
    assert len(done) > 80
    assert losers(rates, before, after, "in order") == 0
    assert losers(full_speed(rates), before, after, "in order") == 0


# ---- how much of the possible gain


def captured(spread: float, count: int, order: Order, capacity: tuple[int, ...] = (12, 12)) -> float:
    """Returns the fraction of the possible gain that trades reach.

    A gain is the sum of all teams' relative gains in progress. The possible gain is the largest one in which no team
    loses. Each team runs its jobs in the order `order`.
    """
    got = possible = 0.0
    for seed in range(13):
        rates = random_teams(seed, count, spread, capacity)
        one = teams(rates, capacity)
        private = own_progress(rates, by_tickets(one).share, order)
        worth = [own / alone for own, alone in zip(rates, private, strict=True)]
        got += (own_progress(worth, share_of(one, order), order) - 1).sum()
        possible += (most_progress(worth, np.array(capacity, dtype=float), np.ones(count), order) - 1).sum()
    return got / possible


@pytest.mark.parametrize("capacity", [(12, 12), (4, 8, 4)])
@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_trades_make_most_of_the_possible_gain_if_a_teams_jobs_are_alike(
    count: int, capacity: tuple[int, ...]
) -> None:
    assert captured(0.0, count, "in order", capacity) > 0.85


@pytest.mark.parametrize(("order", "spread", "least"), CAPTURED)
def test_trades_make_much_of_the_gain_that_own_order_allows(
    order: Order, spread: float, least: float
) -> None:
    assert np.mean([captured(spread, count, order) for count in (2, 3, 5)]) > least


# ---- limits


def limited(one: Snapshot, **arrays: object) -> Snapshot:
    """Returns the snapshot with the given limits on trades; all other limits on trades are off."""
    shape = one.accounts.owed.shape
    none = {
        "deals": np.ones(shape, dtype=bool),
        "give_most": np.full(shape, INF),
        "give_part": np.full(shape, INF),
    }
    return replace(one, accounts=replace(one.accounts, **none | arrays))


@st.composite
def economies(draw: st.DrawFn) -> Snapshot:
    """Draws trees of departments, teams and users that want to trade. Most of them have limits of all kinds."""
    kinds, departments = draw(st.integers(2, 3)), draw(st.integers(1, 2))
    count = draw(st.integers(2, 4))
    accounts = [Account() for _ in range(departments)]
    accounts += [Account(trades=True, parent=draw(st.integers(0, departments - 1))) for _ in range(count)]
    accounts += [
        Account(draw(st.sampled_from([1.0, 2.0])), parent=departments + draw(st.integers(0, count - 1)))
        for _ in range(draw(st.integers(count, 6)))
    ]
    leaves = [t for t in range(len(accounts)) if t not in {one.parent for one in accounts}]
    capacity = tuple(draw(st.sampled_from([4, 8])) for _ in range(kinds))
    speeds = st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, 6.0])
    jobs = [
        Job(
            leaf,
            gpus=draw(st.sampled_from([1, 2])),
            rate={0: 1.0, **{k: draw(speeds) for k in range(1, kinds)}},
        )
        for leaf in leaves
        for _ in range(6)
        for _ in range(2)
    ]
    one = snapshot([(k, gpus) for k, gpus in enumerate(capacity)], accounts, jobs)
    shape = one.accounts.owed.shape

    def table(*values: float) -> Floats:
        found = st.lists(st.sampled_from(values), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
        return np.array(draw(found)).reshape(shape)

    if draw(st.booleans()):
        one = limited(
            one,
            deals=table(1.0, 1.0, 1.0, 0.0).astype(bool),
            give_most=table(INF, INF, 0.0, 0.3, 1.0),
            give_part=table(INF, INF, 0.0, 0.1, 0.5),
        )
    if draw(st.booleans()):  # caps that are no lower than entitlements
        share = by_tickets(one).share
        cap, total = share * table(1.0, 1.2, INF), share.sum(axis=1) * table(1.0, 1.3, INF)[:, 0]
        one = replace(one, accounts=replace(one.accounts, cap=cap, cap_total=total))
    return one


def all_may_run(one: Snapshot) -> tuple[Floats, tuple[Trade, ...]]:
    held = by_tickets(one)
    limits = TradeLimits.of(one.accounts, held.entitled)
    return trade(one, Tree.of(one.accounts.parent), one.jobs.accepts, held, limits)


@settings(max_examples=150, deadline=None)
@given(economies())
def test_trades_conserve_gpus_add_up_and_keep_every_limit(one: Snapshot) -> None:
    conserve_gpus_add_up_and_keep_every_limit(one)


def conserve_gpus_add_up_and_keep_every_limit(one: Snapshot) -> None:
    accounts, tree, before = one.accounts, Tree.of(one.accounts.parent), by_tickets(one).share
    share, done = all_may_run(one)
    assert (share >= 0).all()
    assert share[tree.roots].sum(axis=0) == pytest.approx(before[tree.roots].sum(axis=0))
    for parent, below in enumerate(tree.children):
        if len(below):
            assert share[parent] == pytest.approx(share[below].sum(axis=0))
    after = before.copy()
    gave, touched = np.zeros_like(before), np.zeros(before.shape, dtype=bool)
    parties, _ = parties_of(tree, accounts.trades)
    for line in done:
        assert {line.seller, line.buyer} <= set(parties.tolist())
        assert line.seller != line.buyer
        assert line.price == pytest.approx(line.slow_gpus / line.fast_gpus)
        assert line.seller_speedup < line.price < line.buyer_speedup
        sides = set(tree.path(line.seller)), set(tree.path(line.buyer))
        for mine, others, gives, given_, takes, taken in (
            (sides[0], sides[1], line.fast, line.fast_gpus, line.slow, line.slow_gpus),
            (sides[1], sides[0], line.slow, line.slow_gpus, line.fast, line.fast_gpus),
        ):
            for account in mine - others:
                after[account, gives] -= given_
                after[account, takes] += taken
                gave[account, gives] += given_
                touched[account, [gives, takes]] = True
    assert share[parties] == pytest.approx(after[parties], abs=1e-6)
    if accounts.give_most is not None:
        assert (gave <= accounts.give_most + SLACK).all()
        part = np.where(np.isfinite(accounts.give_part), accounts.give_part * before, INF)
        assert (gave <= part + SLACK).all()
        assert not (touched & ~accounts.deals).any()
    capped = with_claims(accounts)
    assert (share <= np.maximum(capped.cap, before) + SLACK).all()
    assert (share.sum(axis=1) <= np.maximum(capped.cap_total, before.sum(axis=1)) + SLACK).all()


def test_a_seller_and_a_buyer_give_no_more_than_their_limits() -> None:
    free = alike(1, 4)
    most = np.full((2, 2), INF)
    most[0, 1] = 0.5
    assert traded(limited(free, give_most=most))[1][0].fast_gpus == pytest.approx(0.5)
    most = np.full((2, 2), INF)
    most[1, 0] = 1.5
    assert traded(limited(free, give_most=most))[1][0].slow_gpus == pytest.approx(1.5)


def test_a_fractional_limit_is_relative_to_the_entitlement() -> None:
    part = np.full((2, 2), INF)
    part[0, 1] = 0.25  # of four GPUs
    assert traded(limited(alike(1, 4), give_part=part))[1][0].fast_gpus == pytest.approx(1.0)


def test_no_team_buys_beyond_its_cap() -> None:
    free = alike(1, 4)
    cap = np.full((2, 2), INF)
    cap[1, 1] = 5.0
    share, _ = traded(replace(free, accounts=replace(free.accounts, cap=cap)))
    assert share[1, 1] == pytest.approx(5)


def test_a_seller_may_hold_gpus_beyond_its_entitlement() -> None:
    """Proves that a seller may get more slow GPUs than its entitlement.

    The seller already holds the 4 slow GPUs of its entitlement. It sells its only fast GPU for more slow ones.
    """
    one = alike(1, 4)
    held = Held(np.full((2, 2), 4.0), np.array([[4.0, 1.0], [4.0, 7.0]]))
    limits = TradeLimits.of(one.accounts, held.entitled)
    share, (line,) = trade(one, Tree.of(one.accounts.parent), one.jobs.accepts, held, limits)
    assert line.fast_gpus == pytest.approx(1.0)
    assert share[0, 1] == pytest.approx(0.0)


# ---- large markets


def many_teams(seed: int = 1) -> Snapshot:
    """Returns a hundred teams with several thousand jobs on three generations. A tenth of the teams have limits."""
    return synthetic_snapshot(1000, 10, 100, seed, settings=Settings(trading=True))


def without(one: Snapshot, jobs: Ints) -> Snapshot:
    """Returns the snapshot in which the given jobs accept no generation, so that they cannot run."""
    accepts = one.jobs.accepts.copy()
    accepts[jobs] = False
    return replace(one, jobs=replace(one.jobs, accepts=accepts))


@pytest.mark.parametrize("seed", range(3))
def test_many_teams_conserve_gpus_and_keep_every_limit(seed: int) -> None:
    conserve_gpus_add_up_and_keep_every_limit(many_teams(seed))


def test_in_large_markets_two_parties_have_one_large_enough_trade_per_pair() -> None:
    one = many_teams()
    done = all_may_run(one)[1]
    assert len(done) == len({(line.seller, line.buyer, line.slow, line.fast) for line in done}) > 100
    gpus = np.array([line.fast_gpus for line in done])
    assert gpus * 100 == pytest.approx(np.round(gpus * 100))
    assert gpus.min() >= LEAST_TRADE - SLACK


@pytest.mark.parametrize(("gone", "seed", "most"), [(1, 1, 0.2), (10, 2, 0.3)])
def test_few_of_many_trades_change_with_the_jobs_of_some_teams(gone: int, seed: int, most: float) -> None:
    one = many_teams()
    before, chance = set(amounts_of_all(one)), np.random.default_rng(seed)
    after = set(amounts_of_all(without(one, chance.choice(len(one.jobs), gone, replace=False))))
    assert before != after
    assert len(after - before) < most * len(after)


def amounts_of_all(one: Snapshot) -> list[tuple[object, ...]]:
    return [
        (line.seller, line.buyer, line.slow, line.fast, line.fast_gpus, line.slow_gpus)
        for line in all_may_run(one)[1]
    ]
