"""The line beside the submit button says what would be submitted, when it would start and what it costs."""

from __future__ import annotations

from decimal import Decimal

import pytest

from portal.submit.summary import of_job, of_pipeline
from scheduling.jobs.preflight import Preflight
from scheduling.spec.job_spec import JobSpec

EURO = (Decimal(1), "EUR")


def spec(gpus: int, workers: int = 1) -> JobSpec:
    return JobSpec(name="x", command="true", gpus_per_worker=gpus, workers=workers)


@pytest.mark.parametrize(
    ("preflight", "said"),
    [
        (Preflight("now", (), cost_per_hour={"V100": EURO}), "4 GPUs · can start now · 1.00 EUR an hour"),
        (
            Preflight("now", (), cost_per_hour={"A100": (Decimal(3), "EUR"), "V100": EURO}),
            "4 GPUs · can start now · from 1.00 EUR an hour",
        ),
        (Preflight("later", ()), "4 GPUs · will wait"),
        (Preflight("later", (), (0.0, 60.0)), "4 GPUs · starts within 1 min"),
        (Preflight("later", (), (60.0, 7200.0)), "4 GPUs · starts in 1 min to 2 h"),
        (Preflight("never", ()), "4 GPUs · can never run"),
    ],
)
def test_a_job_is_said_in_a_line(preflight: Preflight, said: str) -> None:
    assert of_job(preflight, spec(2, 2)).replace(" 00 s", "").replace(" 00 min", "") == said


def test_a_pipeline_is_said_in_a_line() -> None:
    assert of_pipeline([spec(1)]) == "1 step · 1 GPU each"
    assert of_pipeline([spec(2), spec(2)]) == "2 steps · 2 GPUs each"
    assert of_pipeline([spec(1), spec(2, 4)]) == "2 steps · 1 to 8 GPUs each"
