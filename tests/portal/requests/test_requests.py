"""Managers ask for tickets, limits and teams on pages and in the API, and operators approve or decline."""

from __future__ import annotations

import html as html_module
import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounting.actions.requests import ask
from accounting.core.clock import now_from_database
from accounting.models import AuditEvent, Quota, Request, Tenant, User
from portal.administration.trail import entries
from scheduling.grants import approve_request
from scheduling.models import Job
from tests.portal.scene import Scene

LIMIT = {
    "kind": "gpu_hours",
    "limit": "50",
    "user": "each",
    "period": "rolling",
    "days": "7",
    "at_limit": "warn",
}


def shown(response) -> str:
    return " ".join(html_module.unescape(response.content.decode()).split())


def tomorrow() -> str:
    return (timezone.now() + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M")


@pytest.mark.parametrize(
    ("kind", "form", "said"),
    [
        ("tickets", {"tickets": "300"}, "100 → 300 tickets"),
        (
            "limit",
            LIMIT,
            "Each user of Astro: limit of 50 GPU-hours in the last 7 days; when the limit is reached: warn",
        ),
        ("team", {"name": "Stars", "tickets": "50"}, "a team Stars with 50 tickets"),
    ],
)
def test_a_manager_asks_and_an_operator_grants_until_some_time(scene, browser_of, kind, form, said) -> None:
    alice, olga = browser_of(scene.people.alice), browser_of(scene.people.olga)
    until = tomorrow()
    asked = alice.post(f"/team/astro/ask/{kind}/", form | {"reason": "a deadline", "until": until})
    assert (asked.status_code, asked["Location"]) == (302, "/requests/")
    request = Request.objects.latest("pk")
    assert said in shown(alice.get("/requests/"))
    page = olga.get(f"/requests/{request.pk}/")
    fields = dict(
        re.findall(r'name="(tickets|name|limit|until)"[^>]*?value="([^"]*)"', page.content.decode())
    )
    assert fields["until"] == until
    assert olga.post(f"/requests/{request.pk}/approve/", fields | {"answer": "good luck"}).status_code == 302
    request.refresh_from_db()
    assert (request.state, request.ends_at.strftime("%Y-%m-%dT%H:%M")) == ("approved", until)
    page = shown(alice.get(f"/requests/{request.pk}/"))
    assert "In force" in page
    assert "good luck" in page
    assert {
        "tickets": lambda: Tenant.objects.get(slug="astro").tickets == 300,
        "limit": lambda: Quota.objects.filter(each_user=True, days=7, limit=50, at_limit="warn").exists(),
        "team": lambda: Tenant.objects.get(name="Stars").memberships.get().user == scene.people.alice,
    }[kind]()
    more = alice.post(f"/requests/{request.pk}/extend/", {"reason": "one week", "until": ""})
    assert (more.status_code, Request.objects.latest("pk").kind) == (302, "extension")


def test_pages_say_until_when_a_team_has_its_tickets(scene: Scene, browser_of) -> None:
    people = scene.people
    ends = now_from_database() + timedelta(days=3)
    asked = ask(
        actor=people.alice, tenant=people.astro, kind="tickets", reason="paper", wanted={"tickets": 300}
    )
    former = people.astro.tickets
    approve_request(actor=people.olga, request=asked, until=ends)
    said = re.compile(rf"until <time [^>]*>[^<]*</time>(</a>)?, then {former}\b")
    for who, path in (
        (people.alice, "/team/astro/"), (people.ada, "/admin/tenants/astro/"), (people.ada, "/admin/tenants/"),
        (people.bob, "/share/?team=astro"),
    ):  # fmt: skip
        page = browser_of(who).get(path).content.decode()
        assert said.search(page), path
        assert (f'href="/requests/{asked.pk}/"' in page) == (who != people.bob)


def test_an_operator_sees_what_it_would_do_changes_it_or_says_no(scene: Scene, browser_of) -> None:
    olga, path = browser_of(scene.people.olga), f"/requests/{scene.request.pk}/"
    page = shown(olga.get(path))
    assert "Effect of the request on current shares" in page
    assert re.search(r"data-label=\"Entitlement in GPUs\">2 → 1\.33<", page)
    more = olga.post(f"{path}preview/", {"tickets": "300", "until": "", "answer": "even more"})
    assert more.status_code == 200
    assert re.search(r"300 tickets\. .*data-label=\"Entitlement in GPUs\">2 → 1<", shown(more))
    assert re.search(r'name="tickets" value="300"', shown(more))
    assert "even more</textarea>" in shown(more)
    wrong = olga.post(f"{path}preview/", {"tickets": "0", "until": ""})
    assert (wrong.status_code, "a whole number from 1" in shown(wrong)) == (422, True)
    assert Tenant.objects.get(slug="astro").tickets == 100
    refused = olga.post(f"{path}decline/", {"answer": " "})
    assert refused.status_code == 422
    assert "Enter the reason why the request is declined." in shown(refused)
    assert olga.post(f"{path}approve/", {"tickets": "120", "until": ""}).status_code == 302
    assert Tenant.objects.get(slug="astro").tickets == 120
    again = olga.post(f"{path}decline/", {"answer": "no"})
    assert "This request was already approved by olga." in shown(again)


def test_a_manager_sees_what_a_request_would_do_for_the_own_team_alone(scene: Scene, browser_of) -> None:
    alice, before = browser_of(scene.people.alice), Request.objects.count()
    page = shown(alice.post("/team/astro/ask/tickets/preview/", {"tickets": "300"}))
    [row] = [row for row in page.split("<tr>") if "Entitlement in GPUs" in row and 'break">A100<' in row]
    assert re.search(r'data-label="Entitlement in GPUs">2 → 3<', row), row
    assert "Bio" not in page
    assert re.search(r'name="tickets" value="300"', page)
    assert 'href="/docs/glossary/#entitlement"' in page
    capped = shown(alice.post("/team/astro/ask/limit/preview/", {"kind": "gpus", "limit": "1", "user": ""}))
    shares = re.findall(r'data-label="Fair share in GPUs">(\S+) → (\S+)<', capped)
    assert shares == [("2", "0")] * 2, "its jobs need two GPUs each"
    for verb, form in (
        ("tickets", {"tickets": "0"}),
        ("limit", {"kind": "gpus", "limit": "1.5", "user": ""}),
    ):
        assert alice.post(f"/team/astro/ask/{verb}/preview/", form).status_code == 422
    assert Request.objects.count() == before
    page = shown(alice.get(f"/requests/{scene.request.pk}/"))
    assert "For Astro, the table shows" in page
    assert "Bio" not in page
    for other in (scene.people.bob, scene.people.charlie, scene.people.olga):
        assert (
            browser_of(other).post("/team/astro/ask/tickets/preview/", {"tickets": "300"}).status_code == 404
        )


def test_a_team_without_jobs_reads_that_a_request_has_no_effect_yet(scene: Scene, browser_of) -> None:
    Job.objects.update(state=Job.State.CANCELLED)
    page = shown(browser_of(scene.people.alice).post("/team/astro/ask/tickets/preview/", {"tickets": "300"}))
    assert "Astro has no jobs now, so the change has no effect yet." in page


def test_an_open_request_for_a_limit_says_its_value_now(scene: Scene, browser_of) -> None:
    alice, olga = browser_of(scene.people.alice), browser_of(scene.people.olga)

    def asked(limit: str) -> str:
        form = LIMIT | {"limit": limit, "reason": "a deadline"}
        assert alice.post("/team/astro/ask/limit/", form).status_code == 302
        return f"/requests/{Request.objects.latest('pk').pk}/"

    first = asked("50")
    for reader in (alice, olga):
        assert "<dt>Limit now</dt><dd>no such limit</dd>" in shown(reader.get(first))
    assert olga.post(f"{first}approve/", {"limit": "50", "until": ""}).status_code == 302
    assert "Limit now" not in shown(alice.get(first)), "it is answered"
    assert "<dt>Limit now</dt><dd>50 GPU-hours" in shown(olga.get(asked("70")))


def test_a_refusal_keeps_what_was_typed(scene: Scene, browser_of) -> None:
    alice = browser_of(scene.people.alice)
    before = Request.objects.count()
    for kind, form, said in (
        ("tickets", {"tickets": "0", "reason": "why"}, "whole number from 1"),
        ("tickets", {"tickets": "5", "reason": " "}, "Enter a reason for the request."),
        ("limit", LIMIT | {"days": "0", "reason": "why"}, "1 to 366 days"),
        (
            "team",
            {"name": "Stars", "tickets": "5", "reason": "why", "until": "2001-01-01T00:00"},
            "in the future",
        ),
    ):
        got = alice.post(f"/team/astro/ask/{kind}/", form)
        assert got.status_code == 422
        [refusal] = re.findall(r'class="field-error"[^>]* role="alert">([^<]*)<', got.content.decode())
        assert said in html_module.unescape(refusal)
        assert all(
            f'value="{form[name]}"' in got.content.decode() for name in ("name", "days") if name in form
        )
    assert Request.objects.count() == before


@pytest.mark.parametrize(
    ("until", "said"),
    [("2099-03-29T02:30", "The clocks skip this time"), ("2099-10-25T02:30", "show this time twice")],
)
def test_a_time_that_a_clock_skips_or_shows_twice_is_refused(scene: Scene, browser_of, until, said) -> None:
    cast = scene.people
    User.objects.update(time_zone="Europe/Berlin")
    before = Request.objects.count()
    asked = {"tickets": "5", "reason": "why", "until": until}
    got = browser_of(cast.alice).post("/team/astro/ask/tickets/", asked)
    assert (got.status_code, said in shown(got), Request.objects.count()) == (422, True, before)
    path = f"/requests/{scene.request.pk}/approve/"
    got = browser_of(cast.olga).post(path, {"tickets": "120", "until": until})
    assert (got.status_code, said in shown(got)) == (422, True)
    assert Request.objects.get(pk=scene.request.pk).state == "open"


@pytest.mark.parametrize("fold", [0, 1])
def test_an_end_that_was_asked_for_by_the_api_is_granted_to_the_second(
    scene: Scene, browser_of, fold: int
) -> None:
    until = datetime(2099, 10, 25, 2, 30, 17, fold=fold, tzinfo=ZoneInfo("Europe/Berlin"))
    User.objects.update(time_zone="Europe/Berlin")
    new = {"team": "astro", "kind": "tickets", "reason": "x", "tickets": 5, "until": until.isoformat()}
    alice, olga = browser_of(scene.people.alice), browser_of(scene.people.olga)
    pk = alice.post("/api/v1/requests", new, content_type="application/json").json()["id"]
    page = olga.get(f"/requests/{pk}/").content.decode()
    assert 'name="until" value="2099-10-25T02:30"' in page
    form = {"tickets": "5", "until": "2099-10-25T02:30"}
    assert olga.post(f"/requests/{pk}/approve/", form).status_code == 302
    assert Request.objects.get(pk=pk).ends_at == until.astimezone(UTC)


@pytest.mark.parametrize(
    ("until", "status"), [("2099-10-25T02:30:00", 422), ("9999-12-31T23:59:59-12:00", 409)]
)
def test_a_moment_without_offset_or_out_of_time_is_refused_by_the_api(
    scene: Scene, browser_of, until: str, status: int
) -> None:
    alice, olga = browser_of(scene.people.alice), browser_of(scene.people.olga)
    new = {"team": "astro", "kind": "tickets", "reason": "x", "tickets": 5, "until": until}
    asked = alice.post("/api/v1/requests", new, content_type="application/json")
    path = f"/api/v1/requests/{scene.request.pk}/approve"
    approved = olga.post(path, {"until": until}, content_type="application/json")
    for got in (asked, approved):
        assert (got.status_code, list(got.json()["problems"])) == (status, ["until"])


def test_for_strangers_it_does_not_exist(scene: Scene, browser_of) -> None:
    cast, path = scene.people, f"/requests/{scene.request.pk}/"
    for user in (cast.bob, cast.charlie):
        client = browser_of(user)
        for verb in ("approve", "decline", "withdraw", "extend"):
            assert client.post(f"{path}{verb}/", {"answer": "x"}).status_code == 404
        assert client.post("/team/astro/ask/tickets/", {"tickets": "5", "reason": "x"}).status_code == 404
    alice = browser_of(cast.alice)
    assert alice.post(f"{path}approve/", {"tickets": "200"}).status_code == 404
    assert alice.post(f"{path}decline/", {"answer": "x"}).status_code == 404
    assert alice.post(f"{path}withdraw/").status_code == 302
    assert Request.objects.get(pk=scene.request.pk).state == "withdrawn"


@pytest.mark.parametrize("by", ["withdrawn", "declined", "approved"])
def test_a_second_answer_is_refused_and_changes_nothing(scene: Scene, browser_of, by: str) -> None:
    cast, pk = scene.people, scene.request.pk
    page, api = f"/requests/{pk}", f"/api/v1/requests/{pk}"
    olga = browser_of(cast.olga)
    # The page that Olga has open shows an open request.
    assert 'name="tickets"' in olga.get(f"{page}/").content.decode()
    client, verb, form = {
        "withdrawn": (browser_of(cast.alice), "withdraw", {}),
        "declined": (browser_of(cast.ada), "decline", {"answer": "no"}),
        "approved": (olga, "approve", {"tickets": "120", "until": ""}),
    }[by]
    assert client.post(f"{page}/{verb}/", form).status_code == 302
    before = Request.objects.filter(pk=pk).values().get()
    who = {"withdrawn": "alice", "declined": "ada", "approved": "olga"}[by]
    for verb, form in (("approve", {"tickets": "300", "until": ""}), ("decline", {"answer": "no"})):
        got = olga.post(f"{page}/{verb}/", form)
        assert (got.status_code, f"This request was already {by} by {who}." in shown(got)) == (422, True)
        got = olga.post(f"{api}/{verb}", {"answer": "x"}, content_type="application/json")
        assert (got.status_code, f"already {by} by {who}" in got.json()["detail"]) == (409, True)
    assert Request.objects.filter(pk=pk).values().get() == before
    assert Tenant.objects.get(slug="astro").tickets == (120 if by == "approved" else 100)
    assert AuditEvent.objects.filter(verb="request.approve").count() == (by == "approved")


def test_the_api_hides_requests_of_a_team_from_users_who_do_not_see_it(scene: Scene, browser_of) -> None:
    cast, pk = scene.people, scene.request.pk
    limit = {"kind": "gpus", "limit": "3", "generation": "A100"}
    previews = {
        "limits/preview": {"team": "astro"} | limit,
        "tickets/preview": {"team": "astro", "tickets": 5},
    }
    answers = {
        f"requests/{pk}/approve": {},
        f"requests/{pk}/decline": {"answer": "no"},
    }
    manages = {
        "requests": {"team": "astro", "kind": "tickets", "reason": "x", "tickets": 5},
        f"requests/{pk}/withdraw": {},
    }
    members = {"tickets/preview": {"team": "astro", "tickets": 5, "user": "bob"}}

    def status(who: User, path: str, body: dict) -> int:
        return browser_of(who).post(f"/api/v1/{path}", body, content_type="application/json").status_code

    for who, nothing in (
        (cast.bob, [answers, manages, members, previews]),
        (cast.charlie, [answers, manages, members, previews]),
        (cast.alice, [answers]),
    ):
        for bodies in nothing:
            for path, body in bodies.items():
                assert (who.username, path, status(who, path, body)) == (who.username, path, 404)
    for who in (cast.bob, cast.charlie):
        assert browser_of(who).get(f"/api/v1/requests/{pk}").status_code == 404
        assert browser_of(who).get("/api/v1/limits?team=astro").status_code == 404
        assert browser_of(who).get("/api/v1/budgets?team=astro").status_code == 404
    assert Request.objects.get(pk=pk).state == "open"
    assert status(cast.alice, *next(iter(members.items()))) == 200
    assert (
        status(cast.olga, f"requests/{pk}/withdraw", {}) == 403
    )  # an operator may see the request but not withdraw it


def test_a_manager_who_requests_a_limit_sees_no_other_users(scene: Scene, browser_of) -> None:
    cast, alice = scene.people, browser_of(scene.people.alice)
    told = []
    for name in ("charlie", "nobody"):
        limit = {"kind": "gpus", "limit": "3", "user": name}
        new = {"team": "astro", "kind": "limit", "reason": "x", "limit": limit}
        got = alice.post("/api/v1/requests", new, content_type="application/json")
        told.append((got.status_code, got.json()["problems"]))
    assert told == [(409, {"user": "The user is not in this team."})] * 2
    form = {"kind": "gpus", "limit": "3", "user": str(cast.charlie.pk), "reason": "x", "until": ""}
    got = alice.post("/team/astro/ask/limit/", form)
    assert (got.status_code, "The user is not in this team." in shown(got)) == (422, True)
    assert "charlie" not in shown(got)


def test_more_requests_need_no_more_queries(scene: Scene, browser_of) -> None:
    cast, olga = scene.people, browser_of(scene.people.olga)
    olga.get("/requests/")

    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert olga.get("/requests/").status_code == 200
        return len(captured)

    def limit(user: User, generation: int) -> None:
        wanted = {"kind": "gpus", "limit": "5", "user_id": user.pk, "generation_id": generation}
        ask(actor=cast.alice, tenant=cast.astro, kind="limit", reason="x", wanted=wanted)

    limit(cast.bob, cast.a100.pk)
    few = queries()
    limit(cast.alice, cast.v100.pk)
    limit(cast.bob, cast.v100.pk)
    assert queries() == few


def test_the_trail_tells_of_a_limit_in_names(scene: Scene) -> None:
    wanted = {
        "kind": "gpus",
        "limit": "5",
        "user_id": scene.people.bob.pk,
        "generation_id": scene.people.a100.pk,
    }
    ask(actor=scene.people.alice, tenant=scene.people.astro, kind="limit", reason="x", wanted=wanted)
    [entry] = entries([AuditEvent.objects.latest("id")], scene.people.olga)
    told = {change.name: change.after for change in entry.changes}
    assert (told["generation"], told["user"], told["limit"]) == ("A100", "bob", "5")


def test_the_api_asks_and_answers(scene: Scene, browser_of) -> None:
    alice, olga = browser_of(scene.people.alice), browser_of(scene.people.olga)

    def post(client, path: str, **body: object):
        return client.post(f"/api/v1/requests{path}", body, content_type="application/json")

    limit = {"kind": "gpus", "limit": "3", "generation": "A100"}
    made = post(alice, "", team="astro", kind="limit", reason="x", limit=limit)
    assert made.status_code == 201, made.json()
    pk = made.json()["id"]
    assert post(alice, f"/{pk}/approve").status_code == 404
    assert post(browser_of(scene.people.charlie), f"/{pk}/withdraw").status_code == 404
    assert post(browser_of(scene.people.bob), "", team="astro", kind="tickets", reason="x").status_code == 404
    approved = post(olga, f"/{pk}/approve", limit="2").json()
    assert (approved["state"], approved["granted"]["limit"], approved["decided_by"]) == (
        "approved",
        "2",
        "olga",
    )
    assert Quota.objects.get(generation=scene.people.a100).limit == 2
    again = post(olga, f"/{pk}/decline", answer="no")
    assert (again.status_code, "already approved" in again.json()["detail"]) == (409, True)
    wrong = post(alice, "", team="astro", kind="tickets", reason="x")
    assert (wrong.status_code, list(wrong.json()["problems"])) == (409, ["tickets"])
    listed = alice.get("/api/v1/requests?state=approved").json()
    assert [one["id"] for one in listed["items"]] == [pk]
    assert browser_of(scene.people.charlie).get("/api/v1/requests").json()["items"] == []


def test_operators_keep_the_tabs_of_the_administration_beside_requests(scene: Scene, browser_of) -> None:
    for who, has in ((scene.people.ada, True), (scene.people.alice, False)):
        for page in ("/requests/", f"/requests/{scene.request.pk}/"):
            html = browser_of(who).get(page).content.decode()
            assert ('aria-label="Admin"' in html) is has
            assert not has or re.search(r'href="/requests/" aria-current="page"', html)
