"""Events reach the users who want them, and nobody else, each once; whatever worker dies."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db.models import F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting import tasks
from accounting.actions import add_member, change_membership, remove_member, set_portal_role
from accounting.actions.notifications import (
    mark_read,
    remove_channel,
    remove_rule,
    save_channel,
    send_test,
    set_rule,
)
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import (
    AuditEvent,
    Mail,
    Notification,
    NotificationChannel,
    NotificationEvent,
    NotificationItem,
    NotificationRule,
    User,
    WebhookCall,
)
from accounting.models.notifications import Audience, EventKind
from accounting.notifications import routing, safe_http
from accounting.notifications.events import announce
from accounting.notifications.outbox import MOST_ATTEMPTS
from accounting.notifications.wishes import due_at
from tests import make
from tests.make import Cast
from tests.notified import mails

SECRET = "T0SECRET/B0SECRET"
URL = f"https://hooks.example.org/services/{SECRET}?key=PRIVATE"
Posted = list[tuple[str, dict[str, str], str]]


@pytest.fixture
def cast(db: None) -> Cast:
    return make.cast()


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> Posted:
    """Takes all calls in place of the network, and returns the list of (URL, headers, body)."""
    seen: Posted = []
    monkeypatch.setattr(
        safe_http, "post", lambda url, body, headers: seen.append((url, headers, body.decode()))
    )
    return seen


def happens(cast: Cast, key: str = "one", kind: str = EventKind.JOB_FAILED, **fields: object) -> None:
    usual = {
        "tenant": cast.astro,
        "concerns": [cast.bob.pk],
        "job_id": 7,
        "title": "It failed",
        "path": "/jobs/7/",
    }
    announce(kind, key, **usual | fields)


def bells(user: User) -> list[str]:
    """Returns the keys of the events behind the user's bell, oldest first."""
    found = Notification.objects.visible_to(User.objects.get(pk=user.pk))
    return list(found.order_by("pk").values_list("event__key", flat=True))


def slack(cast: Cast, **fields: object) -> NotificationChannel:
    usual = {"actor": cast.alice, "kind": "slack", "name": "alerts", "url": URL, "tenant": cast.astro}
    return save_channel(**usual | fields)


def posts_failures(cast: Cast, channel: NotificationChannel) -> NotificationRule:
    """Sets the rule that posts Astro's failed jobs to a channel."""
    kinds = [EventKind.JOB_FAILED]
    return set_rule(
        actor=cast.alice, about="team", tenant=cast.astro, kinds=kinds, way="channel", channel=channel
    )


def test_an_event_reaches_the_bell_of_those_it_concerns_once(cast: Cast) -> None:
    for _ in range(2):
        happens(cast)
        tasks.notify()
    assert [bells(user) for user in (cast.bob, cast.alice, cast.charlie)] == [["one"], [], []]
    assert User.objects.get(pk=cast.bob.pk).unread == 1


def test_nobody_is_informed_of_what_they_did_themselves(cast: Cast) -> None:
    happens(cast, kind=EventKind.JOB_ENDED, actor_name="bob", concerns=[cast.bob.pk, cast.alice.pk])
    tasks.notify()
    assert (bells(cast.bob), bells(cast.alice)) == ([], ["one"])


def test_a_member_of_another_team_gets_nothing_even_if_named(cast: Cast) -> None:
    happens(cast, concerns=[cast.charlie.pk])
    with pytest.raises(NotAllowed):
        set_rule(actor=cast.charlie, about="team", tenant=cast.astro, kinds=[EventKind.JOB_FAILED])
    NotificationRule.objects.create(
        user=cast.charlie, about="team", tenant=cast.astro, kinds=[EventKind.JOB_FAILED]
    )
    NotificationRule.objects.create(user=cast.charlie, about="job", job_id=7, kinds=[EventKind.JOB_FAILED])
    tasks.notify()
    assert not Notification.objects.filter(user=cast.charlie).exists()


def test_a_user_learns_of_each_change_of_the_membership_that_somebody_else_made(cast: Cast, settings) -> None:
    settings.EMAIL_HOST = "mail.example"
    new = make.user("nora")
    User.objects.filter(pk=new.pk).update(email="nora@example.org")
    for _ in range(2):
        membership = add_member(actor=cast.alice, tenant=cast.astro, user=new)
        for tickets, role in ((7, "member"), (7, "manager")):
            change_membership(actor=cast.alice, membership=membership, tickets=tickets, role=role)
        remove_member(actor=cast.alice, membership=membership)
    routing.route_events()
    assert [
        (one.event.title, one.event.text) for one in Notification.objects.filter(user=new).order_by("pk")
    ] == [
        ("You are now a member of Astro", "alice added you to the team."),
        ("You are now a manager of Astro", "alice changed your role, which was member."),
        ("You are no longer a member of Astro", "alice removed you from the team."),
    ] * 2
    assert not Notification.objects.exclude(user=new).exists()
    assert NotificationItem.objects.filter(user=new).count() == 6, "by mail too"
    own = add_member(actor=cast.ada, tenant=cast.astro, user=cast.ada)
    remove_member(actor=None, membership=own)
    routing.route_events()
    assert Notification.objects.get(user=cast.ada).event.text == "Fairlot removed you from the team."


def test_only_managers_and_operators_see_budgets_and_requests(cast: Cast) -> None:
    people = [cast.bob.pk, cast.alice.pk, cast.olga.pk, cast.charlie.pk]
    happens(cast, kind=EventKind.BUDGET, audience=Audience.MANAGERS, concerns=people)
    tasks.notify()
    assert [bells(user) for user in (cast.bob, cast.alice, cast.olga, cast.charlie)] == [
        [], ["one"], ["one"], [],
    ]  # fmt: skip


def test_who_leaves_the_team_keeps_nothing_and_gets_nothing_that_waits(cast: Cast, settings) -> None:
    settings.EMAIL_HOST = "mail.example.org"
    User.objects.filter(pk=cast.bob.pk).update(email="bob@example.org")
    cast.bob.refresh_from_db()
    set_rule(actor=cast.bob, kinds=[EventKind.JOB_FAILED], way="mail", rhythm="daily")
    happens(cast)
    tasks.notify()
    assert (bells(cast.bob), NotificationItem.objects.count()) == (["one"], 1)
    remove_member(actor=cast.alice, membership=cast.bob.memberships.get())
    happens(cast, "two")
    NotificationItem.objects.update(due_at=now_from_database())
    assert mails().count() == 0
    [left] = Notification.objects.all()
    assert (left.user, left.event.kind) == (cast.bob, EventKind.TEAM_MEMBER), "only that he was removed"
    assert User.objects.get(pk=cast.bob.pk).unread == 1


def test_a_manager_who_becomes_a_member_loses_what_only_managers_see(cast: Cast) -> None:
    happens(cast, kind=EventKind.BUDGET, audience=Audience.MANAGERS, concerns=[cast.alice.pk])
    happens(cast, "job", concerns=[cast.alice.pk])
    tasks.notify()
    change_membership(actor=cast.ada, membership=cast.alice.memberships.get(), role="member")
    assert (bells(cast.alice), User.objects.get(pk=cast.alice.pk).unread) == (["job"], 1)


def test_an_operator_who_becomes_a_user_keeps_nothing_of_other_teams(cast: Cast) -> None:
    happens(cast, concerns=[cast.olga.pk])
    tasks.notify()
    assert User.objects.get(pk=cast.olga.pk).unread == 1
    set_portal_role(actor=cast.ada, user=cast.olga, portal_role=User.PortalRole.USER)
    assert (bells(cast.olga), User.objects.get(pk=cast.olga.pk).unread) == ([], 0)


def test_rules_choose_events_of_a_team_of_a_job_and_after_which_wait(cast: Cast) -> None:
    dora = make.user("dora")
    make.membership(dora, cast.uni)  # a team above Astro
    set_rule(
        actor=dora,
        about="team",
        tenant=cast.uni,
        kinds=[EventKind.JOB_FAILED, EventKind.JOB_WAITING],
        wait_minutes=15,
    )
    set_rule(actor=cast.alice, about="job", job_id=8, kinds=[EventKind.JOB_ENDED])
    happens(cast, "failed")
    happens(cast, "ended", EventKind.JOB_ENDED, job_id=8)
    happens(cast, "15", EventKind.JOB_WAITING, waited_minutes=15)
    happens(cast, "60", EventKind.JOB_WAITING, waited_minutes=60)
    happens(cast, "part", is_part=True, concerns=[], job_id=8, kind=EventKind.JOB_ENDED)
    tasks.notify()
    assert (bells(dora), bells(cast.alice)) == (["failed", "15"], ["ended", "part"])
    assert bells(cast.bob) == ["failed", "ended", "60"], "the usual wait is an hour"


def test_an_empty_rule_switches_the_usual_notifications_off_until_it_is_removed(cast: Cast) -> None:
    rule = set_rule(actor=cast.bob, kinds=[])
    happens(cast)
    tasks.notify()
    assert bells(cast.bob) == []
    with pytest.raises(Refused):
        remove_rule(actor=cast.alice, rule=rule)
    remove_rule(actor=cast.bob, rule=rule)
    happens(cast, "two")
    tasks.notify()
    assert bells(cast.bob) == ["two"]


def test_mail_is_refused_without_a_server_or_an_address(cast: Cast, settings) -> None:
    with pytest.raises(Refused, match="no mail server"):
        set_rule(actor=cast.bob, kinds=[EventKind.JOB_FAILED], way="mail")
    settings.EMAIL_HOST = "mail.example.org"
    with pytest.raises(Refused, match="no e-mail address"):
        set_rule(actor=cast.bob, kinds=[EventKind.JOB_FAILED], way="mail")


@pytest.mark.parametrize(
    ("rhythm", "due"),
    [
        ("at_once", datetime(2026, 5, 1, 7, 30, 5, tzinfo=UTC)),
        ("hourly", datetime(2026, 5, 1, 8, tzinfo=UTC)),
        ("daily", datetime(2026, 5, 2, 6, tzinfo=UTC)),  # it is 9:30 in Berlin already
    ],
)
def test_a_digest_is_due_at_the_hour_or_at_eight_in_the_readers_zone(rhythm: str, due: datetime) -> None:
    now = datetime(2026, 5, 1, 7, 30, 5, tzinfo=UTC)
    assert due_at(rhythm, now, ZoneInfo("Europe/Berlin")) == due


def test_a_digest_is_one_mail_and_so_is_a_flood(cast: Cast, settings) -> None:
    settings.EMAIL_HOST = "mail.example.org"
    User.objects.filter(pk=cast.bob.pk).update(email="bob@example.org")
    cast.bob.refresh_from_db()
    rule = set_rule(actor=cast.bob, kinds=[EventKind.JOB_FAILED], way="mail", rhythm="hourly")
    for number in range(2):
        happens(cast, str(number), title=f"Job {number} failed")
    assert not mails().exists()
    NotificationItem.objects.update(due_at=now_from_database())
    assert mails().count() == 2, "few events are single mails"
    NotificationRule.objects.filter(pk=rule.pk).update(rhythm="at_once")
    for number in range(2, 32):
        happens(cast, str(number), title=f"Job {number} failed")
    flood = mails().latest("pk")
    assert (Mail.objects.count(), flood.subject) == (3, "[Fairlot] 30 notifications")
    assert ("Job 21 failed" in flood.text, "Job 22 failed" in flood.text) == (True, False)
    assert "And 10 more notifications" in flood.text


class TestChannels:
    def test_the_address_is_shown_and_recorded_nowhere(self, cast: Cast, posted: Posted) -> None:
        channel = slack(cast)
        assert (channel.host, b"SECRET" in bytes(channel.sealed)) == ("hooks.example.org", False)
        told = json.dumps(list(AuditEvent.objects.values_list("before", "after")))
        assert ("SECRET" in told, "PRIVATE" in told, "hooks.example.org" in told) == (False, False, True)
        assert send_test(actor=cast.alice, channel=channel) == ""
        assert posted[0][0] == URL

    def test_an_error_does_not_show_the_address(self, cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(url: str, *_: object) -> None:
            raise safe_http.NotReachable(f"max retries exceeded with url: {url.partition('example.org')[2]}")

        monkeypatch.setattr(safe_http, "post", fail)
        channel = slack(cast)
        error = send_test(actor=cast.alice, channel=channel)
        channel.refresh_from_db()
        assert error == channel.error
        assert ("SECRET" in error, "PRIVATE" in error, "max retries" in error) == (False, False, True)

    @pytest.mark.parametrize(
        "url", ["http://hooks.example.org/x", "https://10.0.0.1/x", "https://169.254.169.254/", "nonsense"]
    )
    def test_private_addresses_are_refused(self, cast: Cast, url: str) -> None:
        with pytest.raises(Refused) as refused:
            slack(cast, url=url)
        assert refused.value.field == "url"

    def test_only_managers_of_the_team_and_owners_change_them(self, cast: Cast, posted: Posted) -> None:
        of_team, own = slack(cast), slack(cast, actor=cast.bob, tenant=None)
        for actor, channel in (
            (cast.bob, of_team),
            (cast.charlie, of_team),
            (cast.alice, own),
            (cast.ada, own),
        ):
            for act in (
                lambda actor=actor, channel=channel: save_channel(actor=actor, channel=channel, name="x"),
                lambda actor=actor, channel=channel: remove_channel(actor=actor, channel=channel),
                lambda actor=actor, channel=channel: send_test(actor=actor, channel=channel),
                lambda actor=actor, channel=channel: set_rule(
                    actor=actor, kinds=["job.failed"], way="channel", channel=channel
                ),
            ):
                with pytest.raises(NotAllowed):
                    act()
        with pytest.raises(NotAllowed):
            slack(cast, actor=cast.bob)
        assert posted == []

    def test_a_teams_channel_gets_events_of_the_team_and_outlives_its_manager(
        self, cast: Cast, posted: Posted
    ) -> None:
        channel = slack(cast)
        with pytest.raises(Refused):
            set_rule(actor=cast.alice, kinds=["job.failed"], way="channel", channel=channel)
        posts_failures(cast, channel)
        remove_member(actor=cast.ada, membership=cast.alice.memberships.get())
        happens(cast)
        happens(cast, "bio", tenant=cast.bio)
        happens(cast, "person", audience=Audience.PERSON)
        tasks.notify()
        tasks.call_webhooks()
        assert [json.loads(body)["text"] for _, _, body in posted] == ["It failed"]

    def test_slack_and_teams_get_their_formats_and_no_markup_from_names(
        self, cast: Cast, posted: Posted
    ) -> None:
        evil = "<!channel> [x](https://evil.example) & *b*"
        for kind in ("slack", "teams", "webhook"):
            channel = slack(cast, kind=kind, name=kind)
            posts_failures(cast, channel)
        happens(
            cast, title=evil, text=evil, facts=[["End", {"at": "2026-05-01T12:00:00+00:00"}], ["Limit", None]]
        )
        tasks.notify()
        tasks.call_webhooks()
        bodies = [json.loads(body) for _, _, body in posted]
        [of_slack] = [body for body in bodies if "blocks" in body]
        section = of_slack["blocks"][0]["text"]
        assert (section["type"], "<!channel>" in json.dumps(of_slack)) == ("mrkdwn", False)
        assert "&lt;!channel&gt;" in section["text"]
        assert "End: Friday, 1 May 2026, 12:00:00 UTC" in section["text"]
        [of_teams] = [body for body in bodies if body.get("type") == "message"]
        [attachment] = of_teams["attachments"]
        assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
        card = attachment["content"]
        assert (card["type"], "[x](" in card["body"][0]["text"]) == ("AdaptiveCard", False)
        assert card["actions"][0]["url"].endswith("/jobs/7/")
        assert card["body"][2]["facts"][1] == {"title": "Limit", "value": "no end"}
        [signed] = [(headers, body) for _, headers, body in posted if '"event"' in body]
        assert json.loads(signed[1])["title"] == evil
        assert signed[0]["X-Fairlot-Signature"].startswith("t=")

    def test_a_channel_that_takes_nothing_is_paused_and_a_test_resumes_it(
        self, cast: Cast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        works, seen = [False], []

        def post(url: str, body: bytes, headers: dict[str, str]) -> None:
            if not works[0]:
                raise safe_http.NotReachable("The server answered with HTTP status 404.")
            seen.append(json.loads(body)["text"])

        monkeypatch.setattr(safe_http, "post", post)
        channel = slack(cast)
        posts_failures(cast, channel)
        happens(cast)
        tasks.notify()
        for _ in range(MOST_ATTEMPTS + 2):
            WebhookCall.objects.update(not_before=now_from_database())
            tasks.call_webhooks()
        channel.refresh_from_db()
        assert (channel.gave_up_at is not None, channel.error) == (
            True,
            "The server answered with HTTP status 404.",
        )
        happens(cast, "two", title="Second")
        tasks.notify()
        assert WebhookCall.objects.count() == 1, "nothing more is tried"
        assert [key.startswith("channel:") for key in bells(cast.alice)] == [True]
        works[0] = True
        assert send_test(actor=cast.alice, channel=channel) == ""
        tasks.notify()
        tasks.call_webhooks()
        assert seen == ["Test of a channel", "Second"]
        channel.refresh_from_db()
        assert (channel.gave_up_at, channel.failing_since, channel.error) == (None, None, "")


def test_the_number_of_unread_is_always_right(cast: Cast) -> None:
    for number in range(4):
        happens(cast, str(number))
    tasks.notify()
    ids = list(Notification.objects.filter(user=cast.bob).values_list("pk", flat=True))
    assert mark_read(actor=cast.bob, ids=ids[:1]) == 1
    assert mark_read(actor=cast.bob, ids=ids[:1]) == 0
    assert mark_read(actor=cast.alice, ids=ids) == 0, "they are Bob's"
    assert User.objects.get(pk=cast.bob.pk).unread == 3
    assert mark_read(actor=cast.bob, ids=ids[:1], read=False) == 1
    assert mark_read(actor=cast.bob) == 4
    assert User.objects.get(pk=cast.bob.pk).unread == 0


def test_old_notifications_are_deleted_and_young_ones_stay(cast: Cast) -> None:
    for key in ("read long ago", "read", "unread", "ancient"):
        happens(cast, key)
    tasks.notify()
    NotificationEvent.objects.update(at=F("at") - timedelta(days=31))
    of = Notification.objects.filter
    of(event__key="read long ago").update(read_at=now_from_database() - timedelta(days=31))
    of(event__key="read").update(read_at=now_from_database())
    of(event__key="ancient").update(at=now_from_database() - timedelta(days=181))
    tasks.empty_outboxes()
    assert bells(cast.bob) == ["read", "unread"]
    assert set(NotificationEvent.objects.values_list("key", flat=True)) == {"read", "unread"}
    assert User.objects.get(pk=cast.bob.pk).unread == 1, "counted again by the deletion"


class Death(BaseException):
    """A worker dies here."""


STEPS = st.lists(
    st.sampled_from(
        ["event", "again", "route", "route dies", "compose", "compose dies", "call", "call dies"]
    ),
    max_size=14,
)


@given(steps=STEPS)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_event_is_lost_or_doubled_wherever_workers_die(
    cast: Cast, posted: Posted, monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    for model in (WebhookCall, NotificationEvent, NotificationChannel):
        model.objects.all().delete()
    User.objects.update(unread=0)
    posted.clear()
    channel = slack(cast, kind="webhook")
    posts_failures(cast, channel)
    count = 0

    def dying(place: str, act: Callable[[], object]) -> None:
        def die(*_: object, **__: object) -> None:
            raise Death

        with monkeypatch.context() as patched, suppress(Death):
            patched.setattr(place, die)
            act()

    for step in steps:
        if step == "event":
            count += 1
        match step:
            case "event" | "again":
                happens(cast, str(count))
            case "route":
                routing.route_events(most=2)
            case "route dies":  # after the rows are written, before the commit
                dying("accounting.notifications.routing.recount", lambda: routing.route_events(most=2))
            case "compose":
                tasks.notify()
            case "compose dies":
                dying("accounting.notifications.composing._messages", tasks.notify)
            case "call":
                tasks.call_webhooks()
            case "call dies":  # after the receiver's answer: the call is made again, under the same name
                dying("accounting.notifications.webhooks._note", tasks.call_webhooks)
    for _ in range(2):
        tasks.notify()
        WebhookCall.objects.update(not_before=now_from_database())
        tasks.call_webhooks()
    keys = set(NotificationEvent.objects.values_list("key", flat=True))
    assert Counter(bells(cast.bob)) == Counter(keys)
    delivered = {headers["X-Fairlot-Delivery"]: json.loads(body) for _, headers, body in posted}
    told = [one["id"] for body in delivered.values() for one in body.get("events", [body])]
    assert Counter(told) == Counter(keys)
    assert User.objects.get(pk=cast.bob.pk).unread == len(keys)
