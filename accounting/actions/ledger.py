"""Taking bookings back: only admins."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction as database

from accounting import audit
from accounting.ledger import Payer, correct_trade, correct_usage
from accounting.models import LedgerTransaction, UsageSegment, User
from accounting.permissions import require_admin


@database.atomic(durable=True)
def take_back_trade(*, actor: User | None, trade: LedgerTransaction, reason: str) -> LedgerTransaction:
    """Books the reverse of a trade."""
    require_admin(actor)
    correction = correct_trade(actor=actor, trade=trade, reason=reason)
    audit.record(
        actor=actor,
        verb="ledger.correct",
        target=trade,
        after={"correction": correction.pk, "reason": reason},
    )
    return correction


@database.atomic(durable=True)
def take_back_usage(
    *, actor: User | None, segments: Sequence[UsageSegment], reason: str, payer: Payer | None = None
) -> list[LedgerTransaction]:
    """Takes segments back, which then count in no report; with a `payer` they are booked anew as that one's."""
    require_admin(actor)
    booked = correct_usage(actor=actor, segments=segments, reason=reason, payer=payer)
    for one in booked:
        audit.record(actor=actor, verb="ledger.correct", target=one, after=_told(segments, reason, payer))
    return booked


def _told(segments: Sequence[UsageSegment], reason: str, payer: Payer | None) -> dict[str, object]:
    return {
        "jobs": sorted({one.job_id for one in segments}),
        "segments": len(segments),
        "reason": reason,
        "team": payer and payer.tenant.name,
        "user": payer and payer.user and payer.user.get_username(),
    }
