"""A page previews how shares would change before a team is created, moved, archived or restored, or its tickets
changed."""

from __future__ import annotations

import re

import pytest

from accounting.models import AuditEvent, Membership, Tenant, User
from portal.administration.tree import (
    effect_of_archiving,
    effect_of_move,
    effect_of_new,
    effect_of_restoring,
    effect_of_tickets,
    read_tree,
    share_of,
    tickets_within,
)
from tests import make
from tests.portal.scene import Scene

pytestmark = pytest.mark.django_db


def told(effect) -> dict[str, tuple[float | None, float | None]]:
    return {one.name: (one.before, one.after) for one in effect}


@pytest.fixture
def tree() -> dict[str, Tenant]:
    """Returns the teams of a tree by name: Uni with 100 tickets and Firm with 100.

    Uni contains Astro (100) and Bio (300). Firm contains a member (100) and Lab (100).
    """
    uni, firm = make.tenant("Uni"), make.tenant("Firm")
    make.membership(make.user("dora"), firm)
    return {
        "uni": uni, "firm": firm, "astro": make.tenant("Astro", parent=uni),
        "bio": make.tenant("Bio", parent=uni, tickets=300), "lab": make.tenant("Lab", parent=firm),
    }  # fmt: skip


def test_shares_count_members_beside_the_teams_below(tree) -> None:
    shares = {one.tenant.name: (one.share, one.members_share) for one in read_tree()}
    assert shares["Lab"] == (0.25, 0.0)
    assert shares["Firm"] == (0.5, 0.25)
    assert shares["Bio"] == (0.375, 0.0)


def test_viewers_and_deactivated_users_have_no_part_of_the_share(tree) -> None:
    viewer = make.membership(make.user("victor"), tree["firm"])
    gone = make.membership(make.user("gone"), tree["firm"])
    assert share_of(tree["firm"]).members_share == pytest.approx(0.375)
    Membership.objects.filter(pk=viewer.pk).update(role="viewer")
    User.objects.filter(pk=gone.user_id).update(is_active=False)
    assert share_of(tree["firm"]).members_share == 0.25
    assert share_of(tree["lab"]).share == 0.25
    assert tickets_within(tree["firm"]) == 200
    parts = {one.user.username: one.has_part for one in tree["firm"].memberships.select_related("user")}
    assert parts == {"dora": True, "victor": False, "gone": False}
    assert {one.user.username for one in Membership.objects.with_part()} == {"dora"}


def test_a_new_team_takes_from_its_siblings_and_a_member_of_the_team_above(tree) -> None:
    third = pytest.approx(1 / 3)
    at_the_top = told(effect_of_new(name="New", parent=None, tickets=100))
    assert at_the_top == {
        "Firm": (0.5, third), "Lab": (0.25, pytest.approx(1 / 6)),
        "Uni": (0.5, third), "Astro": (0.125, pytest.approx(1 / 12)), "Bio": (0.375, 0.25), "New": (None, third),
    }  # fmt: skip
    sixth = pytest.approx(1 / 6)
    below = told(effect_of_new(name="New", parent=tree["firm"], tickets=100))
    assert below == {"Members of Firm": (0.25, sixth), "Lab": (0.25, sixth), "New": (None, sixth)}


def test_tickets_a_move_an_archiving_and_a_restoring_change_the_level_and_no_other(tree) -> None:
    assert told(effect_of_tickets(tree["astro"], 300)) == {"Astro": (0.125, 0.25), "Bio": (0.375, 0.25)}
    moved = told(effect_of_move(tree["lab"], tree["uni"]))
    assert moved == {
        "Members of Firm": (0.25, 0.5), "Lab": (0.25, 0.1), "Astro": (0.125, 0.1),
        "Bio": (0.375, pytest.approx(0.3)),
    }  # fmt: skip
    assert told(effect_of_archiving(tree["astro"])) == {"Astro": (0.125, None), "Bio": (0.375, 0.5)}
    Tenant.objects.filter(pk=tree["astro"].pk).update(archived_at="2026-01-01T00:00Z")
    tree["astro"].refresh_from_db()
    assert told(effect_of_restoring(tree["astro"])) == {"Astro": (None, 0.125), "Bio": (0.5, 0.375)}


def test_the_form_says_at_once_what_a_new_team_would_take_from_every_team(scene: Scene, browser_of) -> None:
    ada = browser_of(scene.people.ada)
    form = ada.get("/admin/tenants/").content.decode()
    choice = re.search(r'<select name="parent".*?</select>', form, re.DOTALL)[0]
    assert re.findall(r'value="([^"]*)" selected', choice) in ([], ["top"])
    assert re.findall(r'value="([^"]*)"', choice)[0] == "top"
    before = form.partition('id="create-effect"')[2].partition("</table>")[0]
    for name in ("Uni", "Astro", "Bio", "New team"):
        assert re.search(rf"<th[^>]*>(<strong>)?{name}<", before), name
    effect = "/admin/tenants/new/effect/"
    unsaid = ada.post(effect, {"name": "Chem", "tickets": "100", "parent": ""}).content.decode()
    assert "or the top level" in unsaid
    said = ada.post(effect, {"name": "Chem", "tickets": "100", "parent": "top"}).content.decode()
    row = re.search(r"<strong>Chem</strong></th><td[^>]*>(.*?)</td><td[^>]*>(.*?)</td>", said).groups()
    assert row == ("–", "50\u00a0%")
    assert 'id="create-effect" hx-swap-oob="true"' in said
    assert not Tenant.objects.filter(name="Chem").exists()


def test_other_tickets_a_move_and_an_archiving_are_shown_on_the_pages(scene: Scene, browser_of) -> None:
    ada, effect = browser_of(scene.people.ada), "/admin/tenants/astro/effect/"
    assert "<strong>Astro</strong>" in ada.post(f"{effect}tickets/", {"tickets": "300"}).content.decode()
    assert "whole number" in ada.post(f"{effect}tickets/", {"tickets": "x"}).content.decode()
    assert "<strong>Astro</strong>" in ada.post(f"{effect}move/", {"parent": "top"}).content.decode()
    below_itself = ada.post("/admin/tenants/uni/effect/move/", {"parent": str(scene.people.astro.pk)})
    assert "cannot be moved below itself" in below_itself.content.decode()
    page = ada.get("/admin/tenants/astro/").content.decode()
    dialogs = dict(re.findall(r'<dialog id="(\w+)"(.*?)</dialog>', page, re.DOTALL))
    assert "<strong>Astro</strong>" in dialogs["archive"]
    assert "<strong>Astro</strong>" not in dialogs["delete"]


def test_the_api_asks_for_the_parent_and_says_what_it_does_to_shares(scene: Scene, browser_of) -> None:
    ada, olga = browser_of(scene.people.ada), browser_of(scene.people.olga)

    def send(verb: str, path: str, body: dict[str, object], client=ada):
        return getattr(client, verb)(f"/api/v1/teams{path}", body, content_type="application/json")

    unsaid = send("post", "", {"name": "Chem", "tickets": 100})
    assert unsaid.status_code == 422
    assert "parent" in str(unsaid.json()["problems"])
    events = AuditEvent.objects.count()
    tried = send("post", "", {"name": "Chem", "tickets": 100, "parent": None, "dry_run": True})
    assert (tried.status_code, tried.json()["team"]) == (200, None)
    assert {"name": "Chem", "before": None, "after": 0.5} in tried.json()["shares"]
    assert AuditEvent.objects.count() == events
    made = send("post", "", {"name": "Chem", "tickets": 100, "parent": "uni"})
    assert (made.status_code, made.json()["team"]["parent"]) == (201, "uni")
    assert send("put", "/chem/parent", {}).status_code == 422
    assert send("put", "/chem/parent", {"parent": None}).json()["team"]["parent"] is None
    assert send("put", "/chem/parent", {"parent": "nobody"}).status_code == 409
    assert send("put", "/chem/tickets", {"tickets": 300, "dry_run": True}).json()["team"]["tickets"] == 100
    assert send("put", "/chem/tickets", {"tickets": 300}).json()["team"]["tickets"] == 300
    assert send("put", "/chem/archived", {"archived": True}).json()["team"]["archived_at"]
    assert send("put", "/chem/archived", {"archived": False}).json()["team"]["archived_at"] is None
    assert send("put", "/chem/tickets", {"tickets": 1}, client=olga).status_code == 404
    assert Membership.objects.filter(tenant__slug="chem").count() == 0
