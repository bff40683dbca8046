"""The Celery tasks of accounting. Each task must work correctly even if its message arrives twice, late or never."""

from __future__ import annotations

from celery import shared_task

from accounting.actions.requests import notify_of_end, requests_soon_to_end
from accounting.core.clock import now_from_database
from accounting.core.locks import OutboxLock, only_one
from accounting.core.run_each import run_each
from accounting.ledger.partitions import add_months_ahead
from accounting.models import Mail, WebhookCall
from accounting.notifications import mail, webhooks
from accounting.notifications.composing import compose, destinations_due
from accounting.notifications.outbox import due, forget
from accounting.notifications.retention import forget_notifications
from accounting.notifications.routing import route_events

# A mail server that does not answer must not delay other tasks of the same worker, such as closing books. The next run
# continues.
LASTS = 20.0  # seconds


@shared_task
def send_mails() -> None:
    """Sends the mails in the outbox. Only one worker at a time does this."""
    with only_one(OutboxLock.MAILS) as is_mine:
        if is_mine:
            run_each(due(Mail, most=200), lambda mail_id: mail.send(mail_id=mail_id), seconds=LASTS)


@shared_task
def tell_of_ends() -> None:
    """Mails people about grants that end soon."""
    ids = requests_soon_to_end().values_list("pk", flat=True)
    run_each(ids, lambda request_id: notify_of_end(request_id=request_id))


@shared_task
def call_webhooks() -> None:
    """Makes the webhook calls in the outbox. Only one worker at a time does this."""
    with only_one(OutboxLock.WEBHOOKS) as is_mine:
        if is_mine:
            run_each(
                due(WebhookCall, most=100), lambda call_id: webhooks.call(call_id=call_id), seconds=LASTS
            )


@shared_task
def notify() -> None:
    """Routes new events to readers, and composes the mails and webhook calls that are due. Only one worker at a time
    does this."""
    with only_one(OutboxLock.NOTIFICATIONS) as is_mine:
        if is_mine:
            while route_events():
                pass
            run_each(destinations_due(), compose, seconds=LASTS)


@shared_task
def empty_outboxes() -> None:
    """Deletes old mails, webhook calls and notifications, whether or not they were sent, because they contain personal
    data."""
    forget(Mail)
    forget(WebhookCall)
    forget_notifications()


@shared_task
def prepare_months() -> None:
    """Creates the ledger's partitions for the next months in advance."""
    add_months_ahead(now_from_database())
