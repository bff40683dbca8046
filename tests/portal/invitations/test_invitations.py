"""Managers invite people on the page of their team; invited people join in the browser or by the API."""

from __future__ import annotations

import html
import re

import pytest
from django.test import Client

from accounting import actions
from accounting.models import Invitation, Membership, User
from portal.administration.member_usage import TeamMembersUsage
from tests.portal.scene import Scene

pytestmark = pytest.mark.django_db
FORM = {"role": "member", "tickets": "100", "most_uses": "1", "days": "7"}
JOIN = {"username": "dora", "password": "kelvin-helmholtz-1868", "again": "kelvin-helmholtz-1868"}


def text(client: Client, path: str) -> str:
    return " ".join(html.unescape(client.get(path).content.decode()).split())


def create(client: Client) -> str:
    """Creates an invitation on the page, and returns the path of its link."""
    page = client.post("/team/astro/invitations/create/", FORM).content.decode()
    found = re.search(r'id="invitation-link">https?://[^/]+(/invitations/\w+/)<', page)
    assert found is not None
    return found.group(1)


def test_a_manager_passes_a_link_on_and_the_signed_in_person_joins(scene: Scene, browser_of) -> None:
    alice, charlie = browser_of(scene.people.alice), browser_of(scene.people.charlie)
    link = create(alice)
    assert link not in text(alice, "/team/astro/invitations/")  # shown once
    assert "0 of 1" in text(alice, "/team/astro/invitations/")
    assert "Join as charlie" in text(charlie, link)
    assert not Membership.objects.filter(user=scene.people.charlie, tenant=scene.people.astro).exists()
    assert charlie.post(link).status_code == 302
    assert Membership.objects.get(user=scene.people.charlie, tenant=scene.people.astro).role == "member"
    assert charlie.get(link).status_code == 404


def test_a_revoked_link_is_gone_and_others_cannot_revoke(scene: Scene, browser_of) -> None:
    link = create(browser_of(scene.people.alice))
    address = f"/team/astro/invitations/{Invitation.objects.get().pk}/revoke/"
    assert browser_of(scene.people.bob).post(address).status_code == 404
    assert browser_of(scene.people.alice).post(address).status_code == 302
    assert "not valid" in text(Client(), link)


def test_a_person_without_an_account_makes_one_only_where_the_portal_allows_it(
    scene: Scene, browser_of, settings
) -> None:
    link, person = create(browser_of(scene.people.alice)), Client()
    assert "ask an admin" in text(person, link)
    assert f"/account/login/?next={link}" in text(person, link)
    assert person.post(link, JOIN).status_code == 422
    assert not User.objects.filter(username="dora").exists()
    settings.FAIRLOT_ACCOUNTS_BY_INVITATION = True
    differs = person.post(link, JOIN | {"again": "other"})
    assert differs.status_code == 422
    assert "The two passwords differ." in differs.content.decode()
    assert JOIN["password"] not in differs.content.decode()
    assert person.post(link, JOIN | {"email": "ada@example.org"}).status_code == 302
    assert User.objects.get(username="dora").email == "", "somebody else's address was claimed"
    assert "dora" in text(person, "/")
    assert Membership.objects.get(user__username="dora").tenant == scene.people.astro


def test_mail_is_offered_only_where_a_server_is_set(scene: Scene, browser_of, settings) -> None:
    alice = browser_of(scene.people.alice)
    assert "Send the link to" not in text(alice, "/team/astro/invitations/")
    settings.EMAIL_HOST = "mail.example.org"
    assert "Send the link to" in text(alice, "/team/astro/invitations/")
    sent = alice.post("/team/astro/invitations/create/", FORM | {"email": "dora@example.org"})
    assert sent.status_code == 302
    assert "dora@example.org" in text(alice, "/team/astro/invitations/")


def test_the_client_invites_lists_joins_and_revokes(scene: Scene, browser_of) -> None:
    alice, charlie = browser_of(scene.people.alice), browser_of(scene.people.charlie)
    call = {"content_type": "application/json"}
    made = alice.post("/api/v1/teams/astro/invitations", {"most_uses": 2}, **call).json()
    joined = charlie.post("/api/v1/invitations/accept", {"invitation": made["link"]}, **call)
    assert joined.json() == {"team": "astro", "role": "member", "tickets": 100}
    (listed,) = alice.get("/api/v1/teams/astro/invitations").json()
    assert (listed["id"], listed["uses"], "link" in listed) == (made["id"], 1, False)
    assert alice.delete(f"/api/v1/teams/astro/invitations/{made['id']}").status_code == 204
    assert alice.get("/api/v1/teams/astro/invitations").json() == []
    again = browser_of(scene.people.olga).post(
        "/api/v1/invitations/accept", {"invitation": made["link"]}, **call
    )
    assert again.status_code == 409


def test_a_manager_sees_what_each_member_uses_and_the_rest_in_one_row(scene: Scene, browser_of) -> None:
    cast = scene.people
    usage = TeamMembersUsage.read(cast.astro, cast.alice)
    assert usage.of(cast.bob.pk).gpus == 4  # his running job
    assert usage.of(cast.charlie.pk).gpus == 0  # his job is in another team
    page = text(browser_of(cast.alice), "/team/astro/")
    assert "GPUs of bob: show the jobs" in page
    assert "Other users" not in page
    actions.remove_member(actor=cast.alice, membership=Membership.objects.get(user=cast.bob))
    assert usage.of_others([cast.alice.pk]) == usage.of(cast.bob.pk)
    assert "Other users" in text(browser_of(cast.alice), "/team/astro/")
