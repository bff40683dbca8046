"""Sends each subscription's report by mail, once for each period."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime

from django.conf import settings
from django.db import transaction

from accounting.actions.subscriptions import end_subscription, may_have
from accounting.core.clock import now_from_database, zone_named
from accounting.models import ReportDelivery, ReportSubscription
from accounting.notifications import mail
from accounting.notifications.subscriptions import period_to_send
from portal.reports.formats import TYPES
from portal.reports.periods import GIVEN, ReportPeriod
from portal.subscriptions.report_mails import ReportMail, mail_of

MOST_ATTACHED = 5 * 1024 * 1024
TOO_LARGE = "The report's file is too large for a mail. Download the file from the report's page."


def send_report(*, subscription_id: int, now: datetime | None = None) -> bool:
    """Queues a subscription's mail, with the attached file, if a mail is due. Returns whether it queued one.

    Ends the subscription if its user may no longer have the report. Several workers may call this function at the same
    time: only one of them queues the mail. `now`: the time to use, for tests; by default the database's time.
    """
    now = now or now_from_database()
    subscription = ReportSubscription.objects.filter(pk=subscription_id).first()
    due = subscription and _due(subscription, now)
    if not subscription or not due:
        return False
    if not may_have(subscription.user, subscription.report, subscription.tenant):
        return _end(subscription_id)
    # The report may take seconds, so it is computed before the subscription is locked.
    period = ReportPeriod(GIVEN, *due, zone_named(subscription.user.time_zone), {})
    composed = mail_of(subscription, period)
    files = _file(subscription, composed)
    if not files and subscription.form != ReportSubscription.Form.LINK:
        composed = replace(composed, lines=[*composed.lines, "", TOO_LARGE])
    return _write(subscription_id, composed, files, now)


@transaction.atomic(durable=True)
def _write(
    subscription_id: int, composed: ReportMail, files: Sequence[mail.Attachment], now: datetime
) -> bool:
    """Queues the mail, and records its period as delivered. Returns whether it queued the mail.

    Queues nothing if another worker sends this mail, or if the mail is no longer due. If the user has lost the
    permission, queues nothing and ends the subscription.
    """
    subscription = _lock(subscription_id)
    period = composed.period
    if subscription is None or _due(subscription, now) != (period.first, period.last):
        return False
    if not may_have(subscription.user, subscription.report, subscription.tenant):
        end_subscription(subscription, actor=None)
        return False
    ReportDelivery.objects.create(subscription=subscription, first=period.first)
    subject = f"{composed.document.title}, {period.first} to {period.last}"
    mail.write([subscription.user], subject=subject, text=_text(composed), attachments=files)
    return True


@transaction.atomic(durable=True)
def _end(subscription_id: int) -> bool:
    subscription = _lock(subscription_id)
    if subscription is not None and not may_have(subscription.user, subscription.report, subscription.tenant):
        end_subscription(subscription, actor=None)
    return False


def _lock(subscription_id: int) -> ReportSubscription | None:
    """Locks and returns the subscription's row. Returns None if another worker has locked the row, or if it was
    deleted."""
    locked = ReportSubscription.objects.select_for_update(of=("self",), skip_locked=True)
    return locked.filter(pk=subscription_id).first()


def _due(subscription: ReportSubscription, now: datetime) -> tuple[date, date] | None:
    if not subscription.user.email or not settings.EMAIL_HOST:
        return None
    sent = subscription.deliveries.order_by("-first").values_list("first", flat=True).first()
    return period_to_send(subscription, now, sent=sent)


def _file(subscription: ReportSubscription, composed: ReportMail) -> list[mail.Attachment]:
    """Returns a list with the attached file.

    The list is empty if the subscriber wants only a link, or if the file is too large.
    """
    form = subscription.form
    if form == ReportSubscription.Form.LINK:
        return []
    content = composed.content(form)
    if len(content) > MOST_ATTACHED:
        return []
    return [mail.Attachment(f"{composed.name}.{form}", TYPES[form], content)]


def _text(composed: ReportMail) -> str:
    return "\n".join(
        [
            *composed.lines,
            "",
            f"Full report: {settings.PUBLIC_URL}{composed.page}",
            "",
            (
                "You get this mail because you subscribed to the report. Unsubscribe at "
                f"{settings.PUBLIC_URL}{composed.page}#by-mail"
            ),
            "",
        ]
    )
