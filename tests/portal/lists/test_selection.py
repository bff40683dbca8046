"""Users select several sweeps or schedules in a list, see what happens to them, and confirm it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from accounting.core.errors import Refused
from accounting.models import Membership
from scheduling.models import Schedule, Sweep
from scheduling.sweeps.actions import cancel_sweep
from tests.make import membership, user
from tests.portal.scene import Scene
from tests.scheduling import scheduled, swept


def text_of(response: Any) -> str:
    return re.sub(r"\s+", " ", response.content.decode())


@pytest.fixture
def bob(scene: Scene, browser_of) -> Client:
    return browser_of(scene.people.bob)


def test_selected_sweeps_are_cancelled_after_a_page_that_says_which(scene: Scene, bob: Client) -> None:
    first, over, other = (
        swept.make(scene.world, spec=swept.spec(name=name)) for name in ("one", "over", "rest")
    )
    cancel_sweep(actor=scene.people.bob, sweep=over)
    listed = text_of(bob.get("/sweeps/?q=o"))
    assert f'name="chosen" value="{first.pk}" form="selection" aria-label="Select one"' in listed
    asked = {"do": "cancel", "chosen": [first.pk, over.pk, 10**9, "x"], "back": "q=o&sort=name"}
    shown = text_of(bob.post("/sweeps/selected/", asked))
    assert "1 of 2 selected sweeps will be cancelled." in shown
    assert "skipped: has already ended" in shown
    assert Sweep.objects.get(pk=first.pk).state == "running", "nothing happens before it is confirmed"
    done = bob.post("/sweeps/selected/", asked | {"confirmed": "yes"}, follow=True)
    assert done.redirect_chain == [("/sweeps/?q=o&sort=name", 302)]
    assert "1 sweep cancelled." in text_of(done)
    states = dict(Sweep.objects.filter(pk__in=[first.pk, other.pk]).values_list("pk", "state"))
    assert states == {first.pk: "cancelled", other.pk: "running"}


def test_selected_schedules_are_paused_and_resumed(scene: Scene, bob: Client) -> None:
    one, two = (scheduled.make(scene.world, spec=scheduled.spec(name=name)) for name in ("first", "second"))
    chosen = {"chosen": [one.pk, two.pk], "confirmed": "yes"}
    assert "2 schedules paused." in text_of(
        bob.post("/schedules/selected/", chosen | {"do": "pause"}, follow=True)
    )
    assert Schedule.objects.filter(pk__in=[one.pk, two.pk], paused_at=None).count() == 0
    again = text_of(bob.post("/schedules/selected/", {"chosen": [one.pk], "do": "pause"}))
    assert "skipped: is paused already" in again
    assert " disabled>Pause</button>" in again
    assert "2 schedules resumed." in text_of(
        bob.post("/schedules/selected/", chosen | {"do": "resume"}, follow=True)
    )
    assert Schedule.objects.filter(pk__in=[one.pk, two.pk], paused_at=None).count() == 2


def test_what_a_user_may_not_change_is_skipped_and_what_he_may_not_see_is_not_there(
    scene: Scene, browser_of
) -> None:
    sweep = swept.make(scene.world, spec=swept.spec(name="supernova-tune"))
    viewer = user("vera")
    membership(viewer, scene.people.astro, role=Membership.Role.VIEWER)
    asked = {"do": "cancel", "chosen": [sweep.pk], "confirmed": "yes"}
    browser = browser_of(viewer)
    assert "skipped: you may not change this sweep" in text_of(
        browser.post("/sweeps/selected/", {"do": "cancel", "chosen": [sweep.pk]})
    )
    for one in (browser, browser_of(scene.people.charlie)):
        one.post("/sweeps/selected/", asked)
        sweep.refresh_from_db()
        assert sweep.state == "running"
    hidden = text_of(browser_of(scene.people.charlie).post("/sweeps/selected/", asked, follow=True))
    assert "Select one or more sweeps first." in hidden
    assert "supernova" not in hidden
    assert "Select one or more" in text_of(
        browser.post("/sweeps/selected/", asked | {"do": "explode"}, follow=True)
    )


def test_an_action_that_is_refused_after_all_is_told(
    scene: Scene, bob: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [scheduled.make(scene.world, spec=scheduled.spec(name=f"s{number}")) for number in range(7)]

    def refuse(*args: object, **kwargs: object) -> None:
        raise Refused("The clock has stopped.")

    monkeypatch.setattr("portal.schedules.listing.pause_schedule", refuse)
    asked = {"do": "pause", "chosen": [one.pk for one in made], "confirmed": "yes"}
    said = text_of(bob.post("/schedules/selected/", asked, follow=True))
    assert said.count("The clock has stopped.") == 5
    assert "2 more schedules could not be changed." in said
