"""Celery tasks of the portal. Each task tolerates that its message arrives twice, late, or not at all."""

from __future__ import annotations

import logging
from time import monotonic

from celery import shared_task

from accounting.core.clock import now_from_database
from accounting.core.locks import only_one
from accounting.notifications.subscriptions import due_subscriptions
from portal.account.lockout import forget_ended
from portal.subscriptions.posting import send_report
from scheduling.core.locks import Lock

logger = logging.getLogger(__name__)
# A report takes seconds, and analyses wait for the same worker, so the task stops early. Beat sends it again.
LASTS = 20.0  # seconds after which the task begins no further report


@shared_task
def send_reports() -> None:
    """Sends the mails with reports that are due. Stops after a limited time, even if more mails are due.

    Only one worker does this at a time. A report that fails does not delay the others.
    """
    with only_one(Lock.REPORTS) as is_mine:
        if is_mine:
            _send_for_a_while()


@shared_task
def forget_password_tries() -> None:
    """Deletes the counters of wrong passwords that no longer apply: those that began to count at least 15 minutes
    ago."""
    forget_ended()


def _send_for_a_while() -> None:
    trouble, ends = None, monotonic() + LASTS
    for subscription_id in due_subscriptions(now_from_database()):
        try:
            send_report(subscription_id=subscription_id)
        except Exception as error:
            logger.exception("the report of subscription %s was not sent", subscription_id)
            trouble = error
        if monotonic() > ends:
            break
    if trouble:
        raise trouble
