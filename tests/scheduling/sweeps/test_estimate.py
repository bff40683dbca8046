"""The estimate of a sweep says what all members use and cost, and from which run time it follows."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.models import Job
from scheduling.spec.job_spec import SpecError
from scheduling.sweeps.estimate import Estimate, estimate_sweep
from tests.scheduling.swept import array, end, make, run, spec, step
from tests.scheduling.world import World, world


@pytest.fixture
def lab() -> World:
    return world(v100=4)


def estimate(lab: World, *, members: int = 6, at_once: int | None = None, **fields: Any) -> Estimate:
    return estimate_sweep(
        actor=lab.people.bob,
        tenant=lab.people.astro,
        cluster=lab.cluster,
        spec=spec(gpus_per_worker=2, **fields),
        members=members,
        at_once=at_once,
    )


@pytest.mark.django_db
def test_an_estimate_assumes_what_the_owner_expects_then_the_last_run_then_an_hour(lab: World) -> None:
    found = estimate(lab)
    assert (found.hours, found.basis, found.last_run, found.gpu_hours) == (1, "an_hour", None, 12)
    assert "no run time is known" in found.assumption
    # A failed run, and one of another name or team, say nothing about the run time.
    job = lab.submit(lab.people.bob, lab.people.astro, name="tune")
    other = lab.submit(lab.people.charlie, lab.people.bio, name="tune")
    run(lab)
    end(lab, other)
    Job.objects.filter(pk__in=[job.pk, other.pk]).update(held_for=timedelta(hours=3))
    assert estimate(lab).basis == "an_hour"
    end(lab, job)
    Job.objects.filter(pk=job.pk).update(held_for=timedelta(hours=3))
    found = estimate(lab)
    assert (found.hours, found.basis, found.last_run) == (3, "last_run", job.pk)
    assert f"job {job.pk} of the same name" in found.assumption
    assert estimate(lab, name="another").basis == "an_hour"
    member = step(make(lab, array(1))).jobs.get()
    run(lab)
    end(lab, member)
    Job.objects.filter(pk=member.pk).update(held_for=timedelta(hours=2))
    assert (estimate(lab).hours, estimate(lab).last_run) == (2, member.pk)
    expected = estimate(lab, expected_hours=0.5)
    assert (expected.hours, expected.basis, expected.gpu_hours) == (0.5, "expected", 6)
    assert expected.assumption == "the run time that you expect"


@pytest.mark.django_db
def test_an_estimate_counts_at_most_as_many_at_once_as_there_are_members(lab: World) -> None:
    bounded = estimate(lab, at_once=4)
    assert bounded.size_in_words == "6 members with 2 GPUs each, at most 4 at once: 8 GPUs"
    assert bounded.cost_per_hour_at_once == {"V100": (Decimal("9.6"), "EUR")}
    assert estimate(lab, at_once=40).at_once == 6
    free = estimate(lab)
    assert (
        free.size_in_words == "6 members with 2 GPUs each, as many at once as GPUs are free and limits allow"
    )
    assert free.cost_per_hour_at_once == {}
    with pytest.raises(SpecError, match="generations"):
        estimate(lab, generations=["A9000"])


@given(st.integers(1, 10_000), st.integers(1, 64), st.floats(0.001, 8760), st.decimals(0, 1000, places=6))
def test_the_cost_of_all_is_the_sum_of_the_costs_of_the_members(
    members: int, gpus: int, hours: float, price: Decimal
) -> None:
    costs = {"V100": (price * gpus, "EUR")}
    found = Estimate(members, gpus, None, hours, "expected", None, costs)
    assert found.gpu_hours == pytest.approx(sum(gpus * hours for _ in range(members)))
    amount, currency = found.cost["V100"]
    assert currency == "EUR"
    assert float(amount) == pytest.approx(found.gpu_hours * float(price))
