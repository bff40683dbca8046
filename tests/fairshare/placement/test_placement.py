"""Tests of placement: the workers of a gang are placed together and beside running gangs, and free GPUs that are
scattered over nodes keep no gang waiting.

To pick a gang is to choose it to run in the round. The policy picks gangs one after another.
"""

from __future__ import annotations

import numpy as np

from fairshare.model import Reason
from fairshare.placement import fit
from tests.fairshare.build import Account, Job, decide, place_of, snapshot, used_on_nodes, with_closed


def test_fit_uses_the_fewest_nodes_and_leaves_the_fewest_gpus():
    free = np.array([8, 3, 4, 8, 2])
    assert fit(free, 1, 2).tolist() == [4]
    assert fit(free, 2, 2).tolist() == [2, 2]
    assert fit(free, 3, 4).tolist() == [0, 0, 2]
    assert fit(free, 1, 9) is None
    assert fit(free, 6, 4) is None
    assert fit(np.array([], dtype=np.int64), 1, 1) is None


def test_a_gang_continues_where_it_runs():
    jobs = [Job(0, workers=2, on=(2, 0)), Job(0, gpus=2, on=(1,)), Job(1, gpus=4)]
    decision = decide(snapshot([(0, 4)] * 4, [Account(), Account()], jobs), seed=0)
    assert place_of(decision, 0) == [2, 0]
    assert place_of(decision, 1) == [1]
    assert place_of(decision, 2) == [3]


def test_a_gang_resumes_where_it_ran_last():
    decision = decide(snapshot([(0, 4)] * 3, [Account()], [Job(0, gpus=2, was_on=(2,))]), seed=0)
    assert place_of(decision, 0) == [2]


def test_a_gang_does_not_displace_a_running_one_to_resume():
    jobs = [Job(0, gpus=4, was_on=(0,)), Job(1, gpus=4, on=(0,))]
    decision = decide(snapshot([(0, 4)] * 2, [Account(), Account()], jobs, owed={(0, 0): 600.0}), seed=0)
    assert place_of(decision, 1) == [0]
    assert place_of(decision, 0) == [1]


def test_a_new_gang_goes_where_running_ones_do_not_have_to_move():
    """Proves that a new gang is placed where no running gang has to move, even though the new gang is picked first.

    On the first node, the new gang would take the GPUs of the running gang that is picked last.
    """
    jobs = [Job(0, gpus=2), Job(1, gpus=2, on=(0,)), Job(1, gpus=2, on=(0,))]
    decision = decide(snapshot([(0, 4), (0, 4)], [Account(), Account()], jobs, owed={(0, 0): 600.0}), seed=0)
    assert [place_of(decision, job) for job in range(3)] == [[1], [0], [0]]


def test_a_large_gang_picked_last_makes_room_by_moving_small_ones():
    small = [Job(0, gpus=1, on=(node,)) for node in range(4)]
    given = snapshot([(0, 4)] * 4, [Account(), Account()], [*small, Job(1, workers=3, gpus=4)])
    decision = decide(given, seed=0)
    assert len(decision.run) == 5
    assert (used_on_nodes(given, decision) == 4).all()


def test_a_running_gang_that_is_picked_later_does_not_move_for_a_new_one():
    """Proves that a running gang does not move for a new gang that is picked earlier.

    When the new gang (job 0) is picked, running gangs hold both nodes. The new gang gets the node of job 2, because job
    2 is not picked in this round.
    """
    jobs = [Job(0, gpus=4), Job(1, gpus=4, on=(0,)), Job(2, gpus=4, on=(1,))]
    owed = {(0, 0): 900.0, (1, 0): 600.0, (2, 0): -600.0}
    decision = decide(snapshot([(0, 4), (0, 4)], [Account() for _ in range(3)], jobs, owed=owed), seed=0)
    assert decision.run.tolist() == [0, 1]
    assert place_of(decision, 1) == [0]


def test_room_that_opens_when_running_gangs_go_back_to_their_nodes_is_filled():
    """Proves that waiting gangs also fill room that appears only once the running gangs are placed on their old nodes.

    Afterwards no node has room for another gang of 3 GPUs. Random search found this case.
    """
    of_0 = [Job(0, gpus=6), Job(0, gpus=4, on=(0,))]
    of_1 = [
        Job(1, gpus=g, on=on)
        for g, on in [(5, (1,)), (6, ()), (3, ()), (3, (0,)), (6, ()), (6, ()), (3, ()), (3, (0,))]
    ]
    jobs = [of_0[0], *of_1[:3], of_0[1], *of_1[3:]]
    given = snapshot([(0, 10), (0, 8)], [Account(), Account()], jobs, owed={(0, 0): 400.0, (1, 0): 200.0})
    decision = decide(given, seed=0)
    free = given.cluster.capacity - used_on_nodes(given, decision)
    assert free.max() < 3


def test_only_gangs_as_small_as_possible_are_moved():
    jobs = [Job(0, gpus=3, on=(0,)), Job(0, gpus=1, on=(1,)), Job(1, gpus=4)]
    given = snapshot([(0, 4), (0, 4)], [Account(), Account()], jobs, switch_cost=60.0, owed={(0, 0): 600.0})
    decision = decide(given, seed=0)
    assert [place_of(decision, job) for job in range(3)] == [[0], [0], [1]]


def test_the_gang_that_is_owed_most_finds_the_whole_generation_before_it():
    small = [Job(0, gpus=1, on=(node,)) for node in (0, 0, 1, 1)]
    given = snapshot(
        [(0, 2), (0, 2)], [Account(), Account()], [*small, Job(1, workers=2, gpus=2)], owed={(1, 0): 600.0}
    )
    assert decide(given, seed=0).run.tolist() == [4]


def test_a_pinned_gang_does_not_move_for_a_large_one():
    small = [Job(0, gpus=1, on=(node,), resident=1.0) for node in range(2)]
    given = snapshot([(0, 4)] * 2, [Account(), Account()], [*small, Job(1, gpus=4)], min_hold=60.0)
    decision = decide(given, seed=0)
    assert decision.run.tolist() == [0, 1]
    assert decision.reason[2] == Reason.FRAGMENTED


def test_a_gang_leaves_a_drained_node():
    given = snapshot([(0, 4), (0, 4)], [Account()], [Job(0, gpus=4, on=(0,))], away=(0,), may_preempt=False)
    assert place_of(decide(given, seed=0), 0) == [1]


def test_a_gang_on_a_closed_node_is_not_stopped_for_one_that_could_not_start_there():
    jobs = [Job(0, gpus=4, on=(0,)), Job(1, gpus=4)]
    given = snapshot([(0, 4), (0, 4)], [Account(), Account()], jobs, away=(1,), owed={(1, 0): 600.0})
    assert decide(given, seed=0).run.tolist() == [1]
    decision = decide(with_closed(given, {0}), seed=0)
    assert (decision.run.tolist(), decision.reason.tolist()) == ([0], [Reason.NONE, Reason.NODES_AWAY])


def test_free_gpus_are_filled_without_preempting():
    jobs = [*(Job(0, on=(0,)) for _ in range(3)), Job(0), Job(1, gpus=2), Job(1)]
    given = snapshot([(0, 4)], [Account(), Account()], jobs, may_preempt=False, owed={(1, 0): 600.0})
    assert decide(given, seed=0).run.tolist() == [0, 1, 2, 5]


def test_higher_priority_goes_first_within_an_account_and_changes_nothing_between_accounts():
    jobs = [Job(0), Job(0), Job(0, priority=5), Job(0, priority=9), Job(1), Job(1)]
    given = snapshot([(0, 4)], [Account(), Account()], jobs)
    assert decide(given, seed=0).run.tolist() == [2, 3, 4, 5]


def test_a_gang_on_a_closed_node_does_not_leave_it_for_faster_gpus():
    users = [Account(), Account()]
    stays = Job(0, gpus=4, rate={0: 1.0, 1: 4.0}, on=(0,))
    given = snapshot([(0, 4), (1, 4)], users, [stays, Job(1, gpus=4, accepts=(0,))], owed={(0, 1): 1e4})
    decision = decide(with_closed(given, {0}), seed=0)
    assert decision.run.tolist() == [0]
    assert place_of(decision, 0) == [0]
