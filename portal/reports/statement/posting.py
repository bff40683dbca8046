"""Sending statements by mail to those who subscribed to them, once for each period."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime

from django.conf import settings
from django.db import transaction
from django.urls import reverse
from django.utils.http import urlencode

from accounting import mail
from accounting.actions.statements import end_subscription
from accounting.clock import now_from_database, zone_named
from accounting.models import StatementDelivery, StatementSubscription, Tenant
from accounting.statements import period_to_send
from portal.reports.formats import TYPES, in_format
from portal.reports.periods import GIVEN, ReportPeriod
from portal.reports.statement.figures import Statement, statement_of
from portal.reports.statement.tables import document_of
from portal.reports.statement.views import file_name
from portal.wording import money, number

MOST_ATTACHED = 5 * 1024 * 1024


def send_statement(*, subscription_id: int, now: datetime | None = None) -> bool:
    """Writes the letter that is due, with its file; whether it did. Ends the subscription of who may not see the team.

    Any number of workers may call it: the subscription's row lets one in, and the database lets no period in twice.
    `now` is for tests; else the database's clock is asked.
    """
    now = now or now_from_database()
    subscription = StatementSubscription.objects.filter(pk=subscription_id).first()
    due = subscription and _due(subscription, now)
    if not subscription or not due:
        return False
    if not _may_see(subscription):
        return _end(subscription_id)
    # Computed before anything is locked: it may take seconds.
    period = ReportPeriod(GIVEN, *due, zone_named(subscription.user.time_zone), {})
    statement = statement_of(subscription.user, subscription.tenant, period)
    return _write(subscription_id, statement, _file(subscription, statement), now)


@transaction.atomic(durable=True)
def _write(
    subscription_id: int, statement: Statement, files: Sequence[mail.Attachment], now: datetime
) -> bool:
    """The letter, once, unless something has changed meanwhile."""
    subscription = _lock(subscription_id)
    period = statement.period
    if subscription is None or _due(subscription, now) != (period.first, period.last):
        return False
    if not _may_see(subscription):
        end_subscription(subscription, actor=None)
        return False
    StatementDelivery.objects.create(subscription=subscription, first=period.first)
    subject = f"Statement of {statement.tenant.name}, {period.first} to {period.last}"
    mail.write([subscription.user], subject=subject, text=_text(statement), attachments=files)
    return True


@transaction.atomic(durable=True)
def _end(subscription_id: int) -> bool:
    subscription = _lock(subscription_id)
    if subscription is not None and not _may_see(subscription):
        end_subscription(subscription, actor=None)
    return False


def _lock(subscription_id: int) -> StatementSubscription | None:
    """None where another worker has it."""
    locked = StatementSubscription.objects.select_for_update(of=("self",), skip_locked=True)
    return locked.filter(pk=subscription_id).first()


def _due(subscription: StatementSubscription, now: datetime) -> tuple[date, date] | None:
    if not subscription.user.email or not settings.EMAIL_HOST:
        return None
    sent = subscription.deliveries.order_by("-first").values_list("first", flat=True).first()
    return period_to_send(subscription, now, sent=sent)


def _may_see(subscription: StatementSubscription) -> bool:
    return Tenant.objects.visible_to(subscription.user).filter(pk=subscription.tenant_id).exists()


def _file(subscription: StatementSubscription, statement: Statement) -> list[mail.Attachment]:
    """None where a link is wanted, or the file is too large to be sent."""
    form = subscription.form
    if form == StatementSubscription.Form.LINK:
        return []
    content = in_format(document_of(statement), form)
    if len(content) > MOST_ATTACHED:
        return []
    return [mail.Attachment(f"{file_name(statement.tenant, statement.period)}.{form}", TYPES[form], content)]


def _text(statement: Statement) -> str:
    period = statement.period
    query = {"team": statement.tenant.slug, "period": GIVEN, "from": period.first, "to": period.last}
    page = f"{settings.PUBLIC_URL}{reverse('usage_statement')}"
    hours = number(float(statement.gpu_seconds) / 3600)
    wasted = number(float(statement.waste.total.wasted) / 3600)
    return "\n".join(
        [
            f"{statement.tenant.name}, {period.first} to {period.last} ({period.zone.key}), number {statement.number}:",
            "",
            *(f"    {money(total.cost, total.currency)}" for total in statement.totals),
            f"    {hours} GPU-hours, of which {wasted} in vain",
            "",
            f"All of it: {page}?{urlencode(query)}",
            "",
            f"You get this because you asked for it. To end it: {page}#by-mail",
            "",
        ]
    )
