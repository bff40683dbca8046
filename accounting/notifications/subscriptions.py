"""Which reports are to be sent by mail now."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db.models import Max

from accounting.core.clock import zone_named
from accounting.models import ReportDelivery, ReportSubscription

# By then what was held at the end of a period is booked.
SETTLES = timedelta(hours=6)


def last_period(rhythm: str, zone: ZoneInfo, now: datetime) -> tuple[date, date]:
    """The first and the last day of the last whole week or month that is settled, on the clocks of `zone`."""
    today = (now - SETTLES).astimezone(zone).date()
    if rhythm == ReportSubscription.Rhythm.WEEKLY:
        monday = today - timedelta(days=today.weekday())
        return monday - timedelta(days=7), monday - timedelta(days=1)
    last = today.replace(day=1) - timedelta(days=1)
    return last.replace(day=1), last


def period_to_send(
    subscription: ReportSubscription, now: datetime, *, sent: date | None
) -> tuple[date, date] | None:
    """The period of which the reader is to get the report; None where that was done or is not to be.

    `sent` is the beginning of the last one that was sent. Of several that were missed only the last one is sent, and
    none that was over before the reader asked for it.
    """
    zone = zone_named(subscription.user.time_zone)
    first, last = last_period(subscription.rhythm, zone, now)
    over = datetime.combine(last + timedelta(days=1), time(), zone)
    if (sent is not None and sent >= first) or subscription.created_at >= over:
        return None
    return first, last


def due_subscriptions(now: datetime) -> list[int]:
    """Ids of those of which a report is to be sent; none where there is no mail server.

    In random order, so that the first few are others each time: some that always fail keep none waiting for ever.
    """
    if not settings.EMAIL_HOST:
        return []
    subscriptions = ReportSubscription.objects.exclude(user__email="").select_related("user").order_by("?")
    sent = dict(ReportDelivery.objects.values_list("subscription").annotate(Max("first")).order_by())
    return [one.pk for one in subscriptions if period_to_send(one, now, sent=sent.get(one.pk))]
