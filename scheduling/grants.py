"""Actions that grant requests and end grants."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction

from accounting.actions.requests import approve_within, end_within
from accounting.models import Request, User


@transaction.atomic(durable=True)
def approve_request(
    *,
    actor: User | None,
    request: Request,
    answer: str = "",
    granted: Mapping[str, Any] | None = None,
    until: datetime | None = None,
) -> Request:
    """Grants what was requested, or `granted` instead of it, until the time `until` (None: permanently)."""
    given = request.wanted if granted is None else granted
    return approve_within(actor=actor, request=request, answer=answer, granted=given, until=until)


@transaction.atomic(durable=True)
def end_grant(*, request_id: int) -> bool:
    """Ends a grant whose time has passed; returns False if there is nothing to end. Any number of workers may call
    this."""
    return end_within(request=Request.objects.get(pk=request_id)) is not None
