"""Tests that every waiting job has a reason, which says whether the job can ever run."""

from __future__ import annotations

import pytest

from fairshare.model import Reason
from fairshare.reasons import may_run
from fairshare.tree import Tree
from tests.fairshare.build import Account, Job, decide, snapshot


def reason_of(job: Job, *others: Job, accounts=None, nodes=None, **rest) -> Reason:
    given = snapshot(
        nodes or [(0, 4), (0, 4), (1, 2)], accounts or [Account(), Account()], [job, *others], **rest
    )
    return Reason(int(decide(given, seed=0).reason[0]))


NEVER = {
    "no generation accepted": (Job(0, accepts=()), {}, Reason.NEVER_NO_SUCH_GENERATION),
    "a worker larger than any node": (Job(0, gpus=5), {}, Reason.NEVER_WORKER_TOO_LARGE),
    "a worker larger than an accepted node": (
        Job(0, gpus=4, accepts=(1,)),
        {},
        Reason.NEVER_WORKER_TOO_LARGE,
    ),
    "a gang larger than a generation": (Job(0, workers=9), {}, Reason.NEVER_TOO_LARGE),
    "a gang that leaves gaps": (Job(0, workers=3, gpus=3), {}, Reason.NEVER_TOO_LARGE),
    "over the quota": (Job(0, gpus=4), {"accounts": [Account(cap_total=3)]}, Reason.NEVER_OVER_QUOTA),
    "over the quota of an account above": (
        Job(1, gpus=3, accepts=(0,)),
        {"accounts": [Account(cap={0: 2}), Account(parent=0)]},
        Reason.NEVER_OVER_QUOTA,
    ),
}


@pytest.mark.parametrize("case", NEVER)
def test_a_job_that_can_never_run_has_a_never_reason(case):
    job, rest, expected = NEVER[case]
    reason = reason_of(job, **rest)
    assert reason == expected
    assert reason.is_never


def test_a_blocked_job_can_have_a_never_reason_too():
    assert reason_of(Job(0, workers=9, blocked=Reason.CLUSTER_PAUSED)) == Reason.NEVER_TOO_LARGE


def test_a_never_reason_can_be_computed_without_a_round():
    given = snapshot([(0, 4)], [Account()], [Job(0, gpus=5), Job(0)])
    _, reason = may_run(given, Tree.of(given.accounts.parent))
    assert reason.tolist() == [Reason.NEVER_WORKER_TOO_LARGE, Reason.NONE]


def test_a_limit_that_leaves_another_generation_open_is_not_a_never_reason():
    accounts = [Account(cap={0: 0})]
    assert reason_of(Job(0), Job(0, accepts=(1,)), accounts=accounts, nodes=[(0, 4), (1, 1)]) == Reason.NONE


def test_a_blocked_job_waits_for_what_blocks_it():
    assert reason_of(Job(0, blocked=Reason.HOURS_SPENT)) == Reason.HOURS_SPENT


def test_a_job_that_would_fit_with_all_nodes_up_waits_for_nodes():
    assert reason_of(Job(0, workers=8), away=(1,)) == Reason.NODES_AWAY
    assert not Reason.NODES_AWAY.is_never


def test_a_limit_in_use_is_not_a_never_reason():
    accounts = [Account(cap_total=4)]
    first = Job(0, gpus=4, priority=1)
    assert reason_of(Job(0), first, accounts=accounts) == Reason.QUOTA_IN_USE


def test_the_first_waiting_job_waits_for_others_and_the_next_for_its_own():
    jobs = [Job(0, workers=4, priority=1), *(Job(0) for _ in range(3)), Job(1, workers=4)]
    given = snapshot([(0, 8)], [Account(), Account()], jobs)
    assert decide(given, seed=0).reason.tolist() == [
        Reason.NONE,
        Reason.SHARE_IN_USE,
        Reason.OWN_JOBS_AHEAD,
        Reason.OWN_JOBS_AHEAD,
        Reason.NONE,
    ]


def test_the_first_job_of_each_generation_is_first():
    jobs = [Job(0, accepts=(1,)), Job(0, accepts=(0,)), Job(1, accepts=(0,)), Job(1, accepts=(1,))]
    owed = {(1, 0): 60.0, (1, 1): 60.0}
    given = snapshot([(0, 1), (1, 1)], [Account(), Account()], jobs, owed=owed)
    assert decide(given, seed=0).reason.tolist() == [Reason.SHARE_IN_USE, Reason.SHARE_IN_USE, 0, 0]


def test_enough_gpus_that_are_apart_are_fragmented():
    # Three GPUs of each node are taken and stay taken, so a worker of two GPUs finds only single free GPUs.
    kept = [Job(1, gpus=3, on=(node,), resident=0.0) for node in (0, 1)]
    reason = reason_of(Job(0, gpus=2), *kept, nodes=[(0, 4), (0, 4)], min_hold=60.0)
    assert reason == Reason.FRAGMENTED


def test_a_job_that_waits_only_for_its_turn_has_no_never_reason():
    assert not any(reason.is_never for reason in Reason if reason >= Reason.QUOTA_IN_USE or reason == 0)
    assert all(reason.is_never for reason in Reason if reason.name.startswith("NEVER"))
