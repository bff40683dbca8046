"""Tests that services and sessions beyond the guarantees of their accounts run on lent GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairshare.guarantees import held_by, lent_to
from fairshare.model import Decision, Snapshot
from fairshare.policies import policy_named
from tests.fairshare.build import Account, Job, snapshot


def planned(given: Snapshot) -> Decision:
    policy = policy_named("gandiva_fair", 2)
    return policy.decide(policy.start(given), given, np.random.default_rng(0))


def kept(given: Snapshot, *jobs: int) -> Snapshot:
    return replace(given, jobs=replace(given.jobs, keeps=np.isin(np.arange(len(given.jobs)), jobs)))


def lent(given: Snapshot) -> list[int]:
    return np.flatnonzero(lent_to(given, planned(given))).tolist()


def test_the_least_wanted_services_beyond_a_guarantee_run_on_lent_gpus():
    services = [Job(0, on=(0,)), Job(0, on=(0,)), Job(0, on=(0,), priority=1)]
    assert lent(kept(snapshot([(0, 4)], [Account(), Account()], services), 0, 1, 2)) == [], (
        "nobody else is there"
    )
    others = [Job(1, on=(0,)), Job(1)]
    given = kept(snapshot([(0, 4)], [Account(), Account()], [*services, *others]), 0, 1, 2)
    assert 1 not in planned(given).run, "and it gave way at once"
    waits = replace(given, jobs=replace(given.jobs, unwarned=np.isin(np.arange(5), [0, 1, 2])))
    assert lent(waits) == [1]
    assert lent(kept(waits, 0, 2)) == [], "other jobs of the account go before them"


def test_guarantees_of_all_accounts_above_must_cover_a_service():
    """Proves that a service runs on lent GPUs if the guarantee of its user or of the user's team does not cover it.

    A team of two users is guaranteed 2 of 4 GPUs, and each user 1.
    """
    tree = [Account(), Account(), Account(parent=0), Account(parent=0), Account(parent=1)]
    jobs = [Job(2, on=(0,)), Job(3, on=(0,)), Job(3, on=(0,)), *(Job(4) for _ in range(4))]
    given = kept(snapshot([(0, 4)], tree, jobs), 0, 1, 2)
    given = replace(given, jobs=replace(given.jobs, unwarned=given.jobs.keeps))
    assert lent(given) == [2]
    assert held_by(given, given.jobs.running_on >= 0).tolist() == [3, 0, 1, 2, 0]


def test_neither_a_policy_without_guarantees_nor_a_preemptible_job_lends():
    given = snapshot([(0, 4)], [Account()], [Job(0, on=(0,)), Job(0, on=(0,), preemptible=True)])
    assert lent(kept(given, 0, 1)) == []
    plan = planned(kept(given, 0))
    assert not lent_to(kept(given, 0), replace(plan, guaranteed=None)).any()
    assert lent_to(kept(given, 0), replace(plan, guaranteed=np.zeros((1, 1)))).tolist() == [True, False]
