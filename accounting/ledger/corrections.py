"""Corrects wrong postings by posting the reverse. Reversed usage can be posted again for another payer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from accounting.core.errors import Refused
from accounting.ledger.checks import require_transaction
from accounting.ledger.posting import Booking, accounts_of, entries_of, entries_of_charges, insert, together
from accounting.ledger.rollups import correct_sums
from accounting.ledger.usage import in_words, key_of, span_of
from accounting.models import (
    ClassCharge,
    ClosedBook,
    CorrectedSegment,
    LedgerAccount,
    LedgerTransaction,
    Tenant,
    UsageSegment,
    User,
)

# Class charges by the id of the segment.
Charges: TypeAlias = Mapping[int, ClassCharge]


@dataclass(frozen=True, slots=True)
class Payer:
    """Represents the new payer of usage: a tenant and a user. If `user` is None, only the tenant changes."""

    tenant: Tenant
    user: User | None = None


def correct_trade(*, actor: User | None, trade: LedgerTransaction, reason: str) -> LedgerTransaction:
    """Reverses a trade: posts a transaction with the opposite amounts for the same period, and returns it.

    Raises Refused if `trade` is not a trade or was already corrected.
    """
    require_transaction()
    if trade.kind != LedgerTransaction.Kind.TRADE:
        raise Refused("This ledger transaction is not a trade.")
    if LedgerTransaction.objects.filter(corrects=trade, month=trade.month).exists():
        raise Refused("This trade has already been corrected.")
    correction = LedgerTransaction(
        book=trade.book,
        month=trade.month,
        key=f"correction:trade:{trade.pk}",
        kind=LedgerTransaction.Kind.CORRECTION,
        period=trade.period,
        description=_reason(reason),
        actor=actor,
        corrects=trade,
    )
    insert([Booking(correction, {account: -amount for account, amount in accounts_of(trade).items()})])
    return correction


def correct_usage(
    *, actor: User | None, segments: Sequence[UsageSegment], reason: str, payer: Payer | None = None
) -> list[LedgerTransaction]:
    """Reverses usage segments and returns the posted transactions.

    `payer`: if given, the segments are also posted again for this payer, at the same prices. Posts one correction for
    each month of each cluster's ledger. In the result, each correction is followed by the new posting for the payer.
    Raises Refused if `segments` is empty, or if one of the segments was already reversed.
    """
    require_transaction()
    reason = _reason(reason)
    segments = sorted(segments, key=lambda one: (one.book, one.month, one.period.lower, one.pk))
    if not segments:
        raise Refused("There is no billed usage to correct.")
    books = sorted({one.book for one in segments})
    # The lock keeps hours from being closed meanwhile, so that it is certain which rollups must change.
    list(ClosedBook.objects.select_for_update().filter(book__in=books).order_by("book"))
    if CorrectedSegment.objects.filter(segment__in=[one.pk for one in segments]).exists():
        raise Refused("Part of this usage has already been corrected.")
    bookings = []
    charges = {
        one.segment_id: one
        for one in ClassCharge.objects.filter(
            segment__in=[one.pk for one in segments], month__in={one.month for one in segments}
        )
    }
    for _, some in groupby(segments, key=lambda one: (one.book, one.month)):
        group = list(some)
        bookings.append(_taking_back(actor, group, charges, reason))
        if payer is not None:
            bookings.append(_booked_again(actor, group, charges, payer))
    insert(bookings)
    for book in books:
        correct_sums(book=book, bookings=[one for one in bookings if one.transaction.book == book])
    return [booking.transaction for booking in bookings]


def _taking_back(
    actor: User | None, segments: Sequence[UsageSegment], charges: Charges, reason: str
) -> Booking:
    first = segments[0]
    correction = LedgerTransaction(
        book=first.book,
        month=first.month,
        key=f"correction:usage:{first.pk}",
        kind=LedgerTransaction.Kind.CORRECTION,
        period=span_of(segments),
        description=reason,
        actor=actor,
    )
    back = [_copy(charges[one.pk], one) for one in segments if one.pk in charges]
    entries = together(
        entries_of(segments, taken_back=True),
        entries_of_charges(back, LedgerAccount.Kind.WAIVED, taken_back=True),
    )
    return Booking(correction, entries, takes_back=segments, charges_back=back)


def _booked_again(
    actor: User | None, segments: Sequence[UsageSegment], charges: Charges, payer: Payer
) -> Booking:
    anew = [_of(payer, segment) for segment in segments]
    copies = zip(anew, segments, strict=True)
    again = [_copy(charges[one.pk], copied) for copied, one in copies if one.pk in charges]
    booking = LedgerTransaction(
        book=anew[0].book,
        month=anew[0].month,
        key=key_of(anew[0]),
        kind=LedgerTransaction.Kind.USAGE,
        period=span_of(anew),
        description=in_words(anew),
        actor=actor,
    )
    entries = together(entries_of(anew), entries_of_charges(again, LedgerAccount.Kind.WAIVED))
    return Booking(booking, entries, segments=anew, charges=again)


def _of(payer: Payer, segment: UsageSegment) -> UsageSegment:
    anew = copy(segment)
    anew.pk, anew.version = None, segment.version + 1
    anew.tenant, anew.tenant_name = payer.tenant, payer.tenant.name
    if payer.user is not None:
        anew.user, anew.user_name = payer.user, payer.user.get_username()
    return anew


def _copy(charge: ClassCharge, segment: UsageSegment) -> ClassCharge:
    copied = copy(charge)
    copied.segment = segment
    return copied


def _reason(reason: str) -> str:
    if not reason.strip():
        raise Refused("Give a reason for the correction.", "reason")
    return reason.strip()
