"""The job list, the pages of a job, and cancelling a job, as seen by each user of the scene."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from django.db import connection
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from accounting.actions import set_quota
from accounting.core.clock import now_from_database
from accounting.models import Price, Quota, Tenant, UsageSegment, User
from fairshare.model import Reason
from portal import wording
from portal.jobs.detail import colours_of, cost_of, speeds_of
from scheduling.backends.base import End, Phase
from scheduling.draining.actions import drain_node
from scheduling.models import Job, JobForecast, JobSpeed, Lease, ShareBalance
from tests.make import LONG_AGO
from tests.portal.scene import Scene, secrets_in

TABS = ("job", "job_log", "job_events", "job_spec", "job_files")


def rows(browser: Client, query: str = "") -> list[str]:
    """Returns the names of the listed jobs, in the order of the list."""
    return [job.name for job in browser.get(reverse("jobs") + query).context["page"]]


def test_each_sees_the_jobs_of_the_own_teams_only(scene: Scene, browser_of) -> None:
    people = scene.people
    assert set(rows(browser_of(people.bob))) == {"supernova", "supernova-next"}
    assert set(rows(browser_of(people.charlie))) == {"genome"}
    assert set(rows(browser_of(people.olga))) == {"supernova", "supernova-next", "genome"}


@pytest.mark.parametrize("tab", TABS)
def test_a_job_of_another_team_is_not_there(scene: Scene, browser_of, tab: str) -> None:
    people = scene.people
    url = reverse(tab, args=[scene.job.pk])
    for who in (people.alice, people.bob, people.olga, people.ada):
        assert browser_of(who).get(url).status_code == 200
    answer = browser_of(people.charlie).get(url)
    assert answer.status_code == 404
    assert secrets_in(answer.content.decode()) == []


@pytest.mark.parametrize("page", ["home", "jobs", "cluster"])
def test_no_page_tells_charlie_anything_of_astro(scene: Scene, browser_of, page: str) -> None:
    text = browser_of(scene.people.charlie).get(reverse(page)).content.decode()
    assert secrets_in(text) == []


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("?q=NEXT", ["supernova-next"]),
        ("?q=bob", ["supernova"]),
        ("?state=waiting", ["supernova-next"]),
        ("?state=running", ["supernova"]),
        ("?state=ended", []),
        ("?owner=me", ["supernova"]),
        ("?sort=name", ["supernova", "supernova-next"]),
        ("?sort=-name", ["supernova-next", "supernova"]),
        ("?sort=-gpus", ["supernova-next", "supernova"]),
        ("?generation=V100", []),
        ("?team=bio", []),
        ("?team=astro&state=active&sort=created", ["supernova", "supernova-next"]),
        ("?sort=nonsense&state=nonsense&page=99", ["supernova-next", "supernova"]),
    ],
)
def test_filter_order_and_page_are_in_the_url(scene: Scene, browser_of, query: str, names: list[str]) -> None:
    if "generation" in query:
        names = [scene.job.name] if scene.job.leases.get().generation.name == "V100" else names
    assert rows(browser_of(scene.people.bob), query) == names


def test_a_job_is_found_by_its_number(scene: Scene, browser_of) -> None:
    assert rows(browser_of(scene.people.bob), f"?q=%23{scene.job.pk}") == ["supernova"]
    assert rows(browser_of(scene.people.bob), f"?q={scene.other.pk}") == []


def test_pages_hold_fifty_jobs_and_keep_the_filter(scene: Scene, browser_of) -> None:
    multiply(scene.waiting, 120)
    answer = browser_of(scene.people.bob).get(reverse("jobs") + "?state=waiting&page=2")
    assert len(answer.context["page"]) == 50
    assert "state=waiting&amp;page=3" in answer.content.decode()


def test_the_list_asks_the_database_the_same_number_of_questions_for_more_rows(
    scene: Scene, browser_of
) -> None:
    multiply_teams(1)  # the pages ask only users of several teams which team to show
    for page in ("jobs", "home", "cluster"):
        browser = browser_of(scene.people.alice)
        few = count_queries(browser, reverse(page))
        multiply(scene.waiting, 20)
        multiply_teams(20)
        assert count_queries(browser, reverse(page)) == few, page


def test_the_first_page_and_what_leads_to_it_tell_the_same(scene: Scene, browser_of) -> None:
    browser = browser_of(scene.people.alice)
    for jobs in (len(rows(browser)), 60):
        first, asked = (browser.get(reverse("jobs") + query).context["page"] for query in ("", "?page=1"))
        assert (list(first), first.paginator.count) == (list(asked), asked.paginator.count)
        assert (len(first), first.paginator.count) == (min(jobs, 50), jobs)
        multiply(scene.waiting, 60 - jobs)


def test_only_the_part_that_refreshes_is_sent(scene: Scene, browser_of) -> None:
    browser = browser_of(scene.people.bob)
    part = browser.get(reverse("jobs"), headers={"HX-Request": "true", "HX-Target": "section#jobs-table"})
    text = part.content.decode()
    assert text.strip().startswith('<section id="jobs-table"')
    assert "<html" not in text
    assert "supernova" in text
    url = reverse("job", args=[scene.job.pk])
    head = browser.get(url, headers={"HX-Request": "true", "HX-Target": "header#job-head"}).content.decode()
    assert head.strip().startswith('<header id="job-head"')
    assert browser.get(url, headers={"HX-Request": "true", "HX-Target": "div#else"}).status_code == 204


def test_a_job_that_waits_for_a_limit_says_whose_it_is(scene: Scene, browser_of) -> None:
    set_quota(actor=None, tenant=scene.people.astro, kind=Quota.Kind.GPUS, each_user=True, limit=4)
    job = scene.world.submit(scene.people.bob, scene.people.astro, gpus=1, name="one-more")
    Job.objects.filter(pk=job.pk).update(reason=Reason.QUOTA_IN_USE)
    said = "bob in Astro: limit of 4 GPUs at once"
    browser = browser_of(scene.people.bob)
    assert said in browser.get(reverse("job", args=[job.pk])).content.decode()
    assert browser.get(f"/api/v1/jobs/{job.pk}").json()["reason"] == said
    listed = browser.get("/api/v1/jobs?q=one-more").json()["items"]
    assert [one["reason"] for one in listed] == ["limit reached"], "a list names no one's limit wrongly"


def test_a_waiting_job_says_why_in_a_chip_and_a_sentence(scene: Scene, browser_of) -> None:
    browser = browser_of(scene.people.alice)
    text = browser.get(reverse("job", args=[scene.waiting.pk])).content.decode()
    explanation = browser.get(reverse("job", args=[scene.waiting.pk])).context["explanation"]
    assert explanation.sentence in text.replace("&#x27;", "'")
    assert explanation.short in text.replace("&#x27;", "'")
    assert "Queued" in text


def test_the_page_shows_speed_cost_and_where_it_ran(scene: Scene, browser_of) -> None:
    JobSpeed.objects.create(job=scene.job, generation=scene.people.v100, steps=100, seconds=10)
    JobSpeed.objects.create(job=scene.job, generation=scene.people.a100, steps=250, seconds=10)
    scene.job.leases.update(
        billed_until=now_from_database() + timedelta(hours=1)
    )  # no usage is left unbooked
    answer = browser_of(scene.people.bob).get(reverse("job", args=[scene.job.pk]))
    fastest, slowest = answer.context["speeds"]
    assert (fastest.generation, fastest.rate, fastest.ratio) == ("A100", 25.0, 2.5)
    assert (slowest.generation, slowest.ratio) == ("V100", 1.0)
    # 4 GPUs for 45 minutes at 3.00 per GPU-hour.
    assert dict(answer.context["cost"].amounts) == {"EUR": 9}
    text = answer.content.decode()
    assert "9.00 <small>EUR" in text
    assert "0, 1, 2, 3" in text
    lease = scene.job.leases.get()
    assert f"4 × {lease.generation.name}" in text


def test_the_cost_is_as_of_now_and_what_the_end_will_book(scene: Scene, browser_of) -> None:
    url, browser = reverse("job", args=[scene.job.pk]), browser_of(scene.people.bob)
    lease = scene.world.age(scene.world.lease(scene.job), 1800)
    cost = browser.get(url).context["cost"]
    price = Decimal({"V100": "1.20", "A100": "3.00"}[lease.generation.name])
    held = (now_from_database() - lease.held_from).total_seconds()
    assert float(cost.unbooked) == pytest.approx(4 * held, abs=40)
    assert float(dict(cost.amounts)["EUR"]) == pytest.approx(9 + 4 * held / 3600 * float(price), abs=0.1)
    assert cost.gpu_seconds == 4 * 2700 + cost.unbooked
    assert "GPU-h not booked yet" in browser.get(url).content.decode()
    scene.world.see(lease, Phase.ENDED, end=End.SUCCEEDED, ended_age=0.0)
    booked = browser.get(url)
    assert booked.context["cost"].unbooked == 0
    seconds, money = (
        sum(getattr(one, of) for one in UsageSegment.objects.filter(job_id=scene.job.pk))
        for of in ("gpu_seconds", "cost")
    )
    assert (booked.context["cost"].gpu_seconds, dict(booked.context["cost"].amounts)) == (
        seconds,
        {"EUR": money},
    )
    assert "all GPU time is booked" in booked.content.decode()


def test_unbooked_usage_costs_the_price_of_its_time(scene: Scene) -> None:
    lease = scene.world.age(scene.world.lease(scene.job), 1800)
    Lease.objects.filter(pk=lease.pk).update(held_until=lease.held_from + timedelta(minutes=10))
    change = lease.held_from + timedelta(minutes=4)
    Price.objects.filter(generation=lease.generation).update(valid=DateTimeTZRange(LONG_AGO, change))
    Price.objects.create(
        generation=lease.generation, per_gpu_hour=Decimal(60), valid=DateTimeTZRange(change, None)
    )
    before = Decimal({"V100": "1.20", "A100": "3.00"}[lease.generation.name])
    total = 9 + 4 * (before * 4 / 60 + 60 * Decimal(6) / 60)
    cost = cost_of(scene.job, scene.people.bob)
    assert cost.unbooked == 2400
    assert float(dict(cost.amounts)["EUR"]) == pytest.approx(float(total), abs=0.001)


def test_the_spec_is_shown_as_yaml_and_escaped(scene: Scene, browser_of) -> None:
    Job.objects.filter(pk=scene.job.pk).update(spec=scene.job.spec | {"command": "echo '<script>'"})
    text = browser_of(scene.people.bob).get(reverse("job_spec", args=[scene.job.pk])).content.decode()
    assert "SUPERNOVA: 1987A" in text
    assert "<script>'" not in text
    assert "&lt;script&gt;" in text


def test_cancelling_is_confirmed_with_the_name_and_needs_the_right(scene: Scene, browser_of) -> None:
    people, url = scene.people, reverse("job_cancel", args=[scene.waiting.pk])
    page = reverse("job", args=[scene.waiting.pk])
    assert "Cancel “supernova-next”?" in browser_of(people.alice).get(page).content.decode()
    # Bob is a member, but not the job's owner
    assert "cancel-job" not in browser_of(people.bob).get(page).content.decode()
    assert browser_of(people.alice).get(url).status_code == 405
    assert browser_of(people.charlie).post(url).status_code == 404
    refused = browser_of(people.bob).post(url, follow=True)
    assert "Only the owner, a manager of the team or an operator" in refused.content.decode()
    scene.waiting.refresh_from_db()
    assert scene.waiting.state == Job.State.QUEUED


@pytest.mark.django_db(transaction=True)
def test_a_cancelled_job_says_so_and_cannot_be_cancelled_again(scene: Scene, browser_of) -> None:
    browser = browser_of(scene.people.alice)
    done = browser.post(reverse("job_cancel", args=[scene.waiting.pk]), follow=True).content.decode()
    assert "supernova-next: cancelled." in done
    assert "Cancelled by alice" in done
    assert "cancel-job" not in done


def test_a_job_shows_how_it_ended(scene: Scene, browser_of) -> None:
    lease = scene.world.lease(scene.job)
    scene.world.see(
        lease, Phase.ENDED, end=End.FAILED, ended_age=0.0, exit_code=3, message="worker 0 exited with code 3"
    )
    text = browser_of(scene.people.bob).get(reverse("job", args=[scene.job.pk])).content.decode()
    assert "Failed" in text
    assert "Worker 0 exited with code 3" in text


def test_a_job_whose_files_were_removed_says_so_on_each_tab(scene: Scene, browser_of) -> None:
    browser = browser_of(scene.people.bob)
    scene.world.see(
        scene.world.lease(scene.job), Phase.ENDED, end=End.FAILED, ended_age=0.0, message="worker 0 exited"
    )
    urls = [reverse(tab, args=[scene.job.pk]) for tab in TABS]
    said = "The log and all files of this job were deleted"
    assert not any(said in browser.get(url).content.decode() for url in urls)
    assert "Read the log" in browser.get(urls[0]).content.decode()
    Job.objects.filter(pk=scene.job.pk).update(files_removed_at=now_from_database())
    pages = [browser.get(url).content.decode() for url in urls]
    assert all(said in page for page in pages)
    assert not any("Read the log" in page or "/log/raw" in page for page in pages)
    assert "The log was removed" in pages[1]
    assert browser.get(f"/api/v1/jobs/{scene.job.pk}").json()["files_removed_at"]


def multiply(job: Job, times: int) -> None:
    for number in range(times):
        job.pk, job._state.adding, job.request_key = None, True, None
        job.name = f"copy-{number}"
        job.save()


def multiply_teams(times: int) -> None:
    parent = Tenant.objects.get(name="Astro")
    have = Tenant.objects.count()
    for number in range(have, have + times):
        Tenant.objects.create(
            name=f"t{number}", slug=f"t{number}", parent=parent, path=f"{parent.path}x{number}/"
        )


def count_queries(browser: Client, url: str) -> int:
    browser.get(url)  # the first request fills caches
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert browser.get(url).status_code == 200
    return len(queries)


def test_a_job_says_for_how_long_it_has_been_so_and_where_it_runs(scene: Scene, browser_of) -> None:
    scene.world.see(scene.world.lease(scene.job), Phase.RUNNING, running_age=5.0)
    text = browser_of(scene.people.bob).get(reverse("job", args=[scene.job.pk])).content.decode()
    assert "data-lasting" in text
    assert "The log reports no progress yet." in text
    scene.world.see(scene.world.lease(scene.job), Phase.RUNNING, steps=1200.0, steps_age=0.0)
    text = browser_of(scene.people.bob).get(reverse("job", args=[scene.job.pk])).content.decode()
    assert "The log reports 1\xa0200 completed steps." in text
    assert re.search(r"The job runs on 4 × (A100|V100): GPU 0, 1, 2, 3 on node \w+-0\.", text)
    waiting = browser_of(scene.people.alice).get(reverse("job", args=[scene.waiting.pk])).content.decode()
    # The head of the page keeps its height when the job alternates between running and waiting.
    assert "note-steady" in waiting


def test_the_list_says_how_many_fit_and_what_of_its_address_means_nothing(scene: Scene, browser_of) -> None:
    bob = browser_of(scene.people.bob)
    narrow = bob.get(reverse("jobs") + "?q=next").content.decode()
    assert "1 job matching the filter</caption>" in narrow
    assert '<p class="muted">1 job</p>' in narrow
    every = bob.get(reverse("jobs")).content.decode()
    assert "2 jobs</caption>" in every
    assert "There is no" not in every
    odd = bob.get(reverse("jobs") + "?state=bogus&sort=-age").content.decode()
    assert "There is no state “bogus”" in odd
    assert "There is no order “-age”" in odd
    assert "2 jobs</caption>" in odd


def test_a_generation_has_one_colour_on_all_pages(scene: Scene) -> None:
    cast = scene.people
    both = colours_of([cast.a100, cast.v100])
    assert list(both) == ["A100", "V100"]
    assert len(set(both.values())) == 2
    assert colours_of([cast.a100]) | colours_of([cast.v100]) == both


def test_a_speed_is_shown_when_it_was_watched_for_some_seconds(scene: Scene) -> None:
    speed = JobSpeed.objects.create(job=scene.job, generation=scene.people.v100, steps=28, seconds=0.9)
    assert speeds_of(scene.job) == []
    speed.seconds = 4
    speed.save()
    assert [one.rate for one in speeds_of(scene.job)] == [7]


def test_home_tells_jobs_from_gpus_and_measures_by_the_whole_generation(scene: Scene, browser_of) -> None:
    context = browser_of(scene.people.bob).get(reverse("home")).context
    assert (context["counts"].running, context["counts"].gpus) == (1, 4)
    assert {row.generation: row.size for row in context["share"]} == {"A100": 4, "V100": 4}
    assert sum(row.held for row in context["share"]) == 4
    everybodys = browser_of(scene.people.ada).get(reverse("home"))
    counts, machines = everybodys.context["counts"], everybodys.context["machines"]
    assert (counts.running, counts.gpus) == (2, sum(row.busy for row in machines))
    assert "on 8 GPUs" in everybodys.content.decode()


def test_a_user_who_can_submit_for_no_team_is_offered_no_new_job(scene: Scene, browser_of) -> None:
    cast = scene.people
    for who, offered in ((cast.bob, True), (cast.olga, False), (cast.ada, False)):
        for page in ("home", "jobs", "share"):
            text = browser_of(who).get(reverse(page)).content.decode()
            assert (f'href="{reverse("submit")}"' in text) == offered


def test_amounts_of_one_column_have_the_same_digits() -> None:
    assert wording.money_digits([Decimal("0.0034"), Decimal("0.02")]) == 4
    assert wording.money_digits([Decimal(0), Decimal("0.02")]) == 2
    assert wording.money(Decimal("0.000047"), "EUR") == "0.000047 EUR"
    assert wording.money(Decimal("0.02"), "EUR", 4) == "0.0200 EUR"


def test_a_node_that_is_away_says_why_and_since_when(scene: Scene, browser_of) -> None:
    drain_node(actor=scene.people.olga, node=scene.node, reason="fan change", mode="now")
    text = browser_of(scene.people.bob).get(reverse("cluster")).content.decode()
    assert "fan change · <time" in text


def test_the_expected_start_stays_on_the_jobs_page_and_in_the_list(scene: Scene, browser_of) -> None:
    browser, page = browser_of(scene.people.bob), f"/jobs/{scene.waiting.pk}/"
    Job.objects.filter(pk=scene.waiting.pk).update(reason=int(Reason.SHARE_IN_USE))
    assert "expected to start" not in browser.get(page).content.decode()
    now = timezone.now().replace(microsecond=0)
    told = JobForecast.objects.create(
        job=scene.waiting,
        at=now,
        starts_by=now + timedelta(seconds=630),
        earliest=now + timedelta(seconds=330),
    )
    html = browser.get(page).content.decode()
    assert re.search(
        r"expected to start between <time .* and <time .*, <time [^>]*>in 5 min</time> at the earliest", html
    )
    listed = browser.get("/jobs/").content.decode()
    assert re.search(
        r"starts <time [^>]*>in 5 min</time>, at the latest <time [^>]*>in 10 min</time>", listed
    )
    api = browser.get(f"/api/v1/jobs/{scene.waiting.pk}/scheduling").json()
    assert datetime.fromisoformat(api["not_before"]) == told.earliest
    assert datetime.fromisoformat(api["starts_by"]) == told.starts_by
    JobForecast.objects.update(starts_by=None)
    assert "The job will probably wait until" in browser.get(page).content.decode()
    assert browser.get(f"/api/v1/jobs/{scene.waiting.pk}/scheduling").json()["not_before"]
    Job.objects.filter(pk=scene.waiting.pk).update(reason=int(Reason.NEVER_TOO_LARGE))
    assert "expected to start" not in browser.get(page).content.decode()
    assert "xpected to start" not in browser.get(f"/jobs/{scene.job.pk}/").content.decode()


def owe(scene: Scene, user: User) -> None:
    """Owes the user, who is in Bio, much more GPU time than anybody else."""
    ShareBalance.objects.update_or_create(
        cluster=scene.world.cluster, tenant=scene.people.bio, user=user, generation=scene.people.v100,
        defaults={"owed": 1e9, "share": 1},
    )  # fmt: skip


def test_a_waiting_job_shows_its_place_and_links_to_the_jobs_ahead(scene: Scene, browser_of) -> None:
    cast, submit = scene.people, scene.world.submit
    ahead = submit(cast.bob, cast.astro, name="ahead")
    hidden = submit(cast.charlie, cast.bio, gpus=2, name="secret plan")
    job = submit(cast.bob, cast.astro, name="last")
    Job.objects.filter(pk__in=[ahead.pk, hidden.pk, job.pk]).update(reason=int(Reason.SHARE_IN_USE))
    owe(scene, cast.charlie)
    html = browser_of(cast.bob).get(f"/jobs/{job.pk}/").content.decode()
    part = html.partition('id="queue-place"')[2].partition("</div>")[0]
    assert "Place 3 of 3 waiting jobs that can use these GPU types; 2 of 2 of Astro." in part
    assert f'href="/jobs/{ahead.pk}/"' in part
    assert "1 job of other teams (2 GPUs)" in part
    assert "secret plan" not in part
    api = browser_of(cast.bob).get(f"/api/v1/jobs/{job.pk}/scheduling").json()["queue"]
    assert (api["position"], api["ahead_others"], [one["id"] for one in api["ahead"]]) == (3, 1, [ahead.pk])
    running = browser_of(cast.bob).get(f"/jobs/{scene.job.pk}/").content.decode()
    assert "goes first in the next turn, from " in running.split('id="queue-place"')[1]


def test_the_roles_of_a_job_are_on_its_page_and_in_the_list_of_its_logs(scene: Scene, browser_of) -> None:
    roles = [{"name": "ps", "workers": 2, "gpus_per_worker": 0}, {"name": "train"}]
    Job.objects.filter(pk=scene.job.pk).update(spec=scene.job.spec | {"roles": roles})
    browser = browser_of(scene.people.bob)
    assert "2 × ps, 1 × train" in browser.get(f"/jobs/{scene.job.pk}/").content.decode()
    choices = browser.get(f"/jobs/{scene.job.pk}/log/").context["choices"]
    assert ("0", "Worker 0: train 0") in choices, "the worker whose lines begin with 0"


def test_a_job_that_waits_for_its_retry_says_so_on_its_page_and_by_the_api(scene: Scene, browser_of) -> None:
    browser = browser_of(scene.people.bob)
    later = now_from_database() + timedelta(minutes=5)
    spec = scene.waiting.spec | {"retries": {"times": 4, "exit_codes": [], "backoff_seconds": 60}}
    Job.objects.filter(pk=scene.waiting.pk).update(
        spec=spec, reason=int(Reason.RETRYING), failures=2, not_before=later
    )
    said = (
        f"The job&#x27;s program failed 2 times. Fairlot starts it again at {later:%Y-%m-%d %H:%M:%S} UTC at the"
        " earliest: retry 2 of 4."
    )
    assert said in browser.get(f"/jobs/{scene.waiting.pk}/").content.decode()
    api = browser.get(f"/api/v1/jobs/{scene.waiting.pk}/scheduling").json()
    assert api["sentence"] == said.replace("&#x27;", "'")
    shown = browser.get(f"/api/v1/jobs/{scene.waiting.pk}").json()
    assert (shown["failures"], shown["reason"]) == (2, "program failed, retrying")
