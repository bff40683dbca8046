"""Tests that the anomaly analysis finds every cause, and that it reports nothing if each tenant had as much as it would
have had alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairshare.counterfactual.anomalies import FALSE_RATES, Analysis, Anomaly, Tolerance, analyse
from fairshare.counterfactual.past import Cause, Ineligible, NodeState, Past, PastJob, PastLimit, Rules
from fairshare.counterfactual.private import Purchase, apportion, fits, ticket_parts, usual_gpus, work_of
from fairshare.counterfactual.speeds import speeds_of
from fairshare.model import NOWHERE
from tests.fairshare.faultless import faultless, wronged
from tests.fairshare.pasts import HOUR, WEEK, apart, attempt, job, nodes, past, shared

A, B = 0, 1


def only(found: Past) -> Anomaly:
    """Analyses a past that must have exactly one anomaly, and returns this anomaly."""
    (one,) = [one for some in analyse(found) for one in some.anomalies]
    return one


def test_a_tenant_that_gets_its_share_at_once_has_no_anomaly() -> None:
    jobs = [job(1, A, 0, attempt(0, 5 * HOUR, 0)), job(2, B, 60, attempt(60, 6 * HOUR, 1))]
    assert [some.anomalies for some in analyse(past(jobs))] == [(), ()]


def test_a_wait_while_others_hold_more_than_their_share_is_over_borrowing() -> None:
    jobs = [
        job(1, A, 0, attempt(0, 5 * HOUR, 0, 1), workers=2),
        job(2, B, HOUR, attempt(5 * HOUR, 6 * HOUR, 1)),
    ]
    found = only(past(jobs))
    assert (found.key, found.cause, found.private_start, found.start) == (
        2,
        Cause.OVER_BORROWING,
        HOUR,
        5 * HOUR,
    )
    assert (found.late, found.private_finish, found.finish) == (4 * HOUR, 2 * HOUR, 6 * HOUR)
    assert dict(found.causes) == {Cause.OVER_BORROWING: pytest.approx(4 * HOUR)}
    assert found.holders == ((1, pytest.approx(8 * 4 * HOUR)),)


def test_a_wait_while_enough_gpus_are_free_but_apart_is_fragmentation() -> None:
    jobs = [
        job(1, A, 0, attempt(0, 5 * HOUR, 0), gpus=3),
        job(2, A, 0, attempt(0, 5 * HOUR, 1), gpus=3),
        job(3, B, HOUR, attempt(5 * HOUR, 6 * HOUR, 1), gpus=2),
    ]
    found = only(past(jobs))
    assert (found.key, found.cause) == (3, Cause.FRAGMENTATION)
    assert {key for key, _ in found.holders} == {1, 2}


def test_a_wait_while_free_gpus_are_reserved_for_another_gang_is_a_reservation() -> None:
    jobs = [
        job(1, B, 0, attempt(0, 4 * HOUR, 0)),
        job(2, A, 0, attempt(4 * HOUR, 5 * HOUR, 0, 1, reserved=0.0), workers=2),
        job(3, B, HOUR, attempt(5 * HOUR, 6 * HOUR, 1), gpus=2),
    ]
    (found,) = list(analyse(past(jobs, parts=(0.25, 0.75)))[B].anomalies)
    assert (found.key, found.cause) == (3, Cause.RESERVATION)
    assert found.holders[0][0] == 2


def test_a_wait_of_a_tenant_that_has_its_share_is_due_to_its_own_jobs() -> None:
    jobs = [
        job(1, A, 0, attempt(0, 5 * HOUR, 0)),
        job(2, B, 0, attempt(5 * HOUR, 6 * HOUR, 1)),
        job(3, B, 60, attempt(60, 5 * HOUR, 1), priority=5),
    ]
    found = only(past(jobs))
    assert (found.key, found.cause) == (2, Cause.PRIORITY)
    assert found.holders == ((3, pytest.approx(4 * 5 * HOUR, rel=0.05)),)


def after_an_own_job(**first: object) -> list[Anomaly]:
    """Returns the anomalies of a past in which job 2 of tenant B waits until job 3 of B has ended, although job 3 was
    submitted later.

    `first`: fields of job 3, which runs first.
    """
    jobs = [
        job(1, A, 0, attempt(0, 5 * HOUR, 0)),
        job(2, B, 0, attempt(5 * HOUR, 6 * HOUR, 1)),
        job(3, B, 60, attempt(60, 5 * HOUR, 1), **first),
    ]
    findings = analyse(past(jobs, user_tickets=((1.0,), (1.0, 1.0))))
    return [one for some in findings for one in some.anomalies]


def test_the_order_of_a_tenants_own_jobs_of_equal_priority_is_no_anomaly() -> None:
    assert after_an_own_job() == []
    for other in ({"priority": 1}, {"priority": -1}, {"user": 1}):
        assert [(one.key, one.cause) for one in after_an_own_job(**other)] == [(2, Cause.PRIORITY)]


def test_time_spent_waiting_for_own_jobs_is_left_out_of_the_delay() -> None:
    jobs = [
        job(1, A, 0, attempt(0, 2 * HOUR, 0)),
        job(2, B, 0, attempt(5 * HOUR, 6 * HOUR, 1)),
        job(3, B, 60, attempt(60, 2 * HOUR, 1)),
        job(4, A, 2 * HOUR, attempt(2 * HOUR, 5 * HOUR, 0, 1), workers=2),
    ]
    found = only(past(jobs))
    assert (found.key, found.cause, found.start) == (2, Cause.OVER_BORROWING, 5 * HOUR)
    assert found.late == pytest.approx(3 * HOUR, rel=0.1)
    assert [cause for cause, _ in found.causes] == [Cause.OVER_BORROWING]


def test_a_wait_for_own_jobs_counts_if_the_team_was_behind_before() -> None:
    """Proves that a wait for the tenant's own jobs is an anomaly if other tenants caused the backlog.

    A holds all GPUs for four hours. Then B works off its backlog, one job after another.
    """
    jobs = [
        job(1, A, 0, attempt(0, 4 * HOUR, 0, 1), workers=2),
        job(2, B, 0, attempt(4 * HOUR, 5 * HOUR, 1)),
        job(3, B, HOUR, attempt(5 * HOUR, 6 * HOUR, 1)),
        job(4, A, 4 * HOUR, attempt(4 * HOUR, 6 * HOUR, 0)),
    ]
    (_, found) = analyse(past(jobs))
    assert [(one.key, one.late, one.cause) for one in found.anomalies] == [
        (2, 4 * HOUR, Cause.OVER_BORROWING),
        (3, 4 * HOUR, Cause.OVER_BORROWING),
    ]


@pytest.mark.parametrize(("load", "rate"), FALSE_RATES)
def test_the_rate_of_false_anomalies_is_at_most_the_published_one(load: float, rate: float) -> None:
    findings = [one for seed in (1, 2) for one in analyse(faultless(seed, load))]
    judged = sum(one.judged for one in findings)
    found = [one for some in findings for one in some.anomalies]
    assert judged > 150
    assert Cause.PRIORITY not in {one.cause for one in found}
    assert len(found) <= judged * rate + 3 * math.sqrt(judged * rate)


def test_jobs_that_are_delayed_in_a_faultless_history_are_found() -> None:
    history = wronged(faultless(1, 0.8), every=10, by=6 * HOUR)
    analysis = Analysis(history)
    found = {one.key for tenant in range(len(history.parts)) for one in analysis.of(tenant).anomalies}
    victims = {
        one.key
        for one in history.jobs
        if one.key % 10 == 0 and one.attempts and fits(one, analysis.purchase.machines(one.tenant))
    }
    assert len(victims) >= 8
    assert len(victims - found) <= 1


def test_repeated_failures_to_start_are_a_failure() -> None:
    tries = [attempt(i * HOUR, i * HOUR + 60, 0, failed=True) for i in range(3)]
    backs_off = tuple(Ineligible(one.ends, one.ends + HOUR, Cause.FAILURE) for one in tries)
    found = only(past([job(1, A, 0, *tries, attempt(3 * HOUR, 4 * HOUR, 0), ineligible=backs_off)]))
    assert (found.cause, found.private_start, found.start) == (Cause.FAILURE, 0, 3 * HOUR)


def test_a_wait_for_nodes_that_are_down_is_due_to_hardware() -> None:
    down = (*nodes(4, 4), NodeState(60.0, 1, 0, 4, 0), NodeState(3 * HOUR, 1, 0, 4, 4))
    jobs = [job(1, A, 0, attempt(0, 5 * HOUR, 0)), job(2, B, HOUR, attempt(3 * HOUR, 4 * HOUR, 1))]
    found = only(past(jobs, machines=down))
    assert (found.key, found.cause, found.holders) == (2, Cause.HARDWARE, ())


@pytest.mark.parametrize("generation", [0, None])
def test_a_wait_at_a_limit_is_due_to_the_limit(generation: int | None) -> None:
    jobs = [
        job(1, B, 0, attempt(0, 5 * HOUR, 0), gpus=2),
        job(2, B, HOUR, attempt(5 * HOUR, 6 * HOUR, 0), gpus=2),
    ]
    found = only(past(jobs, limits=(PastLimit(frozenset({B}), generation, 2),)))
    assert (found.key, found.cause, found.holders[0][0]) == (2, Cause.QUOTA, 1)


def test_a_users_limit_blocks_no_other_user() -> None:
    jobs = [
        job(1, B, 0, attempt(0, 5 * HOUR, 0), gpus=2, user=1),
        job(2, B, HOUR, attempt(5 * HOUR, 6 * HOUR, 0), gpus=2, user=1),
        job(3, B, HOUR, attempt(5 * HOUR, 6 * HOUR, 0), gpus=2, user=0),
    ]
    own = PastLimit(frozenset({B}), None, 2, user=1)
    (_, found) = analyse(past(jobs, limits=(own,), user_tickets=((1.0,), (1.0, 1.0))))
    assert {(one.key, one.cause) for one in found.anomalies} == {(2, Cause.QUOTA), (3, Cause.UNEXPLAINED)}
    assert next(one for one in found.anomalies if one.key == 2).holders[0][0] == 1


@pytest.mark.parametrize(("ends", "cause"), [(4 * HOUR, Cause.QUOTA), (2 * HOUR, Cause.UNEXPLAINED)])
def test_a_limit_blocks_only_while_it_is_in_force(ends: float, cause: Cause) -> None:
    jobs = [job(1, B, HOUR, attempt(5 * HOUR, 6 * HOUR, 0), gpus=2)]
    found = only(past(jobs, limits=(PastLimit(frozenset({B}), None, 1, begins=HOUR, ends=ends),)))
    assert (found.cause, len(found.causes)) == (cause, 2)


def over_the_limit(limits: tuple[PastLimit, ...], *more: PastJob, held: int = 4, **fields: object) -> Anomaly:
    """Returns the only anomaly of a past in which a job of tenant B waits four hours.

    Meanwhile B holds two of the four GPUs of its share, and tenant A holds `held` GPUs.

    - `limits`: the limits on GPUs in this past.
    - `more`: further jobs.
    - `fields`: fields of the waiting job.
    """
    jobs = [
        job(1, B, 0, attempt(0, 5 * HOUR, 0), gpus=2),
        job(2, A, 0, attempt(0, 5 * HOUR, 1), gpus=held),
        job(3, B, HOUR, attempt(5 * HOUR, 6 * HOUR, 0), gpus=2, **fields),
        *more,
    ]
    return only(past(jobs, limits=limits))


def test_a_wait_for_idle_gpus_beyond_a_limit_is_due_to_that_limit() -> None:
    limit = PastLimit(frozenset({B}), None, 2, leaves_idle=True)
    # A holds the two other GPUs of the first node, so that no GPU is idle.
    rest = job(4, A, 0, attempt(0, 5 * HOUR, 0), gpus=2)
    found = over_the_limit((limit,), rest)
    assert (found.key, found.cause, found.holders[0][0]) == (3, Cause.IDLE_LIMIT, 1)
    assert found.private_start == HOUR
    assert over_the_limit((replace(limit, gpus=4),), rest).cause == Cause.OVER_BORROWING
    assert over_the_limit((replace(limit, ends=HOUR),), rest).cause == Cause.OVER_BORROWING
    assert over_the_limit((limit,)).cause == Cause.UNEXPLAINED  # two GPUs are idle
    assert over_the_limit((replace(limit, leaves_idle=False),), rest).cause == Cause.QUOTA


def test_preemptible_jobs_do_not_count_towards_a_limit_that_allows_idle_gpus() -> None:
    limit = PastLimit(frozenset({B}), None, 2, leaves_idle=True)
    jobs = [
        job(1, B, 0, attempt(0, 5 * HOUR, 0), gpus=2, preemptible=True),
        job(2, A, 0, attempt(0, 5 * HOUR, 1)),
        job(3, A, 0, attempt(0, 5 * HOUR, 0), gpus=2),
        job(4, B, HOUR, attempt(5 * HOUR, 6 * HOUR, 0), gpus=2),
    ]
    (found,) = [
        one for some in analyse(past(jobs, limits=(limit,))) for one in some.anomalies if one.key == 4
    ]
    assert found.cause == Cause.OVER_BORROWING


def test_a_team_without_gpu_hours_may_still_use_idle_gpus() -> None:
    spent = (Ineligible(0.0, WEEK, Cause.IDLE_LIMIT),)
    rest = job(4, A, 0, attempt(0, 5 * HOUR, 0), gpus=2)
    assert over_the_limit((), rest, ineligible=spent).cause == Cause.IDLE_LIMIT
    assert over_the_limit((), ineligible=spent).cause == Cause.UNEXPLAINED
    paused = (*spent, Ineligible(0.0, WEEK, Cause.PAUSE))
    assert over_the_limit((), rest, ineligible=paused).cause == Cause.PAUSE


def test_a_job_on_slower_gpus_than_its_own_ends_late() -> None:
    two = (*nodes(4, 4), *nodes(4, 4, generation=1, first=2))
    jobs = [
        job(1, A, 0, attempt(0, 8 * HOUR, 2, 3, generation=1), workers=2, speeds=(1.0, 1.0)),
        job(2, B, 0, attempt(0, 8 * HOUR, 0), speeds=(1.0, 4.0)),
    ]
    found = only(past(jobs, machines=two, generations=2))
    assert (found.key, found.cause, found.at_end, found.late) == (2, Cause.SLOWER_GPUS, True, 6 * HOUR)


def test_repeated_preemptions_lose_the_time_of_repeated_starts() -> None:
    attempts = [
        attempt(i * 600.0, i * 600.0 + 600.0, 0, starts_in=0.0 if i == 0 else 300.0) for i in range(20)
    ]
    found = only(past([job(1, A, 0, *attempts)]))
    assert (found.cause, found.late) == (Cause.SWITCHING, 19 * 300.0)


def test_work_lost_with_a_node_makes_a_job_end_late() -> None:
    """Proves that work lost with a node counts as the cause of a late end, and not as work of the job.

    Alone, the job would run its four hours without a break. On the shared cluster two hours are lost.
    """
    attempts = [attempt(0, 3 * HOUR, 0, lost_from=HOUR), attempt(3 * HOUR, 6 * HOUR, 0)]
    found = only(past([job(1, A, 0, *attempts)]))
    assert (found.cause, found.at_end, found.late) == (Cause.LOST_WORK, True, 2 * HOUR)
    assert found.private_finish == 4 * HOUR
    assert dict(found.causes) == {Cause.LOST_WORK: 2 * HOUR}


def test_repeated_starts_are_not_lost_work() -> None:
    """Proves that a start that must be repeated after a failure counts as switching, not as lost work.

    The first attempt took an hour, and its work is lost. The first ten minutes of this hour were the start.
    """
    attempts = [
        attempt(0, HOUR, 0, starts_in=600.0, lost_from=0.0),
        attempt(HOUR, 3 * HOUR, 0, starts_in=600.0),
    ]
    found = only(past([job(1, A, 0, *attempts)]))
    assert dict(found.causes) == {Cause.LOST_WORK: 3000.0, Cause.SWITCHING: 600.0}
    assert found.late == HOUR


def test_a_wait_beside_free_gpus_is_unexplained() -> None:
    found = only(past([job(1, A, 0, attempt(HOUR, 2 * HOUR, 0))]))
    assert (found.cause, found.holders) == (Cause.UNEXPLAINED, ())


def test_a_delay_within_the_tolerance_is_no_anomaly() -> None:
    found = past([job(1, A, 0, attempt(600, 600 + 2 * HOUR, 0))])
    assert Analysis(found, Tolerance(300, 0.1)).of(A).anomalies == ()
    assert len(Analysis(found, Tolerance(300, 0.05)).of(A).anomalies) == 1


def test_a_job_too_large_for_its_private_cluster_is_counted_and_not_judged() -> None:
    found = analyse(past([job(1, A, 0, attempt(9 * HOUR, 10 * HOUR, 0, 1), workers=2)]))[A]
    assert (found.anomalies, found.too_large, found.judged, found.gpus) == ((), 1, 0, (4,))


def test_a_waiting_job_is_at_least_as_late_as_it_has_waited() -> None:
    jobs = [job(1, A, 0, attempt(0, WEEK, 0, 1), workers=2, ended=None), job(2, B, HOUR)]
    findings = analyse(past(jobs))
    (found,) = findings[B].anomalies
    assert (found.late, found.start, found.finish) == (WEEK - HOUR, None, None)
    assert (found.cause, findings[B].unfinished) == (Cause.OVER_BORROWING, 1)


def test_a_job_that_still_runs_or_was_cancelled_is_judged_by_its_start_alone() -> None:
    jobs = [
        job(1, A, 0, attempt(0, HOUR, 0), attempt(20 * HOUR, WEEK, 0), ended=None),
        job(2, B, 0, attempt(0, HOUR, 1), attempt(20 * HOUR, 30 * HOUR, 1), runs_to_its_end=False),
    ]
    findings = analyse(past(jobs))
    assert [(some.anomalies, some.judged, some.unfinished) for some in findings] == [((), 1, 1), ((), 1, 1)]


def test_a_job_cancelled_while_it_waits_is_as_late_as_it_waited() -> None:
    jobs = [
        job(1, A, 0, attempt(0, 9 * HOUR, 0, 1), workers=2),
        job(2, B, HOUR, ended=3 * HOUR, runs_to_its_end=False),
    ]
    found = only(past(jobs))
    assert (found.key, found.late, found.start, found.finish) == (2, 2 * HOUR, None, 3 * HOUR)


def test_a_job_from_before_the_period_takes_part_and_is_not_judged() -> None:
    jobs = [
        job(1, B, 0, attempt(5 * HOUR, 9 * HOUR, 1), carried=True),
        job(2, B, HOUR, attempt(9 * HOUR, 10 * HOUR, 1)),
    ]
    findings = analyse(past(jobs))[B]
    assert (findings.carried, findings.judged) == (1, 1)
    assert [(one.key, one.private_start) for one in findings.anomalies] == [(2, 4 * HOUR)]


def test_private_clusters_follow_tickets_level_by_level_and_sum_to_the_cluster() -> None:
    parent, tickets = [NOWHERE, NOWHERE, 0, 0], [100.0, 300.0, 1.0, 1.0]
    assert ticket_parts(parent, tickets) == [0.25, 0.75, 0.125, 0.125]
    assert apportion([0.75, 0.125, 0.125], 12) == [9, 2, 1]


@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=30).map(
        lambda some: [one / sum(some) for one in some]
    ),
    st.integers(0, 500),
)
def test_a_private_cluster_differs_from_its_exact_part_by_less_than_one_gpu(
    parts: list[float], gpus: int
) -> None:
    bought = apportion(parts, gpus)
    assert sum(bought) == gpus
    assert all(abs(whole - part * gpus) < 1 + 1e-9 for whole, part in zip(bought, parts, strict=True))


def test_private_clusters_change_over_time_and_have_nodes_of_the_usual_size() -> None:
    grows = (*nodes(8, 8), NodeState(WEEK / 2 + 60, 2, 0, 4, 4))
    found = past([], machines=grows, parts=(0.7, 0.3))
    assert usual_gpus(found).tolist() == [16]
    purchase = Purchase.of(found)
    assert purchase.gpus.tolist() == [[11], [5]]
    for tenant, first, later in ((A, (8, 3), (8, 6)), (B, (5,), (6,))):
        bought = [(since, machines.node_gpus) for since, machines in purchase.machines(tenant)]
        assert bought == [(0.0, first), (WEEK / 2 + 60, later)]
    assert usual_gpus(past([], machines=(NodeState(WEEK - 60, 0, 0, 8, 8),))).tolist() == [8]


def test_hardware_joins_private_clusters_only_when_it_is_added() -> None:
    """Proves that a new node joins the private clusters only when it is added.

    The second node comes after five hours. Both waiting jobs start then, so neither of them is late.
    """
    grows = (*nodes(4), NodeState(5 * HOUR, 1, 0, 4, 4))
    jobs = [
        job(1, A, 0, attempt(0, 9 * HOUR, 0), gpus=2),
        job(2, B, 0, attempt(0, 9 * HOUR, 0), gpus=2),
        job(3, A, HOUR, attempt(5 * HOUR, 6 * HOUR, 1), gpus=2),
        job(4, B, HOUR, attempt(5 * HOUR, 6 * HOUR, 1), gpus=2),
    ]
    findings = analyse(past(jobs, machines=grows))
    assert [(some.anomalies, some.judged) for some in findings] == [((), 2), ((), 2)]


def test_hardware_that_is_removed_leaves_private_clusters_too() -> None:
    """Proves that a removed node also leaves the private clusters.

    Half of the hardware is removed after an hour. The jobs on it continue when there is room, and no job counts as
    late.
    """
    shrinks = (*nodes(4, 4), NodeState(HOUR, 1, 0, 0, 0))
    jobs = [
        job(1, A, 0, attempt(0, 3 * HOUR, 0), gpus=2),
        job(2, B, 0, attempt(0, 3 * HOUR, 0), gpus=2),
        job(3, A, 60, attempt(60, HOUR, 1), attempt(3 * HOUR, 5 * HOUR, 0), gpus=2),
        job(4, B, 60, attempt(60, HOUR, 1), attempt(3 * HOUR, 5 * HOUR, 0), gpus=2),
    ]
    findings = analyse(past(jobs, machines=shrinks))
    assert [(some.anomalies, some.judged) for some in findings] == [((), 2), ((), 2)]
    late = tuple(
        replace(one, ended=9 * HOUR, attempts=(*one.attempts[:-1], attempt(7 * HOUR, 9 * HOUR, 0)))
        for one in jobs[2:]
    )
    found = analyse(past([*jobs[:2], *late], machines=shrinks))
    assert [(one.key, one.late) for some in found for one in some.anomalies] == [(3, 4 * HOUR), (4, 4 * HOUR)]


def test_a_gang_too_large_for_the_remaining_hardware_waits_for_hardware() -> None:
    """Proves that the cause is missing hardware if a gang no longer fits after a node was removed.

    B's private cluster would have finished the job before the removal.
    """
    shrinks = (*nodes(4, 4), NodeState(20 * HOUR, 1, 0, 0, 0))
    jobs = [
        job(1, A, 0, attempt(0, 20 * HOUR, 0, 1), workers=2),
        job(2, B, HOUR, ended=None),
        job(3, A, 20 * HOUR, attempt(20 * HOUR, WEEK, 0), gpus=2, ended=None),
    ]
    (found,) = analyse(past(jobs, machines=shrinks))[B].anomalies
    assert (found.key, found.private_start, found.cause) == (2, HOUR, Cause.HARDWARE)
    assert {cause for cause, _ in found.causes} == {Cause.HARDWARE, Cause.OVER_BORROWING}


def test_speeds_are_estimated_from_jobs_that_were_measured_on_both_generations() -> None:
    nan = float("nan")
    rates = np.array([[10.0, 40.0], [5.0, nan], [nan, 8.0], [2.0, 6.0], [1.0, nan], [nan, nan]])
    accepts = np.array([[True, True]] * 4 + [[True, True], [False, True]])
    team = np.array([0, 0, 0, 1, 1, 2])
    assert speeds_of(rates, accepts, team) == [(1, 4), (1, 4), (1, 4), (1, 3), (1, 3), (0, 1)]
    # A team that was never measured on two generations gets the median over all others, which is between 4 and 3.
    assert speeds_of(rates, accepts, np.array([0, 0, 0, 1, 3, 2]))[4] == (1, 3.5)


wanted = st.builds(
    lambda jobs, tickets, cost, ordering, moved: past(
        [replace(one, key=i, user=min(one.user, len(tickets[one.tenant]) - 1)) for i, one in enumerate(jobs)],
        machines=(
            *nodes(4, 4, 4),
            *nodes(4, 4, generation=1, first=3),
            *(NodeState(at, 2, 0, 4 * (n % 2), 4 * (n % 2)) for n, at in enumerate(sorted(moved))),
        ),
        generations=2,
        user_tickets=tuple(tuple(some) for some in tickets),
        rules=Rules(switch_cost=float(cost), ordering=ordering),
        ends=1e9,
    ),
    jobs=st.lists(
        st.builds(
            lambda arrival, lasts, tenant, **more: job(0, tenant, arrival, attempt(0, lasts, 0), **more),
            arrival=st.integers(0, 5000).map(float),
            lasts=st.integers(60, 4000).map(float),
            tenant=st.integers(0, 1),
            gpus=st.sampled_from([1, 2, 4]),
            user=st.integers(0, 2),
            speeds=st.sampled_from([(1.0, 0.0), (1.0, 2.0), (1.0, 4.0)]),
            priority=st.sampled_from([0, 0, 1]),
        ),
        min_size=1,
        max_size=12,
    ),
    tickets=st.tuples(*[st.lists(st.sampled_from([50.0, 100.0]), min_size=1, max_size=3)] * 2),
    cost=st.sampled_from([0, 5]),
    ordering=st.sampled_from(["stride", "lottery"]),
    moved=st.lists(st.integers(1, 6000).map(float), max_size=3, unique=True),
)


@settings(max_examples=40, deadline=None)
@given(wanted)
def test_there_is_no_anomaly_if_every_tenant_had_what_it_would_have_alone(found: Past) -> None:
    history = apart(found)
    for findings in analyse(history, Tolerance(seconds=1e-6, part=0.0)):
        assert findings.anomalies == ()
        assert findings.too_large == 0


@settings(max_examples=15, deadline=None)
@given(wanted, st.integers(1200, 20_000))
def test_a_delayed_job_is_found_and_the_findings_repeat(found: Past, by: int) -> None:
    history = apart(found)
    moved = tuple(_later(one, float(by)) if one.tenant == A else one for one in history.jobs)
    late = replace(history, jobs=moved)
    findings = analyse(late, Tolerance(seconds=300.0, part=0.0))
    assert findings == analyse(late, Tolerance(seconds=300.0, part=0.0))
    assert findings[B].anomalies == ()
    assert {one.key for one in findings[A].anomalies} == {one.key for one in moved if one.tenant == A}
    for one in findings[A].anomalies:
        # A little of the delay may be due to the order of the tenant's own jobs.
        assert by - 300 - by / 12 <= one.late <= by + 1e-6
        assert sum(seconds for _, seconds in one.causes) >= 0


lanes = st.lists(
    st.lists(st.tuples(st.integers(0, 2000), st.integers(300, 4000)), max_size=4), min_size=1, max_size=4
)


@settings(max_examples=20, deadline=None)
@given(lanes, st.lists(st.tuples(st.integers(0, 3000), st.integers(600, 9000)), max_size=20))
def test_a_tenant_within_its_share_has_no_anomaly_however_much_others_want(
    modest: list[list[tuple[int, int]]], greedy: list[tuple[int, int]]
) -> None:
    """Proves that a tenant within its share has no anomaly under the live policy, however much others want.

    B has at most four one-GPU jobs at a time, which is its share of eight GPUs. A submits far more jobs than fit.
    """
    jobs = [job(0, A, arrival, attempt(0, lasts, 0), gpus=1) for arrival, lasts in greedy]
    for lane in modest:
        now = 0.0
        for pause, lasts in lane:
            jobs.append(job(0, B, now + pause, attempt(0, lasts, 0), gpus=1))
            now += pause + lasts + 600  # enough even if the job had to wait for some rounds
    listed = [replace(one, key=i) for i, one in enumerate(sorted(jobs, key=lambda one: one.arrival))]
    history = shared(past(listed, machines=nodes(8), ends=1e9))
    assert analyse(history)[B].anomalies == ()


def _later(one: PastJob, by: float) -> PastJob:
    attempts = tuple(
        replace(t, begins=t.begins + by, ready=t.ready + by, ends=t.ends + by) for t in one.attempts
    )
    return replace(one, attempts=attempts, ended=None if one.ended is None else one.ended + by)


def test_an_elastic_gang_that_ran_larger_has_as_much_more_work_at_its_least_size() -> None:
    one = job(1, 0, 0.0, attempt(0.0, 100.0, 0), attempt(100.0, 200.0, 0, 0, 1), gpus=1)
    assert work_of(one, past([one])) == 100.0 + 3 * 100.0
