"""The identity of the closed books, as operators read it."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from django.db import transaction

from accounting.actions import set_price
from accounting.capacity_report import capacity_report
from accounting.chargeback import chargeback
from accounting.invoice import lines_of
from accounting.ledger import Payer, correct_usage
from accounting.models import Price
from tests.accounting.booking import HOUR, NOON, book, close_hours, minutes
from tests.make import Cast


def test_tenants_and_what_nobody_held_bear_what_capacity_was_worth(cast: Cast) -> None:
    Price.objects.filter(generation=cast.a100).update(per_gpu_hour=Decimal("2.999983"))
    for lease in range(7):
        who = (cast.astro, cast.bob) if lease % 2 else (cast.bio, cast.charlie)
        begins = NOON + minutes(lease * 17)
        book(
            cast, lease_id=lease, tenant=who[0], user=who[1], gpus=lease + 1, begins=begins,
            ends=begins + timedelta(minutes=31, microseconds=7), running_from=begins + minutes(lease),
        )  # fmt: skip
    segments = book(cast, lease_id=20, begins=NOON + minutes(5), ends=NOON + minutes(6))
    close_hours(cast, NOON, NOON + 3 * HOUR)
    for payer in (Payer(cast.bio, cast.charlie), None):
        report = capacity_report(NOON - HOUR, NOON + 9 * HOUR)
        (identity,) = report.identities
        assert identity.closes
        assert report.classes_close
        assert (identity.currency, [one.tenant for one in identity.tenants]) == ("EUR", ["Astro", "Bio"])
        assert (report.until, identity.rounding != 0) == (NOON + 3 * HOUR, True)
        with transaction.atomic():
            correct_usage(actor=None, segments=segments, reason="a test", payer=payer)
        if payer:
            segments = list(type(segments[0]).objects.filter(version=1).select_related("generation"))
    (identity,) = capacity_report(NOON, NOON + 3 * HOUR).identities
    assert identity.waived == segments[0].cost > 0
    assert identity.closes


def test_each_currency_has_an_identity_of_its_own_that_closes(cast: Cast, settings) -> None:
    book(cast)
    settings.FAIRLOT_CURRENCY = "USD"
    begins = NOON + minutes(90)
    set_price(actor=cast.ada, generation=cast.a100, per_gpu_hour=Decimal(5), since=begins)
    book(cast, lease_id=2, begins=begins - minutes(30), ends=begins + minutes(15))
    close_hours(cast, NOON, NOON + 2 * HOUR)
    report = capacity_report(NOON, NOON + 2 * HOUR)
    told = [(one.currency, one.borne, one.value, one.closes) for one in report.identities]
    assert told == [("EUR", 12, 4500, True), ("USD", 5, 2500, True)]
    bills = [(one.currency, one.cost) for one in chargeback(NOON, NOON + 2 * HOUR)]
    assert bills == [("EUR", 12), ("USD", 5)]
    whole = lines_of(cast.alice, NOON, NOON + 2 * HOUR, cast.astro)
    assert [(one.currency, one.price, one.cost) for one in whole] == [("EUR", 3, 12), ("USD", 5, 5)]
    settings.FAIRLOT_CURRENCY = "CHF"
    again = capacity_report(NOON, NOON + 2 * HOUR)
    assert (again.rows, again.identities) == (report.rows, report.identities)


def test_only_closed_hours_of_the_cluster_that_is_asked_for_count(cast: Cast) -> None:
    book(cast, book=1)
    book(cast, book=2, lease_id=2, begins=NOON + HOUR, ends=NOON + minutes(70))
    close_hours(cast, NOON, NOON + HOUR)
    close_hours(cast, NOON, NOON + 2 * HOUR, book=2)
    one, both = capacity_report(NOON, NOON + 9 * HOUR, book=1), capacity_report(NOON, NOON + 9 * HOUR)
    assert (one.until, both.until) == (NOON + HOUR, NOON + HOUR)
    assert [(row.generation, row.capacity / 3600) for row in one.rows] == [("A100", 1000)]
    assert both.rows[0].capacity / 3600 == 3000
    assert all(report.identities[0].closes for report in (one, both))
    part = capacity_report(NOON + minutes(1), NOON + HOUR - minutes(1))
    assert (part.begins, part.ends, list(part.rows)) == (NOON + HOUR, NOON + HOUR, [])


def test_of_nothing_there_is_nothing_to_tell(cast: Cast) -> None:
    report = capacity_report(NOON, NOON + HOUR)
    assert (report.until, list(report.rows), list(report.identities)) == (None, [], [])
    assert report.classes_close
