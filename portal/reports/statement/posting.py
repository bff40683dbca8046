"""Sending statements by mail to those who subscribed to them, once for each period."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import transaction
from django.urls import reverse
from django.utils.http import urlencode

from accounting import mail
from accounting.actions.statements import end_subscription
from accounting.clock import now_from_database
from accounting.models import StatementDelivery, StatementSubscription, Tenant
from accounting.statements import period_to_send
from portal.reports.formats import TYPES, in_format
from portal.reports.periods import GIVEN, ReportPeriod
from portal.reports.statement.figures import Statement, statement_of
from portal.reports.statement.tables import document_of
from portal.reports.statement.views import file_name
from portal.wording import money, number

MOST_ATTACHED = 5 * 1024 * 1024


@transaction.atomic(durable=True)
def send_statement(*, subscription_id: int, now: datetime | None = None) -> bool:
    """Writes the letter that is due, with its file; whether it did. Ends the subscription of who may not see the team.

    Any number of workers may call it: the subscription's row lets one in, and the database lets no period in twice.
    `now` is for tests; else the database's clock is asked.
    """
    locked = StatementSubscription.objects.select_for_update(of=("self",), skip_locked=True)
    subscription = locked.select_related("user", "tenant").filter(pk=subscription_id).first()
    if subscription is None or not subscription.user.email or not settings.EMAIL_HOST:
        return False
    sent = subscription.deliveries.order_by("-first").values_list("first", flat=True).first()
    due = period_to_send(subscription, now or now_from_database(), sent=sent)
    if due is None:
        return False
    user, tenant = subscription.user, subscription.tenant
    if not Tenant.objects.visible_to(user).filter(pk=tenant.pk).exists():
        end_subscription(subscription, actor=None)
        return False
    first, last = due
    StatementDelivery.objects.create(subscription=subscription, first=first)
    period = ReportPeriod(GIVEN, first, last, ZoneInfo(user.time_zone), {})
    statement = statement_of(user, tenant, period)
    attachments = []
    if subscription.form != StatementSubscription.Form.LINK:
        content = in_format(document_of(statement), subscription.form)
        if len(content) <= MOST_ATTACHED:
            name = f"{file_name(tenant, period)}.{subscription.form}"
            attachments.append(mail.Attachment(name, TYPES[subscription.form], content))
    subject = f"Statement of {tenant.name}, {first} to {last}"
    mail.write([user], subject=subject, text=_text(statement), attachments=attachments)
    return True


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
