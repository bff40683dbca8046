"""Saved views of the job list: users save, share, open and remove them, in the portal and by the API."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounting.access.audit import AuditEvent
from accounting.core.errors import NotAllowed, Refused
from accounting.models import Membership
from portal.lists import saved
from portal.lists.saved import choose_default_view, remove_view, save_view
from portal.models import ListChoice, SavedView
from tests.portal.scene import Scene

JOBS, VIEWS, API = reverse("jobs"), reverse("jobs_views"), "/api/v1/views"


def save(browser: Client, name: str, query: str, **values: str) -> Any:
    return browser.post(f"{VIEWS}?{query}", {"name": name, "team": "", **values})


def menu(browser: Client) -> dict[str, str]:
    """Returns the addresses of the views in the menu of the list, by name."""
    html = browser.get(f"{JOBS}?view=all").content.decode()
    [links] = re.findall(r'<details class="menu views-menu".*?</details>', html, re.DOTALL)
    return {
        name.strip(): unescape(address) for address, name in re.findall(r'href="([^"]*)"[^>]*>([^<]+)', links)
    }


def test_a_view_keeps_the_state_of_the_list_and_opens_it_again(scene: Scene, browser_of) -> None:
    bob = browser_of(scene.people.bob)
    state = "state=waiting&label=a&label=b%3Dc&sort=-gpus&columns=name,gpus"
    asked = bob.get(f"{VIEWS}?{state}&facets=1&group=owner&page=3").context["words"]
    assert asked == [
        ("State", "Waiting"), ("Label", "a"), ("Label", "b=c"), ("Order", "GPUs, descending"), ("Groups", "Owner"),
        ("Columns", "Job, GPUs"), ("Counts", "shown"),
    ]  # fmt: skip
    answer = save(bob, "Large ones", f"{state}&page=3&moon=1&q=")
    view = SavedView.objects.get()
    assert (view.query, view.owner, view.tenant) == (state, scene.people.bob, None)
    assert answer["Location"] == menu(bob)["Large ones"] == f"{JOBS}?{state}&view={view.pk}"
    shown = bob.get(answer["Location"])
    assert shown.context["filter"].sort == "-gpus"
    assert shown.context["columns"] == ("name", "gpus")
    assert "<span>Large ones</span>" in shown.content.decode()
    changed = bob.get(f"{answer['Location']}&owner=me").content.decode()
    assert "<span>Large ones (changed)</span>" in changed
    assert bob.get(f"{JOBS}?view={view.pk}")["Location"] == answer["Location"]
    assert bob.get(f"{JOBS}?view=large ones")["Location"] == answer["Location"]
    save(bob, "Large ones", "owner=me")
    assert SavedView.objects.get().query == "owner=me"
    assert "There is no view “moon”" in bob.get(f"{JOBS}?view=moon").content.decode()


def test_a_list_opens_with_its_default_view_and_with_all_jobs_on_request(scene: Scene, browser_of) -> None:
    bob, alice = browser_of(scene.people.bob), browser_of(scene.people.alice)
    assert bob.get(JOBS).status_code == 200
    answer = save(bob, "Mine", "owner=me", is_default="on")
    assert bob.get(JOBS)["Location"] == answer["Location"]
    assert bob.get(f"{JOBS}?view=all").context["page"].paginator.count == 2
    assert bob.get(f"{JOBS}?state=waiting").status_code == 200
    part = {"HX-Request": "true", "HX-Target": "section#jobs-table"}
    assert bob.get(JOBS, headers=part).status_code == 200
    assert alice.get(JOBS).status_code == 200
    bob.post(reverse("jobs_view_default"), {})
    assert bob.get(JOBS).status_code == 200
    view = SavedView.objects.get()
    bob.post(reverse("jobs_view_default"), {"view": view.pk})
    save(bob, "Mine", "", is_default="on")  # has nothing to lead to
    assert bob.get(JOBS).status_code == 200
    assert bob.get(f"{JOBS}?view={view.pk}").status_code == 200
    bob.post(reverse("jobs_view_remove", args=[view.pk]))
    assert ListChoice.objects.get().default_view is None
    assert bob.get(JOBS).status_code == 200


def test_managers_share_views_with_their_team_only(scene: Scene, browser_of) -> None:
    people = scene.people
    alice, bob, charlie, olga = (
        browser_of(one) for one in (people.alice, people.bob, people.charlie, people.olga)
    )
    save(alice, "Team waits", "state=waiting", team="astro")
    view = SavedView.objects.get()
    assert view.tenant == people.astro
    assert "Team waits" in menu(bob)
    assert "Team waits" not in menu(charlie)
    assert "Team waits" not in menu(olga)
    assert charlie.post(reverse("jobs_view_remove", args=[view.pk])).status_code == 404
    assert charlie.post(reverse("jobs_view_default"), {"view": view.pk}).status_code == 404
    bob.post(reverse("jobs_view_default"), {"view": view.pk})
    assert f"view={view.pk}" in bob.get(JOBS)["Location"]
    bob.post(reverse("jobs_view_remove", args=[view.pk]))
    assert SavedView.objects.exists()
    assert save(bob, "Mine for all", "owner=me", team="astro").status_code == 422
    Membership.objects.filter(user=people.bob, tenant=people.astro).update(role="manager")
    save(bob, "Bob for all", "owner=me", team="astro")
    alice.post(reverse("jobs_view_remove", args=[SavedView.objects.get(name="Bob for all").pk]))
    assert [one.name for one in SavedView.objects.all()] == ["Team waits"]
    events = AuditEvent.objects.filter(verb__in=["list.save_view", "list.remove_view"])
    assert {one.tenant for one in events} == {people.astro}


def test_actions_refuse_what_no_view_can_be(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    bob, alice, charlie = scene.people.bob, scene.people.alice, scene.people.charlie
    for name in ("", " ", "x" * 61, "12", "a\u200b"):
        with pytest.raises(Refused):
            save_view(actor=bob, list_name="jobs", name=name, query="")
    with pytest.raises(Refused):
        save_view(actor=bob, list_name="jobs", name="long", query="q" * 2001)
    with pytest.raises(NotAllowed):
        save_view(actor=bob, list_name="jobs", name="a", query="", tenant=scene.people.astro)
    monkeypatch.setattr(saved, "MOST_VIEWS", 1)
    view = save_view(actor=bob, list_name="jobs", name="a", query="")
    with pytest.raises(Refused):
        save_view(actor=bob, list_name="jobs", name="b", query="")
    assert save_view(actor=bob, list_name="jobs", name="a", query="q=a").pk == view.pk
    for act in (
        remove_view,
        lambda actor, view: choose_default_view(actor=actor, list_name="jobs", view=view),
    ):
        with pytest.raises(NotAllowed):
            act(actor=charlie, view=view)
    with pytest.raises(NotAllowed):
        remove_view(actor=alice, view=view)
    remove_view(actor=bob, view=view)
    remove_view(actor=bob, view=view)
    bob.is_active = False
    with pytest.raises(NotAllowed):
        save_view(actor=bob, list_name="jobs", name="a", query="")
    assert not SavedView.objects.exists()


def test_the_api_saves_lists_uses_and_removes_views(scene: Scene, browser_of) -> None:
    people = scene.people
    alice, bob, charlie = (browser_of(one) for one in (people.alice, people.bob, people.charlie))
    new = {"name": "Waiting", "query": "state=waiting&sort=name&page=9", "team": "astro", "is_default": True}
    made = alice.post(API, new, content_type="application/json")
    assert made.status_code == 201, made.content
    assert made.json()["query"] == "state=waiting&sort=name"
    [seen] = bob.get(API).json()
    assert seen == made.json() | {"is_default": False}
    assert [alice.get(API).json(), charlie.get(API).json()] == [[made.json()], []]
    assert bob.post(API, new, content_type="application/json").status_code == 403
    for text in ("waiting", seen["id"]):
        jobs = bob.get(f"/api/v1/jobs?view={text}").json()["items"]
        assert [job["name"] for job in jobs] == ["supernova-next"]
    assert bob.get("/api/v1/jobs?view=Waiting&owner=bob").json()["items"] == []
    odd = bob.post(
        API, {"name": "Odd", "query": "q=%00&state=%ED%A0%80&sort=name"}, content_type="application/json"
    )
    assert odd.json()["query"] == "state=%EF%BF%BD%EF%BF%BD%EF%BF%BD&sort=name"
    assert len(bob.get("/api/v1/jobs?view=Odd").json()["items"]) == 2
    many = bob.post(API, {"name": "Many", "query": "&" * 1999}, content_type="application/json")
    assert "too many filters" in many.json()["problems"]["query"]
    refused = charlie.get("/api/v1/jobs?view=Waiting")
    assert refused.status_code == 422
    assert "no views" in refused.json()["problems"]["view"]
    assert "Waiting" in bob.get("/api/v1/jobs?view=x").json()["problems"]["view"]
    assert [one.delete(f"{API}/{seen['id']}").status_code for one in (charlie, bob, alice)] == [404, 403, 204]
