"""Checks of the hash chain, its end, the heads that name its seals, and rows that should have a seal by now."""

from __future__ import annotations

from accounting.ledger import hash_chain, heads, signing
from accounting.ledger.journals import name_of
from accounting.verification.found import Found, first_row


def a_seal_does_not_hold() -> Found | None:
    return _found(hash_chain.first_broken())


def a_chain_lost_its_end() -> Found | None:
    return _found(hash_chain.first_lost_end())


def _found(broken: hash_chain.Broken | None) -> Found | None:
    if broken is None:
        return None
    return Found(f"{name_of(broken.book)}, seal {broken.seal}: {broken.what}")


def _named(what: str | None) -> Found | None:
    return Found(what) if what else None


def a_head_does_not_hold() -> Found | None:
    """Finds a head that is broken, or that names a missing seal, for example after somebody deleted all seals of a
    book."""
    return _named(heads.first_broken(signing.trusted_keys()))


def a_transaction_was_never_sealed() -> Found | None:
    """Finds rows without a seal after a day: a periodic task seals every minute, so it failed or somebody removed
    seals."""
    return first_row(
        "a transaction was booked more than a day ago and has no seal",
        """
        SELECT booked.key, booked.book, booked.recorded_at
        FROM accounting_ledgertransaction booked
        LEFT JOIN (SELECT book, max(last_id) AS last_id FROM accounting_ledgerseal WHERE month IS NULL GROUP BY book)
            sealed ON sealed.book = booked.book
        WHERE booked.id > coalesce(sealed.last_id, 0) AND booked.recorded_at < now() - interval '1 day'
        ORDER BY booked.id LIMIT 1
        """,
    )
