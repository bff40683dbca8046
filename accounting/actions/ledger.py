"""Ledger actions for admins: correct postings, and resume the sealing of the hash chain after it stopped."""

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
    """Reverses a trade: posts a transaction with the opposite amounts, and returns that transaction."""
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
    """Reverses usage segments, so that reports no longer count them. Returns the posted transactions.

    `payer`: the tenant and user that pay for the usage instead. If given, the same usage is posted again for them.
    """
    require(actor, "ledger.correct")
    booked = correct_usage(actor=actor, segments=segments, reason=reason, payer=payer)
    for one in booked:
        audit.record(
            actor=actor, verb="ledger.correct", target=one, after=_audit_values(segments, reason, payer)
        )
    return booked


def resume_sealing(*, actor: User | None, reason: str) -> LedgerHead:
    """Lets Fairlot add rows to the hash chains again after this has stopped. Returns the new head (signed link over all
    hash chains).

    `reason`: is stored in the head, and `verify_ledger` prints it. Rows that were written in the meantime are sealed
    with the content that they have now. A deleted link of a chain is not restored: that chain cannot continue until
    somebody restores the link from a backup.
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
        raise Refused("Sealing of the ledger has not stopped, so there is nothing to resume.", "reason")
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
