"""Limits on pages and in the API, and the preview of a change's effect on shares."""

from __future__ import annotations

import html as html_module
import re
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from django.test import Client

from accounting.actions import set_quota
from accounting.core.clock import now_from_database
from accounting.models import AuditEvent, Generation, Membership, Quota, Tenant
from fairshare.entitlement import entitlements
from fairshare.model import Reason
from scheduling.models import Cluster, Job, Lease, Round
from scheduling.shares.preview import preview
from scheduling.shares.snapshot import Change, read_snapshot
from tests import make
from tests.fairshare.build import decide
from tests.portal.scene import Scene
from tests.scheduling.world import World, world

FORM = {"kind": "gpu_hours", "generation": "", "limit": "12.5", "user": "each", "period": "rolling", "days": "7",
        "at_limit": "idle"}  # fmt: skip


def shown(response) -> str:
    return " ".join(html_module.unescape(response.content.decode()).split())


def test_an_admin_sets_every_kind_of_limit(scene: Scene, browser_of) -> None:
    ada = browser_of(scene.people.ada)
    assert ada.post("/admin/tenants/astro/limits/set/", FORM).status_code == 302
    quota = Quota.objects.latest("pk")
    told = (quota.kind, quota.each_user, quota.period, quota.days, quota.at_limit, str(quota.limit))
    assert told == ("gpu_hours", True, "rolling", 7, "idle", "12.500")
    page = shown(ada.get("/admin/tenants/astro/limits/"))
    assert "in the last 7 days" in page
    # Jobs of Bob and Alice are booked. The row shows Bob's use, which is the greatest.
    row = page.partition("in the last 7 days")[2].partition("</tr>")[0]
    assert re.search(r'data-label="Used">3(\.\d+)?<', row), row
    assert "make preemptible" in row
    assert "in the last 7 days" in shown(browser_of(scene.people.alice).get("/team/astro/limits/"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"period": "rolling", "days": "0"}, "1 to 366 days"),
        ({"kind": "borrowed", "user": ""}, "can block jobs or warn"),
        ({"kind": "queued_jobs", "at_limit": "warn", "limit": "1.5"}, "ust be a whole number"),
        ({"user": "999999"}, "Choose an option from the list"),
    ],
)
@pytest.mark.parametrize("verb", ["set", "preview"])
def test_an_invalid_schedule_is_refused_beside_its_field(scene: Scene, browser_of, wrong, said, verb) -> None:
    before = AuditEvent.objects.count()
    response = browser_of(scene.people.ada).post(f"/admin/tenants/astro/limits/{verb}/", FORM | wrong)
    assert response.status_code == 422
    [refused] = re.findall(r'class="field-error"[^>]* role="alert">([^<]*)<', response.content.decode())
    assert said in refused
    assert AuditEvent.objects.count() == before


def test_a_preview_says_what_the_scheduler_would_do_and_saves_nothing(scene: Scene, browser_of) -> None:
    ada, before = browser_of(scene.people.ada), AuditEvent.objects.count()
    response = ada.post("/admin/tenants/astro/tickets/preview/", {"tickets": "300"})
    page = shown(response)
    assert "The team Astro will have 300 tickets instead of 100. Nothing is saved yet." in page
    row = next(row for row in page.split("<tr>") if "Bio" in row and "A100" in row)
    assert re.search(r'data-label="Entitlement in GPUs">2 → 1<', row), row
    assert AuditEvent.objects.count() == before
    assert Tenant.objects.get(slug="astro").tickets == 100
    saved = ada.post(
        "/admin/tenants/astro/tickets/", dict(re.findall(r'name="(tickets)" value="(\d+)"', page))
    )
    assert (saved.status_code, Tenant.objects.get(slug="astro").tickets) == (302, 300)


@pytest.mark.parametrize("who", ["alice", "ada"])
def test_other_tickets_of_a_member_are_previewed_before_they_are_saved(
    scene: Scene, browser_of, who: str
) -> None:
    Job.objects.filter(pk=scene.waiting.pk).update(workers=1)  # Alice's job then fits into her limit
    browser, before = browser_of(getattr(scene.people, who)), AuditEvent.objects.count()
    place = "/team/astro" if who == "alice" else "/admin/tenants/astro"
    url = f"{place}/members/{scene.membership.pk}"
    assert f'formaction="{url}/preview/"' in shown(browser.get(f"{place}/"))
    response = browser.post(f"{url}/preview/", {"role": "member", "tickets": "300"})
    page = shown(response)
    told = "the user's part of the team's share changes from 33 % to 75 %"
    assert "bob will have 300 tickets in the team Astro instead of 50." in page
    assert told in page.replace("\N{NO-BREAK SPACE}", " ")
    rows = {(row.user.username, row.generation): row for row in response.context["rows"]}
    assert {row.tenant for row in rows.values()} == {scene.people.astro}
    bob, alice = rows["bob", "V100"], rows["alice", "V100"]
    assert bob.entitled == pytest.approx((2 / 3, 1.5))
    assert alice.entitled == pytest.approx((4 / 3, 0.5))
    assert 'data-label="Entitlement in GPUs">0.667 → 1.5<' in page
    assert AuditEvent.objects.count() == before
    assert Membership.objects.get(pk=scene.membership.pk).tickets == 50
    form = dict(re.findall(r'type="hidden" name="(role|tickets)" value="(\w+)"', page))
    save = f"{url}/change/"
    assert f'action="{save}"' in page
    assert browser.post(save, form).status_code == 302
    assert Membership.objects.get(pk=scene.membership.pk).tickets == 300
    snapshot, legend = read_snapshot(scene.world.cluster, now=now_from_database())
    entitled = entitlements(snapshot)
    leaf = legend.accounts.index((scene.people.astro.pk, scene.people.bob.pk))
    assert entitled[leaf, legend.generations.index(scene.people.v100.pk)] == pytest.approx(1.5)


def test_the_preview_of_a_member_names_what_changes_and_nothing_else(scene: Scene, browser_of) -> None:
    url = f"/team/astro/members/{scene.membership.pk}/preview/"

    def told(role: str, tickets: str) -> str:
        page = shown(browser_of(scene.people.alice).post(url, {"role": role, "tickets": tickets}))
        return re.sub(r"\s+", " ", page.split("<h1>Preview</h1>")[1].split("</header>")[0])

    role = "bob will have the role Viewer instead of Member in the team Astro."
    only_role, only_tickets, both = told("viewer", "50"), told("member", "300"), told("viewer", "300")
    assert role in only_role
    assert "tickets" not in only_role
    assert "tickets in the team Astro instead of 50." in only_tickets
    assert "the role" not in only_tickets
    assert role in both
    assert "tickets in the team Astro instead of 50." in both
    assert "You changed neither the role nor the tickets of bob in the team Astro." in told("member", "50")


def test_only_managers_of_a_team_preview_limits_of_its_members(scene: Scene, browser_of) -> None:
    url = f"/team/astro/members/{scene.membership.pk}/preview/"
    form = {"role": "member", "tickets": "300"}
    asked = {"team": "astro", "user": "bob", "tickets": 300}
    for who in (scene.people.bob, scene.people.charlie):
        assert browser_of(who).post(url, form).status_code == 404
        got = browser_of(who).post("/api/v1/tickets/preview", asked, content_type="application/json")
        assert got.status_code == 404
    wrong = browser_of(scene.people.alice).post(url, form | {"tickets": "0"})
    assert wrong.status_code == 422
    assert "Tickets must be a whole number from 1 to 1 000 000." in shown(wrong)
    assert browser_of(scene.people.alice).post(url, form | {"role": "king"}).status_code == 422


def test_the_api_previews_tickets_of_members_for_their_managers(scene: Scene, browser_of) -> None:
    Job.objects.filter(pk=scene.waiting.pk).update(workers=1)
    alice, asked = browser_of(scene.people.alice), {"team": "astro", "user": "bob", "tickets": 300}
    rows = alice.post("/api/v1/tickets/preview", asked, content_type="application/json").json()
    assert {(row["team"], row["user"]) for row in rows} == {("astro", "alice"), ("astro", "bob")}
    [row] = [row for row in rows if (row["user"], row["generation"]) == ("bob", "V100")]
    assert (row["entitled_before"], row["entitled_after"]) == pytest.approx((2 / 3, 1.5))
    other = alice.post(
        "/api/v1/tickets/preview", asked | {"user": "charlie"}, content_type="application/json"
    )
    assert (other.status_code, list(other.json()["problems"])) == (409, ["user"])
    Tenant.objects.filter(slug="astro").update(archived_at=now_from_database())
    gone = alice.post("/api/v1/tickets/preview", asked, content_type="application/json")
    assert gone.status_code == 404


def test_the_api_previews_requests_of_managers_for_their_own_team(scene: Scene, browser_of) -> None:
    limit = {"team": "astro", "kind": "gpus", "limit": "1"}
    for path, asked in (("tickets", {"team": "astro", "tickets": 300}), ("limits", limit)):
        url = f"/api/v1/{path}/preview"
        rows = browser_of(scene.people.alice).post(url, asked, content_type="application/json").json()
        assert {(row["team"], row["user"]) for row in rows} == {("astro", None)}
        everybody = browser_of(scene.people.olga).post(url, asked, content_type="application/json").json()
        assert [row for row in everybody if row["team"] == "astro"] == rows
        assert {row["team"] for row in everybody} > {"astro"}
        for other in (scene.people.bob, scene.people.charlie):
            assert browser_of(other).post(url, asked, content_type="application/json").status_code == 404
    above = {"team": "uni", "tickets": 300}
    assert (
        browser_of(scene.people.alice)
        .post("/api/v1/tickets/preview", above, content_type="application/json")
        .status_code
        == 404
    )


def test_the_form_hides_exactly_the_fields_that_mean_nothing_for_a_kind_of_limit() -> None:
    css = Path("static/css/pages/administration.css").read_text()
    of_a_period, without_gpu = (
        set(re.findall(r'value="(\w+)"', line.partition(".field")[0]))
        for line in css.splitlines()
        if ".limit-fields:" in line and '[name="kind"]' in line
    )
    assert of_a_period == set(Quota.OF_A_PERIOD)
    assert without_gpu == set(Quota.WITHOUT_GENERATION)


def test_teams_below_share_with_the_members_of_a_team(scene: Scene, browser_of) -> None:
    uni, ada = Tenant.objects.get(slug="uni"), browser_of(scene.people.ada)
    member = Membership.objects.create(tenant=uni, user=scene.people.bob, tickets=100)
    page = shown(ada.post(f"/admin/tenants/uni/members/{member.pk}/preview/", {"tickets": "200"}))
    # Astro and Bio have 100 tickets each.
    assert re.search(r"instead of 100\. .* changes from 33.% to 50.%\.", page)
    asked = {"team": "uni", "user": "bob", "tickets": 200}
    rows = ada.post("/api/v1/tickets/preview", asked, content_type="application/json").json()
    assert {(row["team"], row["user"]) for row in rows} == {("astro", None), ("bio", None)}


@pytest.mark.parametrize("by", ["tickets", "limit"])
def test_after_saving_shares_are_as_previewed(scene: Scene, by: str) -> None:
    astro, cluster = scene.people.astro, scene.world.cluster
    Job.objects.filter(pk=scene.waiting.pk).update(workers=1)
    quota = Quota(tenant=astro, kind="gpus", limit=1, generation=scene.people.a100)
    change = Change(astro, tickets=300) if by == "tickets" else Change(astro, quota=quota)
    rows = preview(change)
    assert any(row.changes for row in rows)
    assert not any(row.changes for row in preview(Change(astro)))
    if by == "tickets":
        Tenant.objects.filter(pk=astro.pk).update(tickets=300)
    else:
        quota.save()
    snapshot, legend = read_snapshot(cluster, now=now_from_database())
    entitled, decision = entitlements(snapshot), decide(snapshot, seed=0)
    assert not decision.trades
    after = {
        (tenant, legend.generations[k]): (entitled[t, k], decision.share[t, k])
        for t, (tenant, user) in enumerate(legend.accounts)
        if user is None
        for k in range(len(legend.generations))
    }
    names = {scene.people.v100.name: scene.people.v100.pk, scene.people.a100.name: scene.people.a100.pk}
    for row in rows:
        got = after[row.tenant.pk, names[row.generation]]
        assert (row.entitled[1], row.share[1]) == pytest.approx(got)
    assert Round.objects.count() == 2


def shares(lab: World, tenant: Tenant, *, gpus: str = "V100") -> float:
    """Returns a team's share of the lab's cluster in the next quantum, in GPUs of the type `gpus`."""
    snapshot, legend = read_snapshot(lab.cluster, now=now_from_database())
    kind = legend.generations.index(Generation.objects.get(name=gpus).pk)
    return decide(snapshot, seed=0).share[legend.accounts.index((tenant.pk, None)), kind]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("terms", "after"),
    [
        ({"kind": "gpus", "limit": 5}, 1),
        ({"kind": "gpu_hours", "limit": Decimal("0.1"), "period": "month"}, 2),  # enough for six GPUs
        ({"kind": "money", "limit": Decimal("0.12"), "period": "month", "at_limit": "idle"}, 2),
    ],
)
def test_the_first_limit_counts_what_is_held_elsewhere(terms: dict[str, object], after: float) -> None:
    lab = world(v100=4)
    people = lab.people
    other = World(people, Cluster.objects.create(name="other"))
    other.node("other-0", people.v100)
    other.submit(people.bob, people.astro, gpus=4)
    other.quantum()
    # So that no GPU time counts as used yet.
    Lease.objects.update(billed_until=now_from_database() + timedelta(hours=1))
    for _ in range(4):
        lab.submit(people.bob, people.astro)
    quota = Quota(tenant=people.astro, **terms)
    [row] = [row for row in preview(Change(people.astro, quota=quota), clusters=[lab.cluster])
             if row.tenant == people.astro]  # fmt: skip
    assert row.share == pytest.approx((4, after))
    quota.save()
    assert shares(lab, people.astro) == pytest.approx(row.share[1])
    [row] = [row for row in preview(Change(people.astro, removed=quota), clusters=[lab.cluster])
             if row.tenant == people.astro]  # fmt: skip
    assert row.share == pytest.approx((after, 4))


def test_removing_a_limit_is_previewed(scene: Scene, browser_of) -> None:
    ada, astro = browser_of(scene.people.ada), scene.people.astro
    Job.objects.filter(pk=scene.waiting.pk).update(workers=1)
    Quota.objects.filter(pk=scene.quota.pk).update(limit=1)
    before = AuditEvent.objects.count()
    url = f"/admin/tenants/astro/limits/{scene.quota.pk}/remove/"
    assert f'action="{url}preview/"' in shown(ada.get("/admin/tenants/astro/limits/"))
    response = ada.post(f"{url}preview/")
    page = shown(response)
    assert "Preview without the limit “Astro: GPUs at once”, which is 1 now. Nothing is saved yet." in page
    asked = ada.post(f"/api/v1/limits/{scene.quota.pk}/removal/preview", content_type="application/json")
    by_api = {(row["team"], row["generation"]): row["share_after"] for row in asked.json()}
    rows = {(row.tenant.slug, row.generation): row for row in response.context["rows"]}
    assert any(row.changes for row in rows.values())
    assert {key: row.share[1] for key, row in rows.items()} == pytest.approx(by_api)
    assert (AuditEvent.objects.count(), Quota.objects.count()) == (before, 1)
    assert f'action="{url}"' in page
    assert ada.post(url).status_code == 302
    assert not Quota.objects.exists()
    for name in ("V100", "A100"):
        assert shares(scene.world, astro, gpus=name) == pytest.approx(rows["astro", name].share[1])
    gone = ada.post(f"/api/v1/limits/{scene.quota.pk}/removal/preview", content_type="application/json")
    assert gone.status_code == 404


@pytest.mark.parametrize("who", ["alice", "bob", "charlie"])
def test_only_operators_preview_a_removal(scene: Scene, browser_of, who: str) -> None:
    browser = browser_of(getattr(scene.people, who))
    for url in (
        f"/admin/tenants/astro/limits/{scene.quota.pk}/remove/preview/",
        f"/api/v1/limits/{scene.quota.pk}/removal/preview",
    ):
        assert browser.post(url, content_type="application/json").status_code == 404


@pytest.mark.parametrize(
    ("kind", "used"),
    [("gpus", "4"), ("queued_jobs", "1"), ("longest_run", r"0(\.\d+)?"), ("borrowed", r"\d+(\.\d+)?")],
)
def test_every_limit_says_how_much_of_it_is_used(scene: Scene, browser_of, kind: str, used: str) -> None:
    Quota.objects.all().delete()
    Quota.objects.create(tenant=scene.people.astro, kind=kind, limit=1, at_limit="warn")
    page = shown(browser_of(scene.people.alice).get("/team/astro/limits/"))
    row = page.partition('data-label="Used">')[2].partition("</td>")[0]
    assert re.match(used + "(<| |$)", row), row
    [one] = browser_of(scene.people.alice).get("/api/v1/limits?team=astro").json()
    assert one["used"] is not None
    assert ("reached" in row) == (float(one["used"]) >= 1)


def test_figures_of_teams_above_are_shown_only_to_users_who_see_them(scene: Scene, browser_of) -> None:
    job = scene.waiting
    Quota.objects.all().delete()
    Quota.objects.create(tenant=Tenant.objects.get(slug="uni"), kind="gpus", limit=9)
    Job.objects.filter(pk=job.pk).update(reason=Reason.QUOTA_IN_USE)
    said = "Uni has 8 GPUs at once, and the limit is 9"
    for name, is_told in (("alice", False), ("bob", False), ("olga", True)):
        browser = browser_of(getattr(scene.people, name))
        page = shown(browser.get(f"/jobs/{job.pk}/"))
        told = browser.get(f"/api/v1/jobs/{job.pk}/scheduling").json()
        for text in (page, f"{told['sentence']} {told['unblock']}"):
            assert (said in text) == is_told, text
            assert ("limit of a team above Astro is reached" in text) != is_told
            assert ("a job of Uni, or of a team below Uni, ends" in text) == is_told
    assert browser_of(scene.people.charlie).get(f"/api/v1/jobs/{job.pk}/scheduling").status_code == 404


def test_members_see_the_limits_that_their_managers_set(scene: Scene, browser_of) -> None:
    alice, bob = browser_of(scene.people.alice), browser_of(scene.people.bob)
    form = {
        "kind": "gpus",
        "generation": "",
        "limit": "4",
        "user": "each",
        "period": "month",
        "at_limit": "block",
    }
    assert alice.post("/team/astro/limits/set/", form | {"user": ""}).status_code == 422
    assert alice.post("/team/astro/limits/set/", form).status_code == 302
    quota = Quota.objects.get(by_managers=True)
    assert (quota.each_user, quota.tenant.slug) == (True, "astro")
    page = shown(bob.get("/account/limits/"))
    assert re.search(r'data-label="Used" class="number">4<.*data-label="Limit" class="number">4<', page), page
    assert re.search(r'data-label="Who can raise it" class="break">alice<', page)
    assert page.count('data-label="For">the whole team<') == page.count('data-label="For">you<') == 1
    own = {one["id"]: one for one in bob.get("/api/v1/limits/own").json()}
    assert own.keys() == {scene.quota.pk, quota.pk}
    for one in own.values():
        assert (float(one["used"]), one["used_in"], one["user"]) == (4, "astro", None)
    assert [own[pk]["each_user"] for pk in (scene.quota.pk, quota.pk)] == [False, True]
    assert browser_of(scene.people.charlie).get("/api/v1/limits/own").json() == []
    assert "No limits" in shown(browser_of(scene.people.charlie).get("/account/limits/"))
    assert f"/team/astro/limits/{quota.pk}/remove/" in shown(alice.get("/team/astro/limits/"))
    assert bob.post(f"/team/astro/limits/{quota.pk}/remove/").status_code == 404
    admins = f"/team/astro/limits/{scene.quota.pk}/remove/"
    assert alice.post(admins).status_code == 404
    assert alice.post(f"/team/astro/limits/{quota.pk}/remove/").status_code == 302
    assert not Quota.objects.filter(by_managers=True).exists()


MEMBER_LIMIT = {
    "kind": "gpus",
    "generation": "",
    "limit": "3",
    "user": "each",
    "period": "month",
    "at_limit": "block",
}


def test_a_manager_sees_whom_a_limit_would_stop_before_it_is_set(scene: Scene, browser_of) -> None:
    alice, before = browser_of(scene.people.alice), AuditEvent.objects.count()
    Job.objects.filter(pk=scene.waiting.pk).update(workers=2, gpus_per_worker=2)  # Alice's; Bob's job holds 4
    got = alice.post("/team/astro/limits/preview/", MEMBER_LIMIT)
    effects = [(one.user.username, one.used, one.is_reached, one.jobs) for one in got.context["effects"]]
    assert effects == [("bob", 4, True, 0), ("alice", 0, False, 1)]
    rows = {(row.tenant.slug, row.user and row.user.username) for row in got.context["rows"]}
    assert rows == {("astro", "alice"), ("astro", "bob")}  # nothing of other teams
    page = shown(got)
    assert "Preview of the limit “Each user of Astro: GPUs at once” with the value 3." in page
    assert 'action="/team/astro/limits/set/"' in page
    assert (AuditEvent.objects.count(), Quota.objects.filter(by_managers=True).exists()) == (before, False)
    whole_team = alice.post("/team/astro/limits/preview/", MEMBER_LIMIT | {"user": ""})
    assert whole_team.status_code == 422
    for who in ("bob", "charlie", "olga"):
        other = browser_of(getattr(scene.people, who))
        assert other.post("/team/astro/limits/preview/", MEMBER_LIMIT).status_code == 404


def test_a_manager_changes_and_removes_a_limit_on_its_row(scene: Scene, browser_of) -> None:
    alice = browser_of(scene.people.alice)
    assert alice.post("/team/astro/limits/set/", MEMBER_LIMIT).status_code == 302
    quota = Quota.objects.get(by_managers=True)
    page = shown(alice.get("/team/astro/limits/"))
    row = page.partition("each user")[2].partition("</tr>")[0]
    form = dict(
        re.findall(r'name="(\w+)" value="([^"]*)"', row.partition("limits/set/")[2].partition("</form>")[0])
    )
    form.pop("csrfmiddlewaretoken", None)
    assert form.pop("limit") == "3"
    assert alice.post("/team/astro/limits/set/", form | {"limit": "2"}).status_code == 302
    changed = Quota.objects.get(by_managers=True)
    assert (changed.pk, changed.limit) == (quota.pk, 2)
    url = f"/team/astro/limits/{quota.pk}/remove/"
    removal = alice.post(f"{url}preview/")
    assert "which is 2 now. Nothing is saved yet." in shown(removal)
    assert {row.tenant.slug for row in removal.context["rows"]} == {"astro"}
    admins = f"/team/astro/limits/{scene.quota.pk}/remove/preview/"
    assert alice.post(admins).status_code == 404


def test_the_parts_of_a_team_lead_to_each_other_and_refused_forms_are_open(scene: Scene, browser_of) -> None:
    alice = browser_of(scene.people.alice)
    for part in ("", "invitations/", "limits/", "budgets/", "changes/"):
        page = shown(alice.get(f"/team/astro/{part}"))
        assert f'<a href="/team/astro/{part}" aria-current="page">' in page
        assert page.count('<nav class="tabs"') == 1
    assert '<details class="card-foot fold">' in shown(alice.get("/team/astro/"))
    refused = shown(
        alice.post("/team/astro/members/add/", {"user": "nobody", "role": "member", "tickets": "1"})
    )
    assert '<details class="card-foot fold" open>' in refused


class TestApi:
    NEW = {"team": "astro", "kind": "money", "limit": "100", "user": "bob", "at_limit": "warn"}

    def test_an_admin_sets_reads_and_removes(self, scene: Scene, browser_of) -> None:
        ada = browser_of(scene.people.ada)
        made = ada.post("/api/v1/limits", self.NEW, content_type="application/json")
        assert made.status_code == 201, made.json()
        again = ada.post("/api/v1/limits", self.NEW | {"limit": "200"}, content_type="application/json")
        assert again.json()["id"] == made.json()["id"]
        [one] = [one for one in browser_of(scene.people.alice).get("/api/v1/limits?team=astro").json()
                 if one["kind"] == "money"]  # fmt: skip
        assert (one["limit"], one["user"], one["period"]) == ("200.000", "bob", "month")
        assert float(one["used"]) > 0
        assert ada.delete(f"/api/v1/limits/{one['id']}").status_code == 204
        assert ada.delete(f"/api/v1/limits/{one['id']}").status_code == 404

    @pytest.mark.parametrize(
        ("wrong", "field"),
        [({"user": "nobody"}, "user"), ({"generation": "K80"}, "generation"), ({"limit": "-1"}, "limit")],
    )
    def test_a_refusal_names_the_field(self, scene: Scene, browser_of, wrong, field) -> None:
        ada = browser_of(scene.people.ada)
        for path in ("/api/v1/limits", "/api/v1/limits/preview"):
            got = ada.post(path, self.NEW | wrong, content_type="application/json")
            assert (got.status_code, list(got.json()["problems"])) == (409, [field]), path

    def test_previews_are_the_pages(self, scene: Scene, browser_of) -> None:
        ada = browser_of(scene.people.ada)
        form = {"team": "astro", "tickets": 300}
        rows = ada.post("/api/v1/tickets/preview", form, content_type="application/json").json()
        [row] = [row for row in rows if (row["team"], row["generation"]) == ("bio", "A100")]
        assert (row["entitled_before"], row["entitled_after"]) == pytest.approx((2, 1))
        form = {"team": "uni", "kind": "gpus", "limit": "0"}
        rows = ada.post("/api/v1/limits/preview", form, content_type="application/json").json()
        assert {row["share_after"] for row in rows} == {0}

    def test_managers_set_and_remove_limits_on_their_members(self, scene: Scene, browser_of) -> None:
        cast = scene.people
        alice, ada = browser_of(cast.alice), browser_of(cast.ada)
        one = {"team": "astro", "kind": "gpus", "limit": "2", "user": "bob"}
        of_ada = ada.post("/api/v1/limits", one | {"limit": "1"}, content_type="application/json").json()
        made = alice.post("/api/v1/limits", one, content_type="application/json")
        assert (made.status_code, made.json()["by_managers"], of_ada["by_managers"]) == (201, True, False)
        # The admin's limit is another one, which the manager neither changes nor removes.
        assert [str(row.limit) for row in Quota.objects.filter(user=cast.bob).order_by("limit")] == [
            "1.000",
            "2.000",
        ]
        assert alice.delete(f"/api/v1/limits/{of_ada['id']}").status_code == 403
        for wrong in ({"user": None}, {"user": None, "kind": "borrowed"}):
            assert (
                alice.post("/api/v1/limits", one | wrong, content_type="application/json").status_code == 403
            )
        for wrong in ("charlie", "nobody"):
            got = alice.post("/api/v1/limits", one | {"user": wrong}, content_type="application/json")
            assert (got.status_code, got.json()["problems"]) == (
                409,
                {"user": "The user is not in this team."},
            )
        other = alice.post("/api/v1/limits", one | {"team": "bio"}, content_type="application/json")
        assert other.status_code == 404
        for who in (cast.bob, cast.charlie, cast.olga):
            assert browser_of(who).delete(f"/api/v1/limits/{made.json()['id']}").status_code == 404
        assert alice.delete(f"/api/v1/limits/{made.json()['id']}").status_code == 204
        verbs = AuditEvent.objects.filter(tenant=cast.astro, actor=cast.alice).values_list("verb", flat=True)
        assert {"quota.set", "quota.remove"} <= set(verbs)

    def test_for_others_it_does_not_exist(self, scene: Scene, browser_of) -> None:
        cast = scene.people
        for user in (cast.bob, cast.charlie, cast.olga):
            client: Client = browser_of(user)
            for path, form in (
                ("/api/v1/limits", self.NEW),
                ("/api/v1/limits/preview", self.NEW),
                ("/api/v1/tickets/preview", {"team": "astro", "tickets": 5}),
            ):
                previews = user == cast.olga and path.endswith(
                    "preview"
                )  # operators need previews to answer requests
                found = client.post(path, form, content_type="application/json").status_code
                assert found == (200 if previews else 404)
            assert client.delete(f"/api/v1/limits/{scene.quota.pk}").status_code == 404


def test_a_limit_on_a_user_who_left_the_team_says_so(scene: Scene, browser_of) -> None:
    people = scene.people
    alice = browser_of(people.alice)
    for user in (people.bob, people.alice):
        set_quota(actor=people.ada, tenant=people.astro, kind="queued_jobs", limit=3, user=user)
    assert "former member" not in shown(alice.get("/team/astro/limits/"))
    scene.membership.delete()
    assert shown(alice.get("/team/astro/limits/")).count(">former member<") == 1
    rows = {row["user"]: row["of_former_member"] for row in alice.get("/api/v1/limits?team=astro").json()}
    assert (rows["bob"], rows["alice"]) == (True, False)
    make.membership(people.bob, people.uni)  # a role above the team holds in it, too
    assert "former member" not in shown(alice.get("/team/astro/limits/"))
