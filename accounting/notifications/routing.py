"""Routes events to readers: to the bell, and to items that are composed into mails and webhook calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.models import Q

from accounting.core.bulk import insert_rows
from accounting.core.clock import now_from_database, zone_named
from accounting.models import Notification, NotificationEvent, NotificationItem, NotificationRule, User
from accounting.notifications.mail import why_mail_is_off
from accounting.notifications.unread import lock_readers, recount
from accounting.notifications.wishes import About, Way, due_at, reaches, usual_rule, wants

AT_ONCE = 200  # events in one transaction
UTC = ZoneInfo("UTC")


@transaction.atomic(durable=True)
def route_events(*, most: int = AT_ONCE) -> int:
    """Routes the oldest events that are not routed yet, at most `most`. Returns their number.

    The event is marked in the same transaction in which its notifications and items are stored. So a worker that dies
    leaves nothing behind, and another worker routes the event again. Two workers never route the same event.
    """
    waiting = NotificationEvent.objects.select_for_update(of=("self",), skip_locked=True)
    events = list(waiting.select_related("tenant").filter(routed_at=None).order_by("pk")[:most])
    if not events:
        return 0
    now = now_from_database()
    routes = _Routes(now)
    rules = _rules_for(events)
    users = {rule.user_id: rule.user for rule in rules if rule.user is not None}
    for user in users.values():
        user.keep_roles()
    for event in events:
        for rule in rules:
            if wants(rule, event) and reaches(rule, event, users.get(rule.user_id or 0)):
                routes.add(rule, event)
    routes.save()
    NotificationEvent.objects.filter(pk__in=[event.pk for event in events]).update(routed_at=now)
    return len(events)


def _rules_for(events: Sequence[NotificationEvent]) -> list[NotificationRule]:
    """Returns the rules that may want one of the events, with the usual rules of users who have not replaced them."""
    people = {pk for event in events for pk in event.concerns}
    teams = {step for event in events if event.tenant for step in event.tenant.lineage}
    jobs = {event.job_id for event in events if event.job_id is not None}
    found = NotificationRule.objects.filter(
        Q(about=About.ME, user__in=people)
        | Q(about=About.TEAM, tenant__in=teams)
        | Q(about=About.JOB, job_id__in=jobs)
    )
    rules = list(found.select_related("user", "channel", "channel__tenant").order_by("pk"))
    chosen: dict[int, set[str]] = defaultdict(set)
    known: dict[int, User] = {}
    for rule in rules:
        if rule.user is not None:
            rule.user = known.setdefault(rule.user.pk, rule.user)
            if rule.about == About.ME:
                chosen[rule.user.pk].add(rule.way)
    for user in User.objects.filter(pk__in=people, is_active=True).order_by("pk"):
        person = known.setdefault(user.pk, user)
        rules += [usual_rule(person, way) for way in (Way.BELL, Way.MAIL) if way not in chosen[user.pk]]
    return rules


class _Routes:
    """Collects notifications and items, each once, and stores them with few SQL statements."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._sends_mail = not why_mail_is_off()
        self._bells: dict[tuple[int, int], Notification] = {}
        self._items: dict[tuple[int, int | None, int | None], NotificationItem] = {}

    def add(self, rule: NotificationRule, event: NotificationEvent) -> None:
        user, channel = rule.user, rule.channel
        if rule.way == Way.BELL and user is not None:
            self._bells[event.pk, user.pk] = Notification(event=event, user=user)
        elif rule.way == Way.MAIL and user is not None and user.email and self._sends_mail:
            self._add_item(NotificationItem(event=event, user=user), rule, zone_named(user.time_zone))
        elif channel is not None:
            zone = zone_named(user.time_zone) if user is not None else UTC
            self._add_item(NotificationItem(event=event, channel=channel), rule, zone)

    def _add_item(self, item: NotificationItem, rule: NotificationRule, zone: ZoneInfo) -> None:
        """Adds an item. If two rules send one event to one place, it is sent once, at the earlier of both times."""
        item.due_at = due_at(rule.rhythm, self._now, zone)
        key = item.event_id, item.user_id, item.channel_id
        known = self._items.get(key)
        if known is None or item.due_at < known.due_at:
            self._items[key] = item

    def save(self) -> None:
        readers = lock_readers({user for _, user in self._bells})
        _insert(self._bells.values())
        _insert(self._items.values())
        recount(readers)


def _insert(rows: Iterable[Notification] | Iterable[NotificationItem]) -> None:
    insert_rows(rows, ignore_conflicts=True)
