"""The outbox of mails and webhook calls: written in the transaction that they report, sent after it."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

from django.db import transaction
from django.db.models.functions import Now

from accounting.core.clock import now_from_database
from accounting.models import Letter, WebhookCall

Sent = TypeVar("Sent", Letter, WebhookCall)

MOST_ATTEMPTS = 12
KEPT = timedelta(days=30)
FIRST_WAIT, LONGEST_WAIT = timedelta(minutes=1), timedelta(hours=6)


def due(model: type[Sent], *, most: int) -> list[int]:
    """Returns the ids of what to send, new ones first, so that they do not wait for those that always fail."""
    waiting = model.objects.filter(sent_at=None, not_before__lte=Now(), attempts__lt=MOST_ATTEMPTS)
    return list(waiting.order_by("attempts", "not_before", "pk").values_list("pk", flat=True)[:most])


@transaction.atomic(durable=True)
def claim(model: type[Sent], pk: int) -> Sent | None:
    """Claims one for sending; returns None if another worker has it.

    It counts the attempt and postpones the next one before sending, so that a crash during sending is counted, too.
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
    """Deletes those that are older than anybody needs."""
    model.objects.filter(written_at__lt=Now() - KEPT).delete()
