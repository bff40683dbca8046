"""Commands for notifications, against the portal."""

from __future__ import annotations

import pytest

from accounting import tasks
from accounting.models import Notification, NotificationChannel, NotificationRule
from accounting.models.notifications import EventKind
from accounting.notifications import safe_http
from accounting.notifications.events import announce
from tests.portal.scene import Scene


def test_notices_are_listed_and_read(scene: Scene, fairlot) -> None:
    people = scene.people
    announce(
        EventKind.JOB_FAILED,
        "one",
        tenant=people.astro,
        concerns=[people.bob.pk],
        title="It failed",
        path="/jobs/",
    )
    tasks.notify()
    done = fairlot(people.bob, "notices", "--unread", "--read")
    assert (done.exit_code, "It failed" in done.stdout) == (0, True)
    assert Notification.objects.get(user=people.bob).read_at is not None
    assert "It failed" not in fairlot(people.bob, "notices", "--unread").stdout
    assert "It failed" not in fairlot(people.charlie, "notices").stdout


def test_rules_and_channels_are_managed(scene: Scene, fairlot, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [safe_http.NotReachable("The server answered with HTTP status 404."), None]

    def post(*_: object) -> None:
        if error := answers.pop(0):
            raise error

    monkeypatch.setattr(safe_http, "post", post)
    alice, url = scene.people.alice, "https://hooks.example.org/HIDDEN"
    made = fairlot(
        alice, "notify", "channel", "create", "slack", "alerts", "-t", "astro", "-o", "name", input=f"{url}\n"
    )
    key = NotificationChannel.objects.get().pk
    assert (made.exit_code, made.stdout, "HIDDEN" in made.output) == (0, f"{key}\n", False)
    refused = fairlot(alice, "notify", "channel", "test", key)
    assert (refused.exit_code, "HTTP status 404" in refused.stderr) == (1, True)
    assert fairlot(alice, "notify", "channel", "test", key).exit_code == 0
    assert "hooks.example.org" in fairlot(alice, "notify", "channel", "list").stdout
    words = [
        "notify",
        "set",
        "-t",
        "astro",
        "-e",
        "job.failed",
        "-e",
        "job.waiting",
        "--wait",
        240,
        "--channel",
        key,
    ]
    assert fairlot(alice, *words, "--daily").exit_code == 0
    rule = NotificationRule.objects.get()
    assert (rule.kinds, rule.wait_minutes, rule.rhythm, rule.user) == (
        ["job.failed", "job.waiting"], 240, "daily", None,
    )  # fmt: skip
    assert fairlot(alice, "notify", "follow", scene.job.pk).exit_code == 0
    assert "daily" in fairlot(alice, "notify", "list").stdout
    assert fairlot(scene.people.charlie, "notify", "follow", scene.job.pk).exit_code == 4
    assert fairlot(alice, "notify", "set").exit_code == 2
    assert fairlot(alice, "notify", "remove", rule.pk).exit_code == 0
    assert fairlot(alice, "notify", "channel", "remove", key).exit_code == 0
    assert NotificationRule.objects.get().job_id == scene.job.pk
