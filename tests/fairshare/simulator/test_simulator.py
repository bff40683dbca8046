"""Tests that replays agree with a simulation second by second, and keep the promises of the live policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairshare.model import NOWHERE, Decision, Settings, Snapshot
from fairshare.policies import policy_of
from fairshare.policies.base import Need
from fairshare.policies.base import State as PolicyState
from fairshare.policies.gandiva_fair.policy import GandivaFair
from fairshare.simulator.engine import Engine, Replay
from fairshare.simulator.live import LiveScheduler, Tickets
from fairshare.simulator.model import JobOutcome, Machines, Placement, Scheduler, SimJob, State
from fairshare.simulator.textbook import Fifo, ShortestFirst

FOUR = Machines((0,), (4,))
TWO_KINDS = Machines((0, 0, 1), (4, 4, 4), generations=2)
ALONE = Tickets((NOWHERE,), (100.0,), (True,))
TWO_TEAMS = Tickets((NOWHERE, NOWHERE), (100.0, 300.0), (True, True))


def simple_jobs(gpus: int = 4) -> st.SearchStrategy[list[SimJob]]:
    return st.lists(
        st.builds(
            SimJob,
            arrival=st.integers(0, 30).map(float),
            work=st.integers(1, 12).map(float),
            workers=st.integers(1, gpus),
        ),
        min_size=1,
        max_size=12,
    )


def second_by_second(
    jobs: Sequence[SimJob],
    order: Callable[[list[int], dict[int, float]], list[int]],
    *,
    skips: bool,
    preempts: bool,
) -> list[float]:
    """Simulates four GPUs second by second, and returns the time at which each job ends, in whole seconds.

    - `order`: called with the indices of the jobs that have arrived and not ended, and the seconds that each job still
      needs. Returns these indices in the order in which the jobs should run.
    - `skips`: whether later jobs may start before a job that does not fit.
    - `preempts`: whether the arrival or end of a job may stop running jobs.
    """
    left = {job: one.work for job, one in enumerate(jobs)}
    arrived: list[int] = []
    running: list[int] = []
    ends = [0.0] * len(jobs)
    now = 0
    while left:
        events = [job for job in running if left[job] <= 0]
        for job in events:
            ends[job] = float(now)
            running.remove(job)
            arrived.remove(job)
            del left[job]
        new = [job for job, one in enumerate(jobs) if one.arrival == now]
        arrived += new
        if events or new:
            arrived = order(arrived, left)
            keep = [] if preempts else list(running)
            free = 4 - sum(jobs[job].gpus for job in keep)
            for job in arrived:
                if job in keep:
                    continue
                if jobs[job].gpus <= free:
                    keep.append(job)
                    free -= jobs[job].gpus
                elif not skips:
                    break
            running = keep
        for job in running:
            left[job] -= 1
        now += 1
    return ends


def as_they_came(arrived: list[int], left: dict[int, float]) -> list[int]:
    return arrived


RULES: dict[str, tuple[Callable[[], Scheduler], Callable[[Sequence[SimJob]], list[float]]]] = {
    "fifo": (Fifo, lambda jobs: second_by_second(jobs, as_they_came, skips=False, preempts=False)),
    "fifo with skips": (
        lambda: Fifo(skips=True),
        lambda jobs: second_by_second(jobs, as_they_came, skips=True, preempts=False),
    ),
    "shortest first": (
        ShortestFirst,
        lambda jobs: second_by_second(
            jobs, lambda arrived, left: sorted(arrived, key=lambda job: left[job]), skips=True, preempts=True
        ),
    ),
    "least service first": (
        lambda: ShortestFirst(by_service=True),
        lambda jobs: second_by_second(
            jobs,
            lambda arrived, left: sorted(arrived, key=lambda job: left[job] * jobs[job].gpus),
            skips=True,
            preempts=True,
        ),
    ),
}


@pytest.mark.parametrize("rule", RULES)
@given(simple_jobs())
def test_textbook_schedulers_end_jobs_when_a_simulation_by_the_second_does(
    rule: str, jobs: list[SimJob]
) -> None:
    scheduler, counted = RULES[rule]
    replay = Engine(FOUR, jobs, scheduler()).run()
    assert [fate.finish for fate in replay.fates] == counted(jobs)


def test_fifo_reproduces_a_small_example_computed_by_hand() -> None:
    """Proves that FIFO gives the result computed by hand.

    Job 0 holds three of four GPUs until second 10. Job 1 needs two GPUs. Job 2 needs one, and starts before job 1 if a
    job that does not fit may be skipped.
    """
    jobs = [SimJob(0, 10, 3), SimJob(1, 5, 2), SimJob(2, 5, 1)]
    assert [one.first_start for one in Engine(FOUR, jobs, Fifo()).run().fates] == [0, 10, 10]
    skipping = Engine(FOUR, jobs, Fifo(skips=True)).run()
    assert [one.first_start for one in skipping.fates] == [0, 10, 2]
    assert (skipping.mean_completion(jobs), skipping.makespan(jobs)) == (pytest.approx((10 + 14 + 5) / 3), 15)
    shortest = Engine(FOUR, jobs, ShortestFirst()).run()
    assert [one.preemptions for one in shortest.fates] == [1, 0, 0]


def test_a_switch_holds_gpus_without_progress() -> None:
    (fate,) = Engine(FOUR, [SimJob(3, 10)], Fifo(), switch_cost=2).run().fates
    assert (fate.first_start, fate.finish, fate.held(1)) == (3, 15, 12)


def test_a_scheduler_that_gives_out_too_many_gpus_is_refused() -> None:
    class Generous:
        def decide(self, state: State) -> dict[int, Placement]:
            return dict.fromkeys(state.active, Placement(0))

        def ask_again(self, state: State) -> float | None:
            return None

    with pytest.raises(ValueError, match="more GPUs are allocated"):
        Engine(FOUR, [SimJob(0, 1, 3), SimJob(0, 1, 2)], Generous()).run()
    with pytest.raises(ValueError, match="cannot run on generation 0"):
        Engine(TWO_KINDS, [SimJob(0, 1, speeds=(0.0, 1.0))], Generous()).run()


def test_a_replay_may_end_before_its_jobs() -> None:
    fates = Engine(FOUR, [SimJob(0, 10, 4), SimJob(0, 10, 4)], Fifo()).run(until=12).fates
    assert [(fate.finish, fate.held(4)) for fate in fates] == [(10, 40), (None, 8)]


jobs_of_two_teams = st.lists(
    st.builds(
        SimJob,
        arrival=st.floats(0, 900),
        work=st.floats(10, 600),
        workers=st.integers(1, 2),
        gpus_per_worker=st.sampled_from([1, 2, 4]),
        speeds=st.sampled_from([(1.0, 1.0), (1.0, 2.5), (0.0, 1.5), (1.0, 0.0)]),
        account=st.integers(0, 1),
    ).filter(lambda job: job.speeds[0] > 0 or job.gpus <= 4),
    min_size=1,
    max_size=14,
)


def live(
    machines: Machines,
    jobs: Sequence[SimJob],
    tickets: Tickets,
    *,
    switch_cost: float = 0.0,
    asks_idly: bool = True,
    machines_later: Sequence[tuple[float, Machines]] = (),
    **changes: object,
) -> Replay:
    rules = Settings(**({"quantum": 60.0} | changes))  # type: ignore[arg-type]
    scheduler = LiveScheduler(machines, tickets, rules, seed=7, asks_idly=asks_idly)
    return Engine(machines, jobs, scheduler, switch_cost=switch_cost, changes=machines_later).run()


@settings(max_examples=40, deadline=None)
@given(jobs_of_two_teams.filter(lambda jobs: all(job.speeds[1] == 0 or job.gpus <= 8 for job in jobs)))
def test_the_live_policy_finishes_every_job_and_gives_no_gpu_twice(
    jobs: list[SimJob],
) -> None:
    jobs = [job for job in jobs if job.speeds != (1.0, 0.0) or job.gpus <= 8]
    if not jobs:
        return
    replay = live(TWO_KINDS, jobs, TWO_TEAMS)
    edges: list[tuple[float, int]] = []
    for job, fate in zip(jobs, replay.fates, strict=True):
        assert fate.finish is not None
        done = sum((one.ends - one.begins) * job.speeds[one.place.generation] for one in fate.spans)
        assert done == pytest.approx(job.work)
        assert all(one.ends <= other.begins for one, other in pairwise(fate.spans))
        edges += [(one.begins, job.gpus) for one in fate.spans] + [
            (one.ends, -job.gpus) for one in fate.spans
        ]
    held = 0
    for _, change in sorted(edges, key=lambda edge: (edge[0], edge[1])):
        held += change
        assert held <= 12


def test_a_replay_is_deterministic() -> None:
    jobs = [SimJob(i * 50.0, 500.0 + i, gpus_per_worker=1 + i % 4, account=i % 2) for i in range(20)]
    one, other = (live(FOUR, jobs, TWO_TEAMS, ordering="lottery", switch_cost=3.0) for _ in range(2))
    assert [fate.spans for fate in one.fates] == [fate.spans for fate in other.fates]


def test_gpu_time_follows_the_tickets_while_both_teams_want_more() -> None:
    jobs = [SimJob(0.0, 10_000.0, account=team) for team in (0, 1) for _ in range(8)]
    scheduler = LiveScheduler(FOUR, TWO_TEAMS, Settings(quantum=60.0))
    fates = Engine(FOUR, jobs, scheduler).run(until=12_000).fates
    held = [
        sum(fate.held(1) for job, fate in zip(jobs, fates, strict=True) if job.account == team)
        for team in (0, 1)
    ]
    assert held[0] == pytest.approx(12_000, abs=120)
    assert held[1] == pytest.approx(36_000, abs=120)


def test_the_policy_decides_each_quantum_while_jobs_are_there_and_moves_no_gang_that_fits() -> None:
    """Proves that the policy decides once per quantum only while there are jobs, and moves no gang that fits.

    Ten jobs run one after another, each for 15 minutes. For each job the policy must decide 16 times: when the job
    starts, and after each minute.
    """
    jobs = [SimJob(i * 1000.0, 900.0, gpus_per_worker=4) for i in range(10)]
    replay = live(FOUR, jobs, ALONE)
    assert replay.decisions == 10 * 16
    assert (replay.switches, replay.moves, replay.lost) == (0, 0, 0.0)


class Scripted:
    """A scheduler that returns prepared decisions at given times."""

    def __init__(self, script: Mapping[float, Mapping[int, Placement]]) -> None:
        self._script = script

    def decide(self, state: State) -> Mapping[int, Placement]:
        now = max((at for at in self._script if at <= state.now), default=0.0)
        return {job: place for job, place in self._script[now].items() if job in state.active}

    def ask_again(self, state: State) -> float | None:
        return min((at for at in self._script if at > state.now), default=None)


def test_starts_switches_and_moves_have_their_own_costs() -> None:
    """Proves that starts, moves and resumptions cost different times: a job of two GPUs starts (7 s), moves (5 s), is
    stopped, and resumes (3 s)."""
    here, there = Placement(0, (0,)), Placement(0, (1,))
    script: dict[float, dict[int, Placement]] = {0.0: {0: here}, 20.0: {0: there}, 40.0: {}, 60.0: {0: there}}
    machines, jobs = Machines((0, 0), (4, 4)), [SimJob(0.0, 40.0, gpus_per_worker=2)]
    engine = Engine(machines, jobs, Scripted(script), switch_cost=3.0, start_cost=7.0, move_cost=5.0)
    replay = engine.run()
    assert (replay.switches, replay.moves, replay.lost) == (2, 1, 2 * (7 + 5 + 3))
    assert replay.fates[0].finish == 60 + 3 + 40 - (20 - 7) - (20 - 5)


class Watching(GandivaFair):
    """A policy that records every view that it gets. The views contain each job's GPU time so far."""

    needs = GandivaFair.needs | {Need.ATTAINED}

    def decide(self, state: PolicyState, view: Snapshot, random: np.random.Generator) -> Decision:
        self.seen: list[Snapshot] = [*getattr(self, "seen", []), view]
        return super().decide(state, view, random)


def test_a_policy_sees_the_time_submit_times_and_the_gpu_time_of_each_job() -> None:
    policy = Watching(GandivaFair.options_type())
    jobs = [
        SimJob(10.0, 500.0, gpus_per_worker=2, speeds=(0.0, 1.0), expected=400.0),
        SimJob(200.0, 100.0, speeds=(1.0, 0.0), deadline=350.0),
    ]
    Engine(TWO_KINDS, jobs, LiveScheduler(TWO_KINDS, TWO_TEAMS, Settings(quantum=60.0), policy=policy)).run()
    views = [view for view in policy.seen if len(view.jobs)]
    for view in views:
        came = [job.arrival for job in jobs if job.arrival <= view.now < job.arrival + job.work]
        assert view.jobs.submitted is not None
        assert view.jobs.submitted.tolist() == came
        assert view.jobs.attained is not None
        assert (view.jobs.expected is None, view.jobs.deadline is None) == (
            10.0 not in came,
            200.0 not in came,
        )
        first, *second = view.jobs.attained.tolist()
        assert first == pytest.approx([0, 2 * (view.now - 10)])
        assert second == [pytest.approx([view.now - 200, 0])] * len(second)
    assert views[-1].now > 200 > views[0].now == 10


class Asking(GandivaFair):
    """A policy that asks for the next round after 25 seconds, and records the times of its decisions."""

    asked: list[tuple[float, bool]]

    def decide(self, state: PolicyState, view: Snapshot, random: np.random.Generator) -> Decision:
        self.asked.append((view.now, view.settings.is_quantum))
        return replace(super().decide(state, view, random), ask_again=25.0)


@pytest.mark.parametrize("asks_idly", [True, False])
def test_a_policy_decides_when_it_asked_to(asks_idly: bool) -> None:
    policy = Asking(GandivaFair.options_type())
    policy.asked = []
    scheduler = LiveScheduler(FOUR, ALONE, Settings(quantum=60.0), policy=policy, asks_idly=asks_idly)
    Engine(FOUR, [SimJob(0.0, 130.0)], scheduler).run()
    assert [moment for moment, is_quantum in policy.asked if is_quantum] == [0, 60, 120]
    assert [moment for moment, is_quantum in policy.asked if not is_quantum] == [25, 50, 85, 110, 130]


def often_and_seldom(
    machines: Machines, jobs: Sequence[SimJob], later: Sequence[tuple[float, Machines]] = ()
) -> tuple[Replay, Replay]:
    """Returns two replays of one account's jobs: with all rounds, and without those that would change no time."""
    run = partial(
        live, machines, jobs, ALONE, switch_cost=0.5, machines_later=later, quantum=2.0, min_hold=3.0
    )
    return run(asks_idly=True), run(asks_idly=False)


ON_TWO_KINDS = simple_jobs().map(lambda jobs: [replace(job, speeds=(1.0, 2.0)) for job in jobs])


@settings(max_examples=20, deadline=None)
@given(st.tuples(st.just(FOUR), simple_jobs()) | st.tuples(st.just(TWO_KINDS), ON_TWO_KINDS))
def test_rounds_that_would_change_no_time_are_skipped(case: tuple[Machines, list[SimJob]]) -> None:
    often, seldom = often_and_seldom(*case)
    assert [fate.spans for fate in seldom.fates] == [fate.spans for fate in often.fates]
    assert seldom.decisions <= often.decisions


def test_without_idle_rounds_a_job_still_moves_to_faster_gpus_once_they_are_free_or_there() -> None:
    one_each, slow_alone = Machines((0, 1), (1, 1), 2), Machines((0, 1), (1, 0), 2)
    jobs = [SimJob(0.0, 20.0, speeds=(1.0, 2.0)), SimJob(0.0, 100.0, speeds=(1.0, 2.0))]
    often, seldom = often_and_seldom(one_each, jobs)
    assert seldom.fates == often.fates
    assert [span.place.generation for span in seldom.fates[1].spans] == [0, 1]
    often, seldom = often_and_seldom(slow_alone, jobs[1:], [(11.0, one_each)])
    assert seldom.fates == often.fates
    assert [span.place.generation for span in seldom.fates[0].spans] == [0, 1]
    assert seldom.decisions < often.decisions / 3


class Forgetful(LiveScheduler):
    """A scheduler that builds its jobs and its policy again for each decision, so that nothing is cached."""

    def decide(self, state: State) -> Mapping[int, Placement]:
        self._known, self._policy = None, policy_of(self._settings)
        return super().decide(state)


@settings(max_examples=25, deadline=None)
@given(jobs_of_two_teams.filter(lambda jobs: all(job.gpus <= 4 for job in jobs)), st.booleans())
def test_caches_between_rounds_change_no_decision(jobs: list[SimJob], trading: bool) -> None:
    def fates(kind: type[LiveScheduler]) -> Sequence[JobOutcome]:
        scheduler = kind(TWO_KINDS, TWO_TEAMS, Settings(quantum=60.0, trading=trading), seed=7)
        return Engine(TWO_KINDS, jobs, scheduler, switch_cost=3.0).run().fates

    assert fates(LiveScheduler) == fates(Forgetful)


def test_a_quantum_ends_even_if_rounded_times_differ_by_less() -> None:
    """Proves that a quantum of 60 s ends even if rounding makes it seem slightly shorter.

    Such rounding occurs here, because the jobs arrive about 1e5 seconds after the start, a third of a second apart.
    """
    jobs = [SimJob(1e5 + i / 3, 500.0 + i / 7, gpus_per_worker=4, account=i % 2) for i in range(6)]
    replay = live(FOUR, jobs, TWO_TEAMS)
    assert all(fate.finish is not None for fate in replay.fates)
    assert replay.decisions < 200
