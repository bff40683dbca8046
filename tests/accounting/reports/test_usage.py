import csv
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from django.db import connection, transaction
from django.db.models import Case, QuerySet, Sum, Value, When
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from accounting import actions
from accounting.core import prepared
from accounting.core.prepared import KeyedQuery
from accounting.ledger import Payer, correct_usage
from accounting.models import ClosedBook, LedgerEntry, Tenant, UsageSegment, User
from accounting.reports.capacity import capacity_report
from accounting.reports.chargeback import chargeback
from accounting.reports.usage import By, UsageReport, csv_lines, usage_report
from accounting.usage.aggregate import fetch
from accounting.usage.books import Books
from tests import make
from tests.accounting.booking import HOUR, NOON, book, close_hours, minutes
from tests.make import Cast
from tests.query_counts import queries_of


@pytest.fixture
def booked(cast: Cast) -> Cast:
    """Books usage of both teams at irregular times over a few days."""
    odd = timedelta(minutes=37, microseconds=123457)
    for lease in range(12):
        team = (cast.astro, (cast.bob, cast.alice)[lease % 2]) if lease % 3 else (cast.bio, cast.charlie)
        book(
            cast,
            lease_id=lease,
            job_id=lease // 2,
            job_name=f"job {lease // 2}",
            tenant=team[0],
            user=team[1],
            generation=(cast.a100, cast.v100)[lease % 2],
            gpus=lease % 5 + 1,
            begins=NOON + lease * odd * 5,
            ends=NOON + lease * odd * 5 + odd * (lease + 1),
        )
    return cast


def total(report: UsageReport) -> tuple[Decimal, Decimal]:
    (row,) = report.totals
    return row.gpu_seconds, row.cost


def in_ledger(tenants: list[Tenant]) -> tuple[Decimal, Decimal]:
    entries = LedgerEntry.objects.filter(account__tenant__in=tenants)
    sums = dict(entries.values_list("account__kind").annotate(Sum("amount")))
    return sums.get("usage", Decimal(0)), sums.get("cost", Decimal(0))


def test_a_report_equals_the_ledgers_entries_corrections_included(booked: Cast) -> None:
    everyone = [booked.uni, booked.astro, booked.bio]
    for corrected in (False, True):
        if corrected:
            wrong = UsageSegment.objects.filter(lease_id__in=[4, 5, 6]).select_related("generation")
            actions.take_back_usage(actor=booked.ada, segments=list(wrong), reason="a test")
        for viewer, tenants in (
            (booked.olga, everyone),
            (booked.bob, [booked.astro]),
            (booked.charlie, [booked.bio]),
        ):
            report = usage_report(viewer, None, None, by=[By.TENANT])
            assert total(report) == in_ledger(tenants)
            assert total(report)[0] > 0
    assert sum(row.segments for row in report.rows) < UsageSegment.objects.filter(tenant=booked.bio).count()


@pytest.mark.parametrize(
    "by", [[], [By.TENANT], [By.USER, By.GENERATION], [By.JOB], [By.DAY], [By.HOUR, By.TENANT], list(By)[:5]]
)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "Pacific/Chatham"])
def test_rows_add_up_to_the_totals(booked: Cast, by: list[By], zone: str) -> None:
    begins, ends = NOON + minutes(99.5), NOON + timedelta(days=1, seconds=1.25)
    report = usage_report(booked.olga, begins, ends, by=by, time_zone=zone)
    assert total(report)[0] > 0
    assert bool(report.rows) == bool(by)
    if by:
        assert total(report) == (
            sum(row.gpu_seconds for row in report.rows), sum(row.cost for row in report.rows),
        )  # fmt: skip


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.sets(st.integers(0, 4 * 86400 * 10**6), min_size=1, max_size=4))
def test_adjoining_periods_add_up_wherever_they_are_cut(booked: Cast, cuts: set[int]) -> None:
    moments = [None, *(NOON + timedelta(microseconds=cut) for cut in sorted(cuts)), None]
    parts = [total(usage_report(booked.olga, *period)) for period in pairwise(moments)]
    whole = total(usage_report(booked.olga, None, None))
    assert (sum(part[0] for part in parts), sum(part[1] for part in parts)) == whole


def test_a_part_of_a_segment_is_counted_to_the_microsecond(cast: Cast) -> None:
    book(cast, gpus=3, ends=NOON + HOUR)
    begins = NOON + timedelta(microseconds=1)
    assert total(usage_report(cast.bob, begins, begins + minutes(1))) == (180, Decimal("0.1500"))
    assert total(usage_report(cast.bob, begins, begins)) == (0, 0)
    assert total(usage_report(cast.bob, NOON + HOUR, None)) == (0, 0)
    assert total(usage_report(cast.bob, None, NOON)) == (0, 0)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York", "Asia/Kathmandu"])
def test_days_are_those_of_the_time_zone(booked: Cast, zone: str) -> None:
    expected: dict[datetime, Decimal] = defaultdict(Decimal)
    for segment in UsageSegment.objects.all():
        begins, ends = segment.period.lower, segment.period.upper
        while begins < ends:
            local = begins.astimezone(ZoneInfo(zone))
            midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
            until = min(ends, (midnight + timedelta(days=1)).astimezone(UTC))
            expected[midnight] += (
                segment.gpus * Decimal((until - begins) // timedelta(microseconds=1)) / 10**6
            )
            begins = until
    report = usage_report(booked.olga, None, None, by=[By.DAY], time_zone=zone)
    assert {row.begins: row.gpu_seconds for row in report.rows} == expected
    assert len(expected) > 1


ZONES = [
    "UTC", "Europe/Berlin", "Asia/Kolkata", "Asia/Kathmandu", "America/St_Johns", "America/Havana", "Atlantic/Azores",
]  # fmt: skip


@contextmanager
def without_sums() -> Iterator[None]:
    """Context manager in which reports read only single usage segments and no rollups, as if no hour were closed."""
    with pytest.MonkeyPatch.context() as patch:
        books = list(UsageSegment.objects.order_by("book").values_list("book", flat=True).distinct())
        patch.setattr(Books, "closed", ())
        patch.setattr(Books, "unopened", books)
        yield


groupings = st.lists(st.sampled_from(list(By)), max_size=4, unique=True).filter(
    lambda by: not {By.DAY, By.HOUR} <= set(by) and not {By.JOB, By.LABEL} <= set(by)
)


def test_without_sums_nothing_is_read_of_them(booked: Cast) -> None:
    close_hours(booked, NOON - 12 * HOUR, NOON + 50 * HOUR)
    with without_sums(), CaptureQueriesContext(connection) as asked:
        assert total(usage_report(booked.olga, None, None, by=[By.JOB]))[0] > 0
    assert not any("accounting_usageday" in one["sql"] or "jobday" in one["sql"] for one in asked)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_books_that_are_closed_to_different_hours_or_not_at_all_are_read_once(
    db: None, data: st.DataObject
) -> None:
    hours = st.integers(-30, 90)
    moments = st.none() | st.integers(-72_000, 360_000).map(
        lambda s: NOON + timedelta(seconds=s, microseconds=s % 7)
    )
    with transaction.atomic():
        cast = make.cast()
        odd = timedelta(minutes=37, microseconds=123457)
        for lease in range(9):  # in three books; the third book is never opened
            team = (cast.astro, (cast.bob, cast.alice)[lease % 2]) if lease % 4 else (cast.bio, cast.charlie)
            book(
                cast, book=lease % 3 + 1, lease_id=lease, job_id=lease // 2, tenant=team[0], user=team[1],
                generation=(cast.a100, cast.v100)[lease % 2], begins=NOON + lease * odd * 9,
                ends=NOON + lease * odd * 9 + odd * (lease + 1),
            )  # fmt: skip
        for number in (1, 2):
            since, until = sorted((data.draw(hours), data.draw(hours)))
            close_hours(cast, NOON + since * HOUR, NOON + until * HOUR, book=number)
        by = data.draw(groupings)
        names = some_names() if By.LABEL in by else None
        asked = partial(
            usage_report, data.draw(st.sampled_from([cast.olga, cast.bob])), data.draw(moments), data.draw(moments),
            by=by, time_zone=data.draw(st.sampled_from([*ZONES, "Australia/Lord_Howe"])), job_names=names,
        )  # fmt: skip
        read = asked()
        with without_sums():
            alone = asked()
        transaction.set_rollback(True)
    assert (read.rows, read.totals, read.count) == (alone.rows, alone.totals, alone.count)


def some_names() -> QuerySet[UsageSegment, tuple[int, str]]:
    """Returns a queryset of (job ID, label) for three jobs. Two of the labels are equal."""
    segments = UsageSegment.objects.filter(job_id__in=[0, 2, 4]).order_by().distinct()
    return segments.values_list("job_id", Case(When(job_id=4, then=Value("b")), default=Value("a")))


@dataclass(frozen=True)
class Asked:
    by: list[By]
    zone: str
    begins: int | None
    ends: int | None
    viewer: str


asked = st.builds(
    Asked,
    by=groupings,
    zone=st.sampled_from(ZONES),
    begins=st.none() | st.integers(-200_000, 400_000),
    ends=st.none() | st.integers(-200_000, 400_000),
    viewer=st.sampled_from(["olga", "alice", "charlie"]),
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(asked, st.integers(-30, 0), st.integers(0, 80))
def test_what_is_read_from_sums_is_what_is_read_from_segments(
    booked: Cast, asked: Asked, first: int, last: int
) -> None:
    bounds = [
        None if at is None else NOON + timedelta(seconds=at, microseconds=77)
        for at in (asked.begins, asked.ends)
    ]

    def report() -> tuple[object, ...]:
        told = usage_report(
            getattr(booked, asked.viewer),
            *bounds,
            by=asked.by,
            time_zone=asked.zone,
            job_names=some_names() if By.LABEL in asked.by else None,
        )
        return told.rows, told.totals

    with transaction.atomic():
        before = report()
        close_hours(booked, NOON + first * HOUR, NOON + last * HOUR)
        assert report() == before
        segments = list(UsageSegment.objects.filter(lease_id__in=[4, 5, 6]).select_related("generation"))
        correct_usage(actor=None, segments=segments, reason="a test", payer=Payer(booked.bio, booked.charlie))
        after = report()
        with without_sums():
            assert report() == after
        transaction.set_rollback(True)


def ask_twice(question: KeyedQuery, keys: list[int] | None) -> list[tuple[Any, ...]]:
    """Runs a report query with cached SQL and with newly built SQL. Asserts that the rows are equal, and returns
    them."""
    count = None if keys is None else len(keys)
    kept, new = prepared._asked_last(question, count), prepared._asked_last.__wrapped__(question, count)
    if kept is None or new is None:
        assert kept is new
        return []
    texts = [statement._prepare.partition(" AS ")[2] for statement, _ in (kept, new)]
    assert texts[0] == texts[1]
    rows = kept[0].ask([keys[place] for place in kept[1]] if keys is not None else [])
    assert repr(rows) == repr(fetch(question.build(keys)))
    return rows


few_moments = st.sampled_from(
    [
        None,
        NOON,
        NOON + minutes(30),
        NOON.astimezone(ZoneInfo("Asia/Kolkata")) + 9 * HOUR,
        NOON + 30 * HOUR + timedelta(microseconds=5),
        NOON + timedelta(days=40),
    ]
)
periods = st.fixed_dictionaries(
    {
        "begins": few_moments,
        "ends": few_moments,
        "by": groupings.filter(lambda by: By.LABEL not in by),
        "time_zone": st.sampled_from(ZONES),
        "largest": st.sampled_from([None, slice(0, 2), slice(0, 100), slice(2, 4)]),
    }
)
BOB = {"viewer": "bob", "tenant": None, "user": None}
readers = st.fixed_dictionaries(
    {
        "viewer": st.sampled_from(["olga", "alice", "bob", "charlie"]),
        "tenant": st.sampled_from([None, "uni", "astro", "bio"]),
        "user": st.sampled_from([None, None, "bob"]),
    }
)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(periods, min_size=1, max_size=2), st.lists(st.none() | readers, min_size=3, max_size=8))
@example(
    [{"begins": None, "ends": None, "by": [By.USER], "time_zone": "UTC", "largest": None}],
    [None, BOB, None, BOB, None, BOB, BOB | {"viewer": "charlie"}],
)
def test_a_report_by_the_sql_of_another_one_says_what_new_sql_says(
    booked: Cast, asked: list[dict[str, Any]], steps: list[dict[str, Any] | None]
) -> None:
    """Proves that reports with cached SQL equal reports with new SQL, for several readers and before and after
    closings.

    `asked`: the periods and groupings of the reports. `steps`: each step is a reader, for whom all these reports are
    made, or None, which closes the next 13 hours.
    """
    closed = -1
    with transaction.atomic(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyedQuery, "ask", ask_twice)
        for step in steps:
            if step is None:
                close_hours(booked, NOON + closed * HOUR, NOON + (closed + 13) * HOUR)
                closed += 13
                continue
            values = {name: one and getattr(booked, one) for name, one in step.items()}
            for period in asked:
                usage_report(**values, **period)
        transaction.set_rollback(True)


def test_readers_of_as_many_teams_share_the_sql_of_a_report(booked: Cast) -> None:
    def seen(viewer: User) -> set[str | None]:
        report = usage_report(
            viewer, NOON, NOON + timedelta(days=1, minutes=11), by=[By.USER], largest=slice(0, 9)
        )
        return {row.user for row in report.rows}

    before = prepared._asked_last.cache_info().misses
    assert seen(booked.bob) == {"alice", "bob"}
    made = prepared._asked_last.cache_info().misses
    assert made > before
    assert seen(booked.charlie) == {"charlie"}
    assert seen(booked.alice) == {"alice", "bob"}
    assert prepared._asked_last.cache_info().misses == made


def test_the_hour_that_clocks_repeat_is_two_moments(cast: Cast) -> None:
    before = datetime(2026, 10, 25, 0, tzinfo=UTC)  # 02:00 in Berlin, summer time
    book(cast, gpus=1, begins=before, ends=before + 3 * HOUR)
    first = datetime(2026, 10, 25, 2, tzinfo=ZoneInfo("Europe/Berlin"))
    for fold, hours in ((0, 3), (1, 2), (0, 3)):
        assert total(usage_report(cast.bob, first.replace(fold=fold), None))[0] == hours * 3600


# Time zones in which a day has two midnights, and time zones with offsets of half or quarter hours; each with a full
# hour shortly before such a day begins.
ODD_CLOCKS = {
    "America/Havana": datetime(2026, 11, 1, 4, tzinfo=UTC),
    "Atlantic/Azores": datetime(2026, 10, 25, 0, tzinfo=UTC),
    "Asia/Kolkata": datetime(2026, 5, 4, 18, tzinfo=UTC),
    "Asia/Kathmandu": datetime(2026, 5, 4, 18, tzinfo=UTC),
}
around = st.integers(-6 * 3600, 6 * 3600)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.sampled_from(sorted(ODD_CLOCKS)),
    st.lists(st.tuples(around, around), min_size=1, max_size=4),
    st.integers(-6, 7),
)
def test_days_of_odd_clocks_add_up_in_all_reports_whether_closed_or_not(
    cast: Cast, zone: str, leases: list[tuple[int, int]], closed: int
) -> None:
    clock, middle = ZoneInfo(zone), ODD_CLOCKS[zone]
    today = middle.astimezone(clock).date()
    midnights = [datetime.combine(today + timedelta(days=day), time(), clock) for day in range(-1, 3)]
    expected: dict[datetime, Decimal] = {}
    with transaction.atomic():
        for number, (a, z) in enumerate(leases):
            begins, ends = (
                middle + timedelta(seconds=at, microseconds=7) for at in (min(a, z), max(a, z) + 1)
            )
            book(cast, lease_id=number, job_id=number, gpus=1, begins=begins, ends=ends)
            for midnight, next_one in pairwise(midnights):
                part = min(ends, next_one.astimezone(UTC)) - max(begins, midnight.astimezone(UTC))
                if part > timedelta(0):
                    known = expected.get(midnight, Decimal(0))
                    expected[midnight] = known + Decimal(part // timedelta(microseconds=1)).scaleb(-6)
        first = middle - 24 * HOUR
        for until in (middle + closed * HOUR, middle + 48 * HOUR):
            held = ClosedBook.objects.filter(book=1).first()
            close_hours(cast, held.until if held else first, until)
            report = usage_report(cast.olga, None, None, by=[By.DAY], time_zone=zone)
            assert {row.begins: row.gpu_seconds for row in report.rows} == expected
            days = [usage_report(cast.olga, *day).totals[0].gpu_seconds for day in pairwise(midnights)]
            assert days == [expected.get(midnight, 0) for midnight in midnights[:-1]]
        of_days = [capacity_report(*day).rows[0].held for day in pairwise(midnights)]
        of_bills = [sum(one.gpu_seconds for one in chargeback(*day)) for day in pairwise(midnights)]
        assert of_days == of_bills
        assert sum(of_days) == sum(expected.values())
        transaction.set_rollback(True)


def test_the_hour_that_clocks_repeat_has_two_rows(cast: Cast) -> None:
    before = datetime(2026, 10, 24, 23, tzinfo=UTC)  # 01:00 in Berlin, summer time
    book(cast, gpus=1, begins=before, ends=before + 4 * HOUR)
    report = usage_report(cast.bob, None, None, by=[By.HOUR], time_zone="Europe/Berlin")
    told = [(f"{row.begins:%H:%M %Z}", row.gpu_seconds) for row in report.rows]
    assert told == [("01:00 CEST", 3600), ("02:00 CEST", 3600), ("02:00 CET", 3600), ("03:00 CET", 3600)]


def test_hours_of_half_hour_zones_take_their_parts_of_segments(cast: Cast) -> None:
    book(cast, gpus=1, begins=NOON + minutes(15), ends=NOON + minutes(75))
    report = usage_report(cast.bob, None, None, by=[By.HOUR], time_zone="Asia/Kolkata")
    told = [(f"{row.begins:%H:%M}", row.gpu_seconds, row.segments) for row in report.rows]
    assert told == [("17:00", 900, 1), ("18:00", 1800 + 900, 2)]


def test_everyone_sees_what_lies_in_and_below_the_own_tenants(booked: Cast) -> None:
    dean = make.user("dean")
    make.membership(dean, booked.uni, role="viewer")
    gone = make.user("gone", portal_role=User.PortalRole.OPERATOR)
    gone.is_active = False
    seen = {
        viewer.username: {row.tenant for row in usage_report(viewer, None, None, by=[By.TENANT]).rows}
        for viewer in (booked.alice, booked.bob, booked.charlie, booked.olga, booked.ada, dean, gone)
    }
    assert seen == {
        "alice": {"Astro"}, "bob": {"Astro"}, "charlie": {"Bio"}, "olga": {"Astro", "Bio"},
        "ada": {"Astro", "Bio"}, "dean": {"Astro", "Bio"}, "gone": set(),
    }  # fmt: skip
    foreign = usage_report(booked.charlie, None, None, tenant=booked.astro, user=booked.bob)
    assert total(foreign) == (0, 0)


def test_a_report_is_narrowed_down(booked: Cast) -> None:
    whole = total(usage_report(booked.olga, None, None))[0]
    below = usage_report(booked.olga, None, None, tenant=booked.uni, by=[By.TENANT])
    assert total(below)[0] == whole
    for choice, name in (("tenant", "astro"), ("user", "bob"), ("generation", "a100")):
        chosen = getattr(booked, name)
        report = usage_report(booked.olga, None, None, by=[By(choice)], **{choice: chosen})
        assert [getattr(row, choice) for row in report.rows] == [str(chosen)]
        assert 0 < total(report)[0] < whole
    (row,) = usage_report(booked.olga, None, None, by=[By.JOB], job_id=2).rows
    assert (row.job_id, row.job) == (2, "job 2")


def test_a_report_takes_as_many_queries_for_much_as_for_little(cast: Cast) -> None:
    reports = ([By.TENANT, By.JOB], [By.DAY, By.USER], [By.GENERATION], [By.HOUR])

    def ask(ends: datetime) -> None:
        for by in reports:
            with queries_of(f"a usage report by {' and '.join(by)}"):
                usage_report(cast.bob, None, ends, by=by, tenant=cast.astro)

    for lease in range(2):
        book(cast, lease_id=lease, ends=NOON + (lease * 9 + 1) * HOUR)
        ask(NOON + 99 * HOUR)
    close_hours(cast, NOON - 12 * HOUR, NOON + 50 * HOUR)
    for lease in range(2):
        ask(NOON + 99 * HOUR)
        book(cast, lease_id=lease + 5, begins=NOON + 60 * HOUR, ends=NOON + 61 * HOUR)


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.just([By.JOB]) | groupings.filter(bool), st.integers(0, 6), st.integers(1, 5), st.integers(-10, 40))
def test_the_largest_rows_are_those_of_the_whole_report(
    booked: Cast, by: list[By], first: int, count: int, closed: int
) -> None:
    with transaction.atomic():
        close_hours(booked, NOON - 12 * HOUR, NOON + closed * HOUR)
        names = some_names() if By.LABEL in by else None
        asked = partial(
            usage_report, booked.olga, None, None, by=by, time_zone="Asia/Kolkata", job_names=names
        )
        whole, some = asked(), asked(largest=slice(first, first + count))
        totals = asked(by=(), job_names=None).totals
        assert whole.totals == some.totals == totals
        transaction.set_rollback(True)
    sizes = sorted((row.gpu_seconds for row in whole.rows), reverse=True)
    assert [row.gpu_seconds for row in some.rows] == sizes[first : first + count]
    assert set(map(repr, some.rows)) <= set(map(repr, whole.rows))
    assert some.totals == whole.totals
    if some.rows:
        assert (some.count, some.most) == (len(whole.rows), sizes[0])


def test_what_makes_no_sense_is_an_error(cast: Cast) -> None:
    with pytest.raises(ValueError, match="not by both"):
        usage_report(cast.bob, None, None, by=[By.DAY, By.HOUR])
    with pytest.raises(ZoneInfoNotFoundError):
        usage_report(cast.bob, None, None, by=[By.DAY], time_zone="Mars/Base")


def test_usage_in_another_currency_is_never_added_up(cast: Cast, settings) -> None:
    book(cast)
    settings.FAIRLOT_CURRENCY = "USD"
    actions.set_price(actor=cast.ada, generation=cast.a100, per_gpu_hour=Decimal(3), since=NOON + HOUR)
    book(cast, lease_id=2, begins=NOON + HOUR, ends=NOON + minutes(90))
    report = usage_report(cast.bob, None, None, by=[By.TENANT])
    assert sorted((row.currency, row.cost) for row in report.totals) == [("EUR", 6), ("USD", 6)]
    assert len(report.rows) == 2


def test_the_csv_is_exact_and_harmless_to_spreadsheets(cast: Cast) -> None:
    book(cast, job_name='=HYPERLINK("x"),"y"')
    report = usage_report(cast.bob, None, None, by=[By.DAY, By.JOB], time_zone="Asia/Kolkata")
    lines = list(csv.reader(csv_lines(report)))
    assert lines == [
        ["day", "job_id", "job", "gpu_seconds", "gpu_hours", "cost", "currency", "segments"],
        [
            "2026-05-04T00:00:00+05:30", "7", '\'=HYPERLINK("x"),"y"', "7200.000000", "2.000000",
            "6.000000", "EUR", "1",
        ],
    ]  # fmt: skip


def test_a_report_by_label_adds_up_the_jobs_that_have_it(booked: Cast) -> None:
    jobs = usage_report(booked.olga, None, None, by=[By.JOB])
    report = usage_report(booked.olga, None, None, by=[By.LABEL], job_names=some_names())
    of = {row.job_id: (row.gpu_seconds, row.cost) for row in jobs.rows}
    told = {row.label: (row.gpu_seconds, row.cost) for row in report.rows}
    expected = {"a": (0, 2), "b": (4,), None: (1, 3, 5)}
    assert told == {
        name: tuple(map(sum, zip(*(of[job] for job in some), strict=True))) for name, some in expected.items()
    }
    assert total(report) == total(jobs)
    rows = list(csv.DictReader(csv_lines(report)))
    assert {row["label"] for row in rows} == {"a", "b", "(none)"}


def test_a_report_by_label_must_be_told_the_labels(booked: Cast) -> None:
    with pytest.raises(ValueError, match="names"):
        usage_report(booked.olga, None, None, by=[By.LABEL])
    with pytest.raises(ValueError, match="names"):
        usage_report(booked.olga, None, None, by=[By.LABEL, By.JOB], job_names=some_names())


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("by", [By.JOB, By.USER])
def test_rows_and_totals_are_of_one_moment_whatever_is_booked_meanwhile(cast: Cast, by: By) -> None:
    """Proves that all queries of a report see the same database state, although another connection books usage in
    between."""
    book(cast, lease_id=1, ends=NOON + HOUR)
    booked = []

    def book_more(execute: Any, *query: Any) -> Any:
        answer = execute(*query)

        def more() -> None:
            try:
                book(cast, lease_id=10 + len(booked), ends=NOON + HOUR)
                booked.append(1)
            finally:
                connection.close()

        other = threading.Thread(target=more)
        other.start()
        other.join()
        return answer

    with connection.execute_wrapper(book_more):
        report = usage_report(cast.olga, None, None, by=[by], largest=slice(0, 100))
    assert len(booked) > 2
    (total,) = report.totals
    assert sum(row.gpu_seconds for row in report.rows) == total.gpu_seconds
    assert usage_report(cast.olga, None, None).totals[0].gpu_seconds > total.gpu_seconds
