"""The bell, the list behind it, and the settings of notifications."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounting import tasks
from accounting.models import Notification, NotificationChannel, NotificationRule, User
from accounting.models.notifications import EventKind
from accounting.notifications import safe_http
from accounting.notifications.events import announce
from portal.live.topics import may_hear
from portal.tokens.actions import create_token
from tests.portal.scene import Scene, secrets_in

Browser = Callable[[User], Client]


@pytest.fixture
def bob(scene: Scene, browser_of: Browser) -> Client:
    """Returns Bob's browser, after one of his jobs has failed."""
    people = scene.people
    announce(
        EventKind.JOB_FAILED,
        "one",
        tenant=people.astro,
        concerns=[people.bob.pk],
        job_id=scene.job.pk,
        title="supernova failed",
        text="exit code 3",
        path=f"/jobs/{scene.job.pk}/",
    )
    tasks.notify()
    return browser_of(people.bob)


def text(client: Client, name: str, **query: object) -> str:
    return client.get(reverse(name), query).content.decode()


def test_the_bell_counts_and_opening_an_event_reads_it(bob: Client, scene: Scene) -> None:
    assert "1 unread notification" in text(bob, "notification_bell")
    assert "Notifications, 1 unread" in text(bob, "home")
    assert "supernova failed" in text(bob, "notifications")
    one = Notification.objects.get(user__username="bob")
    answer = bob.post(reverse("notification_open", args=[one.pk]))
    assert answer["Location"] == f"/jobs/{scene.job.pk}/"
    assert "unread notification" not in text(bob, "notification_bell")
    assert "supernova failed" not in text(bob, "notifications", show="unread")
    bob.post(reverse("notifications_mark"), {"id": one.pk, "read": "no", "back": "https://evil.example/"})
    assert User.objects.get(username="bob").unread == 1
    bob.post(reverse("notifications_mark"), {"all": "1"})
    assert User.objects.get(username="bob").unread == 0


def test_nobody_opens_or_hears_another_users_notifications(
    bob: Client, scene: Scene, browser_of: Browser
) -> None:
    charlie, one = browser_of(scene.people.charlie), Notification.objects.get(user__username="bob")
    assert charlie.post(reverse("notification_open", args=[one.pk])).status_code == 404
    charlie.post(reverse("notifications_mark"), {"id": one.pk})
    assert Notification.objects.unread().filter(user__username="bob").count() == 1
    assert secrets_in(text(charlie, "notifications")) == []
    assert may_hear(scene.people.bob, [f"bell:{scene.people.bob.pk}"])
    for user in (scene.people.charlie, scene.people.olga, scene.people.ada):
        assert not may_hear(user, [f"bell:{scene.people.bob.pk}"])
        assert not may_hear(user, ["bell:*"])


def test_a_rule_is_set_changed_and_removed(bob: Client, scene: Scene) -> None:
    page = reverse("notification_settings")
    rule = {
        "about": "team:astro",
        "kinds": ["job.failed"],
        "place": "bell",
        "rhythm": "at_once",
        "wait_minutes": "60",
    }
    assert bob.post(page, rule).status_code == 302
    made = NotificationRule.objects.get()
    assert (made.tenant, made.kinds, made.user) == (scene.people.astro, ["job.failed"], scene.people.bob)
    shown = bob.get(page, {"rule": made.pk}).content.decode()
    assert 'value="team:astro" selected' in shown
    bob.post(page, rule | {"kinds": ["job.ended", "job.failed"]})
    assert NotificationRule.objects.get().kinds == ["job.ended", "job.failed"]
    bob.post(reverse("notification_rule_remove", args=[made.pk]))
    assert not NotificationRule.objects.exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"about": "team:bio"},
        {"about": "job:999999"},
        {"place": "channel:1"},
        {"place": "mail"},
        {"place": "nowhere"},
        {"kinds": ["nothing"]},
        {"rhythm": "hourly"},
        {"wait_minutes": "7"},
    ],
)
def test_a_wrong_rule_is_refused_beside_its_field(bob: Client, wrong: dict[str, object]) -> None:
    rule = {
        "about": "me",
        "kinds": ["job.failed"],
        "place": "bell",
        "rhythm": "at_once",
        "wait_minutes": "60",
    }
    answer = bob.post(reverse("notification_settings"), rule | wrong)
    assert (answer.status_code, NotificationRule.objects.exists()) == (422, False)
    assert 'class="field-error"' in answer.content.decode()


def test_a_channel_is_created_tested_and_shown_without_its_address(
    scene: Scene, browser_of: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, answers = browser_of(scene.people.alice), ["The server answered with HTTP status 404.", ""]

    def post(*_: object) -> None:
        if error := answers.pop(0):
            raise safe_http.NotReachable(error)

    monkeypatch.setattr(safe_http, "post", post)
    channel = {
        "kind": "slack",
        "name": "alerts",
        "url": "https://hooks.example.org/T0/HIDDEN",
        "team": "astro",
    }
    refused = alice.post(reverse("notification_channel_save"), channel | {"url": "http://10.0.0.1/HIDDEN"})
    assert (refused.status_code, "HIDDEN" in refused.content.decode()) == (422, False)
    alice.post(reverse("notification_channel_save"), channel)
    made = NotificationChannel.objects.get()
    test = reverse("notification_channel_test", args=[made.pk])
    assert "HTTP status 404" in alice.post(test, follow=True).content.decode()
    assert "took the test" in alice.post(test, follow=True).content.decode()
    page = alice.get(reverse("notification_settings"), {"channel": made.pk}).content.decode()
    assert ("hooks.example.org" in page, "HIDDEN" in page) == (True, False)
    alice.post(reverse("notification_channel_save"), {"key": made.pk, "name": "failures", "url": ""})
    made.refresh_from_db()
    assert (made.name, made.host) == ("failures", "hooks.example.org")
    for other in (scene.people.bob, scene.people.charlie):
        browser = browser_of(other)
        assert browser.post(test).status_code == 404
        assert (
            browser.post(reverse("notification_channel_save"), {"key": made.pk, "name": "x"}).status_code
            == 404
        )
        assert "failures" not in text(browser, "notification_settings")


def test_a_token_that_only_reads_does_not_get_the_key_that_signs_calls(scene: Scene) -> None:
    alice = scene.people.alice
    secrets = {
        name: create_token(actor=alice, name="m", scopes=of, days=1)[1]
        for name, of in {"reads": [], "works": ["work"]}.items()
    }

    def call(method: str, secret: str, path: str, **more: str) -> Any:
        extra = {"data": more, "content_type": "application/json"} if more else {}
        headers = {"authorization": f"Bearer {secrets[secret]}"}
        return getattr(Client(), method)(
            f"/api/v1/notification-channels{path}", **extra, headers=headers
        ).json()

    made = call("post", "works", "", kind="webhook", name="hook", url="https://hooks.example.org/x")
    assert made["signing_key"]
    assert [one["signing_key"] for one in call("get", "reads", "")] == [None]
    assert call("put", "works", f"/{made['id']}", name="hook")["signing_key"] == made["signing_key"]


def test_a_job_is_followed_and_left_by_one_button(scene: Scene, browser_of: Browser) -> None:
    alice, follow = browser_of(scene.people.alice), reverse("job_follow", args=[scene.job.pk])
    assert browser_of(scene.people.charlie).post(follow).status_code == 404
    alice.post(follow)
    assert NotificationRule.objects.get().job_id == scene.job.pk
    assert "Do not notify me" in alice.get(reverse("job", args=[scene.job.pk])).content.decode()
    alice.post(follow)
    assert not NotificationRule.objects.exists()


class TestApi:
    def test_notifications_are_paged_and_marked(self, bob: Client, scene: Scene) -> None:
        people = scene.people
        for key in ("two", "three"):
            announce(
                EventKind.JOB_ENDED,
                key,
                tenant=people.astro,
                concerns=[people.bob.pk],
                title=key,
                path="/jobs/",
            )
        tasks.notify()
        url = reverse("api-1:notifications")
        first = bob.get(url, {"limit": 2}).json()
        assert ([one["title"] for one in first["notifications"]], first["unread"]) == (["three", "two"], 3)
        second = bob.get(url, {"limit": 2, "before": first["next"]}).json()
        assert ([one["title"] for one in second["notifications"]], second["next"]) == (
            ["supernova failed"],
            None,
        )
        read = {"ids": [one["id"] for one in second["notifications"]]}
        answer = bob.post(reverse("api-1:notifications_read"), read, content_type="application/json")
        assert answer.json() == {"changed": 1}
        assert bob.get(url, {"unread": "true"}).json()["unread"] == 2

    def test_rules_and_channels(
        self, scene: Scene, browser_of: Browser, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(safe_http, "post", lambda *_: None)
        alice, charlie = browser_of(scene.people.alice), browser_of(scene.people.charlie)
        new = {"kind": "slack", "name": "alerts", "url": "https://hooks.example.org/HIDDEN", "team": "astro"}
        channels, rules = reverse("api-1:notification_channels"), reverse("api-1:notification_rules")
        json = {"content_type": "application/json"}
        assert charlie.post(channels, new, **json).status_code == 404
        made = alice.post(channels, new, **json)
        assert (made.status_code, "HIDDEN" in made.content.decode(), made.json()["state"]) == (
            201,
            False,
            "new",
        )
        key = made.json()["id"]
        test = reverse("api-1:notification_channel_test", args=[key])
        assert charlie.post(test).status_code == 404
        assert alice.post(test).json() == {"works": True, "error": ""}
        rule = {"about": "team", "team": "astro", "events": ["job.failed"], "way": "channel", "channel": key}
        assert charlie.put(rules, rule, **json).status_code == 404
        put = alice.put(rules, rule, **json).json()
        assert (put["is_of_team"], put["events"]) == (True, ["job.failed"])
        of_job = {"about": "job", "job": scene.job.pk, "events": ["job.failed"]}
        assert charlie.put(rules, of_job, **json).status_code == 404
        wrong = alice.put(rules, of_job | {"events": ["budget.warning"]}, **json)
        assert (wrong.status_code, "events" in str(wrong.json()["problems"])) == (409, True)
        assert charlie.delete(reverse("api-1:notification_rule", args=[put["id"]])).status_code == 404
        _, secret = create_token(actor=scene.people.alice, name="ci", scopes=["work"], days=1)
        worker = Client(headers={"authorization": f"Bearer {secret}"})
        for answer in (
            worker.post(channels, new | {"name": "more"}, **json),
            worker.post(test),
            worker.put(rules, rule, **json),
            worker.delete(reverse("api-1:notification_channel", args=[key])),
            worker.delete(reverse("api-1:notification_rule", args=[put["id"]])),
        ):
            assert (answer.status_code, "needs the scope “team”" in answer.json()["detail"]) == (403, True)
        assert worker.post(channels, new | {"team": "", "name": "own"}, **json).status_code == 201
        assert alice.delete(reverse("api-1:notification_channel", args=[key])).status_code == 204
        assert alice.get(rules).json() == []
        assert [channel["name"] for channel in alice.get(channels).json()] == ["own"]
