"""Requests that are granted and come to their end: in force at once, in the rounds too."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction

from accounting.actions.requests import approve_within, end_within
from accounting.clock import now_from_database
from accounting.models import Request, User
from scheduling.models import Cluster
from scheduling.wake import wake_rounds


@transaction.atomic(durable=True)
def approve_request(
    *,
    actor: User | None,
    request: Request,
    answer: str = "",
    granted: Mapping[str, Any] | None = None,
    until: datetime | None = None,
) -> Request:
    """Grants what was asked for, or `granted` instead, until a moment or for good; rounds look at it at once."""
    given = request.wanted if granted is None else granted
    held = approve_within(actor=actor, request=request, answer=answer, granted=given, until=until)
    _look_at_once()
    return held


@transaction.atomic(durable=True)
def end_grant(*, request_id: int) -> bool:
    """Ends a grant whose time is over; whether it did. Any number of workers may call it."""
    ended = end_within(request=Request.objects.get(pk=request_id))
    if ended is None:
        return False
    _look_at_once()
    return True


def _look_at_once() -> None:
    """A round of every cluster soon: tickets and limits are the same on all."""
    clusters = Cluster.objects.attached()
    clusters.update(round_wanted_at=now_from_database())
    for cluster_id in clusters.values_list("pk", flat=True):
        wake_rounds(cluster_id)
