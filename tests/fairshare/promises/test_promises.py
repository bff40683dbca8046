"""Tests that policies keep their promises, and that the judge detects the promises that version 1 breaks.

The policies and their promises come from `fairshare.check.policies`. `make soak` plays many more economies.
"""

from __future__ import annotations

import os

import pytest

from fairshare.check.generate import random_economy
from fairshare.check.judge import breach, smallest
from fairshare.check.policies import DEFAULT, NEWEST, POLICIES, VERSION_1, promised
from fairshare.check.promises import PROMISES
from tests.fairshare.promises.cases import CASES, KEPT_BY_VERSION_1

SEED = int(os.environ.get("PROMISES_SEED", "1"))
ECONOMIES = int(os.environ.get("PROMISES_ECONOMIES", "40"))
JUDGED = list(dict.fromkeys([DEFAULT.name, NEWEST.name]))


@pytest.mark.parametrize("policy", JUDGED)
@pytest.mark.parametrize("number", range(ECONOMIES))
def test_a_random_economy_breaks_no_promise_of_the_policy(number, policy):
    judged = POLICIES[policy]
    found = breach(random_economy(SEED, number), judged, promised(judged), seed=number)
    assert found is None, str(smallest(found, judged, seed=number))


@pytest.mark.parametrize("policy", JUDGED)
@pytest.mark.parametrize("name", CASES | KEPT_BY_VERSION_1)
def test_a_known_case_breaks_no_promise_of_the_policy(name, policy):
    found = breach((CASES | KEPT_BY_VERSION_1)[name], POLICIES[policy], promised(POLICIES[policy]))
    assert found is None, str(found)


@pytest.mark.parametrize("name", CASES)
def test_the_judge_sees_version_1_break_the_promise_of_each_case(name):
    about = name.split()[0]
    found = breach(CASES[name], VERSION_1, [promise for promise in PROMISES if promise.name == about])
    assert found is not None
