"""A gang is frozen when its GPUs have ended what they were given; nobody waits for those that never do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduling.backends.local import gpus, settling
from scheduling.backends.local.settling import LONGEST, Settling

GANG = {"workers": [{"gpus": ["node", 0, "GPU-a"]}, {"gpus": ["node", 1, "GPU-b"]}]}


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [100.0]
    monkeypatch.setattr(settling, "_clock", lambda: now[0])

    def passes(seconds: float) -> None:
        now[0] += seconds

    return passes


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Percent, as the driver tells of each GPU."""
    percents = {"GPU-a": 0.0, "GPU-b": 0.0, "GPU-of-others": 100.0}
    monkeypatch.setattr(
        gpus, "utilization", lambda: [gpus.Utilization(uuid, percents[uuid], 0) for uuid in percents]
    )
    return percents


def test_idle_gpus_are_not_waited_for(busy: dict[str, float]) -> None:
    assert Settling(GANG).is_over()


def test_what_gpus_were_given_is_waited_for(
    busy: dict[str, float], pass_time: Callable[[float], None]
) -> None:
    busy["GPU-b"] = 0.5
    waited = Settling(GANG)
    for _ in range(3):
        assert not waited.is_over()
        pass_time(1.0)
    busy["GPU-b"] = 0.0
    assert waited.is_over()


def test_a_kernel_that_never_ends_is_not(busy: dict[str, float], pass_time: Callable[[float], None]) -> None:
    busy["GPU-a"] = 100.0
    waited = Settling(GANG)
    pass_time(LONGEST - 0.1)
    assert not waited.is_over()
    pass_time(0.1)
    assert waited.is_over()


def test_gpus_that_tell_nothing_are_not_waited_for(
    busy: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    del busy["GPU-a"], busy["GPU-b"]
    assert Settling(GANG).is_over()

    def broken() -> None:
        raise gpus.NvmlError("the NVIDIA driver does not answer")

    monkeypatch.setattr(gpus, "utilization", broken)
    assert Settling(GANG).is_over()


def test_nobody_is_asked_about_declared_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "utilization", lambda: pytest.fail("asked"))
    assert Settling({"workers": [{"gpus": ["node", 0, 1]}]}).is_over()
