"""Tests of the operators' capacity report: teams' costs, unused time, write-offs and rounding sum to the capacity's
value."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from accounting.actions import set_price
from accounting.core.calendar import start_of_hour
from accounting.ledger import Payer, correct_usage
from accounting.models import ClosedBook, Price
from accounting.reports import capacity
from accounting.reports.capacity import capacity_report
from accounting.reports.chargeback import chargeback
from accounting.reports.idle import idle_report
from accounting.reports.invoice import lines_of
from accounting.reports.utilisation import use_by_hour, use_by_hour_of_week
from accounting.usage.reader import UsageReader
from tests import make
from tests.accounting.booking import HOUR, NOON, book, close_hours, minutes
from tests.accounting.ledger.test_at_once import at_once
from tests.make import LONG_AGO, Cast


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
    assert identity.written_off == segments[0].cost > 0
    assert identity.closes


@pytest.mark.django_db(transaction=True)
def test_the_identity_closes_whatever_is_closed_while_it_is_read(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cast = make.cast()
    for hour in range(2):
        book(cast, lease_id=hour, begins=NOON + hour * HOUR, ends=NOON + (hour + 1) * HOUR)
    close_hours(cast, NOON, NOON + HOUR)
    read = capacity._tenants

    def close_first(*asked: object) -> object:
        if ClosedBook.objects.get().until == NOON + HOUR:
            assert at_once(lambda: close_hours(cast, NOON + HOUR, NOON + 2 * HOUR)) == [None]
        return read(*asked)

    monkeypatch.setattr(capacity, "_tenants", close_first)
    (identity,) = capacity_report(NOON, NOON + 2 * HOUR).identities
    assert identity.closes
    monkeypatch.undo()
    (later,) = capacity_report(NOON, NOON + 2 * HOUR).identities
    assert (later.closes, later.borne) == (True, 2 * identity.borne)


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
    whole = lines_of(UsageReader(cast.alice, NOON, NOON + 2 * HOUR, cast.astro))
    assert [(one.currency, one.price, one.cost) for one in whole] == [("EUR", 3, 12), ("USD", 5, 5)]
    settings.FAIRLOT_CURRENCY = "CHF"
    again = capacity_report(NOON, NOON + 2 * HOUR)
    assert (again.rows, again.identities) == (report.rows, report.identities)


def test_what_was_billed_in_a_currency_in_which_nothing_was_closed_is_told_when_it_is_archived(
    cast: Cast,
) -> None:
    """Proves that the report still shows a bill in euros after the bill's hour was closed in US dollars and archived.

    Fairlot's currency could change within an hour, because prices had no currency in earlier releases.
    """
    book(cast)
    Price.objects.update(currency="USD")
    close_hours(cast, NOON, NOON + HOUR)
    ClosedBook.objects.update(details_since=NOON + HOUR)
    told = [(one.currency, one.borne, one.closes) for one in capacity_report(NOON, NOON + HOUR).identities]
    assert told == [("EUR", 6, True), ("USD", 0, True)]


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
    part = capacity_report(NOON + minutes(1), NOON + 2 * HOUR - minutes(1), book=2)
    assert (part.begins, part.ends) == (NOON + HOUR, NOON + 2 * HOUR)
    assert [row.capacity / 3600 for row in part.rows] == [1000]


def test_an_hour_is_of_one_of_two_adjoining_periods_on_every_clock(cast: Cast) -> None:
    """Proves that an hour counts in exactly one of two adjoining periods in every time zone.

    In Kolkata, days begin and end in the middle of a UTC hour.
    """
    kolkata = ZoneInfo("Asia/Kolkata")
    days = [datetime(2026, 5, day, tzinfo=kolkata) for day in (4, 5, 6)]
    edge = start_of_hour(days[1])
    assert days[1] - edge == minutes(30)
    Price.objects.filter(generation=cast.a100).update(valid=DateTimeTZRange(LONG_AGO, edge + minutes(45)))
    Price.objects.create(
        generation=cast.a100, per_gpu_hour=7, valid=DateTimeTZRange(edge + minutes(45), None)
    )
    book(cast, begins=edge, ends=edge + HOUR, unused=[(edge, edge + HOUR)])
    close_hours(cast, edge - 9 * HOUR, edge + 9 * HOUR)
    book(cast, lease_id=2, begins=edge + 9 * HOUR, ends=edge + 10 * HOUR, unused=[(edge, edge + 10 * HOUR)])
    periods = [(days[0], days[1]), (days[1], days[2]), (days[0], days[2])]

    def capacity(begins: datetime, ends: datetime) -> Decimal:
        return sum((row.capacity for row in capacity_report(begins, ends).rows), Decimal(0)) / 3600

    def charged(begins: datetime, ends: datetime) -> Decimal:
        return sum((row.cost for row in chargeback(begins, ends)), Decimal(0))

    def idle(begins: datetime, ends: datetime) -> Decimal:
        return sum((row.idle for row in idle_report(cast.olga, begins, ends)), Decimal(0)) / 3600

    def used(begins: datetime, ends: datetime) -> Decimal:
        of_week = use_by_hour_of_week(begins, ends, zone="Asia/Kolkata").values()
        by_hour = use_by_hour(begins, ends).values()
        assert sum(one.busy for one in of_week) == sum(one.busy for one in by_hour)
        return sum((one.capacity for one in by_hour), Decimal(0)) / 3600

    # The UTC hour around midnight belongs to the day in which it begins.
    assert [capacity(*one) for one in periods] == [10_000, 8_000, 18_000]
    assert [used(*one) for one in periods] == [10_000, 8_000, 18_000]
    assert [charged(*one) for one in periods] == [16, 0, 16]
    assert [idle(*one) for one in periods] == [4, 4, 8]


def test_of_nothing_there_is_nothing_to_tell(cast: Cast) -> None:
    report = capacity_report(NOON, NOON + HOUR)
    assert (report.until, list(report.rows), list(report.identities)) == (None, [], [])
    assert report.classes_close
