"""Reads the hourly sums of archived bills for reports: costs by price, corrections, and class charges.

A class charge is the amount that the price for idle, preemptible or borrowed time adds to a bill.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import connection
from django.db.models import F, Q, QuerySet, Sum

from accounting.core.calendar import first_hour, first_of_month, start_of_hour
from accounting.models import ArchivedHour, ClosedBook
from accounting.usage.books import Books

# Looks at hours, because a period in another time zone may contain no full UTC day, and month by month, because there
# are many hours.
WITHOUT_BILLS = """
    SELECT EXISTS (
        SELECT FROM generate_series(%s::timestamp, %s::timestamp, interval '1 month') AS told (month)
         WHERE EXISTS (SELECT FROM accounting_usagehour usage
                        WHERE usage.month = told.month::date AND usage.hour >= %s AND usage.hour < %s)
           AND NOT EXISTS (SELECT FROM accounting_archivedhour kept WHERE kept.month = told.month::date)
    )
"""


def archived_hours(books: Books, begins: datetime, ends: datetime) -> QuerySet[ArchivedHour] | None:
    """Returns a queryset of the ArchivedHour rows for the full UTC hours in [begins, ends).

    Returns None if no bill of this period is archived.
    """
    until = books.bills_since
    if until is None or begins >= until:
        return None
    first, last = first_hour(begins), start_of_hour(ends)
    hours: Any = ArchivedHour.objects.between(first, last).order_by()
    return hours  # type: ignore[no-any-return]


def has_all(books: Books, begins: datetime, ends: datetime) -> bool:
    """Returns whether all archived time in [begins, ends) has ArchivedHour rows.

    An early release of Fairlot did not write these rows. They are missing for the months that it archived.
    """
    until = books.bills_since
    if until is None or begins >= until:
        return True
    last = min(ends, until)
    with connection.cursor() as cursor:
        cursor.execute(WITHOUT_BILLS, [first_of_month(begins), first_of_month(last), begins, last])
        (lacks_some,) = cursor.fetchone()
    return not lacks_some


def written_off_of_archived(
    books: Iterable[ClosedBook], first: datetime, last: datetime, names: tuple[str, ...]
) -> dict[tuple[Any, ...], Decimal]:
    """Returns the write-offs in the archived part of [first, last), grouped by the fields `names` of ArchivedHour.

    The keys of the result are the values of these fields. Write-offs are costs that corrections reversed without
    billing another payer. For time that is not archived, use `written_off`.
    """
    until = max((one.details_since for one in books if one.details_since), default=first)
    if until <= first:
        return {}
    of_books = ArchivedHour.objects.filter(book__in=[one.book for one in books]).between(
        first, min(last, until)
    )
    sums = (
        of_books.order_by()
        .values_list(*names)
        .annotate(
            back=Sum(F("cost") + F("charged"), filter=Q(correction_id__isnull=False), default=Decimal(0)),
            anew_again=Sum(F("cost") + F("brought"), filter=Q(anew_by_id__isnull=False), default=Decimal(0)),
        )
    )
    return {tuple(key): back - again for *key, back, again in sums if back or again}
