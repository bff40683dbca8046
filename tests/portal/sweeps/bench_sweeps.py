"""Measures a sweep of 10,000 members: how long its submission, its steps and its page take, and checks the limits.

`make bench` runs this module with pytest, because it needs a portal with users.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import pytest
from django.test import Client

from accounting.models import User
from scheduling.models import Sweep
from tests.portal.scene import Scene
from tests.scheduling.swept import step

pytestmark = pytest.mark.django_db(transaction=True)

MEMBERS, PAGES = 10_000, 9
MOST_TO_SUBMIT, MOST_OF_A_PAGE = 10.0, 0.2  # seconds


def seconds(do: Callable[[], object]) -> float:
    began = perf_counter()
    do()
    return perf_counter() - began


def test_ten_thousand_members(
    scene: Scene, browser_of: Callable[[User], Client], capfd: pytest.CaptureFixture[str]
) -> None:
    bob = browser_of(scene.people.bob)
    body = {
        "spec": {"name": "tune", "command": "python train.py {x} {y}"},
        "parameters": {"kind": "grid", "grid": {"x": list(range(100)), "y": list(range(100))}},
        "metric": "loss",
    }
    answers: list[Any] = []
    submit = seconds(
        lambda: answers.append(bob.post("/api/v1/sweeps", body, content_type="application/json"))
    )
    assert answers[0].status_code == 201, answers[0].content
    sweep = Sweep.objects.latest("pk")
    assert sweep.size == MEMBERS
    steps = [seconds(lambda: step(sweep)) for _ in range(2)]
    pages = [f"/sweeps/{sweep.pk}/?page={number}" for number in range(1, PAGES + 1)]
    times = [seconds(partial(bob.get, page)) for page in pages]
    with capfd.disabled():
        sys.stdout.write(
            f"\na sweep of {MEMBERS:,} members: submitted in {submit:.2f} s, first step {steps[0]:.2f} s, next "
            f"{steps[1] * 1000:.0f} ms, page {median(times) * 1000:.0f} ms (median of {PAGES})\n"
        )
    assert submit <= MOST_TO_SUBMIT
    assert median(times) <= MOST_OF_A_PAGE
