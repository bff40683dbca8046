"""Routes events to their readers in tests, as a worker would."""

from __future__ import annotations

from django.db.models import Manager

from accounting.models import Mail
from accounting.tasks import notify


def mails() -> Manager[Mail]:
    """Routes all events, and returns the manager of the mails in the outbox."""
    notify()
    return Mail.objects
