"""A gang is frozen once its GPUs have finished their pending work, or when a limit of time has passed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from scheduling.backends.local import gpus, pending_work
from scheduling.backends.local.pending_work import LONGEST, PendingWork

GANG = {"workers": [{"gpus": ["node", 0, "GPU-a"]}, {"gpus": ["node", 1, "GPU-b"]}]}


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [100.0]
    monkeypatch.setattr(pending_work, "_clock", lambda: now[0])

    def passes(seconds: float) -> None:
        now[0] += seconds

    return passes


def at_once(ask: Callable[[], Any]) -> Future[Any]:
    answer: Future[Any] = Future()
    try:
        answer.set_result(ask())
    except gpus.NvmlError as error:
        answer.set_exception(error)
    return answer


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Returns {GPU UUID: utilisation in percent}. The driver reports these values, and tests change them."""
    monkeypatch.setattr(gpus, "in_background", at_once)
    percents = {"GPU-a": 0.0, "GPU-b": 0.0, "GPU-of-others": 100.0}
    monkeypatch.setattr(
        gpus, "utilization", lambda: [gpus.Utilization(uuid, percents[uuid], 0) for uuid in percents]
    )
    return percents


def test_idle_gpus_are_not_waited_for(busy: dict[str, float]) -> None:
    assert PendingWork(GANG).is_over()


def test_pending_work_of_gpus_is_waited_for(
    busy: dict[str, float], pass_time: Callable[[float], None]
) -> None:
    busy["GPU-b"] = 0.5
    waited = PendingWork(GANG)
    for _ in range(3):
        assert not waited.is_over()
        pass_time(1.0)
    busy["GPU-b"] = 0.0
    assert waited.is_over()


def test_a_kernel_that_never_ends_is_not(busy: dict[str, float], pass_time: Callable[[float], None]) -> None:
    busy["GPU-a"] = 100.0
    waited = PendingWork(GANG)
    pass_time(LONGEST - 0.1)
    assert not waited.is_over()
    pass_time(0.1)
    assert waited.is_over()


def test_gpus_that_tell_nothing_are_not_waited_for(
    busy: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    del busy["GPU-a"], busy["GPU-b"]
    assert PendingWork(GANG).is_over()

    def broken() -> None:
        raise gpus.NvmlError("the NVIDIA driver does not answer")

    monkeypatch.setattr(gpus, "utilization", broken)
    assert PendingWork(GANG).is_over()


def test_a_driver_that_does_not_answer_is_not_waited_for(
    pass_time: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers = [0], threading.Event()

    def utilization() -> list[gpus.Utilization]:
        asked[0] += 1
        answers.wait()
        return []

    monkeypatch.setattr(gpus, "utilization", utilization)
    waited = PendingWork(GANG)
    for _ in range(10):
        assert not waited.is_over()
        pass_time(LONGEST / 10)
    assert waited.is_over()
    assert asked == [1]
    answers.set()


def test_the_driver_is_not_asked_about_declared_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "utilization", lambda: pytest.fail("asked"))
    assert PendingWork({"workers": [{"gpus": ["node", 0, 1]}]}).is_over()
