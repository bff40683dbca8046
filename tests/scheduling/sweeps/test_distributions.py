"""A distribution is read in each notation and by the names of other programs, or refused with what to write."""

from __future__ import annotations

import re
from typing import Any

import pytest

from scheduling.spec.job_spec import SpecError
from scheduling.sweeps.distributions import ALIASES, NAMES, OTHERS, read_distribution
from scheduling.sweeps.parameters import DISTRIBUTIONS, Parameters

LOG = {"distribution": "log_uniform", "low": 1e-5, "high": 0.1}
INT = {"distribution": "int", "low": 2, "high": 8}
CHOICE = {"distribution": "choice", "values": ["adam", "sgd"]}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("log_uniform(1e-5, 0.1)", LOG),
        (" loguniform (1e-5,0.1) ", LOG),
        ("tune.loguniform(1e-5, 0.1)", LOG),
        ("log_uniform:1e-5:0.1", LOG),
        ({"distribution": "log_uniform_values", "min": 1e-5, "max": 0.1}, LOG),
        ({"type": "LogUniform", "lower": 1e-5, "upper": 0.1}, LOG),
        ("trial.suggest_int(2, 8)", INT),
        ({"distribution": "int_uniform", "min": 2, "max": 8}, INT),
        ({"type": "int", "minval": 2, "maxval": 8}, INT),
        ("choice(adam, sgd)", CHOICE),
        ("choice:adam:sgd", CHOICE),
        ("""choice(["adam", 'sgd'])""", CHOICE),
        ({"type": "categorical", "vals": ["adam", "sgd"]}, CHOICE),
        ({"values": ["adam", "sgd"]}, CHOICE),
        ("choice('x')", {"distribution": "choice", "values": ["'x'"]}),
    ],
)
def test_all_notations_mean_the_same(given: object, meant: dict[str, Any]) -> None:
    found = read_distribution("p", given)
    assert found == meant
    Parameters("random", random={"p": found}, count=1, seed=1).check()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("randint(1, 9)", r"^p: randint is .*write int\(low, high\), which includes high$"),
        ("tune.quniform(0, 1, 0.1)", r"write int\(low, high\), or choice with the values$"),
        ("suggest_quniform:0:1", "steps"),
        ("log(-5, -1)", r"write log_uniform\(low, high\) with the values themselves"),
        ("normal(0, 1)", "without ends"),
        ("gauss(0, 1)", r"must be uniform\(low, high\), log_uniform.*, not \"gauss\"$"),
        ("uniform", "needs its values in parentheses"),
        ("0.1, 0.2", 'not "0.1, 0.2"'),
        ("uniform(1)", r"needs two numbers, such as uniform\(1, 10\)"),
        ("uniform:1:2:3", "needs two numbers"),
        ({"low": 1, "high": 2}, "must be uniform"),
        ({"distribution": "int", "low": 1, "min": 1, "high": 2}, "min says the same as another field"),
        ([1, 2], "is no distribution"),
        ({"distribution": 5}, "not 5"),
    ],
)
def test_what_is_no_distribution_is_refused_with_what_to_write(given: object, says: str) -> None:
    with pytest.raises(SpecError) as refused:
        read_distribution("p", given)
    [(field, text)] = refused.value.problems.items()
    assert field == "parameters"
    assert re.search(says, text)


def test_each_name_means_one_distribution() -> None:
    assert set(ALIASES) == set(DISTRIBUTIONS)
    assert len(NAMES) == sum(1 + len(aliases) for aliases in ALIASES.values())
    assert NAMES.keys().isdisjoint(OTHERS)
