"""Managers manage members and budgets of their team on its page and in the API; operators may read them."""

from __future__ import annotations

import html as html_module

import pytest
from django.test import Client

from accounting.actions import set_budget
from accounting.core.clock import now_from_database
from accounting.models import AuditEvent, Budget, Membership, Tenant, User
from scheduling.idle.actions import set_idle_rule
from tests import make
from tests.portal.scene import Scene

pytestmark = pytest.mark.django_db
BUDGET = {"budget_period": "month", "amount": "500", "percentages": "80", "webhook_url": ""}


def page(client: Client, path: str) -> str:
    return " ".join(html_module.unescape(client.get(path).content.decode()).split())


def test_a_budget_says_all_that_is_wrong_at_once(scene: Scene, browser_of) -> None:
    alice = browser_of(scene.people.alice)
    wrong = BUDGET | {"amount": "-1", "percentages": "0", "webhook_url": "ftp://example.org"}
    answer = alice.post("/team/astro/budgets/set/", wrong)
    assert answer.status_code == 422
    assert set(answer.context["posted"].errors) == {"amount", "percentages", "webhook_url"}


def test_a_manager_adds_a_user_by_the_exact_name_or_address_and_removes_one(scene: Scene, browser_of) -> None:
    alice = browser_of(scene.people.alice)
    User.objects.filter(pk=make.user("dora").pk).update(email="dora@example.org")
    make.user("emil")
    for name in ("dora", "emil"):
        assert name not in page(alice, "/team/astro/")  # the page does not list users outside the team
    form = {"user": "Dora@Example.org", "role": "member", "tickets": "20"}
    assert alice.post("/team/astro/members/add/", form).status_code == 302
    added = Membership.objects.get(user__username="dora")
    assert (added.tenant, added.role, added.tickets) == (scene.people.astro, "member", 20)
    assert "dora" in page(alice, "/team/astro/")
    unknown = alice.post("/team/astro/members/add/", form | {"user": "dor"})
    assert unknown.status_code == 422
    assert "No user has exactly this user name" in unknown.content.decode()
    assert alice.post(f"/team/astro/members/{added.pk}/remove/").status_code == 302
    assert not Membership.objects.filter(pk=added.pk).exists()
    assert list(AuditEvent.objects.values_list("verb", flat=True)[:2]) == ["member.remove", "member.add"]


def test_users_with_the_same_address_are_distinguished_by_name(scene: Scene, browser_of) -> None:
    User.objects.filter(pk__in=[make.user("dora").pk, make.user("emil").pk]).update(email="lab@example.org")
    form = {"user": "lab@example.org", "role": "member", "tickets": "1"}
    told = browser_of(scene.people.alice).post("/team/astro/members/add/", form)
    assert "Several users have this e-mail address" in told.content.decode()


def test_a_manager_sets_a_budget_within_that_of_the_team_above(scene: Scene, browser_of) -> None:
    cast = scene.people
    alice = browser_of(cast.alice)
    assert alice.post("/team/astro/budgets/set/", BUDGET).status_code == 302
    budget = Budget.objects.get()
    assert (budget.tenant, budget.amount) == (cast.astro, 500)
    assert "of 500 EUR spent (" in page(alice, "/team/astro/budgets/")
    set_budget(actor=cast.ada, tenant=cast.uni, amount=400)
    over = alice.post("/team/astro/budgets/set/", BUDGET)
    assert over.status_code == 422
    assert (
        "The monthly budget must not be larger than the monthly budget of a team above this team."
        in html_module.unescape(over.content.decode())
    )
    make.membership(cast.alice, cast.uni, role=Membership.Role.MANAGER)
    over = alice.post("/team/astro/budgets/set/", BUDGET)
    assert "must not be larger than 400, the monthly budget of team Uni" in over.content.decode()
    assert alice.post("/team/astro/budgets/set/", BUDGET | {"amount": "400"}).status_code == 302
    assert alice.post(f"/team/astro/budgets/{budget.pk}/remove/").status_code == 302
    assert not Budget.objects.in_force().filter(tenant=cast.astro).exists()


def test_others_may_not(scene: Scene, browser_of) -> None:
    cast = scene.people
    budget = set_budget(actor=cast.ada, tenant=cast.astro, amount=100)
    before = AuditEvent.objects.count()
    for user in (cast.bob, cast.charlie, cast.olga):
        client = browser_of(user)
        for path, form in (
            ("members/add/", {"user": "olga", "role": "manager", "tickets": "1"}),
            (f"members/{scene.membership.pk}/remove/", {}),
            ("budgets/set/", BUDGET),
            (f"budgets/{budget.pk}/remove/", {}),
        ):
            assert client.post(f"/team/astro/{path}", form).status_code == 404, path
        members = client.post(
            "/api/v1/teams/astro/members", {"user": "olga"}, content_type="application/json"
        )
        assert members.status_code == 404
        assert client.delete("/api/v1/teams/astro/members/bob").status_code == 404
        assert client.delete(f"/api/v1/budgets/{budget.pk}").status_code == 404
    assert AuditEvent.objects.count() == before


def test_managers_do_the_same_by_the_api(scene: Scene, browser_of) -> None:
    alice, json = browser_of(scene.people.alice), "application/json"
    make.user("dora")
    members = "/api/v1/teams/astro/members"
    made = alice.post(members, {"user": "dora", "tickets": 5}, content_type=json)
    assert (made.status_code, made.json()["role"]) == (201, "member")
    changed = alice.patch(f"{members}/dora", {"role": "viewer"}, content_type=json)
    assert (changed.json()["role"], changed.json()["tickets"]) == ("viewer", 5)
    assert [one["user"] for one in alice.get(members).json()] == ["alice", "bob", "dora"]
    assert alice.delete(f"{members}/dora").status_code == 204
    budget = alice.put("/api/v1/budgets", {"team": "astro", "amount": "9"}, content_type=json)
    assert budget.status_code == 200
    assert alice.delete(f"/api/v1/budgets/{budget.json()['id']}").status_code == 204


def test_operators_read_the_settings_and_change_only_the_rules_for_idle_gpus(
    scene: Scene, browser_of
) -> None:
    cast = scene.people
    terms = {"action": "warn", "after_minutes": 61, "grace_minutes": 30, "snooze_hours": 24}
    set_idle_rule(actor=cast.ada, tenant=cast.astro, **terms)
    olga = browser_of(cast.olga)
    told = page(olga, "/admin/settings/")
    assert "Rules for idle GPUs" in told
    assert "Astro" in told
    assert "61 min" in told
    assert "Set rule" in told
    assert 'name="quantum_seconds"' not in told
    assert 'href="/admin/settings/"' in page(olga, "/admin/nodes/")
    assert olga.post(f"/admin/clusters/{scene.world.cluster.pk}/settings/", {}).status_code == 404
    assert 'name="quantum_seconds"' in page(browser_of(cast.ada), "/admin/settings/")


def test_a_team_that_is_archived_is_changed_by_admins_alone(scene: Scene, browser_of) -> None:
    cast = scene.people
    Tenant.objects.filter(pk=cast.astro.pk).update(archived_at=now_from_database())
    budget, json = {"team": "astro", "amount": "9"}, "application/json"
    alice, ada = browser_of(cast.alice), browser_of(cast.ada)
    assert alice.put("/api/v1/budgets", budget, content_type=json).status_code == 404
    assert alice.delete("/api/v1/teams/astro/members/bob").status_code == 404
    assert ada.put("/api/v1/budgets", budget, content_type=json).status_code == 200
    team = alice.get("/team/")
    assert team.status_code == 200
    assert "Every team that you manage is archived." in team.content.decode()
    assert browser_of(cast.bob).get("/team/").status_code == 404
