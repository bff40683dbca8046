"""Making the webhook calls of the outbox, signed, so that who is called knows that Fairlot calls."""

from __future__ import annotations

import hashlib
import hmac
import logging
from datetime import timedelta

from django.db import transaction
from django.db.models.functions import Now

from accounting import outgoing
from accounting.clock import now_from_database
from accounting.models import WebhookCall

logger = logging.getLogger(__name__)

MOST_ATTEMPTS = 12
KEPT = timedelta(days=30)
FIRST_WAIT, LONGEST_WAIT = timedelta(minutes=1), timedelta(hours=6)


def due_calls() -> list[int]:
    due = WebhookCall.objects.filter(sent_at=None, not_before__lte=Now(), attempts__lt=MOST_ATTEMPTS)
    return list(due.order_by("pk").values_list("pk", flat=True)[:100])


def forget() -> None:
    """Deletes calls that were written longer ago than anybody asks for them."""
    WebhookCall.objects.filter(written_at__lt=Now() - KEPT).delete()


@transaction.atomic(durable=True)
def call(*, call_id: int) -> bool:
    """Makes it unless another worker does; whether it was taken now. Else it is made again, later and later.

    A worker that dies between the answer and the commit has it made again, with the same X-Fairlot-Delivery.
    """
    waiting = WebhookCall.objects.select_for_update(skip_locked=True)
    one = waiting.filter(pk=call_id, sent_at=None, attempts__lt=MOST_ATTEMPTS).first()
    if one is None:
        return False
    now = now_from_database()
    one.attempts += 1
    try:
        outgoing.post(one.url, one.body.encode(), headers_of(one, int(now.timestamp())))
    except outgoing.NotReachable as error:
        logger.warning("%s was not taken: %s", one, error)
        one.error = str(error)[:300]
        one.not_before = now + min(FIRST_WAIT * 2 ** (one.attempts - 1), LONGEST_WAIT)
    else:
        one.sent_at, one.error = now, ""
    one.save(update_fields=["attempts", "error", "not_before", "sent_at"])
    return one.sent_at is not None


def headers_of(one: WebhookCall, timestamp: int) -> dict[str, str]:
    return {
        "Content-Type": "application/json",
        "User-Agent": "Fairlot",
        "X-Fairlot-Delivery": str(one.identity),
        "X-Fairlot-Signature": f"t={timestamp},v1={signature(one.signing_key(), timestamp, one.body)}",
    }


def signature(key: str, timestamp: int, body: str) -> str:
    """HMAC-SHA-256 over the timestamp, a dot and the body, in hexadecimal digits."""
    return hmac.new(key.encode(), f"{timestamp}.{body}".encode(), hashlib.sha256).hexdigest()
