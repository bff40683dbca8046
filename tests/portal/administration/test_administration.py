"""Admins (and for some actions operators) administer the portal; each action writes an audit event."""

from __future__ import annotations

import html as html_module
import re
from datetime import UTC, datetime, timedelta

import pytest
import redis
from django.conf import settings
from django.test import Client
from django.utils.html import escape
from django.utils.timezone import localtime

from accounting.access import audit
from accounting.core.clock import now_from_database
from accounting.models import AuditEvent, Generation, Membership, Price, Quota, Tenant, User
from portal.administration.trail import LONGEST_VALUE, changes_of, entries
from portal.administration.verbs import words_for
from scheduling.backends.base import End, Phase
from scheduling.core import pubsub
from scheduling.core.redis_sender import outgoing
from scheduling.draining.actions import drain_node
from scheduling.jobs.secrets import create_secret
from scheduling.models import Cluster, IdleRule, Node
from tests import make
from tests.portal.reading import tables_on
from tests.portal.scene import Scene
from tests.waiting import PATIENCE

# Path, form, and verb of the audit event, for actions that only admins may do.
VERBS = [
    ("/admin/tenants/new/create/", {"name": "Chem", "parent": "{uni}", "tickets": "50"}, "tenant.create"),
    ("/admin/tenants/astro/tickets/", {"tickets": "300"}, "tenant.set_tickets"),
    ("/admin/tenants/astro/rename/", {"name": "Astrophysics"}, "tenant.rename"),
    ("/admin/tenants/astro/move/", {"parent": "top"}, "tenant.move"),
    ("/admin/tenants/astro/archive/", {}, "tenant.archive"),
    ("/admin/tenants/empty/delete/", {}, "tenant.delete"),
    ("/admin/tenants/old/restore/", {}, "tenant.restore"),
    ("/admin/tenants/astro/members/add/", {"user": "{olga}", "role": "viewer", "tickets": "1"}, "member.add"),
    ("/admin/tenants/astro/members/{member}/change/", {"role": "viewer", "tickets": "7"}, "member.change"),
    ("/admin/tenants/astro/members/{member}/remove/", {}, "member.remove"),
    ("/admin/tenants/astro/limits/set/", {"kind": "gpus", "generation": "{a100}", "limit": "2"}, "quota.set"),
    ("/admin/tenants/astro/limits/{quota}/remove/", {}, "quota.remove"),
    ("/admin/users/create/", {"username": "dora", "portal_role": "user"}, "user.create"),
    (
        "/admin/users/{bob}/details/",
        {"first_name": "Bob", "last_name": "", "email": "bob@example.org"},
        "user.describe",
    ),
    ("/admin/users/{bob}/role/", {"portal_role": "operator"}, "user.set_portal_role"),
    ("/admin/users/{bob}/deactivate/", {}, "user.deactivate"),
    ("/admin/users/{gone}/reactivate/", {}, "user.reactivate"),
    ("/admin/users/{bob}/password/", {}, "user.reset_password"),
    ("/admin/generations/create/", {"name": "H100", "memory_gib": "80"}, "generation.create"),
    ("/admin/generations/{a100}/price/", {"per_gpu_hour": "2.50", "since": "2100-01-01T00:00"}, "price.set"),
    ("/admin/generations/{v100}/price/",
     {"per_gpu_hour": "2.50", "idle": "9", "preemptible": "0.5", "borrowed": "", "since": "2100-01-01T00:00"},
     "price.set"),
    ("/admin/generations/{k80}/delete/", {}, "generation.delete"),
    ("/admin/prices/{planned}/remove/", {}, "price.remove"),
    ("/admin/users/{bob}/tokens/{token}/revoke/", {}, "token.revoke"),
    ("/admin/clusters/{cluster}/declare/",
     {"name": "v100-1", "generation": "{v100}", "gpus": "2", "virtual_speed": "1.5"}, "node.declare"),
    ("/admin/nodes/{spare}/remove/", {}, "node.remove"),
    ("/admin/clusters/{cluster}/settings/",
     {"ordering": "lottery", "slicing": "freeze", "quantum_seconds": "30", "min_hold_seconds": "5",
      "notice_seconds": "300", "overhead_limit": "10"}, "cluster.update"),
]  # fmt: skip
OPERATOR_VERBS = [
    ("/admin/nodes/{node}/drain/", {"reason": "new fan"}, "node.drain"),
    ("/admin/nodes/{node}/return/", {}, "node.return"),
    ("/admin/clusters/{cluster}/pause/", {"reason": "new switch"}, "cluster.pause"),
    ("/admin/clusters/{cluster}/resume/", {}, "cluster.resume"),
]


@pytest.fixture
def place(scene: Scene) -> dict[str, object]:
    """Returns the primary keys that replace placeholders such as {bob} in the paths and forms of VERBS.

    Also creates objects that the actions of VERBS need, such as an archived team.
    """
    cast = scene.people
    make.tenant("Empty")
    old = make.tenant("Old")
    Tenant.objects.filter(pk=old.pk).update(archived_at="2026-01-01T00:00Z")
    gone = make.user("gone")
    User.objects.filter(pk=gone.pk).update(is_active=False)
    return {
        "uni": cast.uni.pk, "olga": cast.olga.pk, "bob": cast.bob.pk, "gone": gone.pk, "a100": cast.a100.pk,
        "v100": cast.v100.pk, "k80": make.generation("K80").pk, "member": scene.membership.pk,
        "quota": scene.quota.pk, "cluster": scene.world.cluster.pk, "node": scene.node.pk,
        "token": scene.token.pk,
        "planned": make.generation("H200", price="9", since=datetime(2100, 1, 1, tzinfo=UTC)).prices.get().pk,
        "spare": scene.world.node("spare", cast.v100).pk,
    }  # fmt: skip


def send(client: Client, place: dict[str, object], path: str, form: dict[str, str]):
    return client.post(path.format(**place), {name: text.format(**place) for name, text in form.items()})


@pytest.mark.parametrize("case", VERBS + OPERATOR_VERBS)
def test_an_admin_does_it_and_it_leaves_a_trace(scene, place, browser_of, case) -> None:
    path, form, verb = case
    ada = browser_of(scene.people.ada)
    before = AuditEvent.objects.count()
    response = send(ada, place, path, form)
    assert response.status_code == (200 if verb in {"user.create", "user.reset_password"} else 302)
    event = AuditEvent.objects.latest("id")
    assert (event.verb, event.actor, AuditEvent.objects.count()) == (verb, scene.people.ada, before + 1)
    shown = ada.get(f"/admin/audit/?verb={verb}&actor=ad").content.decode()
    assert f'<span title="{verb}">{escape(words_for(verb))}</span>' in shown


def test_for_all_other_users_administrative_pages_do_not_exist(scene, place, browser_of) -> None:
    cast = scene.people
    before = AuditEvent.objects.count()
    others = [browser_of(user) for user in (cast.alice, cast.bob, cast.charlie)]
    olga, strict = browser_of(cast.olga), browser_of(cast.ada, enforce_csrf_checks=True)
    for case in VERBS + OPERATOR_VERBS:
        path, form, _ = case
        for client in others if case in OPERATOR_VERBS else [*others, olga]:
            assert send(client, place, path, form).status_code == 404, path
        assert send(Client(), place, path, form)["Location"].startswith("/account/login/"), path
        assert send(strict, place, path, form).status_code == 403, path
    assert AuditEvent.objects.count() == before


@pytest.mark.parametrize("case", VERBS + OPERATOR_VERBS)
def test_where_a_form_was_posted_a_reload_finds_the_forms_page(scene, place, browser_of, case) -> None:
    """A GET of a form's action URL leads to the page with the form, and changes nothing.

    The browser stays at this URL when a form is refused, or when a password is shown once. The user may then reload the
    page.
    """
    path, before = case[0].format(**place), AuditEvent.objects.count()
    ada = browser_of(scene.people.ada)
    response = ada.get(path, follow=True)
    assert response.status_code == 200
    # Settings are saved from their preview, which a reload shows no more.
    elsewhere = case in OPERATOR_VERBS or "{gone}" in case[0] or case[2] == "cluster.update"
    assert f'action="{path}"' in response.content.decode() or elsewhere
    assert ada.put(path).status_code == 405
    assert AuditEvent.objects.count() == before


def test_the_nodes_page_follows_a_node_that_drains(
    scene: Scene, browser_of, django_capture_on_commit_callbacks
) -> None:
    """When the last job leaves a drained node, the nodes page gets an event and requests its live part. This part shows
    the node as drained."""
    olga, node = browser_of(scene.people.olga), scene.world.lease(scene.job).held_gpus.first().node
    drain_node(actor=scene.people.olga, node=node, reason="new fan", mode="now")

    def row(html: str) -> str:
        return " ".join(html.partition(f'id="node-{node.pk}"')[2].partition("</tr>")[0].split())

    page = olga.get("/admin/nodes/").content.decode()
    topics = re.search(r'id="nodes-body" class="page" data-live="([^"]*)"', page)[1].split()
    assert "4 of 4" in row(page)
    lease = scene.world.lease(scene.job)
    pubsub._send(("cluster:0",))  # ensures that the stream has a position, whatever tests ran before
    since = pubsub.position()
    with django_capture_on_commit_callbacks(execute=True):
        scene.world.see(lease, Phase.ENDED, end=End.STOPPED, ended_age=0.0)
    assert outgoing.flush(PATIENCE)
    told = {fields[b"topic"].decode() for _, fields in news_since(since)}
    assert told & set(topics)
    part = olga.get("/admin/nodes/", headers={"HX-Request": "true", "HX-Target": "div#nodes-body"})
    html = part.content.decode()
    assert html.strip().startswith('<div id="nodes-body"')
    assert "0 of 4" in row(html)
    assert "Drained" in row(html)


def test_a_refusal_stays_when_the_page_refreshes(scene: Scene, place, browser_of) -> None:
    refused = send(browser_of(scene.people.olga), place, "/admin/clusters/{cluster}/pause/", {"reason": " "})
    [body] = re.findall(r"<div id=\"nodes-body\"[^>]*>", refused.content.decode())
    assert "data-live=" not in body


def news_since(position: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        return client.xrange(pubsub.NEWS, min=position)[1:]


def test_operators_drain_and_pause(scene, place, browser_of) -> None:
    olga = browser_of(scene.people.olga)
    for path, form, verb in OPERATOR_VERBS:
        assert send(olga, place, path, form).status_code == 302
        assert AuditEvent.objects.latest("id").verb == verb


def test_a_drain_is_confirmed_on_a_page_that_lists_the_affected_jobs(scene, browser_of) -> None:
    olga = browser_of(scene.people.olga)
    node = scene.world.lease(scene.job).held_gpus.first().node
    spare = scene.world.node("spare", scene.people.v100)
    path = f"/admin/nodes/{node.pk}/drain/"
    assert f'href="{path}"' in olga.get("/admin/nodes/").content.decode()
    page = olga.get(path).content.decode()
    for told in ("supernova", "Training", "Astro", "bob", "1 job"):
        assert told in page, told
    assert re.search(r'value="finish"[^>]* checked', page)
    said = {"finish": "Running jobs stay until they end", "now": "Running jobs are being stopped"}
    for mode, told in said.items():
        drained = olga.post(f"/admin/nodes/{spare.pk}/drain/", {"reason": "fan", "mode": mode}, follow=True)
        assert told in drained.content.decode()
    over = olga.post(path, {"reason": "fan", "mode": "deadline", "deadline": "2001-01-01T00:00"})
    assert over.status_code == 422
    assert "The deadline must be in the future." in over.content.decode()
    assert re.search(r'value="deadline"[^>]* checked', over.content.decode())
    assert olga.post(path, {"reason": "fan", "mode": "deadline"}).status_code == 422
    far = {"reason": "fan", "mode": "deadline", "deadline": "2100-01-01T00:00"}
    assert olga.post(path, far).status_code == 302
    nodes = " ".join(olga.get("/admin/nodes/").content.decode().split())
    assert "Draining" in nodes
    assert "Running jobs will be stopped at" in nodes
    assert scene.world.states([scene.job]) == ["running"]
    assert olga.post(f"/admin/nodes/{node.pk}/return/").status_code == 302
    node.refresh_from_db()
    assert (node.state, node.drain_deadline) == ("ready", None)


def test_several_nodes_are_chosen_looked_at_drained_and_returned(scene, browser_of) -> None:
    olga = browser_of(scene.people.olga)
    node = scene.world.lease(scene.job).held_gpus.first().node
    spare = scene.world.node("spare", scene.people.v100)
    start = f"/admin/clusters/{scene.world.cluster.pk}/drain/"
    assert f'href="{start}"' in olga.get("/admin/nodes/").content.decode()
    for address, is_told in ((start, False), (f"{start}?show=jobs", True)):
        shown = olga.get(address).content.decode()
        assert ("Choose at least one node" in shown, "Drain options" in shown) == (is_told, False)
    path = f"{start}?node={node.pk}&node={spare.pk}"
    page = " ".join(olga.get(path).content.decode().split())
    for told in ("2 of ", "supernova", "bob", "1 job in total", "Drain 2 nodes"):
        assert told in page, told
    nobody = "This drain leaves no node of the cluster lab in use."
    every = "&".join(f"node={one.pk}" for one in scene.world.cluster.nodes.all())
    assert (nobody in page, nobody in olga.get(f"{start}?{every}").content.decode()) == (False, True)
    refused = olga.post(path, {"reason": " ", "mode": "finish"})
    assert (refused.status_code, "Give a reason" in refused.content.decode()) == (422, True)
    assert olga.post(start, {"reason": "fan", "mode": "finish"}).status_code == 422  # no node is chosen
    drained = olga.post(path, {"reason": "fan", "mode": "finish"}, follow=True).content.decode()
    assert "No new job starts on 2 nodes" in drained
    assert (drained.count("Draining</span>"), drained.count("Drained</span>")) == (1, 1)  # one job still runs
    undated = olga.post(path, {"reason": "fan", "mode": "deadline"}).content.decode()
    assert "Enter when running jobs will be stopped" in undated
    assert scene.world.states([scene.job]) == ["running"]
    assert olga.post(path.replace("/drain/", "/return/")).status_code == 302
    node.refresh_from_db()
    assert node.state == "ready"


def test_the_api_says_who_a_drain_of_several_nodes_affects_before_it_drains(scene, browser_of) -> None:
    olga = browser_of(scene.people.olga)
    node = scene.world.lease(scene.job).held_gpus.first().node
    call, path = {"content_type": "application/json"}, "/api/v1/clusters/lab/drain"
    how = {"nodes": [node.name], "reason": "fan", "mode": "now"}
    dry = olga.post(path, how | {"dry_run": True}, **call).json()
    assert [one["name"] for one in dry["jobs"]] == ["supernova"]
    assert [one["state"] for one in dry["nodes"]] == ["ready"]
    assert olga.post(path, how | {"nodes": ["nowhere"]}, **call).status_code == 409
    assert browser_of(scene.people.alice).post(path, how, **call).status_code == 404
    assert olga.post(path, how, **call).json()["nodes"][0]["state"] == "drained"
    assert scene.world.states([scene.job]) == ["stopping"]
    back = olga.post("/api/v1/clusters/lab/return", {"nodes": [node.name]}, **call)
    assert back.json()["nodes"][0]["state"] == "ready"


def test_operators_set_the_rules_for_idle_gpus(scene, browser_of) -> None:
    olga, cast = browser_of(scene.people.olga), scene.people
    assert "Idle GPUs of a team" in olga.get("/admin/settings/").content.decode()
    terms = {"action": "warn", "after_minutes": "50", "grace_minutes": "5", "snooze_hours": "1"}
    chosen = terms | {"tenant": str(cast.astro.pk)}
    assert olga.post("/admin/settings/idle/team/", chosen).status_code == 302
    assert IdleRule.objects.get().tenant == cast.astro
    assert olga.post("/admin/settings/idle/team/", chosen | {"action": "above"}).status_code == 302
    assert not IdleRule.objects.exists()
    assert olga.post("/admin/settings/idle/team/", terms).status_code == 422
    assert olga.post("/admin/settings/idle/", terms).status_code == 302
    assert IdleRule.objects.get().tenant is None


def test_the_api_drains_as_the_page_does(scene, browser_of) -> None:
    olga, alice = browser_of(scene.people.olga), browser_of(scene.people.alice)
    node = scene.world.lease(scene.job).held_gpus.first().node
    path = f"/api/v1/clusters/lab/nodes/{node.name}/drain"
    found = olga.get(path).json()
    assert [(one["name"], one["team"], one["owner"]) for one in found["jobs"]] == [
        ("supernova", "astro", "bob")
    ]
    assert (found["hidden_jobs"], found["state"]) == (0, "ready")
    left = {"waiting": [], "more_waiting": 0, "services": [], "reservations": []}
    kind = node.generation.name
    capacity = [{"generation": kind, "before": 4, "after": 0}]
    assert found["left"] == left | {"stuck": [], "keeps_nodes": True, "capacity": capacity}
    several = {"nodes": ["v100-0", "a100-0"], "reason": "fan", "dry_run": True}
    both = olga.post("/api/v1/clusters/lab/drain", several, content_type="application/json").json()["left"]
    assert both["keeps_nodes"] is False
    assert "supernova" in [job["name"] for job in both["stuck"]]
    page = olga.get(f"/admin/nodes/{node.pk}/drain/").content.decode()
    assert "4 → 0 GPUs" in page
    assert "could also start elsewhere" in page

    def drain(client: Client, **how: str):
        return client.post(path, how, content_type="application/json")

    assert drain(alice, reason="fan").status_code == 404
    assert drain(olga, reason="fan", mode="deadline").status_code == 409
    assert drain(olga, reason="fan", mode="gently").status_code == 422
    drained = drain(olga, reason="fan", mode="deadline", deadline="2100-01-01T00:00:00Z").json()
    assert (drained["state"], drained["drain_deadline"]) == ("drained", "2100-01-01T00:00:00Z")
    assert olga.delete(path).json()["state"] == "ready"
    assert drain(olga, reason="fan", mode="now").status_code == 200
    assert scene.world.states([scene.job]) == ["stopping"]


def test_a_pause_is_confirmed_with_a_reason_that_owners_of_waiting_jobs_see(scene, place, browser_of) -> None:
    olga, alice = browser_of(scene.people.olga), browser_of(scene.people.alice)
    path, form, _ = OPERATOR_VERBS[2]
    asked = olga.get("/admin/nodes/").content.decode()
    assert "Pause lab?" in asked
    assert f'<form method="post" action="{path.format(**place)}">' in asked.partition("<dialog")[2]
    assert send(olga, place, path, form).status_code == 302
    assert AuditEvent.objects.latest("id").after == {"reason": "new switch"}
    assert "new switch" in olga.get("/admin/nodes/").content.decode()
    [cluster] = alice.get("/api/v1/gpu-map").json()
    assert (cluster["paused"], cluster["paused_reason"]) == (True, "new switch")
    job = scene.world.submit(scene.people.alice, scene.people.astro)
    scene.world.quantum()
    said = "lab is paused by an operator (new switch); no waiting job starts."
    assert said in alice.get(f"/jobs/{job.pk}/").content.decode().replace("Lab is", "lab is")
    assert send(olga, place, *OPERATOR_VERBS[3][:2]).status_code == 302
    assert Cluster.objects.get().paused_reason == ""


REFUSALS = [
    ("/admin/tenants/new/create/", {"name": "Astro", "parent": "top", "tickets": "5"}, "A team with this name"),
    ("/admin/tenants/new/create/", {"name": "Chem", "parent": "x", "tickets": "5"}, "Choose an option from the list"),
    ("/admin/tenants/new/create/", {"name": "Chem", "tickets": "100"}, "or the top level"),
    ("/admin/tenants/astro/move/", {"parent": ""}, "or the top level"),
    ("/admin/tenants/astro/tickets/", {"tickets": "0"}, "whole number from 1 to 1\xa0000\xa0000"),
    ("/admin/tenants/astro/tickets/", {"tickets": "many"}, "ust be a whole number"),
    ("/admin/tenants/uni/move/", {"parent": "{astro}"}, "cannot be moved below itself"),
    ("/admin/tenants/uni/archive/", {}, "has teams below it"),
    ("/admin/tenants/astro/delete/", {}, "cannot be deleted"),
    ("/admin/tenants/astro/members/add/", {"user": "", "role": "member", "tickets": "1"}, "Choose an option"),
    ("/admin/tenants/astro/members/{member}/change/", {"role": "king", "tickets": "1"}, "Unknown role"),
    ("/admin/tenants/astro/limits/set/", {"kind": "gpus", "generation": "", "limit": "1.5"}, "whole number"),
    ("/admin/tenants/astro/limits/set/", {"kind": "gpus", "generation": "", "limit": "abc"}, "ust be a whole number"),
    ("/admin/tenants/astro/limits/set/", {"kind": "gpu_hours", "generation": "", "limit": "NaN"}, "such as 2.50"),
    ("/admin/users/create/", {"username": "Bob", "portal_role": "user"}, "This user name is taken"),
    ("/admin/users/{ada}/role/", {"portal_role": "user"}, "the last active admin"),
    ("/admin/users/{ada}/deactivate/", {}, "the last active admin"),
    ("/admin/generations/{a100}/price/", {"per_gpu_hour": "-1", "since": "2100-01-01T00:00"}, "0 or more"),
    ("/admin/generations/{a100}/price/", {"per_gpu_hour": "dear", "since": ""}, "ust be a number"),
    ("/admin/generations/{a100}/price/", {"per_gpu_hour": "2", "borrowed": "cheap", "since": ""}, "ust be a number"),
    ("/admin/generations/{a100}/price/", {"per_gpu_hour": "2", "preemptible": "-1", "since": ""}, "0 or more"),
    ("/admin/generations/{a100}/price/", {"per_gpu_hour": "1", "since": "2020-06-01T00:00"}, "billed until"),
    ("/admin/generations/{a100}/price/", {"per_gpu_hour": "1", "since": "soon"}, "a date and time"),
    ("/admin/generations/{a100}/delete/", {}, "cannot be deleted"),
    ("/admin/nodes/{node}/drain/", {"reason": " "}, "Give a reason"),
    ("/admin/clusters/{cluster}/pause/", {"reason": " "}, "Give a reason"),
    ("/admin/nodes/{node}/remove/", {}, "Drain v100-0 first"),
    ("/admin/clusters/{cluster}/declare/", {"name": "big", "generation": "{v100}", "gpus": "100000",
     "virtual_speed": "1"}, "A node must have 1 to 64 GPUs."),
    ("/admin/clusters/{cluster}/declare/", {"name": "A b", "generation": "{v100}", "gpus": "1",
     "virtual_speed": "1"}, "A node's name must have 1 to 63 characters"),
    ("/admin/tenants/new/create/", {"name": "日本", "parent": "top", "tickets": "5"}, "letter a to z or digit"),
    ("/admin/tenants/astro/tickets/", {"tickets": "9" * 23}, "This is too large."),
    ("/admin/tenants/astro/tickets/", {"tickets": "9" * 12}, "This number is too large."),
    ("/admin/tenants/astro/budgets/set/", {"amount": "9" * 40, "budget_period": "month", "percentages": "80"},
     "This is too large, or has too many digits."),
    ("/admin/users/create/", {"username": "-", "portal_role": "user"}, "must begin with a letter or a digit"),
    ("/admin/generations/create/", {"name": "a/b<c>", "memory_gib": "1"}, "A name may only contain letters"),
    ("/admin/clusters/{cluster}/settings/", {"quantum_seconds": "60", "min_hold_seconds": "0",
     "overhead_limit": "1000"}, "This must be more than 0 and at most 100 %."),
    ("/admin/clusters/{cluster}/settings/",
     {"ordering": "stride", "slicing": "checkpoint", "quantum_seconds": "0", "min_hold_seconds": "0",
      "overhead_limit": "5"}, "1 to 86\xa0400 seconds"),
    ("/admin/clusters/{cluster}/declare/",
     {"name": "v100-0", "generation": "{v100}", "gpus": "1", "virtual_speed": "1"}, "has a node v100-0"),
]  # fmt: skip


def test_a_refusal_says_why_once_and_keeps_what_was_typed(scene, place, browser_of) -> None:
    keys = place | {"astro": scene.people.astro.pk, "ada": scene.people.ada.pk}
    ada = browser_of(scene.people.ada)
    before = AuditEvent.objects.count()
    for path, form, said in REFUSALS:
        response = send(ada, keys, path, form)
        html = response.content.decode()
        assert response.status_code == 422, path
        [shown] = re.findall(r'class="field-error"[^>]* role="alert">([^<]*)<', html)
        assert said in html_module.unescape(shown), path
        kept = [
            html_module.escape(text)
            for name, text in form.items()
            if name in {"name", "per_gpu_hour", "limit"}
        ]
        assert all(f'value="{text}"' in html for text in kept), path
    assert AuditEvent.objects.count() == before


def test_a_made_password_signs_in_and_is_shown_once(scene: Scene, browser_of) -> None:
    ada = browser_of(scene.people.ada)
    html = ada.post("/admin/users/create/", {"username": "dora", "portal_role": "user"}).content.decode()
    password = re.search(r'id="password">([^<]+)<', html)[1]
    assert User.objects.get(username="dora").check_password(password)
    dora = User.objects.get(username="dora")
    assert password not in ada.get(f"/admin/users/{dora.pk}/").content.decode()


def test_the_tree_shows_effective_shares(scene: Scene, browser_of) -> None:
    Tenant.objects.filter(slug="bio").update(tickets=300)
    html = browser_of(scene.people.ada).get("/admin/tenants/").content.decode()
    row = html.partition(f'id="tenant-{scene.people.bio.pk}"')[2].partition("</tr>")[0]
    assert "75\u00a0%" in row


def test_values_that_are_set_are_stored(scene: Scene, place, browser_of) -> None:
    ada = browser_of(scene.people.ada)
    wanted = ("cluster.update", "node.drain", "generation.create", "price.set", "quota.set")
    for path, form, verb in VERBS + OPERATOR_VERBS:
        if verb in wanted:
            assert send(ada, place, path, form).status_code == 302
    cluster = Cluster.objects.get()
    assert (cluster.ordering, cluster.trading, cluster.quantum_seconds) == ("lottery", False, 30)
    assert cluster.overhead_limit == pytest.approx(0.1)
    node = Node.objects.get(pk=place["node"])
    assert (node.state, node.state_reason) == ("drained", "new fan")
    assert Generation.objects.get(name="H100").memory_gib == 80
    assert Price.objects.filter(generation=place["a100"]).count() == 2
    assert Quota.objects.get(generation=place["a100"]).limit == 2


def test_a_new_user_joins_a_team_at_once_or_on_the_user_page(scene: Scene, browser_of) -> None:
    ada, cast = browser_of(scene.people.ada), scene.people
    new = {"username": "dora", "portal_role": "user"}
    Tenant.objects.filter(slug="bio").update(archived_at=now_from_database())
    assert ">Bio</option>" not in ada.get("/admin/users/").content.decode()
    refused = ada.post("/admin/users/create/", new | {"tenant": cast.bio.pk, "role": "member"})
    assert refused.status_code == 422
    assert "is archived and accepts no new members" in refused.content.decode()
    assert not User.objects.filter(username="dora").exists()  # neither the user nor the membership
    made = ada.post("/admin/users/create/", new | {"tenant": cast.astro.pk, "role": "manager"})
    assert made.status_code == 200
    dora = User.objects.get(username="dora")
    assert list(dora.memberships.values_list("tenant__slug", "role", "tickets")) == [
        ("astro", "manager", 100)
    ]
    page = f"/admin/users/{dora.pk}/"
    offered = ada.get(page).content.decode()
    assert "Add to a team" in offered
    assert f'<option value="{cast.astro.pk}"' not in offered  # a member already
    uni = Tenant.objects.get(slug="uni")
    form = {"tenant": uni.pk, "role": "viewer", "tickets": "7"}
    assert ada.post(f"{page}teams/add/", form).status_code == 302
    assert dora.memberships.get(tenant=uni).tickets == 7
    assert "already a member" in ada.post(f"{page}teams/add/", form).content.decode()
    for who in (cast.olga, cast.alice):
        assert browser_of(who).post(f"{page}teams/add/", form).status_code == 404


def test_a_viewer_is_shown_without_tickets_and_without_a_part(scene: Scene, browser_of) -> None:
    alice = browser_of(scene.people.alice)
    page = f"/team/astro/members/{scene.membership.pk}"
    told = alice.post(f"{page}/preview/", {"role": "viewer", "tickets": "50"}).content.decode()
    assert re.search(r"changes from\s+33\s%\s+to none, because viewers run no jobs", told)
    assert alice.post(f"{page}/change/", {"role": "viewer", "tickets": "50"}).status_code == 302
    html = alice.get("/team/astro/").content.decode()
    row = html[html.index('class="break">bob') :].partition("</tr>")[0]
    assert "<summary>Viewer<" in row
    assert """data-label="Part of the team's share">none<""" in row
    assert """data-label="Part of the team's share">100""" in html  # Alice's


def test_a_manager_weighs_the_own_members_only(scene: Scene, browser_of) -> None:
    alice = browser_of(scene.people.alice)
    path = f"/team/astro/members/{scene.membership.pk}/change/"
    assert alice.post(path, {"role": "viewer", "tickets": "9"}).status_code == 302
    changed = Membership.objects.get(pk=scene.membership.pk)
    assert (changed.role, changed.tickets) == ("viewer", 9)
    event = AuditEvent.objects.latest("id")
    assert (event.verb, event.before["tickets"], event.after["tickets"]) == ("member.change", 50, 9)
    assert "<del>50</del> → <ins>9</ins>" in alice.get("/team/astro/changes/").content.decode()
    refused = alice.post(path, {"role": "member", "tickets": "0"})
    assert refused.status_code == 422
    charlies = Membership.objects.get(user=scene.people.charlie)
    for user in (scene.people.alice, scene.people.bob, scene.people.charlie):
        for slug in ("bio", "uni"):
            form = {"role": "viewer", "tickets": "1"}
            got = browser_of(user).post(f"/team/{slug}/members/{charlies.pk}/change/", form)
            assert got.status_code == 404
    assert alice.post(f"/team/astro/members/{charlies.pk}/change/", {"tickets": "1"}).status_code == 404


def test_a_price_for_later_is_said_to_be_planned_beside_its_removal(scene: Scene, place, browser_of) -> None:
    ada, a100 = browser_of(scene.people.ada), place["a100"]
    later = {"per_gpu_hour": "4.5", "since": "2100-12-01T00:00"}
    shown = ada.post(f"/admin/generations/{a100}/price/", later, follow=True).content.decode()
    assert "The price of the GPU type A100 is planned from 1 December 2100, 00:00 UTC." in shown
    html = ada.get("/admin/generations/").content.decode()
    (cells,) = [
        row
        for table in tables_on(html).values()
        for row in table
        if "1 Dec 2100" in row[0] and "no end" in row[0]
    ]
    assert "planned from 1 Dec 2100" in cells[0]
    assert "Remove" in cells[0]
    now = {"per_gpu_hour": "4.5", "since": ""}
    shown = ada.post(f"/admin/generations/{a100}/price/", now, follow=True).content.decode()
    assert "The price of the GPU type A100 has been saved." in shown


def test_the_trail_reads_as_people_write_and_leads_to_what_was_changed(scene, place, browser_of) -> None:
    cast, ada = scene.people, browser_of(scene.people.ada)
    price = {"per_gpu_hour": "4.5", "since": "2100-01-01T00:00"}
    assert send(ada, place, "/admin/generations/{a100}/price/", price).status_code == 302
    quota = {"kind": "gpus", "generation": "", "limit": "5"}
    assert send(ada, place, "/admin/tenants/astro/limits/set/", quota).status_code == 302
    html = ada.get("/admin/audit/").content.decode()
    currency = settings.FAIRLOT_CURRENCY
    for said in (
        f"<del>3.00 {currency}</del> → <ins>4.50 {currency}</ins>",
        "<ins>1 January 2100, 00:00:00 UTC</ins>",
        "<del>6</del> → <ins>5</ins>",
        '<span class="muted">generation:</span> all',
        '<span class="muted">kind:</span> GPUs at once',
        f'<a href="/jobs/{scene.job.pk}/">supernova</a> <span class="muted small">job {scene.job.pk}</span>',
        f'<a href="/admin/tenants/astro/limits/">Astro</a> <span class="muted small">team {cast.astro.pk}</span>',
        f'<span class="muted small">API token {scene.token.pk}</span>',
    ):
        assert said in html, said
    assert 'href="/admin/tenants/' not in browser_of(cast.olga).get("/admin/audit/").content.decode()
    alice = browser_of(cast.alice).get("/team/astro/changes/?kind=all").content.decode()
    assert f'<a href="/jobs/{scene.job.pk}/">supernova</a>' in alice
    assert "/admin/" not in alice
    assert '<a href="/team/astro/limits/">Astro</a>' in alice


def test_managers_filter_the_changes_of_their_team(scene: Scene, browser_of) -> None:
    """The list begins without the members' work, and is narrowed by kind, person and days of the reader."""
    people = scene.people
    alice = browser_of(people.alice)
    secret = create_secret(actor=people.alice, tenant=people.astro, name="wandb", values={"KEY": "x"})
    service = scene.service
    for target in (service, secret):
        audit.record(actor=people.bob, verb="service.change", target=target, tenant=people.astro)

    def listed(query: str) -> list[str]:
        page = alice.get(f"/team/astro/changes/?{query}")
        return [entry.words for entry in page.context["entries"]]

    assert "Created a secret" in listed("")
    work = {"Submitted a job", "Changed a service"}
    assert not work & set(listed(""))
    assert work <= set(listed("kind=all"))
    assert set(listed("kind=secrets")) == {"Created a secret"}
    assert set(listed("kind=secrets&actor=ALI")) == {"Created a secret"}
    assert listed("kind=secrets&actor=charlie") == []
    today = localtime(now_from_database()).date()
    assert set(listed(f"kind=secrets&from={today}&to={today}")) == {"Created a secret"}
    assert listed(f"kind=secrets&to={today - timedelta(days=1)}") == []
    assert listed(f"kind=secrets&from={today + timedelta(days=1)}") == []
    for wrong, said in (
        ("kind=nonsense", "nonsense"), ("from=2026-13-01", "is not a date"),
        (f"from={today}&to=2020-01-01", "is before the first day"),
    ):  # fmt: skip
        assert said in html_module.unescape(alice.get(f"/team/astro/changes/?{wrong}").content.decode())
    found = {
        entry.target: entry for entry in alice.get("/team/astro/changes/?kind=services").context["entries"]
    }
    assert found[service.name].href == f"/services/{service.pk}/"


def test_digests_are_shortened_and_kinds_of_objects_are_words() -> None:
    digest = "ab12" * 16
    event = AuditEvent(
        target_type="codeupload",
        target_id="7",
        target_name=digest,
        verb="code.upload",
        after={"digest": digest},
    )
    other = AuditEvent(target_type="notificationrule", target_id="7", verb="notification_rule.create")
    unknown = AuditEvent(target_type="oldclass", target_id="7", verb="old.verb")
    first, second, third = entries([event, other, unknown], User(portal_role=User.PortalRole.USER))
    assert (first.target, first.kind, first.changes[0].after) == (digest[:12], "code", digest[:12])
    assert (second.kind, second.words) == ("notification rule", "Created a notification rule")
    assert (third.kind, third.words, third.href) == ("oldclass", "old.verb", "")


def test_a_price_is_shown_in_the_currency_in_which_it_was_set() -> None:
    values = {
        "before": {"per_gpu_hour": "3", "currency": "DEM"},
        "after": {"per_gpu_hour": "2", "currency": "USD"},
    }
    event = AuditEvent(target_type="generation", target_id="7", verb="price.set", **values)
    [entry] = entries([event], User(portal_role=User.PortalRole.USER))
    assert [(one.name, one.before, one.after) for one in entry.changes] == [
        ("per gpu hour", "3.00 DEM", "2.00 USD")
    ]


def changes(verb: str, **values: dict[str, object]) -> list[tuple[str, str, str]]:
    event = AuditEvent(target_type="service", target_id="7", verb=verb, **values)
    return [(one.name, one.before, one.after) for one in changes_of(event)]


def test_a_change_of_a_specification_shows_the_changed_fields_alone() -> None:
    was = {"cpu": None, "code": {"git": "a", "ref": ""}, "retries": {"times": 0}, "requirements": ""}
    now = was | {"code": {"git": "b", "ref": ""}, "requirements": "humanize==4.9.0"}
    assert changes(
        "schedule.change",
        before={"spec": was, "expression": "0 2 * * *"},
        after={"spec": now, "expression": "30 1 * * *"},
    ) == [
        ("code · git", "a", "b"),
        ("requirements", "none", "humanize==4.9.0"),
        ("runs at", "0 2 * * *", "30 1 * * *"),
    ]


def test_an_old_event_of_a_scaling_does_not_call_unchanged_rules_removed() -> None:
    before = {"replicas": 1, "max_surge": 1, "progress_deadline_seconds": 600}
    assert changes("service.change", before=before, after={"replicas": 2}) == [("replicas", "1", "2")]
    assert changes("service.change", before=before, after={"progress_deadline_seconds": 60}) == [
        ("progress deadline", "600 s", "60 s")
    ]
    assert changes("idle_rule.remove", before={"after_minutes": 30}) == [("after", "30 min", "")]


def test_a_new_object_is_told_without_what_it_does_not_have() -> None:
    after = {
        "ends": None,
        "overlap": "forbid",
        "labels": {},
        "generation": None,
        "volumes": [{"name": "d", "x": ""}],
    }
    assert changes("schedule.create", after=after) == [
        ("overlap", "", "forbid"), ("generation", "", "all"), ("volumes", "", "name=d"),
    ]  # fmt: skip
    [(_, _, said)] = changes("schedule.change", after={"command": "x" * 5000})
    assert len(said) == LONGEST_VALUE + 1


def test_managers_and_admins_read_the_changes_of_a_team(scene: Scene, browser_of) -> None:
    people = scene.people
    audit.record(
        actor=people.bob, verb="x.change", target=people.bob, tenant=people.astro, after={"place": "place-1"}
    )
    for who, path in ((people.alice, "/team/astro/changes/"), (people.ada, "/admin/tenants/astro/changes/")):
        page = browser_of(who).get(path.removesuffix("changes/")).content.decode()
        assert f'href="{path}"' in page
        assert browser_of(who).get(path).content.decode().count("<ins>place-") == 1
        assert browser_of(people.charlie).get(path).status_code == 404


def test_an_exact_price_is_shown_exactly() -> None:
    event = AuditEvent(target_type="job", target_id="7", after={"per_gpu_hour": "0.012500"})
    [entry] = entries([event], User(portal_role=User.PortalRole.USER))
    assert entry.changes[0].after == f"0.0125 {settings.FAIRLOT_CURRENCY}"
    assert entry.href == "/jobs/7/"


def test_a_browser_sends_forms_whose_optional_times_are_empty(scene: Scene, browser_of) -> None:
    """Proves that no input for a time that may be left empty has the attribute `required`.

    The pages are those of a drain without a deadline and of a price that is valid immediately.
    """
    ada = browser_of(scene.people.ada)
    for page, name in (
        (f"/admin/nodes/{scene.world.cluster.nodes.first().pk}/drain/", "deadline"),
        ("/admin/generations/", "since"),
    ):
        fields = re.findall(rf'<input[^>]* name="{name}"[^>]*>', ada.get(page).content.decode())
        assert fields
        assert [field for field in fields if " required" in field] == []
