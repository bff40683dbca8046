"""Sends the webhook calls in the outbox.

Each call is signed, so that the receiver can verify that Fairlot made the call.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from urllib.parse import urlsplit

from django.db import transaction

from accounting.core.clock import now_from_database
from accounting.core.encryption import SealError, unseal
from accounting.models import Membership, NotificationChannel, WebhookCall
from accounting.models.notifications import Audience, EventKind
from accounting.notifications import safe_http
from accounting.notifications.events import announce
from accounting.notifications.outbox import MOST_ATTEMPTS, claim

logger = logging.getLogger(__name__)


def call(*, call_id: int) -> bool:
    """Makes a webhook call from the outbox, and returns whether the receiver accepted it.

    Returns False if the call is not due or another worker is making it. Failures are retried with back-off. If a worker
    dies after the receiver's response, the call is made again with the same X-Fairlot-Delivery header.
    """
    one = claim(WebhookCall, call_id)
    if one is None:
        return False
    one.error = posted(one)
    if one.error:
        logger.warning("%s was not taken: %s", one, one.error)
    else:
        one.sent_at = now_from_database()
    _note(one)
    return one.sent_at is not None


def posted(one: WebhookCall) -> str:
    """Makes a call, and returns "" if the receiver accepted it, otherwise why not. Stores nothing."""
    url = ""
    try:
        url = url_of(one)
        safe_http.post(url, one.body.encode(), headers_of(one, int(now_from_database().timestamp())))
    except (safe_http.NotReachable, SealError) as error:
        return hidden(str(error), url if one.channel_id else "")
    return ""


@transaction.atomic(durable=True)
def _note(one: WebhookCall) -> None:
    """Stores how a call went. A channel that did not take a message until it was given up is paused."""
    # `update`, because the call may have been deleted meanwhile together with its team.
    WebhookCall.objects.filter(pk=one.pk).update(sent_at=one.sent_at, error=one.error)
    if one.channel_id is not None:
        note_channel(one.channel_id, error=one.error, gave_up=one.attempts >= MOST_ATTEMPTS)


def note_channel(channel_id: int, *, error: str, gave_up: bool = False) -> None:
    """Stores in the caller's transaction how a call to a channel went. `error`: why it failed; "" if it succeeded."""
    channel = NotificationChannel.objects.select_for_update(of=("self",)).filter(pk=channel_id).first()
    if channel is None:
        return
    now = now_from_database()
    if not error:
        channel.sent_at, channel.failing_since, channel.gave_up_at, channel.error = now, None, None, ""
    else:
        channel.error, channel.failing_since = error, channel.failing_since or now
        if gave_up and channel.gave_up_at is None:
            channel.gave_up_at = now
            _announce_failure(channel)
    channel.save(update_fields=["sent_at", "failing_since", "gave_up_at", "error"])


def _announce_failure(channel: NotificationChannel) -> None:
    managers = Membership.objects.filter(tenant=channel.tenant_id, role=Membership.Role.MANAGER)
    readers = [channel.user_id] if channel.user_id else list(managers.values_list("user_id", flat=True))
    announce(
        EventKind.CHANNEL_FAILED,
        f"channel:{channel.pk}:{channel.gave_up_at}",
        audience=Audience.PERSON,
        tenant=channel.tenant,
        concerns=readers,
        title=f"The channel {channel.name} no longer works",
        text=f"Fairlot posts nothing to the channel until a test succeeds. Last error: {channel.error}",
        path="/notifications/settings/",
    )


def url_of(one: WebhookCall) -> str:
    """Returns the address of a call. Raises SealError if the address of a channel cannot be decrypted."""
    return unseal(bytes(one.channel.sealed)).decode() if one.channel else one.url


def hidden(text: str, url: str) -> str:
    """Returns an error message without the path and the query of `url`, because these are secret."""
    parts = urlsplit(url)
    for secret in sorted(
        {url, f"{parts.path}?{parts.query}", parts.path, parts.query}, key=len, reverse=True
    ):
        if len(secret) > 1:
            text = text.replace(secret, "…")
    return text[:300]


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
