"""Operators announce on a page, by the API and by a command; every page shows what concerns its reader."""

from __future__ import annotations

import html
from datetime import timedelta

import pytest
from django.test import Client

from accounting.core.clock import now_from_database
from scheduling.announcements.actions import announce
from scheduling.models import Announcement
from tests.portal.scene import Scene

pytestmark = pytest.mark.django_db


def text(client: Client, path: str) -> str:
    return " ".join(html.unescape(client.get(path).content.decode()).split())


def region(client: Client, path: str) -> str:
    """Returns the part of a page that has the announcements; empty if there is none."""
    return text(client, path).partition('aria-label="Announcements"')[2].partition("</section>")[0]


def test_an_operator_announces_to_a_team_and_withdraws(scene: Scene, browser_of) -> None:
    olga, bob, charlie = (
        browser_of(person) for person in (scene.people.olga, scene.people.bob, scene.people.charlie)
    )
    form = {"text": "New <switch>", "severity": "warning", "teams": [str(scene.people.astro.pk)]}
    assert olga.post("/admin/announcements/create/", form).status_code == 302
    made = Announcement.objects.get()
    for path in ("/", "/jobs/", "/cluster/", "/account/preferences/"):
        assert "New <switch>" in region(bob, path), path
    assert "New &lt;switch&gt;" in bob.get("/").content.decode()
    assert region(charlie, "/") == ""
    assert "Astro" in text(olga, "/admin/announcements/")
    again = form | {"text": "New switch on Monday", "teams": []}
    assert olga.post(f"/admin/announcements/{made.pk}/change/", again).status_code == 302
    assert "New switch on Monday" in region(charlie, "/")
    assert olga.post(f"/admin/announcements/{made.pk}/withdraw/").status_code == 302
    assert region(bob, "/") == ""
    assert "withdrawn" in text(olga, "/admin/announcements/")


def test_a_user_dismisses_it_and_returns_to_the_page(scene: Scene, browser_of) -> None:
    made, bob = announce(actor=scene.people.olga, text="New switch"), browser_of(scene.people.bob)
    path = f"/announcements/{made.pk}/dismiss/"
    assert path in region(bob, "/jobs/?state=running")
    answer = bob.post(path, {"back": "/jobs/?state=running"})
    assert (answer.status_code, answer["Location"]) == (302, "/jobs/?state=running")
    assert region(bob, "/") == ""
    assert "New switch" in region(browser_of(scene.people.alice), "/")
    assert bob.post(path).status_code == 404  # it is no longer shown
    away = browser_of(scene.people.alice).post(path, {"back": "https://evil.example/"})
    assert away["Location"] == "/"


def test_one_that_must_stay_has_no_button(scene: Scene, browser_of) -> None:
    made = announce(actor=scene.people.olga, text="New switch", dismissible=False)
    bob = browser_of(scene.people.bob)
    assert "Dismiss" not in region(bob, "/")
    assert bob.post(f"/announcements/{made.pk}/dismiss/").status_code == 404


def test_a_refused_announcement_keeps_what_was_typed(scene: Scene, browser_of) -> None:
    form = {"text": "Kept text", "severity": "info", "ends_at": "2001-01-01T00:00"}
    refused = browser_of(scene.people.olga).post("/admin/announcements/create/", form)
    assert refused.status_code == 422
    assert "Kept text" in refused.content.decode()
    assert "The end must be" in refused.content.decode()


def test_the_api_announces_lists_changes_and_withdraws(scene: Scene, browser_of) -> None:
    olga, bob = browser_of(scene.people.olga), browser_of(scene.people.bob)
    call, path = {"content_type": "application/json"}, "/api/v1/announcements"
    made = olga.post(path, {"text": "New switch", "teams": ["astro"], "clusters": ["lab"]}, **call).json()
    assert (made["teams"], made["clusters"]) == (["astro"], ["lab"])
    assert [one["id"] for one in bob.get(path).json()] == [made["id"]]
    assert olga.get(path).json() == []  # she is in no team
    assert [one["id"] for one in olga.get(f"{path}?every=true").json()] == [made["id"]]
    assert olga.post(path, {"text": "x", "teams": ["nowhere"]}, **call).status_code == 409
    assert bob.post(path, {"text": "mine"}, **call).status_code == 404
    assert olga.put(f"{path}/{made['id']}", {"text": "Later"}, **call).json()["teams"] == []
    assert bob.post(f"{path}/{made['id']}/dismiss", {}, **call).status_code == 204
    assert bob.get(path).json() == []
    assert olga.delete(f"{path}/{made['id']}").status_code == 204
    assert olga.get(path).json() == []


def test_addresses_in_a_text_are_links_and_markup_is_text(scene: Scene, browser_of) -> None:
    text = "see https://status.example.org/fans <b>now</b>"
    announce(actor=scene.people.olga, text=text, ends_at=now_from_database() + timedelta(days=1))
    html = browser_of(scene.people.bob).get("/").content.decode()
    assert '<a href="https://status.example.org/fans" rel="nofollow">' in html
    assert "&lt;b&gt;now&lt;/b&gt;" in html
    assert "Shown until" in html
