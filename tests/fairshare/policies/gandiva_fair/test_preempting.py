"""Tests that an account gets the time that it is due on a fast generation.

It gets this time even if the gangs that run there fit nowhere else.
"""

from __future__ import annotations

import pytest

from fairshare.check.economy import Account, Economy, Job, economy
from fairshare.check.judge import judge
from fairshare.check.play import play
from fairshare.check.policies import NEWEST
from fairshare.check.promises import PROMISES

FAST = {0: 1.0, 1: 4.0}
ONLY_FAST = Job(0, gpus=4, accepts=(1,))


def two_users(*jobs: Job, tickets: float = 1.0) -> Economy:
    """Returns two users on four GPUs of each of two generations. The first user has `tickets`, the second has 1."""
    return economy([(0, 4), (1, 4)], [Account(tickets), Account()], jobs, trading=False, rounds=60)


def private_progress(given: Economy) -> str | None:
    """Returns None if every user makes at least as much progress as on its private cluster. Otherwise returns a
    sentence about a user who makes less."""
    [(_, verdict)] = judge(given, NEWEST, [promise for promise in PROMISES if promise.name == "4"])
    return verdict.broken


def turns(given: Economy, job: int) -> int:
    return sum(job in one.after for one in play(given, NEWEST))


@pytest.mark.parametrize("tickets", [1.0, 2.0])
@pytest.mark.parametrize("others", [[Job(1, gpus=4, rate=FAST)], [Job(1, rate=FAST)] * 4])
def test_a_gang_that_accepts_only_one_generation_shares_it_with_accounts_due_there(others, tickets):
    given = two_users(ONLY_FAST, *[Job(0)] * 2, *others, tickets=tickets)
    assert private_progress(given) is None
    part = tickets / (tickets + 1)
    assert turns(given, 0) >= 0.9 * part * given.rounds, "it has its own turns there"


def test_a_preempted_gang_resumes_though_other_jobs_of_its_user_want_the_generation():
    given = two_users(ONLY_FAST, *[Job(0, rate={0: 1.0, 1: 2.0})] * 4, *[Job(1, rate=FAST)] * 4)
    assert private_progress(given) is None
    assert turns(given, 0) >= 25


def test_placing_all_gangs_is_not_enough_if_some_are_slow_there():
    """Proves that a user with two jobs that are fast on different generations makes enough progress.

    If both jobs ran on the same generation, one of them would be slow.
    """
    fast_on_each = Job(1, gpus=2, rate=FAST), Job(1, gpus=2, rate={0: 4.0, 1: 1.0})
    given = two_users(*[Job(0, gpus=2, accepts=(1,))] * 2, *fast_on_each, tickets=0.5)
    assert private_progress(given) is None
