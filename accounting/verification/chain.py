"""Checks of the hash chain, of its heads (signed records of links), and of transactions that are missing from it."""

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
    """Finds a head (signed record of a hash-chain link) that is invalid, or whose link is missing.

    This detects, for example, that somebody deleted the whole hash chain of a cluster's ledger.
    """
    return _named(heads.first_broken(signing.trusted_keys()))


def a_transaction_was_never_sealed() -> Found | None:
    """Finds a transaction that was posted more than a day ago and is not in the hash chain.

    A periodic task adds new transactions to the hash chain every minute. So either the task failed, or somebody removed
    links of the hash chain.
    """
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
