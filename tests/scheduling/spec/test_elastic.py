"""Bounds of the number of workers of elastic jobs."""

from __future__ import annotations

from typing import Any

import pytest

from scheduling.spec.job_spec import JobSpec, SpecError

BASE = {"name": "a", "command": "b"}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"workers": 3, "max_workers": 2}, "2 is less than the 3 of workers"),
        ({"max_workers": 0}, "a whole number from workers to 4096"),
        ({"max_workers": 4096, "gpus_per_worker": 17}, "max_workers times gpus_per_worker is more than"),
        ({"max_workers": 4, "launch": "mpi"}, "needs at least 2 workers"),
        ({"max_workers": 4, "roles": [{"name": "a"}]}, "without roles"),
    ],
)  # fmt: skip
def test_bounds_that_cannot_be_are_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError) as refused:
        JobSpec.parse(BASE | fields)
    assert why in refused.value.problems["max_workers"]


def test_a_job_whose_bounds_are_equal_is_not_elastic() -> None:
    assert JobSpec.parse(BASE | {"workers": 2, "max_workers": 2}).elastic_workers is None
    assert JobSpec.parse(BASE | {"workers": 2, "max_workers": 3}).elastic_workers == 3
    assert "max_workers" in JobSpec.parse(BASE | {"max_workers": 3}).problems_of_endless()
