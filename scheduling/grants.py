"""Actions that approve users' requests, for example for a limit, and that end what was granted for a limited time."""

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
    """Approves a request, and grants what was requested. If `granted` is given, grants the values in it instead.

    The grant ends at the time `until`; None means that it is permanent. `answer` is a text for the user who made the
    request. `actor` None means that Fairlot approves the request.
    """
    given = request.wanted if granted is None else granted
    return approve_within(actor=actor, request=request, answer=answer, granted=given, until=until)


@transaction.atomic(durable=True)
def end_grant(*, request_id: int) -> bool:
    """Ends a grant whose time has passed. Returns False if the grant was not ended, for example because it has ended
    already or cannot end yet.

    Any number of workers may call this simultaneously.
    """
    return end_within(request=Request.objects.get(pk=request_id)) is not None
