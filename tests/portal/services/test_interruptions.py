"""Users who may see a service or session see when it may be interrupted and why it was, on pages and in the API."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from accounting.core.clock import now_from_database
from accounting.models import User
from portal.tokens.actions import create_token
from scheduling.backends.base import End, Phase
from scheduling.models import Job, JobForecast, Lease
from tests.scheduling.rounds.test_notices import sessions, wait
from tests.scheduling.services.test_services import come_up, living, service_of
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db

Browser = Callable[[User], Client]


@pytest.fixture
def lab() -> World:
    return world(v100=4)


def words(response: object) -> str:
    html = re.sub(r"<[^>]+>", " ", response.content.decode())  # type: ignore[attr-defined]
    return re.sub(r"\s+", " ", html)


def api_of(user: User) -> Client:
    _, secret = create_token(actor=user, name="test", scopes=(), days=1)
    return Client(headers={"authorization": f"Bearer {secret}"})


def claimed(lab: World) -> list[Job]:
    """Returns Bob's three running sessions on a cluster of four GPUs, after Charlie has submitted two jobs.

    Each job needs one GPU, but only one GPU is free. So one of the sessions must give up its GPU.
    """
    mine = sessions(lab, 3)
    for job in mine:
        lab.see(lab.lease(job), Phase.RUNNING, address="127.0.0.1:9", ready_age=0.0)
    for _ in range(2):
        lab.submit(lab.people.charlie, lab.people.bio, name="secret-of-bio")
    lab.fill()
    lab.carry_out()
    return mine


def test_a_session_on_notice_says_when_it_may_go_and_afterwards_why_it_went(
    lab: World, browser_of: Browser
) -> None:
    people = lab.people
    kept, _, last = claimed(lab)
    page = reverse("session", args=[last.pk])
    said = "The session runs on GPUs beyond the guarantee. From"
    for person in (people.alice, people.bob):
        assert said in words(browser_of(person).get(page))
    assert said not in words(browser_of(people.bob).get(reverse("session", args=[kept.pk])))
    assert browser_of(people.charlie).get(page).status_code == 404
    assert words(browser_of(people.alice).get(reverse("sessions"))).count("Not guaranteed") == 1
    before = api_of(people.bob).get(f"/api/v1/sessions/{last.pk}").json()
    assert before["claimable_from"] is not None
    assert before["interruptions"] == []
    wait(lab, timedelta(seconds=60))
    lab.fill()
    lab.carry_out()
    JobForecast.objects.create(
        job=last, at=now_from_database(), starts_by=now_from_database() + timedelta(minutes=4),
        earliest=now_from_database(),
    )  # fmt: skip
    text = words(browser_of(people.bob).get(page))
    assert "The session is ready." not in text
    assert "1 interruption in the last 7 days" in text
    assert "bob has 3 GPUs, of which 2 are guaranteed; waiting jobs get 1" in text
    assert "still interrupted" in text
    assert "Expected latest start:" in text
    assert not re.search("bio|charlie|secret-of-bio", text, re.IGNORECASE)
    after = api_of(people.bob).get(f"/api/v1/sessions/{last.pk}").json()
    assert after["claimable_from"] is None
    assert after["expected_back_at"] is not None
    [one] = after["interruptions"]
    assert (one["cause"], one["ended_at"], one["name"]) == ("claimed", None, "notes-2")


def test_a_service_is_never_up_while_no_replica_answers_and_lists_what_interrupted_it(
    lab: World, browser_of: Browser
) -> None:
    people = lab.people
    service = service_of(lab, 1)
    come_up(lab, service)
    page = reverse("service", args=[service.pk])
    browser = browser_of(people.alice)
    assert "Up " in words(browser.get(page))
    [job] = living(service)
    lab.see(
        lab.lease(job),
        Phase.RUNNING,
        address="127.0.0.1:1",
        why_not_ready="the answer to GET / has HTTP status 503",
    )
    text = words(browser.get(page))
    assert "Down" in text
    assert "Not ready" in text
    assert "Running" not in text
    assert "Not ready" in words(browser.get(reverse("job", args=[job.pk])))
    lab.see(lab.lease(job), Phase.ENDED, end=End.LOST, ended_age=0.0, message="The node does not answer.")
    text = words(browser.get(page))
    assert "Down" in text
    assert "node or processes lost" in text
    assert "still interrupted" in text
    come_up(lab, service)
    text = words(browser.get(page))
    assert "Up " in text
    assert "still interrupted" not in text
    assert browser_of(people.charlie).get(page).status_code == 404
    found = api_of(people.bob).get(f"/api/v1/services/{service.pk}").json()
    assert [(one["cause"], one["ended_at"] is None) for one in found["interruptions"]] == [("lost", False)]
    assert found["expected_back_at"] is None
    assert api_of(people.charlie).get(f"/api/v1/services/{service.pk}").status_code == 404


def test_a_service_says_how_many_of_its_replicas_may_go(lab: World, browser_of: Browser) -> None:
    people = lab.people
    service = service_of(lab, 3)
    come_up(lab, service)
    for _ in range(2):
        lab.submit(people.charlie, people.bio)
    lab.fill()
    assert Lease.objects.on_notice().count() == 1
    text = words(browser_of(people.bob).get(reverse("service", args=[service.pk])))
    assert "1 replica runs on GPUs beyond the guarantee" in text
    assert text.count("Not guaranteed") == 1
    found = api_of(people.bob).get(f"/api/v1/services/{service.pk}").json()
    assert [one["claimable_from"] is not None for one in found["members"]] == [False, False, True]
    assert service.events.filter(kind="warned_of_claims").count() == 1
