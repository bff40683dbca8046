"""One rule says who may run programs in a job, by a terminal or in a session."""

from __future__ import annotations

import pytest
from django.conf import LazySettings

from accounting.models import Membership
from scheduling.backends.local.isolation import Isolation
from scheduling.clusters import isolation as clusters_isolation
from scheduling.jobs.entering import may_enter
from scheduling.jobs.secrets import create_secret
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    return world(v100=4)


def test_owners_and_managers_may_enter_and_operators_only_by_a_setting(
    lab: World, settings: LazySettings
) -> None:
    people = lab.people
    job = lab.submit(people.bob, people.astro)
    assert may_enter(people.bob, job)
    assert may_enter(people.alice, job)
    for other in (people.charlie, people.olga, people.ada):
        assert not may_enter(other, job)
    settings.FAIRLOT_TERMINALS_FOR_OPERATORS = True
    assert may_enter(people.olga, job)
    assert not may_enter(people.charlie, job)
    Membership.objects.filter(user=people.bob).update(role=Membership.Role.VIEWER)
    assert not may_enter(people.bob, job), "an owner who is a member no more"


def test_a_job_with_secrets_of_its_owner_is_closed_to_everybody_else(
    lab: World, settings: LazySettings
) -> None:
    people = lab.people
    create_secret(actor=people.bob, name="mine", values={"value": "x"})
    create_secret(actor=people.alice, name="teams", values={"value": "x"}, tenant=people.astro)
    mine, teams = (
        lab.submit(people.bob, people.astro, secrets={"TOKEN": name}) for name in ("mine", "teams")
    )
    settings.FAIRLOT_TERMINALS_FOR_OPERATORS = True
    assert may_enter(people.bob, mine)
    assert may_enter(people.alice, teams)
    for other in (people.alice, people.olga, people.ada):
        assert not may_enter(other, mine)


def test_where_jobs_have_the_rights_of_the_portal_only_trusted_users_may_enter(
    lab: World, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro)
    none = Isolation(False, False, "a test wants it so", "a test wants it so")
    monkeypatch.setattr(clusters_isolation, "isolation_of", lambda cluster: none)
    settings.FAIRLOT_LOCAL_TRUSTS_ALL = True
    assert may_enter(lab.people.bob, job)
    settings.FAIRLOT_LOCAL_TRUSTS_ALL = False
    assert not may_enter(lab.people.bob, job)
    assert not may_enter(lab.people.alice, job)
