"""Taking a booking back: only admins."""

from __future__ import annotations

from django.db import transaction as database

from accounting import audit
from accounting.ledger import correct
from accounting.models import LedgerTransaction, User
from accounting.permissions import require_admin


@database.atomic(durable=True)
def correct_transaction(
    *, actor: User | None, transaction: LedgerTransaction, reason: str
) -> LedgerTransaction:
    """Books the reverse of `transaction`; it then counts in no report."""
    require_admin(actor)
    correction = correct(actor=actor, transaction=transaction, reason=reason)
    audit.record(
        actor=actor,
        verb="ledger.correct",
        target=transaction,
        after={"correction": correction.pk, "reason": reason},
    )
    return correction
