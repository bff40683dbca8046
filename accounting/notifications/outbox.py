"""The outbox of mails and webhook calls.

Each item is stored in the same database transaction as the change that it reports, and sent after the commit.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

from django.db import transaction
from django.db.models.functions import Now

from accounting.core.clock import now_from_database
from accounting.models import Mail, WebhookCall

Sent = TypeVar("Sent", Mail, WebhookCall)

MOST_ATTEMPTS = 12
KEPT = timedelta(days=30)
FIRST_WAIT, LONGEST_WAIT = timedelta(minutes=1), timedelta(hours=6)


def due(model: type[Sent], *, most: int) -> list[int]:
    """Returns the ids of the items to send now, at most `most`. Items with the fewest attempts come first.

    This order ensures that new items do not wait for items that always fail.
    """
    waiting = model.objects.filter(sent_at=None, not_before__lte=Now(), attempts__lt=MOST_ATTEMPTS)
    return list(waiting.order_by("attempts", "not_before", "pk").values_list("pk", flat=True)[:most])


@transaction.atomic(durable=True)
def claim(model: type[Sent], pk: int) -> Sent | None:
    """Claims an item for sending and returns it; None if the item is not due or another worker has claimed it.

    The attempt is counted, and the next attempt is postponed, before the item is sent. So a crash during sending also
    counts as an attempt.
    """
    waiting = model.objects.select_for_update(skip_locked=True).filter(sent_at=None, not_before__lte=Now())
    one = waiting.filter(pk=pk, attempts__lt=MOST_ATTEMPTS).first()
    if one is None:
        return None
    one.not_before = now_from_database() + min(FIRST_WAIT * 2**one.attempts, LONGEST_WAIT)
    one.attempts += 1
    one.save(update_fields=["attempts", "not_before"])
    return one


def forget(model: type[Sent]) -> None:
    """Deletes the items that were stored more than KEPT (30 days) ago."""
    model.objects.filter(written_at__lt=Now() - KEPT).delete()
