"""Celery's doors into the portal. Each may come twice, late or never."""

from __future__ import annotations

import logging

from celery import shared_task

from accounting.clock import now_from_database
from accounting.subscriptions import due_subscriptions
from portal.reports.posting import send_report

logger = logging.getLogger(__name__)
# Each takes seconds, and a task may not take minutes; beat comes again.
AT_ONCE = 40


@shared_task
def send_reports() -> None:
    """Writes the reports that are due; the trouble of one does not keep the others waiting."""
    trouble: Exception | None = None
    for subscription_id in due_subscriptions(now_from_database())[:AT_ONCE]:
        try:
            send_report(subscription_id=subscription_id)
        except Exception as error:
            logger.exception("the report of subscription %s was not sent", subscription_id)
            trouble = error
    if trouble:
        raise trouble
