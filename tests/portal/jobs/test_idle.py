"""Idle GPUs on pages and in the API: the job's page, postponing a stop, reports, and the rules for idle GPUs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.utils import timezone

from accounting.core.clock import now_from_database
from accounting.ledger import Usage, book_usage
from accounting.limits.periods import period_of
from accounting.models import UsageSegment
from portal.templatetags.figures import percent
from scheduling.idle.actions import set_idle_rule, step_idle
from scheduling.models import (
    Cluster,
    ClusterAccess,
    GpuUse,
    IdleRule,
    Job,
    Lease,
    MetricsSource,
    ProcesslessStretch,
)
from tests.portal.jobs.test_jobs import count_queries
from tests.portal.scene import Scene

PAGE = "/usage/idle/"
MINUTE = timedelta(minutes=1)


def idle(scene: Scene, job: Job, lasted: timedelta = 45 * MINUTE) -> GpuUse:
    """Records a measurement that the job's GPUs have been idle for the duration `lasted`."""
    now = now_from_database()
    return GpuUse.objects.create(
        job=job, lease=scene.world.lease(job), measured_until=now, measure="gpu", percent=0.0,
        idle_since=now - lasted, idle_for=lasted,
    )  # fmt: skip


@pytest.fixture
def warned(scene: Scene) -> Job:
    """Returns Bob's job, whose GPUs are idle. Bob has been warned, and the job will be stopped in ten minutes."""
    set_idle_rule(actor=None, action="stop", after_minutes=30, grace_minutes=10, snooze_hours=2)
    idle(scene, scene.job)
    step_idle(job_id=scene.job.pk)
    return scene.job


def text(client: Client, url: str) -> str:
    return client.get(url).content.decode()


def in_an_hour() -> str:
    """Returns the time one hour from now, in the user's time zone and in the format of a date and time field."""
    return f"{timezone.localtime(now_from_database() + 60 * MINUTE):%Y-%m-%dT%H:%M}"


def test_a_jobs_page_says_that_it_is_idle_and_what_follows(scene: Scene, warned: Job, browser_of) -> None:
    html = text(browser_of(scene.people.bob), f"/jobs/{warned.pk}/")
    assert "The job's GPUs are idle. If they stay idle, the job is stopped, at the earliest" in html
    assert "The GPUs were idle for 45 min" in html
    assert f"/jobs/{warned.pk}/snooze/" in html
    GpuUse.objects.update(idle_since=None, percent=87.4, used_at=now_from_database())
    html = text(browser_of(scene.people.bob), f"/jobs/{warned.pk}/")
    assert "The job's GPUs are idle" not in html
    assert "87 <small>%</small>" in html


def test_while_it_waits_for_its_next_turn_its_page_says_how_the_last_one_was(
    scene: Scene, warned: Job, browser_of
) -> None:
    Job.objects.filter(pk=warned.pk).update(state=Job.State.SUSPENDED)
    Lease.objects.filter(job=warned).update(state=Lease.State.CLOSED)
    GpuUse.objects.update(measured_until=now_from_database() - 10 * MINUTE, idle_warned=3 * MINUTE)
    bob = browser_of(scene.people.bob)
    html = text(bob, f"/jobs/{warned.pk}/")
    left = "The job left its GPUs idle in an earlier attempt."
    said = f"{left} After another 7 min of idle time, the job"
    assert said in html
    earliest = bob.get(f"/api/v1/jobs/{warned.pk}/gpu-use").json()["acts_at"]
    assert datetime.fromisoformat(earliest) >= now_from_database() + 6.9 * MINUTE
    Job.objects.filter(pk=warned.pk).update(state=Job.State.RUNNING, state_since=now_from_database())
    GpuUse.objects.update(measured_until=now_from_database() - MINUTE)
    assert said in text(bob, f"/jobs/{warned.pk}/")  # the new attempt has no measurement yet
    assert "No GPU is idle now" in text(bob, PAGE)
    assert bob.get("/api/v1/idle").json() == []
    Job.objects.filter(pk=warned.pk).update(state=Job.State.SUSPENDED)
    assert f"/jobs/{warned.pk}/snooze/" in html
    Job.objects.filter(pk=warned.pk).update(state=Job.State.CANCELLED)
    assert left not in text(browser_of(scene.people.bob), f"/jobs/{warned.pk}/")


def test_old_measurements_are_not_shown(scene: Scene, warned: Job, browser_of) -> None:
    GpuUse.objects.update(measured_until=now_from_database() - 10 * MINUTE)
    Job.objects.filter(pk=warned.pk).update(state_since=now_from_database() - 10 * MINUTE)
    html = text(browser_of(scene.people.bob), f"/jobs/{warned.pk}/")
    assert "The job's GPUs are idle" not in html
    assert "No GPU is idle now" in text(browser_of(scene.people.bob), PAGE)


def test_the_owner_postpones_the_stop_and_all_readers_see_why(scene: Scene, warned: Job, browser_of) -> None:
    url = f"/jobs/{warned.pk}/snooze/"
    bob = browser_of(scene.people.bob)
    refused = bob.post(url, {"until": in_an_hour(), "reason": ""})
    assert refused.status_code == 422
    assert "Give a reason" in refused.content.decode()
    late = bob.post(url, {"until": "2199-01-01T00:00", "reason": "sleeps"})
    assert "The warning can be snoozed until" in late.content.decode()
    assert 'value="sleeps"' in late.content.decode()
    assert (
        "Enter the time at which the snooze ends."
        in bob.post(url, {"until": "", "reason": "x"}).content.decode()
    )
    assert browser_of(scene.people.charlie).post(url, {"until": in_an_hour()}).status_code == 404
    assert bob.post(url, {"until": in_an_hour(), "reason": "loads <its> data"}).status_code == 302
    assert "loads &lt;its&gt; data" in text(browser_of(scene.people.alice), f"/jobs/{warned.pk}/")
    assert "loads &lt;its&gt; data" in text(browser_of(scene.people.olga), PAGE)


def test_a_user_who_may_not_cancel_a_job_may_not_postpone_its_stop(
    scene: Scene, warned: Job, browser_of
) -> None:
    scene.membership.role = "viewer"
    scene.membership.save()
    Job.objects.filter(pk=warned.pk).update(owner=scene.people.alice)
    bob = browser_of(scene.people.bob)
    assert "snooze" not in text(bob, f"/jobs/{warned.pk}/")
    answer = bob.post(f"/jobs/{warned.pk}/snooze/", {"until": in_an_hour(), "reason": "x"})
    assert answer.status_code == 422
    assert GpuUse.objects.get().snoozed_until is None


def test_users_see_idle_gpus_of_their_teams_and_operators_see_all(
    scene: Scene, warned: Job, browser_of
) -> None:
    people = scene.people
    idle(scene, scene.other)
    seen = {
        who.username: (warned.name in html, scene.other.name in html)
        for who in (people.bob, people.alice, people.charlie, people.olga)
        for html in [text(browser_of(who), PAGE)]
    }
    assert seen == {
        "bob": (True, False), "alice": (True, False), "charlie": (False, True), "olga": (True, True),
    }  # fmt: skip
    assert scene.other.name not in text(browser_of(people.olga), f"{PAGE}?team=astro")
    assert "no idle rule" not in text(browser_of(people.olga), PAGE)
    IdleRule.objects.update(action="nothing")
    assert "The idle rule does nothing" in text(browser_of(people.olga), PAGE)
    told = browser_of(people.charlie).get("/api/v1/idle").json()
    assert [one["job"] for one in told] == [scene.other.pk]
    assert [one["team"] for one in browser_of(people.olga).get("/api/v1/idle?team=uni").json()] == [
        "astro",
        "bio",
    ]


def test_more_idle_jobs_need_no_more_queries(scene: Scene, warned: Job, browser_of) -> None:
    olga = browser_of(scene.people.olga)
    few = count_queries(olga, PAGE)
    idle(scene, scene.other)
    assert count_queries(olga, PAGE) == few


def test_the_month_by_team_is_what_was_booked_as_idle(scene: Scene, browser_of) -> None:
    people, now = scene.people, now_from_database()
    begins = max(now - 90 * MINUTE, period_of("month", None, now)[0])
    with transaction.atomic():
        book_usage(
            [Usage(
                book=scene.world.cluster.pk, lease_id=9100, job_id=scene.job.pk, job_name="supernova",
                tenant=people.astro, user=people.bob, generation=people.a100, gpus=4, begins=begins, ends=now,
                running_from=begins, unused=[(begins, begins + (now - begins) / 2)],
            )]
        )  # fmt: skip
    assert "Astro</th>" in text(browser_of(people.bob), PAGE)
    assert "Astro</th>" in text(browser_of(people.olga), f"{PAGE}?team=uni")
    assert "Astro</th>" not in text(browser_of(people.olga), f"{PAGE}?team=bio")
    assert "No idle time" in text(browser_of(people.charlie), PAGE)


def test_the_month_by_team_has_what_idle_gpus_cost_and_those_without_a_process_in_every_format(
    scene: Scene, browser_of
) -> None:
    people, begins = scene.people, datetime(2026, 5, 4, 8, tzinfo=UTC)
    with transaction.atomic():
        book_usage(
            [Usage(
                book=scene.world.cluster.pk, lease_id=9100, job_id=scene.job.pk, job_name="supernova",
                tenant=people.astro, user=people.bob, generation=people.a100, gpus=4, begins=begins,
                ends=begins + 60 * MINUTE, running_from=begins, unused=[(begins, begins + 15 * MINUTE)],
            )]
        )  # fmt: skip
    lease = Lease.objects.filter(job=scene.job).get()
    ProcesslessStretch.objects.create(lease=lease, during=(begins, begins + 10 * MINUTE))
    bob, asked = browser_of(people.bob), "period=dates&from=2026-05-01&to=2026-05-31"
    cost = UsageSegment.objects.get(lease_id=9100).cost
    assert cost > 0
    expected = {
        "team": "Astro", "idle_gpu_seconds": "3600.000000", "processless_gpu_seconds": "2400.000000",
        "held_gpu_seconds": "14400.000000", "part": 0.25, "idle_cost": f"{cost / 4:.6f}", "cost": f"{cost:.6f}",
        "currency": "EUR",
    }  # fmt: skip
    [row] = bob.get(f"/usage/idle.json?{asked}").json()["tables"]["teams"]["rows"]
    assert row == expected
    [told] = bob.get(f"/api/v1/idle/teams?{asked}").json()
    assert told == expected | {"team": "astro", "allocated_gpu_seconds": expected["held_gpu_seconds"]}
    line = text(bob, f"/usage/idle.csv?{asked}").splitlines()[-1].split(",")
    assert line == [str(cell) for cell in expected.values()]
    html = text(bob, f"{PAGE}?{asked}")
    for figure in ("1</td>", "0.667</td>", "4</td>", f"{percent(0.25)}</td>"):
        assert figure in html
    assert text(bob, f"/api/v1/idle/teams?{asked}&team=astro") == text(bob, f"/api/v1/idle/teams?{asked}")
    # Other days have no figures. A day is a day in the time zone of the request.
    for other in ("period=dates&from=2026-05-05&to=2026-05-05", "period=dates&from=2026-05-03&to=2026-05-03"):
        assert bob.get(f"/api/v1/idle/teams?{other}").json() == []
    assert bob.get("/api/v1/idle/teams?from=2026-05-03&to=2026-05-03&zone=Pacific/Honolulu").json() == [told]
    charlie = browser_of(people.charlie)
    assert charlie.get(f"/api/v1/idle/teams?{asked}").json() == []
    assert charlie.get(f"/api/v1/idle/teams?{asked}&team=astro").status_code == 404


def test_a_job_without_any_process_is_reported(scene: Scene, warned: Job, browser_of) -> None:
    bob = browser_of(scene.people.bob)
    assert bob.get("/api/v1/idle").json()[0]["processless_since"] is None
    GpuUse.objects.update(processless_since=now_from_database() - 5 * MINUTE)
    assert "no process on the GPUs since" in text(bob, PAGE)
    assert bob.get("/api/v1/idle").json()[0]["processless_since"] is not None


# --- rules -----------------------------------------------------------------------------------------

FIELDS = {"action": "stop", "after_minutes": "20", "grace_minutes": "5", "snooze_hours": "0"}


def test_rules_are_set_for_all_for_a_cluster_and_for_teams(scene: Scene, browser_of) -> None:
    ada, cluster = browser_of(scene.people.ada), scene.world.cluster
    for url in ("/admin/settings/idle/", f"/admin/clusters/{cluster.pk}/idle/", "/admin/tenants/astro/idle/"):
        assert ada.post(url, FIELDS | {"services": "on"}).status_code == 302
    assert {rule.whose for rule in IdleRule.objects.all()} == {"all teams", "lab", "Astro"}
    html = text(ada, "/admin/tenants/astro/settings/")
    assert 'value="20"' in html
    assert "use the cluster&#x27;s rule, or else the rule that applies to all teams" in html
    assert "use the rule of the team Astro" not in html
    assert ada.post("/admin/tenants/astro/idle/", {"action": "above"}).status_code == 302
    assert not IdleRule.objects.filter(tenant=scene.people.astro).exists()
    refused = ada.post("/admin/tenants/astro/idle/", FIELDS | {"after_minutes": "0"})
    assert refused.status_code == 422
    assert "from 1 to" in refused.content.decode()
    posted = browser_of(scene.people.alice).post("/admin/settings/idle/", FIELDS)
    assert posted.status_code == 404, "managers set no rules"
    assert 'value="20"' in text(ada, "/admin/settings/")


def test_a_rule_says_before_it_is_set_whom_it_would_warn_or_stop(
    scene: Scene, warned: Job, browser_of
) -> None:
    idle(scene, scene.other)  # not warned yet
    olga, running = browser_of(scene.people.olga), Job.objects.filter(state="running").count()
    everybody = IdleRule.objects.get()

    def told(url: str, **changes: str) -> str:
        answer = olga.post(url, FIELDS | {"preview": "1"} | changes)
        assert answer.status_code == 200
        return " ".join(answer.content.decode().replace("\N{NO-BREAK SPACE}", " ").split())

    url = "/admin/settings/idle/"
    stop = told(url, action="stop")
    assert f"{running} running jobs would follow this rule now, 2 of them with idle GPUs." in stop
    assert "would at once warn 1 and stop 0 that have been warned before." in stop
    assert "Nothing is saved yet." in stop
    GpuUse.objects.filter(job=warned).update(idle_warned=45 * MINUTE)
    GpuUse.objects.filter(job=warned).update(warned_at=now_from_database() - 45 * MINUTE)
    assert "warn 1 and stop 1 that has been warned before." in told(url, action="stop")
    assert "warn 1 and make 1 preemptible that has" in told(url, action="preemptible")
    assert "would at once warn 1. Nothing" in told(url, action="warn")
    assert "would at once warn 0. Nothing" in told(url, action="warn", after_minutes="300")
    assert "No running job would follow this rule now." in told(url, action="nothing")
    team = {"action": "stop", "tenant": str(scene.people.bio.pk)}
    assert "1 running job would follow this rule now, 1 of them" in told("/admin/settings/idle/team/", **team)
    for wrong in ({"action": "above"}, {"after_minutes": "0"}):
        assert olga.post(url, FIELDS | {"preview": "1"} | wrong).status_code == 422
    assert list(IdleRule.objects.values()) == [
        row for row in IdleRule.objects.filter(pk=everybody.pk).values() if row["action"] == "stop"
    ]


def test_the_api_sets_reads_and_removes_rules(scene: Scene, browser_of) -> None:
    ada, olga, alice = (browser_of(who) for who in (scene.people.ada, scene.people.olga, scene.people.alice))
    wanted = {"team": "astro", "cluster": "", "action": "stop", "after_minutes": 20, "grace_minutes": 5,
              "snooze_hours": 1, "services": False}  # fmt: skip

    def put(client: Client) -> int:
        return client.put("/api/v1/idle-rules", wanted, content_type="application/json").status_code

    assert [put(client) for client in (alice, olga, ada)] == [404, 200, 200]
    (told,) = olga.get("/api/v1/idle-rules").json()
    number = told.pop("id")
    assert told.pop("version")
    assert told == wanted
    assert alice.delete(f"/api/v1/idle-rules/{number}").status_code == 404
    stored = list(IdleRule.objects.values())

    def previewed(client: Client, **other: object) -> Any:
        return client.post("/api/v1/idle-rules/preview", wanted | other, content_type="application/json")

    found = previewed(olga, action="warn", after_minutes=1).json()
    assert found == {
        "running": found["running"],
        "idle": 0,
        "warned": 0,
        "then": None,
        "due": 0,
        "grace_minutes": 5,
    }
    assert found["running"] > 0
    assert previewed(olga).json()["then"] == "stop"
    assert previewed(olga, cluster="lab").json()["detail"] == "Choose a team or a cluster, not both."
    assert previewed(olga, after_minutes=0).status_code in {409, 422}
    assert previewed(alice).status_code == 404
    assert list(IdleRule.objects.values()) == stored  # nothing is saved
    assert olga.delete(f"/api/v1/idle-rules/{number}").status_code == 204
    assert ada.get("/api/v1/idle-rules").json() == []


def test_the_api_tells_of_use_and_puts_off(scene: Scene, warned: Job, browser_of) -> None:
    bob, charlie = browser_of(scene.people.bob), browser_of(scene.people.charlie)
    url = f"/api/v1/jobs/{warned.pk}"
    told = bob.get(f"{url}/gpu-use").json()
    assert told["idle_seconds"] == 2700
    assert told["acts_at"] > told["warned_at"] > told["idle_since"]
    until = (now_from_database() + 60 * MINUTE).isoformat()
    asked = {"until": until, "reason": "loads its data"}
    assert charlie.post(f"{url}/snooze", asked, content_type="application/json").status_code == 404
    told = bob.post(f"{url}/snooze", asked, content_type="application/json").json()
    assert (told["snooze_reason"], told["acts_at"]) == ("loads its data", None)
    assert bob.get(f"/api/v1/jobs/{scene.waiting.pk}/gpu-use").json() is None
    again = bob.post(f"{url}/snooze", asked | {"reason": ""}, content_type="application/json")
    assert again.status_code == 409


def test_admins_say_where_a_clusters_metrics_are(scene: Scene, browser_of, settings) -> None:
    cluster = scene.world.cluster
    Cluster.objects.filter(pk=cluster.pk).update(backend=Cluster.Backend.KUBERNETES)
    ClusterAccess.objects.create(cluster=cluster, sealed_kubeconfig=b"-", server="https://lab:6443")
    ada, url = browser_of(scene.people.ada), f"/admin/clusters/{cluster.pk}/metrics/"
    refused = ada.post(url, {"url": "http://prometheus:9090", "query": ""})
    assert refused.status_code == 422
    assert "https://" in refused.content.decode()
    settings.FAIRLOT_METRICS_TO_PRIVATE = True
    assert ada.post(url, {"url": "http://prometheus:9090", "query": ""}).status_code == 302
    MetricsSource.objects.update(
        trouble="The host name prometheus has no IP address.", asked_at=now_from_database()
    )
    html = text(ada, f"/admin/clusters/{cluster.pk}/")
    assert "The host name prometheus has no IP address." in html
    assert "DCGM_FI_DEV_GPU_UTIL" in html
    assert browser_of(scene.people.olga).post(url, {"url": ""}).status_code == 404
    assert ada.post(url, {"url": "", "query": ""}).status_code == 302
    assert not MetricsSource.objects.exists()
