"""The lists of sweeps, pipelines, services, schedules and sessions: columns, order, filters, counts, saved views, and
the order of the API."""

from __future__ import annotations

import re
from html import unescape
from itertools import chain
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounting.core.clock import now_from_database
from portal.lists.work import WorkList, with_state
from portal.pipelines.listing import PIPELINES
from portal.schedules.listing import SCHEDULES
from portal.services.detail import status_of
from portal.services.listing import SERVICES
from portal.services.listing import STATES as SERVICE_STATES
from portal.sessions.listing import SESSIONS
from portal.sweeps.listing import SWEEPS
from scheduling.models import Job, Schedule, Service, Sweep
from scheduling.pipelines.actions import create_pipeline
from scheduling.schedules.actions import Terms, create_schedule
from scheduling.services.actions import create_service
from scheduling.sessions.actions import start_session
from scheduling.spec.job_spec import JobSpec
from scheduling.sweeps.actions import Rules, create_sweep
from scheduling.sweeps.parameters import Parameters
from tests.portal.scene import Scene, secrets_in
from tests.scheduling.piped import defined

LISTS: tuple[WorkList[Any], ...] = (SWEEPS, PIPELINES, SERVICES, SCHEDULES, SESSIONS)
HEAD = re.compile(r'<th scope="col"[^>]*>(?:<a class="sort"[^>]*>)?([^<]*)<')
VALUES = re.compile(
    r'<a href="(\?[^"]*)"( aria-current="true")?>(?:<svg.*?</svg>)?([^<]*?) <span class="muted">(\d+)</span>'
)
API = "/api/v1"
by_list = pytest.mark.parametrize("work", LISTS, ids=lambda work: work.name)


@pytest.fixture
def various(scene: Scene) -> Scene:
    """Three objects of each kind of Astro, of two owners, and one of Bio."""
    people, cluster = scene.people, scene.world.cluster
    astro = [(people.bob, people.astro), (people.alice, people.astro), (people.bob, people.astro)]
    for number, (who, team) in enumerate([*astro, (people.charlie, people.bio)]):
        place: dict[str, Any] = {"actor": who, "tenant": team, "cluster": cluster}
        name = f"{('b', 'A', 'c', 'bio')[number]}-thing"
        spec, server = JobSpec(name=name, command="true"), JobSpec(name=name, command="serve", port=8000)
        create_sweep(**place, spec=spec, parameters=Parameters("array", count=number + 1), rules=Rules())
        create_service(**place, spec=JobSpec(name=name.lower(), command="go", port=8000), replicas=number)
        create_schedule(**place, spec=spec, terms=Terms(f"{number} 3 * * *", "UTC"))
        create_pipeline(**place, definition=defined(name=name))
        start_session(**place, spec=server)
    Sweep.objects.filter(name="c-thing").update(state="cancelled")
    Schedule.objects.filter(name="c-thing").update(paused_at=now_from_database())
    Job.objects.filter(name="c-thing").update(state="cancelled", ended_at=now_from_database())
    return scene


def listed(browser: Client, work: WorkList[Any], query: str = "") -> list[str]:
    """Returns the names in the list, in its order."""
    answer = browser.get(reverse(work.name) + query)
    assert answer.status_code == 200
    return re.findall(r'<th scope="row" class="break"><a [^>]*>([^<]*)</a>', answer.content.decode())


@by_list
def test_each_count_is_what_its_link_lists(various: Scene, browser_of, work: WorkList[Any]) -> None:
    for who in (various.people.bob, various.people.ada):
        browser, checked = browser_of(who), 0
        for query in (
            "?facets=1",
            "?facets=1&owner=me",
            "?facets=1&team=astro&q=thing",
            "?facets=1&state=nothing",
        ):
            html = browser.get(reverse(work.name) + query).content.decode()
            for link, is_chosen, _, number in VALUES.findall(html):
                if not is_chosen:  # the link of a chosen value removes it
                    checked += 1
                    assert len(listed(browser, work, unescape(link))) == int(number), link
        assert checked > 6
    assert not secrets_in("".join(listed(browser_of(various.people.charlie), work)))


@by_list
def test_the_list_is_narrowed_by_name_state_team_and_owner(
    various: Scene, browser_of, work: WorkList[Any]
) -> None:
    bob, ada = browser_of(various.people.bob), browser_of(various.people.ada)
    assert {one.lower() for one in listed(bob, work, "?q=THING")} == {"b-thing", "a-thing", "c-thing"}
    assert {one.lower() for one in listed(bob, work, "?q=thing&owner=me")} == {"b-thing", "c-thing"}
    assert [one.lower() for one in listed(ada, work, "?q=thing&owner=alice")] == ["a-thing"]
    assert listed(ada, work, "?q=thing&team=bio") == ["bio-thing"]
    assert listed(bob, work, "?q=thing&team=bio") == []
    by_state = [listed(ada, work, f"?state={state}") for state in work.states]
    assert sorted(chain.from_iterable(by_state)) == sorted(listed(ada, work))
    html = bob.get(f"{reverse(work.name)}?state=bogus&sort=bogus&columns=bogus").content.decode()
    assert [what for what in ("state", "order", "column") if f"There is no {what} “bogus”" in html] == [
        "state", "order", "column",
    ]  # fmt: skip


@by_list
def test_columns_are_chosen_and_each_sorts_the_page_and_the_api_in_the_same_order(
    various: Scene, browser_of, work: WorkList[Any]
) -> None:
    bob = browser_of(various.people.bob)
    back = bob.post(reverse(f"{work.name}_columns"), {"column": [*work.columns.known], "back": ""})
    assert HEAD.findall(bob.get(back["Location"]).content.decode()) == [
        column.label for column in work.columns.known.values()
    ]
    for key in work.columns.sortable:
        for sort in (key, f"-{key}"):
            names, found, before = listed(bob, work, f"?sort={sort}"), [], ""
            while True:  # pages of two put together are the whole order
                page = bob.get(f"{API}/{work.name}?sort={sort}&limit=2{before}").json()
                found += [one["name"] for one in page["items"]]
                if page["next"] is None:
                    break
                before = f"&before={page['next']}"
            assert found == names, sort
            assert len(found) >= 3
    wrong = bob.get(f"{API}/{work.name}?sort=bogus")
    assert wrong.status_code == 422
    assert work.columns.sortable[-1] in wrong.content.decode()


@by_list
def test_a_saved_view_opens_the_list_and_narrows_the_api(
    various: Scene, browser_of, work: WorkList[Any]
) -> None:
    bob = browser_of(various.people.bob)
    saved = bob.post(
        f"{reverse(f'{work.name}_views')}?owner=me&sort=-name&page=3",
        {"name": "mine", "team": "", "is_default": "on"},
    )
    names = listed(bob, work, "?owner=me&sort=-name")
    assert listed(bob, work, saved["Location"].partition("/")[2].partition("/")[2]) == names
    assert bob.get(reverse(work.name))["Location"] == saved["Location"]
    page = bob.get(f"{API}/{work.name}?view=mine").json()
    assert [one["name"] for one in page["items"]] == names
    assert bob.get(f"{API}/{work.name}?view=nothing").status_code == 422
    [view] = bob.get(f"{API}/views?list={work.name}").json()
    assert (view["name"], view["query"]) == ("mine", "owner=me&sort=-name")
    assert bob.get(f"{API}/views").json() == []


@by_list
def test_a_page_of_a_view_follows_an_object_that_has_left_the_view(
    various: Scene, browser_of, work: WorkList[Any]
) -> None:
    ada = browser_of(various.people.ada)
    ada.post(f"{reverse(f'{work.name}_views')}?q=thing&sort=latest", {"name": "things", "team": ""})
    everything = [one["name"] for one in ada.get(f"{API}/{work.name}?view=things").json()["items"]]
    first = ada.get(f"{API}/{work.name}?view=things&limit=1").json()
    shown = work.seen(various.people.ada).get(pk=first["next"])
    renamed = shown.job if work.prefix else shown
    type(renamed).objects.filter(pk=renamed.pk).update(name="other")
    rest = ada.get(f"{API}/{work.name}?view=things&before={first['next']}").json()
    assert [one["name"] for one in rest["items"]] == everything[1:]
    assert len(everything) > 1


@by_list
def test_a_longer_list_takes_no_more_queries(various: Scene, browser_of, work: WorkList[Any]) -> None:
    browser, counts = browser_of(various.people.ada), []
    for query in ("?q=bio-thing&facets=1", "?q=thing&facets=1"):
        browser.get(reverse(work.name) + query)
        with CaptureQueriesContext(connection) as asked:
            assert listed(browser, work, query)
        counts.append(len(asked))
    assert counts[0] == counts[1]


def test_the_state_of_a_service_in_the_list_is_that_of_its_chip(various: Scene) -> None:
    reader = various.people.ada
    bob, alice, carol = Service.objects.filter(name__in=["a-thing", "b-thing", "c-thing"]).order_by("name")
    revision = bob.current
    for changes in (
        {"stopped_at": now_from_database()}, {"stopped_at": None, "trouble": "no room"},
        {"trouble": "", "good": revision}, {"replicas": 0}, {"replicas": 2},
    ):  # fmt: skip
        Service.objects.filter(pk=bob.pk).update(**changes)
        for one in with_state(SERVICES.seen(reader), SERVICES):
            assert SERVICE_STATES[one.listed_state] == status_of(one).text  # type: ignore[attr-defined]
    assert alice.pk != carol.pk
    found = {one.listed_state for one in with_state(SERVICES.seen(reader), SERVICES)}  # type: ignore[attr-defined]
    assert {"down", "rolling"} <= found
