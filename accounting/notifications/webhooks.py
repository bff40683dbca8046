"""Sends the webhook calls in the outbox.

Each call is signed, so that the receiver can verify that Fairlot made the call.
"""

from __future__ import annotations

import hashlib
import hmac
import logging

from accounting.core.clock import now_from_database
from accounting.models import WebhookCall
from accounting.notifications import safe_http
from accounting.notifications.outbox import claim

logger = logging.getLogger(__name__)


def call(*, call_id: int) -> bool:
    """Makes a webhook call from the outbox, and returns whether the receiver accepted it.

    Returns False if the call is not due or another worker is making it. Failures are retried with back-off. If a worker
    dies after the receiver's response, the call is made again with the same X-Fairlot-Delivery header.
    """
    one = claim(WebhookCall, call_id)
    if one is None:
        return False
    now = now_from_database()
    try:
        safe_http.post(one.url, one.body.encode(), headers_of(one, int(now.timestamp())))
    except safe_http.NotReachable as error:
        logger.warning("%s was not taken: %s", one, error)
        one.error = str(error)[:300]
    else:
        one.sent_at, one.error = now, ""
    # `update`, because the call may have been deleted meanwhile together with its team.
    WebhookCall.objects.filter(pk=one.pk).update(sent_at=one.sent_at, error=one.error)
    return one.sent_at is not None


def headers_of(one: WebhookCall, timestamp: int) -> dict[str, str]:
    return {
        "Content-Type": "application/json",
        "User-Agent": "Fairlot",
        "X-Fairlot-Delivery": str(one.identity),
        "X-Fairlot-Signature": f"t={timestamp},v1={signature(one.signing_key(), timestamp, one.body)}",
    }


def signature(key: str, timestamp: int, body: str) -> str:
    """Returns the HMAC-SHA-256 of "TIMESTAMP.BODY" with `key`, in hexadecimal digits.

    `timestamp`: seconds since 1970 (UTC).
    """
    return hmac.new(key.encode(), f"{timestamp}.{body}".encode(), hashlib.sha256).hexdigest()
