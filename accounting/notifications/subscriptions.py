"""Finds the subscribed reports that are due to be mailed."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db.models import Max

from accounting.core.clock import zone_named
from accounting.models import ReportDelivery, ReportSubscription

# This long after the end of a period, all usage in it is posted.
SETTLES = timedelta(hours=6)


def last_period(rhythm: str, zone: ZoneInfo, now: datetime) -> tuple[date, date]:
    """Returns the first and the last day, in the time zone `zone`, of the last complete week or month.

    The period must have ended at least SETTLES (six hours) ago, so that all its usage is posted.
    """
    today = (now - SETTLES).astimezone(zone).date()
    if rhythm == ReportSubscription.Rhythm.WEEKLY:
        monday = today - timedelta(days=today.weekday())
        return monday - timedelta(days=7), monday - timedelta(days=1)
    last = today.replace(day=1) - timedelta(days=1)
    return last.replace(day=1), last


def period_to_send(
    subscription: ReportSubscription, now: datetime, *, sent: date | None
) -> tuple[date, date] | None:
    """Returns the first and the last day of the last complete week or month, if its report is due; None if it is not.

    The report is not due if it was already sent, or if the period ended before the user subscribed. `sent`: the first
    day of the last period that was reported; None if nothing was reported yet.
    """
    zone = zone_named(subscription.user.time_zone)
    first, last = last_period(subscription.rhythm, zone, now)
    over = datetime.combine(last + timedelta(days=1), time(), zone)
    if (sent is not None and sent >= first) or subscription.created_at >= over:
        return None
    return first, last


def due_subscriptions(now: datetime) -> list[int]:
    """Returns the ids of the subscriptions for which a report is due; an empty list if no mail server is configured.

    The order is random, so that subscriptions that always fail do not block the others.
    """
    if not settings.EMAIL_HOST:
        return []
    subscriptions = ReportSubscription.objects.exclude(user__email="").select_related("user").order_by("?")
    sent = dict(ReportDelivery.objects.values_list("subscription").annotate(Max("first")).order_by())
    return [one.pk for one in subscriptions if period_to_send(one, now, sent=sent.get(one.pk))]
