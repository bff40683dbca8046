"""Tests that gangs are placed on generations by the speeds of their own account, and on the fewest nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from tests.fairshare.build import Account, Job, snapshot
from tests.fairshare.policies.gandiva_fair.playing import by_hand, decide, play


def test_the_fast_generation_goes_to_accounts_due_there_and_locks_none_out():
    jobs = [Job(0, gpus=8, rate={0: 1.0, 1: 4.0}), Job(1, gpus=8, accepts=(1,), rate={1: 1.0})]
    played = play(snapshot([(0, 8), (1, 8)], [Account(100), Account(1)], jobs, trading=False), 303)
    assert played.by_generation == pytest.approx(np.array([[0.08, 7.92], [0.0, 0.08]]), abs=0.04)


def test_an_indifferent_account_leaves_generations_to_accounts_that_need_them():
    played = play(snapshot([(0, 1), (1, 1)], [Account(), Account()], [Job(0), Job(1, accepts=(1,))]), 50)
    assert played.by_generation.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert played.moves == played.stops == []


def test_two_accounts_take_turns_on_the_generation_where_both_are_fast():
    jobs = [Job(t, gpus=8, rate={0: 1.0, 1: 4.0}) for t in range(2)]
    played = play(snapshot([(0, 8), (1, 8)], [Account(), Account()], jobs, trading=False), 120)
    assert played.by_generation == pytest.approx(np.full((2, 2), 4.0), abs=0.3)
    assert len(played.moves) <= 120, "both move in every other round at most"


def test_a_user_s_jobs_are_matched_to_generations_by_how_much_each_gains():
    jobs = [Job(0, rate={0: 1.0, 1: 1.0}) for _ in range(4)] + [
        Job(0, rate={0: 1.0, 1: 9.0}) for _ in range(4)
    ]
    one = decide(snapshot([(0, 4), (1, 4)], [Account()], jobs, trading=False))
    assert one.picks.generation.tolist() == [0] * 4 + [1] * 4


def test_a_job_that_runs_a_part_of_the_time_has_it_on_the_generation_it_gains_most_by():
    """Proves that a job that runs in only 25 of 100 rounds runs mostly on the generation where it gains most: in at
    least 19 of the 25 rounds."""
    jobs = [Job(0, rate={0: 1.0, 1: 1.1}), Job(0, rate={0: 1.0, 1: 4.0})]
    jobs += [Job(t, rate={0: 1.0, 1: 2.0}) for t in (1, 2) for _ in range(6)]
    share = [[1.0, 0.25], [1.5, 0.9], [1.5, 0.85]]
    played = play(snapshot([(0, 4), (1, 2)], [Account()] * 3, jobs), 100, by_hand(share))
    assert played.by_generation == pytest.approx(np.array(share))
    assert len(played.ran(1)) == 25
    # Only 15 if the job also ran when its account is due time on the slow generation.
    assert sum(one.picks.generation[1] == 1 for one in played.rounds) >= 19


@pytest.mark.parametrize(
    ("nodes", "jobs"),
    [
        ([(0, 8), (0, 8)], [Job(0, gpus=4), Job(0, gpus=4), Job(0, gpus=4)]),
        ([(0, 8), (1, 8)], [Job(0, gpus=4), Job(1, gpus=8, accepts=(0,)), Job(0, gpus=4)]),
        ([(0, 8)] * 3, [Job(0, gpus=g) for g in (3, 3, 3, 5, 5, 5)]),
        ([(0, 8)] * 2, [Job(0, gpus=g) for g in (3, 3, 2, 4, 4)]),
        ([(0, 4), (1, 4)], [Job(0, gpus=2), Job(0, gpus=2), Job(1, workers=2, gpus=2, accepts=(0,))]),
    ],
)
def test_if_all_gangs_fit_all_run_and_none_moves(nodes, jobs):
    played = play(snapshot(nodes, [Account(), Account()], jobs), 20)
    assert all(len(one.runs) == len(jobs) for one in played.rounds)
    assert played.stops == played.moves == []


def test_a_new_gang_makes_others_move_once_if_all_fit_only_then():
    jobs = [Job(0, gpus=4, on=(0,)), Job(0, gpus=4, on=(1,)), Job(1, gpus=8)]
    played = play(snapshot([(0, 8), (0, 8)], [Account(), Account()], jobs), 10)
    assert all(len(one.runs) == 3 for one in played.rounds)
    assert len(played.moves) == 1


def test_next_jobs_of_an_account_fill_holes_without_stopping_running_ones():
    jobs = [Job(0, gpus=3) for _ in range(8)] + [Job(0, gpus=5) for _ in range(8)]
    given = snapshot([(0, 8)] * 4, [Account()], jobs)
    played = play(given, 10)
    assert played.mean.tolist() == [32.0]
    assert played.stops == []
    running = [replace(job, on=(n // 2,)) if n < 4 else job for n, job in enumerate(jobs)]
    assert decide(snapshot([(0, 8)] * 4, [Account()], running)).stops == []


def test_a_job_with_more_generations_makes_room_for_a_running_one_with_fewer():
    """Proves that a job that accepts two generations leaves one of them to a running job that accepts only this one."""
    jobs = [Job(0), Job(0, accepts=(1,), on=(1,)), Job(1, accepts=(0,)), Job(0)]
    one = decide(snapshot([(0, 2), (1, 1)], [Account(), Account()], jobs))
    assert 1 in one.runs


def test_a_limit_stops_no_job_for_one_that_is_wanted_less():
    jobs = [Job(0, priority=10, on=(0,)), Job(0)]
    given = snapshot([(0, 2), (1, 2)], [Account(cap_total=1)], jobs)
    played = play(given, 20)
    assert all(one.runs == [0] for one in played.rounds)


def test_new_gangs_avoid_gangs_that_run_within_a_guarantee():
    jobs = [Job(0, on=(0,)), *(Job(2, gpus=2, on=(n,)) for n in (1, 2)), Job(1, gpus=2)]
    given = snapshot([(0, 2)] * 3, [Account(), Account(), Account()], jobs)
    one = decide(given)
    assert 0 in one.runs
    assert one.moves == []


# --- frozen gangs, which want back to their nodes ------------------------------------------------

NODES = [(0, 4)] * 3
SMALL = st.builds(Job, st.integers(0, 1), gpus=st.just(1), was_on=st.tuples(st.integers(0, 2)) | st.just(()))


@st.composite
def gangs_that_fit_at_home(draw: st.DrawFn) -> list[Job]:
    """Draws gangs that ran last on NODES, and fit there all at once."""
    jobs = []
    for node, (_, size) in enumerate(NODES):
        left = size
        while left and draw(st.booleans()):
            gpus = draw(st.integers(1, left))
            jobs.append(Job(draw(st.integers(0, 1)), gpus=gpus, was_on=(node,)))
            left -= gpus
    return draw(st.permutations(jobs))


@for_all(gangs_that_fit_at_home(), st.booleans())
def test_gangs_return_to_the_nodes_where_they_ran_last_if_all_fit_there(jobs, may_preempt):
    one = decide(snapshot(NODES, [Account(), Account()], jobs, may_preempt=may_preempt))
    assert [one.picks.nodes[j].tolist() for j in range(len(jobs))] == [list(job.was_on) for job in jobs]


@for_all(st.lists(SMALL, max_size=24), st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), max_size=8))
def test_where_gangs_ran_last_decides_neither_which_run_nor_whether_running_ones_move(waiting, running):
    runs = [Job(account, on=(node,)) for account, node in running]
    runs = [job for n, job in enumerate(runs) if sum(one.on == job.on for one in runs[:n]) < 4]
    accounts = [Account(), Account(2.0)]
    one = decide(snapshot(NODES, accounts, [*waiting, *runs]))
    elsewhere = decide(snapshot(NODES, accounts, [*(replace(job, was_on=()) for job in waiting), *runs]))
    assert one.runs == elsewhere.runs
    assert one.stops == elsewhere.stops
    assert one.moves == []
