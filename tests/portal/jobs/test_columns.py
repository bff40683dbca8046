"""The columns of the job list: users choose them, and each sorts the list in both directions, also by the API."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.access.audit import AuditEvent
from accounting.core.clock import now_from_database
from portal.jobs.columns import COLUMNS
from portal.jobs.filters import JobFilter
from portal.lists.columns import after
from portal.models import ListChoice
from scheduling.models import Job
from tests.portal.scene import Scene

HEAD = re.compile(r'<th scope="col"[^>]*><a class="sort"[^>]*>([^<]*)<')
KEYS = (*COLUMNS.known, "label:exp")


def heads(browser: Client, query: str = "") -> list[str]:
    return HEAD.findall(browser.get(reverse("jobs") + query).content.decode())


def choose(browser: Client, *columns: str, back: str = "", **more: str) -> Any:
    return browser.post(reverse("jobs_columns"), {"column": columns, "back": back, **more})


def test_chosen_columns_are_in_the_address_and_remembered_for_this_user_only(
    scene: Scene, browser_of
) -> None:
    bob, alice = browser_of(scene.people.bob), browser_of(scene.people.alice)
    usual = heads(bob)
    answer = choose(bob, "priority", "label:exp", "bogus", back="state=active&page=2")
    assert answer["Location"] == f"{reverse('jobs')}?state=active&page=2&columns=name,priority,label:exp"
    assert heads(bob) == heads(bob, "?columns=name,priority,label:exp") == ["Job", "Priority", "exp"]
    assert heads(bob, "?columns=owner") == ["Job", "Owner"]  # a link of somebody else
    assert heads(alice) == usual
    assert AuditEvent.objects.filter(verb="list.choose_columns", actor=scene.people.bob).count() == 1
    choose(bob, "priority", usual="1")
    assert heads(bob) == usual
    assert ListChoice.objects.count() == 1


def test_the_form_offers_each_column_and_says_which_are_shown(scene: Scene, browser_of) -> None:
    scene.world.submit(scene.people.bob, scene.people.astro, labels={"exp": "e1"})
    html = browser_of(scene.people.bob).get(reverse("jobs") + "?columns=name,kind,label:exp").content.decode()
    boxes = dict(re.findall(r'name="column" value="([^"]*)"( checked)?', html))
    assert {key for key, checked in boxes.items() if checked} == {"kind", "label:exp"}
    assert set(boxes) == {*KEYS} - {"name"}


def test_a_label_is_a_column(scene: Scene, browser_of) -> None:
    for name, labels in (("one", {"exp": "e2"}), ("two", {"exp": "e1"}), ("three", {"exp": ""})):
        scene.world.submit(scene.people.bob, scene.people.astro, labels=labels, name=name)
    bob = browser_of(scene.people.bob)
    answer = bob.get(reverse("jobs") + "?columns=name,label:exp&sort=label:exp")
    assert [job.name for job in answer.context["page"]][:3] == ["three", "two", "one"]
    assert '<td data-label="exp" class="break">e1</td>' in answer.content.decode()
    assert '<td data-label="exp" class="break">exp</td>' in answer.content.decode()  # has no value


@pytest.mark.parametrize("columns", ["bogus", "label:", "label:" + "x" * 500, "name,label:a,,bogus"])
def test_an_unknown_column_is_named_and_left_out(scene: Scene, browser_of, columns: str) -> None:
    html = browser_of(scene.people.bob).get(f"{reverse('jobs')}?columns={columns}").content.decode()
    assert "There is no column “" in html
    assert HEAD.findall(html)[0] == "Job"


@pytest.fixture
def various(scene: Scene) -> list[Job]:
    """Jobs that are equal in many columns, and that have no value in some."""
    now, jobs = now_from_database(), []
    for number in range(7):
        job = scene.world.submit(
            scene.people.bob,
            scene.people.astro,
            name=("b", "A", "a")[number % 3],
            labels={"exp": f"e{number % 2}"} if number % 3 else {},
        )
        Job.objects.filter(pk=job.pk).update(
            priority=number % 2,
            created_at=now - timedelta(hours=number % 3),
            deadline=now + timedelta(hours=number % 2) if number % 3 else None,
            steps_done=number % 2 if number % 3 else None,
            exit_code=number % 2 if number % 4 else None,
        )
        jobs.append(job)
    return jobs


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(key=st.sampled_from(KEYS), back=st.booleans(), size=st.integers(1, 5))
def test_pages_of_an_order_put_together_are_the_whole_order(
    various: list[Job], scene: Scene, key: str, back: bool, size: int
) -> None:
    order = COLUMNS.by(f"-{key}" if back else key)
    jobs = Job.objects.visible_to(scene.people.bob)
    whole = list(jobs.order_by(*order).values_list("pk", flat=True))
    found: list[int] = []
    while True:
        rest = after(jobs, order, found[-1]) if found else jobs
        page = list(rest.order_by(*order).values_list("pk", flat=True)[:size])
        if not page:
            break
        found += page
    assert found == whole
    opposite = COLUMNS.by(key if back else f"-{key}")
    filled = jobs.annotate(sorted_by=order[0].expression).exclude(sorted_by=None)
    backwards = list(filled.order_by(*opposite).values_list("pk", flat=True))
    assert [pk for pk in whole if pk in backwards] == backwards[::-1]


@pytest.mark.parametrize("sort", ["created", "-created"])
def test_an_index_has_the_order_in_which_jobs_were_submitted(scene: Scene, sort: str) -> None:
    jobs = JobFilter(sort=sort).apply(Job.objects.visible_to(scene.people.bob)).values_list("pk")[:50]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off")
        plan = jobs.explain()
    assert "job_newest" in plan
    assert "Sort" not in plan


@pytest.mark.parametrize("key", KEYS)
def test_the_api_pages_through_each_order_as_the_portal_shows_it(
    various: list[Job], scene: Scene, browser_of, key: str
) -> None:
    bob, shown, cursor = browser_of(scene.people.bob), [], ""
    expected = [job.pk for job in bob.get(f"{reverse('jobs')}?sort=-{key}&kind=all").context["page"]]
    while True:
        page = bob.get(f"/api/v1/jobs?sort=-{key}&limit=4{cursor}").json()
        shown += [job["id"] for job in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&before={page['next']}"
    assert shown == expected


def test_the_api_refuses_an_unknown_order_and_follows_no_job_that_the_caller_may_not_see(
    scene: Scene, browser_of
) -> None:
    bob = browser_of(scene.people.bob)
    answer = bob.get("/api/v1/jobs?sort=-moon")
    assert answer.status_code == 422
    assert "label:KEY" in str(answer.json()["problems"]["sort"])
    assert bob.get(f"/api/v1/jobs?sort=name&before={scene.other.pk}").json() == {"items": [], "next": None}
