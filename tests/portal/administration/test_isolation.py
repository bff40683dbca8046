"""Pages say how local jobs are isolated. If jobs have the portal's own rights, only admins may submit jobs by
default."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.urls import reverse

from scheduling.backends.local.isolation import Isolation
from scheduling.clusters import isolation
from scheduling.models import Job
from tests.portal.scene import Scene
from tests.portal.submit.test_submit import posted

APART = Isolation(users=True, namespaces=True)
SHARED = Isolation(False, False, "Fairlot runs as an ordinary user", "user namespaces are turned off")
SPEC = {"spec": {"name": "a job", "command": "true"}}


@pytest.fixture
def found(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that replaces the isolation that Fairlot detects on this machine."""
    settings.FAIRLOT_LOCAL_TRUSTS_ALL = False
    return lambda it: monkeypatch.setattr(isolation, "isolation_of", lambda cluster: it)


def page(browser: Any, name: str) -> str:
    return str(browser.get(reverse(name)).content.decode())


@pytest.mark.parametrize(
    "isolation",
    [APART, replace(APART, users=False, why_no_users="-"), replace(APART, namespaces=False), SHARED],
)
def test_all_who_may_submit_read_how_jobs_are_kept_apart(
    scene: Scene, browser_of: Any, found: Any, isolation: Isolation
) -> None:
    found(isolation)
    for who in (scene.people.bob, scene.people.olga, scene.people.ada):
        html = page(browser_of(who), "cluster").replace("&#x27;", "'")
        assert isolation.short in html
        is_admin = who == scene.people.ada
        assert all((line in html) is is_admin for line in (*isolation.kept, *isolation.not_kept)), who
    form = page(browser_of(scene.people.bob), "submit").replace("&#x27;", "'")
    warns, hints = f"<p>{isolation.short}</p>" in form, f'"field-help">{isolation.short}</p>' in form
    assert (warns, hints) == (not isolation.keeps_apart, isolation.keeps_apart)
    assert isolation.short in page(browser_of(scene.people.ada), "admin_settings").replace("&#x27;", "'")


def test_no_two_ways_read_alike() -> None:
    ways = [Isolation(users, namespaces) for users in (True, False) for namespaces in (True, False)]
    assert len({way.short for way in ways}) == len(ways)
    assert [way.keeps_apart for way in ways] == [True, True, True, False]
    assert not replace(APART, exposed=("/etc/fairlot/key",)).keeps_apart


def test_where_jobs_share_the_portals_rights_only_admins_submit(
    scene: Scene, browser_of: Any, found: Any, settings: Any
) -> None:
    people = scene.people
    scene.world.cluster.refresh_from_db()
    found(SHARED)
    before = Job.objects.count()
    refused = browser_of(people.bob).post("/api/v1/jobs", SPEC | {"team": "astro"}, "application/json")
    assert refused.status_code == 409, refused.content
    assert "only admins may submit" in refused.json()["detail"]
    said = browser_of(people.bob).post(reverse("submit"), posted()).content.decode()
    assert said.count("only admins may submit") == 2, "before the form, and of the attempt"
    assert "only admins may submit" in page(browser_of(people.bob), "submit")
    assert "only admins may submit" not in page(browser_of(people.ada), "submit")
    assert Job.objects.count() == before
    assert isolation.why_refused(scene.world.cluster, people.ada) == ""
    settings.FAIRLOT_LOCAL_TRUSTS_ALL = True
    taken = browser_of(people.bob).post("/api/v1/jobs", SPEC | {"team": "astro"}, "application/json")
    assert taken.status_code == 201, taken.content


def test_where_they_are_kept_apart_members_submit(scene: Scene, browser_of: Any, found: Any) -> None:
    found(APART)
    taken = browser_of(scene.people.bob).post("/api/v1/jobs", SPEC | {"team": "astro"}, "application/json")
    assert taken.status_code == 201, taken.content
