"""Whom a limit would affect before it is set."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from accounting.core.clock import now_from_database
from accounting.models import Quota
from scheduling.limits.effect import effects_of_limit
from scheduling.models import Job, Lease
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db


def effects(lab: World, **terms: object) -> dict[str, tuple[Decimal, bool, int]]:
    quota = Quota(tenant=lab.people.astro, **terms)
    found = effects_of_limit(quota, now=now_from_database())
    return {
        one.user.username if one.user else one.tenant.slug: (one.used, one.is_reached, one.jobs)
        for one in found
    }


@pytest.fixture
def lab() -> World:
    """Returns a cluster with two V100: Bob's job holds both, and one job each of Bob, Alice and Charlie waits."""
    lab = world(v100=2)
    lab.submit(lab.people.bob, lab.people.astro, gpus=2)
    lab.quantum()
    for user, tenant in ((lab.people.bob, lab.people.astro), (lab.people.alice, lab.people.astro),
                         (lab.people.charlie, lab.people.bio)):  # fmt: skip
        lab.submit(user, tenant, gpus=1)
    return lab


def test_a_limit_on_gpus_stops_the_jobs_for_which_it_leaves_no_room(lab: World) -> None:
    each = {"kind": "gpus", "each_user": True}
    assert effects(lab, **each, limit=2) == {"bob": (2, True, 1)}  # Alice's job fits
    assert effects(lab, **each, limit=3) == {"bob": (2, False, 0)}
    assert effects(lab, **each, limit=0) == {"bob": (2, True, 1), "alice": (0, False, 1)}
    assert effects(lab, kind="gpus", limit=2) == {"astro": (2, True, 2)}
    assert effects(lab, kind="gpus", limit=0, user=lab.people.alice) == {"alice": (0, False, 1)}


def test_a_limit_on_one_gpu_type_stops_only_jobs_that_accept_no_other(lab: World) -> None:
    terms = {"kind": "gpus", "each_user": True, "limit": 0, "generation": lab.people.v100}
    assert effects(lab, **terms) == {"bob": (2, True, 0)}
    Job.objects.filter(owner=lab.people.alice).update(generation_ids=[lab.people.v100.pk])
    assert effects(lab, **terms) == {"bob": (2, True, 0), "alice": (0, False, 1)}


def test_a_limit_on_gpu_hours_stops_all_waiting_jobs_once_it_is_used_up(lab: World) -> None:
    terms = {"kind": "gpu_hours", "each_user": True, "period": "month"}
    assert effects(lab, **terms, limit=1000)["bob"][1:] == (False, 0)
    assert {user: jobs for user, (_, _, jobs) in effects(lab, **terms, limit=0).items()} == {
        "bob": 1,
        "alice": 1,
    }


def test_a_limit_on_run_time_stops_jobs_that_run_longer(lab: World) -> None:
    Lease.objects.filter(held_from__isnull=False).update(held_from=now_from_database() - timedelta(hours=3))
    [(used, is_reached, jobs)] = effects(lab, kind="longest_run", each_user=True, limit=2).values()
    assert (round(used), is_reached, jobs) == (3, True, 1)
    assert effects(lab, kind="longest_run", each_user=True, limit=4)["bob"][1:] == (False, 0)


def test_a_limit_on_waiting_jobs_stops_none(lab: World) -> None:
    found = effects(lab, kind="queued_jobs", each_user=True, limit=1)
    assert found == {"bob": (1, True, 0), "alice": (1, True, 0)}
