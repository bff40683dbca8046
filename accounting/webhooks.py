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
    """New ones first: they do not wait for those who never answer."""
    due = WebhookCall.objects.filter(sent_at=None, not_before__lte=Now(), attempts__lt=MOST_ATTEMPTS)
    return list(due.order_by("attempts", "not_before", "pk").values_list("pk", flat=True)[:100])


def forget() -> None:
    """Deletes calls that were written longer ago than anybody asks for them."""
    WebhookCall.objects.filter(written_at__lt=Now() - KEPT).delete()


def call(*, call_id: int) -> bool:
    """Makes it unless another worker does; whether it was taken now. Else it is made again, later and later.

    An attempt is counted and the next one put off before it is made: whoever dies in it has been counted. If that
    was after the answer, the next one has the same X-Fairlot-Delivery.
    """
    one = _claim(call_id)
    if one is None:
        return False
    now = now_from_database()
    try:
        outgoing.post(one.url, one.body.encode(), headers_of(one, int(now.timestamp())))
    except outgoing.NotReachable as error:
        logger.warning("%s was not taken: %s", one, error)
        one.error = str(error)[:300]
    else:
        one.sent_at, one.error = now, ""
    # It may have been forgotten meanwhile, with its team.
    WebhookCall.objects.filter(pk=one.pk).update(sent_at=one.sent_at, error=one.error)
    return one.sent_at is not None


@transaction.atomic(durable=True)
def _claim(call_id: int) -> WebhookCall | None:
    waiting = WebhookCall.objects.select_for_update(skip_locked=True).filter(sent_at=None)
    one = waiting.filter(pk=call_id, attempts__lt=MOST_ATTEMPTS, not_before__lte=Now()).first()
    if one is None:
        return None
    one.not_before = now_from_database() + min(FIRST_WAIT * 2**one.attempts, LONGEST_WAIT)
    one.attempts += 1
    one.save(update_fields=["attempts", "not_before"])
    return one


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
