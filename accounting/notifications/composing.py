"""Composes mails and webhook calls from the items that are due, and stores them in the outbox."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TypeAlias

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from accounting.core.clock import now_from_database, zone_named
from accounting.models import NotificationChannel, NotificationEvent, NotificationItem, User, WebhookCall
from accounting.notifications import mail
from accounting.notifications.messages import body_for, mail_text, title_of

Destination: TypeAlias = tuple[int | None, int | None]  # ids of a user (mail) and of a channel; one is None

# More items than this for one destination at one time become one message.
MOST_SINGLE = 3
AT_ONCE = 500  # items in one transaction
# Unsent items are dropped after this time, with the mails and calls of that age.
KEPT = timedelta(days=30)


def destinations_due() -> list[Destination]:
    """Returns the destinations with items that are due, oldest first. Leaves out channels that no longer work."""
    due = NotificationItem.objects.filter(composed_at=None, due_at__lte=Now())
    works = due.filter(Q(channel=None) | Q(channel__gave_up_at=None))
    return list(works.order_by("user", "channel").values_list("user", "channel").distinct())


@transaction.atomic(durable=True)
def compose(destination: Destination) -> int:
    """Stores the mails or calls for the items of one destination that are due. Returns the number of items.

    The items are marked in the same transaction, so that each is sent once. Drops items that the reader may no longer
    see. A worker that finds the items locked leaves them to the worker that holds them.
    """
    user_id, channel_id = destination
    items = NotificationItem.objects.select_for_update(of=("self",), skip_locked=True)
    due = items.filter(user=user_id, channel=channel_id, composed_at=None, due_at__lte=Now())
    found = list(due.select_related("event__tenant").order_by("event", "pk")[:AT_ONCE])
    if not found:
        return 0
    NotificationItem.objects.filter(pk__in=[item.pk for item in found]).update(
        composed_at=now_from_database()
    )
    events = [item.event for item in found]
    if user_id is not None:
        _mail(User.objects.get(pk=user_id), events)
    elif channel_id is not None:
        _post(NotificationChannel.objects.select_related("user").get(pk=channel_id), events)
    return len(found)


def _mail(user: User, events: list[NotificationEvent]) -> None:
    zone = zone_named(user.time_zone)
    for message in _messages(_seen(user, events)):
        mail.write([user], subject=title_of(message), text=mail_text(message, zone))


def _post(channel: NotificationChannel, events: list[NotificationEvent]) -> None:
    seen = _seen(channel.user, events) if channel.user else events
    WebhookCall.objects.bulk_create(
        WebhookCall(channel=channel, body=json.dumps(body_for(channel, message)))
        for message in _messages(seen)
    )


def _seen(user: User, events: list[NotificationEvent]) -> list[NotificationEvent]:
    user.keep_roles()
    return [event for event in events if event.may_be_seen_by(user)]


def _messages(events: list[NotificationEvent]) -> list[list[NotificationEvent]]:
    if len(events) <= MOST_SINGLE:
        return [[event] for event in events]
    return [events]
