"""Counts beside the job list, whose links narrow it, and the chips that widen it again."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from portal.jobs import facets
from scheduling.models import Job
from tests.portal.scene import Scene, secrets_in

COUNTS = re.compile(
    r'<a href="(\?[^"]*)"( aria-current="true")?>(?:<svg.*?</svg>)?([^<]*?) <span class="muted">(\d+)([+]?)</span>'
)
CHIPS = re.compile(r'<a class="chip chip-accent" href="(\?[^"]*)"><span class="sr-only">[^<]*</span>([^<]*)<')


def page(browser: Client, query: str) -> str:
    answer = browser.get(reverse("jobs") + query)
    assert answer.status_code == 200
    return answer.content.decode()


def counted(browser: Client, query: str) -> int:
    return browser.get(reverse("jobs") + query).context["page"].paginator.count


@pytest.fixture
def various(scene: Scene) -> Scene:
    cast = scene.people
    for number in range(12):
        who, team = ((cast.bob, cast.astro), (cast.alice, cast.astro), (cast.charlie, cast.bio))[number % 3]
        job = scene.world.submit(
            who, team, gpus=1, name=f"various-{number}", labels={"exp": f"e{number % 2}", "gpu-test": ""}
        )
        state = ("queued", "cancelled", "failed", "suspended")[number % 4]
        Job.objects.filter(pk=job.pk).update(state=state, generation_ids=[cast.a100.pk] if number % 2 else [])
    return scene


QUERIES = (
    "?facets=1",
    "?facets=1&state=waiting",
    "?facets=1&owner=me&state=failed",
    "?facets=1&team=astro",
    "?facets=1&team=bio&owner=charlie",
    "?facets=1&generation=A100",
    "?facets=1&label=exp%3De1&state=running",
    "?facets=1&label=exp%3De1&label=gpu-test&sort=name",
    "?facets=1&q=various&page=2",
    "?facets=1&state=cancelled&team=nowhere",
)


def test_each_count_is_what_its_link_lists(various: Scene, browser_of) -> None:
    checked = set()
    for who in (various.people.bob, various.people.olga, various.people.charlie):
        browser = browser_of(who)
        for query in QUERIES:
            html = page(browser, query)
            for link, chosen, label, number, plus in COUNTS.findall(html):
                assert not plus
                assert "page=" not in link
                assert "facets=1" in link
                listed = counted(browser, query if chosen else unescape(link))
                assert listed == int(number), (who, query, label)
                checked.add((who.username, bool(chosen), label))
            if who == various.people.charlie:
                main = html.split("<main")[1].split("</main")[0]
                assert secrets_in(re.sub("(team=|Team: )astro", "", main)) == []  # what Charlie has typed
    assert {("bob", False, "Holding GPUs"), ("bob", True, "A100"), ("olga", True, "Bio")} <= checked
    assert {("charlie", False, "exp=e0"), ("olga", False, "bob"), ("bob", True, "gpu-test")} <= checked


def test_of_too_many_jobs_the_newest_are_counted(
    various: Scene, browser_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob, query = browser_of(various.people.bob), "?facets=1&q=various"
    monkeypatch.setattr(facets, "MOST_COUNTED", 9)  # Bob sees eight jobs
    exact = page(bob, query)
    assert "Of the newest" not in exact
    monkeypatch.setattr(facets, "MOST_COUNTED", 6)
    capped = page(bob, query)
    assert capped.count("Of the newest 6") == 5
    found = {label: (int(number), plus) for _, _, label, number, plus in COUNTS.findall(capped)}
    assert found["exp=e1"] == (3, "+")
    assert all(
        found[label][0] <= int(number) for _, _, label, number, _ in COUNTS.findall(exact) if label in found
    )
    # Four jobs have this label: its own facet and others are exact.
    assert "Of the newest" not in page(bob, f"{query}&label=exp%3De1")


def test_chips_say_what_narrows_the_list_and_remove_it(various: Scene, browser_of) -> None:
    bob = browser_of(various.people.bob)
    query = (
        "?q=various&state=active&owner=alice&label=exp%3De1&label=gpu-test&preemptible=true&sort=name&page=3"
    )
    chips = {label: unescape(link) for link, label in CHIPS.findall(page(bob, query))}
    assert list(chips) == [
        "Search: various",
        "State: Not ended",
        "Owner: alice",
        "Label: exp=e1",
        "Label: gpu-test",
        "Sharing: Preemptible",
    ]
    assert chips["Label: exp=e1"] == (
        "?q=various&state=active&owner=alice&label=gpu-test&preemptible=true&sort=name"
    )
    link = query
    for label in chips:
        link = {one: unescape(address) for address, one in CHIPS.findall(page(bob, link))}[label]
    assert CHIPS.findall(page(bob, link)) == []
    assert link == "?sort=name"


def test_the_list_is_not_counted_unless_asked_and_refreshes_without_counts(
    various: Scene, browser_of
) -> None:
    bob = browser_of(various.people.bob)
    assert '<section class="card facets"' not in page(bob, "")
    headers = {"HX-Request": "true", "HX-Target": "section#jobs-table"}
    queries = []
    for query in ("?sort=name", "?sort=name&facets=1"):
        bob.get(reverse("jobs") + query, headers=headers)
        with CaptureQueriesContext(connection) as asked:
            bob.get(reverse("jobs") + query, headers=headers)
        queries.append(len(asked))
    assert queries[0] == queries[1]


def test_the_jobs_of_one_owner_and_of_all_labels_are_listed(various: Scene, browser_of) -> None:
    bob = browser_of(various.people.bob)
    names = [job.name for job in bob.get(reverse("jobs") + "?owner=alice&label=exp=e1").context["page"]]
    assert names == ["various-7", "various-1"]
    assert counted(bob, "?label=exp=e1&label=exp=e0") == 0
    assert counted(bob, "?owner=charlie") == 0
