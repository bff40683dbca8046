"""Actions of admins that correct the ledger or resume sealing after a stop."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction as database

from accounting.access import audit
from accounting.access.permissions import require
from accounting.core.errors import Refused
from accounting.ledger import Payer, correct_trade, correct_usage, hash_chain, heads
from accounting.models import LedgerHead, LedgerTransaction, UsageSegment, User

REASON = LedgerHead._meta.get_field("reason").max_length or 0


@database.atomic(durable=True)
def take_back_trade(*, actor: User | None, trade: LedgerTransaction, reason: str) -> LedgerTransaction:
    """Posts the reverse of a trade, and returns that transaction."""
    require(actor, "ledger.correct")
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
    """Posts the reverse of usage segments, so that no report counts them; returns the transactions.

    With a `payer`, posts the segments again for that payer.
    """
    require(actor, "ledger.correct")
    booked = correct_usage(actor=actor, segments=segments, reason=reason, payer=payer)
    for one in booked:
        audit.record(
            actor=actor, verb="ledger.correct", target=one, after=_audit_values(segments, reason, payer)
        )
    return booked


def resume_sealing(*, actor: User | None, reason: str) -> LedgerHead:
    """Resumes sealing of the ledger after it stopped, and returns a new head that contains the reason.

    Rows that were not sealed during the stop are sealed in their present state. `verify_ledger` prints the reason.
    Lost seals are not restored: a book without one of its seals stays stopped until its seals are restored.
    """
    require(actor, "ledger.correct")
    reason = reason.strip()
    if not 0 < len(reason) <= REASON:
        raise Refused(f"Enter a reason of 1 to {REASON} characters.", "reason")
    head = _resume(actor, reason)
    heads.publish(head)
    return head


@database.atomic(durable=True)
def _resume(actor: User | None, reason: str) -> LedgerHead:
    now = heads.hold()
    why = hash_chain.why_unsealed(now)
    if not why:
        raise Refused("The ledger is still being sealed, so there is nothing to resume.", "reason")
    head = heads.append(heads.NO_BOOK, 0, b"", now, reason=reason)
    audit.record(
        actor=actor, verb="ledger.resume_sealing", target=head, before={"why": why}, after={"reason": reason}
    )
    return head


def _audit_values(segments: Sequence[UsageSegment], reason: str, payer: Payer | None) -> dict[str, object]:
    return {
        "jobs": sorted({one.job_id for one in segments}),
        "segments": len(segments),
        "reason": reason,
        "team": payer and payer.tenant.name,
        "user": payer and payer.user and payer.user.get_username(),
    }
