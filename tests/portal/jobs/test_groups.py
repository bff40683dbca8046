"""The job list in groups, with jobs and GPUs of each, which open and close by links."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from scheduling.models import Job
from scheduling.spec.job_spec import JobSpec
from scheduling.sweeps.actions import Rules, create_sweep
from scheduling.sweeps.parameters import Parameters
from tests.portal.scene import Scene, secrets_in

LINK = re.compile(r'<a class="group-name" href="(\?[^"]*)" aria-expanded="(true|false)">.*?</svg>([^<]*)</a>')
ONLY = re.compile(r'<a class="small" href="(\?[^"]*)">Only these<span class="sr-only">: ([^<]*)</span>')


@pytest.fixture
def various(scene: Scene) -> Scene:
    cast = scene.people
    for number in range(9):
        who, team = ((cast.bob, cast.astro), (cast.alice, cast.astro), (cast.charlie, cast.bio))[number % 3]
        labels = ({}, {"exp": "e1"}, {"exp": ""})[number % 4 % 3]
        job = scene.world.submit(who, team, gpus=1 + number % 2, name=f"various-{number}", labels=labels)
        Job.objects.filter(pk=job.pk).update(state=("queued", "cancelled", "failed")[number % 3])
    sweep = create_sweep(
        actor=cast.bob,
        tenant=cast.astro,
        cluster=scene.world.cluster,
        spec=JobSpec(name="supernova-tune", command="true"),
        parameters=Parameters("array", count=2),
        rules=Rules(),
    )
    swept = Job.objects.filter(name__in=("various-0", "various-3"))
    for index, job in enumerate(swept.order_by("name")):
        Job.objects.filter(pk=job.pk).update(sweep=sweep, sweep_index=index + 100)
    return scene


def get(browser: Client, query: str) -> Any:
    answer = browser.get(reverse("jobs") + query)
    assert answer.status_code == 200
    return answer


@pytest.mark.parametrize("group", ["team", "owner", "state", "sweep", "label:exp", "label:none"])
def test_groups_hold_each_job_once_with_its_gpus_and_their_links_list_them(
    various: Scene, browser_of, group: str
) -> None:
    for who in (various.people.bob, various.people.olga):
        browser, query = browser_of(who), f"?group={group}&q=various&sort=name"
        answer = get(browser, query)
        groups, html = answer.context["grouped"], answer.content.decode()
        jobs = Job.objects.visible_to(who).filter(name__contains="various")
        assert groups.jobs == jobs.count() == sum(one.jobs for one in groups.shown)
        assert groups.gpus == sum(job.gpus for job in jobs) == sum(one.gpus for one in groups.shown)
        links = {label: unescape(link) for link, _, label in LINK.findall(html)}
        listed: list[str] = []
        for one in groups.shown:
            opened = get(browser, links[one.label])
            rows = next(other for other in opened.context["grouped"].shown if other.is_open).rows
            assert len(rows) == one.jobs
            assert sum(row.wanted for row in rows) == one.gpus
            assert [row.name for row in rows] == sorted(row.name for row in rows)
            listed += [row.name for row in rows]
        assert sorted(listed) == sorted(jobs.values_list("name", flat=True))
        numbers = {one.label: one.jobs for one in groups.shown}
        for link, label in ONLY.findall(html):
            alone = get(browser, unescape(link)).context["page"]
            assert alone.paginator.count == numbers[unescape(label)], label


def test_groups_open_and_close_by_links_that_keep_the_rest(various: Scene, browser_of) -> None:
    bob = browser_of(various.people.bob)
    html = get(bob, "?group=owner&state=active&columns=name").content.decode()
    assert {label: expanded for _, expanded, label in LINK.findall(html)} == {
        "alice": "false",
        "bob": "false",
    }
    assert 'name="job"' not in html
    [first] = [unescape(link) for link, _, label in LINK.findall(html) if label == "bob"]
    opened = get(bob, first).content.decode()
    assert 'name="job"' in opened  # can be selected
    assert "various-0" in opened
    [close] = [unescape(link) for link, expanded, _ in LINK.findall(opened) if expanded == "true"]
    assert close == "?group=owner&state=active&columns=name"
    both = [unescape(link) for link, expanded, _ in LINK.findall(opened) if expanded == "false"]
    assert get(bob, both[0]).content.decode().count('aria-expanded="true"') == 2


def test_a_large_group_shows_its_first_jobs_and_holding_states_are_one_group(
    scene: Scene, browser_of
) -> None:
    for _ in range(25):
        scene.world.submit(scene.people.bob, scene.people.astro, name="many")
    Job.objects.filter(name="many").update(state="failed")
    Job.objects.filter(pk=scene.waiting.pk).update(state="starting")
    bob = browser_of(scene.people.bob)
    answer = get(bob, "?group=state&open=failed&open=running&open=moon")
    html = answer.content.decode()
    assert "The first 20 of 25 jobs." in html
    shown = [(one.label, one.jobs, one.gpus, one.held) for one in answer.context["grouped"].shown]
    assert shown == [("Failed", 25, 25, 0), ("Holding GPUs", 2, 12, 12)]
    assert [len(one.rows) for one in answer.context["grouped"].shown] == [20, 2]


def test_an_unknown_group_is_named_and_ignored_and_nobody_sees_groups_of_others(
    various: Scene, browser_of
) -> None:
    bob, charlie = browser_of(various.people.bob), browser_of(various.people.charlie)
    for group in ("moon", "label:", "tenant"):
        answer = get(bob, f"?group={group}")
        assert f"There is no group “{group}”" in answer.content.decode()
        assert answer.context["page"]
    for group in ("team", "owner", "state", "sweep", "label:exp"):
        html = get(charlie, f"?group={group}&open=astro&open=alice&open=%3De1").content.decode()
        assert secrets_in(re.sub("open=a(stro|lice)", "", html)) == []


def test_the_api_returns_groups_of_the_same_filters(various: Scene, browser_of) -> None:
    bob = browser_of(various.people.bob)
    found = bob.get("/api/v1/jobs/groups?by=owner&q=various&state=queued").json()
    assert found == [{"value": "bob", "label": "bob", "jobs": 3, "gpus": 4, "held_gpus": 0}]
    whole = bob.get("/api/v1/jobs/groups?by=label:exp").json()
    assert sum(one["jobs"] for one in whole) == 8
    assert {one["label"] for one in whole} == {"e1", "exp without a value", "No exp"}
    refused = bob.get("/api/v1/jobs/groups?by=moon")
    assert refused.status_code == 422
    assert "label:KEY" in refused.json()["problems"]["by"]
