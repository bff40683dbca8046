"""Tests of class prices: the prices of idle, preemptible and borrowed time, which are booked after their hour is
closed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.closing.class_prices import TimeByClass, next_hour_to_price, price_hour, unsettled
from accounting.closing.hours import close_empty_days
from accounting.core.errors import BookedOtherwise
from accounting.ledger import Payer, correct_usage
from accounting.ledger.hash_chain import first_broken, seal_book
from accounting.limits.spending import spent
from accounting.models import ClassCharge, ClosedBook, LedgerEntry, LedgerTransaction, Price, UsageSegment
from accounting.reports.capacity import capacity_report
from accounting.reports.invoice import lines_of, taken_back
from accounting.reports.usage import By, usage_report
from accounting.usage.reader import UsageReader
from accounting.verification import first_found
from tests.accounting.booking import HOUR, NOON, book, close_hours, minutes
from tests.make import Cast
from tests.query_counts import queries_of

NOTHING = TimeByClass({}, {}, {})


def set_prices(cast: Cast, **prices: object) -> None:
    Price.objects.filter(generation=cast.a100).update(**prices)


def price_all(how: TimeByClass, *, book: int = 1) -> list[LedgerTransaction]:
    """Books the class charges of all closed hours and returns the transactions.

    `how` says which time was idle, preemptible or borrowed.
    """
    booked = []
    with transaction.atomic():
        while (hour := next_hour_to_price(book=book)) is not None:
            booked += price_hour(book=book, hour=hour, how=how)
    return booked


def cost(cast: Cast, **narrow: Any) -> Decimal:
    (row,) = usage_report(cast.olga, None, None, **narrow).totals
    return row.cost


def test_what_a_team_borrowed_costs_less_and_the_identity_says_so(cast: Cast) -> None:
    set_prices(cast, per_gpu_hour=3, borrowed=1)
    book(cast, lease_id=1, gpus=4)  # two GPU-hours
    book(cast, lease_id=2, gpus=2, ends=NOON + HOUR)  # two more GPU-hours
    book(cast, lease_id=3, gpus=2, tenant=cast.bio, user=cast.charlie)  # one GPU-hour, not borrowed
    close_hours(cast, NOON, NOON + HOUR)
    assert cost(cast) == 15
    (booked,) = price_all(TimeByClass({(cast.astro.pk, cast.a100.pk): Decimal(3600)}, {}, {}))
    assert (booked.kind, booked.key) == ("pricing", "pricing:1:2026-05-04T12:00:00+00:00:credits")
    charges = ClassCharge.objects.order_by("segment")
    assert [(one.borrowed, one.borrowed_price, one.amount) for one in charges] == [
        (1800, 1, -1),
        (1800, 1, -1),
    ]
    assert (cost(cast, tenant=cast.astro), cost(cast, tenant=cast.bio)) == (10, 3)
    (identity,) = capacity_report(NOON, NOON + HOUR).identities
    assert identity.closes
    assert identity.classes == 2
    assert identity.borne == 13


def test_a_moment_is_in_the_first_class_that_has_a_price(cast: Cast) -> None:
    set_prices(cast, per_gpu_hour=2, idle=5, preemptible=1, borrowed=Decimal("0.5"))
    unused = [(NOON, NOON + minutes(10))]
    book(cast, gpus=6, ends=NOON + HOUR, unused=unused)  # one GPU-hour is idle, five are busy
    close_hours(cast, NOON, NOON + HOUR)
    preemptible = [(NOON + minutes(5), NOON + minutes(25))]
    price_all(TimeByClass({(cast.astro.pk, cast.a100.pk): Decimal(2 * 3600)}, {1: preemptible}, {1: unused}))
    charge = ClassCharge.objects.get()
    # Of six GPU-hours two are preemptible, and half an hour of these is idle; half of the time that is neither is
    # borrowed.
    assert (charge.idle, charge.preemptible, charge.borrowed) == (3600, 5400, 6300)
    assert cost(cast) == 5 + Decimal("1.5") + Decimal("0.875") + Decimal("3.5")


def test_idle_time_without_a_price_of_its_own_is_preemptible_or_borrowed(cast: Cast) -> None:
    set_prices(cast, per_gpu_hour=2, preemptible=1)
    everything = [(NOON, NOON + HOUR)]
    book(cast, gpus=2, ends=NOON + HOUR, unused=everything)
    close_hours(cast, NOON, NOON + HOUR)
    price_all(TimeByClass({}, {1: everything}, {1: everything}))
    assert (ClassCharge.objects.get().preemptible, cost(cast)) == (7200, 2)


def test_preemptible_time_without_a_price_of_its_own_is_borrowed(cast: Cast) -> None:
    set_prices(cast, per_gpu_hour=2, borrowed=1)
    book(cast, gpus=2, ends=NOON + HOUR)
    close_hours(cast, NOON, NOON + HOUR)
    borrowed = {(cast.astro.pk, cast.a100.pk): Decimal(1800)}
    price_all(TimeByClass(borrowed, {1: [(NOON, NOON + HOUR / 2)]}, {}))
    assert (ClassCharge.objects.get().borrowed, cost(cast)) == (5400, Decimal("2.5"))


def test_a_class_without_a_price_is_none(cast: Cast) -> None:
    set_prices(cast, per_gpu_hour=2, borrowed=1)
    book(cast, gpus=2, ends=NOON + HOUR, unused=[(NOON, NOON + minutes(30))])
    close_hours(cast, NOON, NOON + HOUR)
    price_all(TimeByClass({(cast.astro.pk, cast.a100.pk): Decimal(7200)}, {}, {}))
    assert ClassCharge.objects.get().idle == 0
    assert cost(cast) == 2


def test_hours_in_which_no_class_has_a_price_are_settled_at_once(cast: Cast) -> None:
    book(cast)
    close_hours(cast, NOON, NOON + 2 * HOUR)
    assert price_all(NOTHING) == []
    with transaction.atomic():
        assert next_hour_to_price(book=1) is None
        assert next_hour_to_price(book=99) is None


def test_stretches_in_which_nothing_was_billed_are_settled_in_one_step_however_long(cast: Cast) -> None:
    set_prices(cast, borrowed=1)
    book(cast)
    book(cast, lease_id=2, book=2, begins=NOON + 1000 * HOUR, ends=NOON + 1000 * HOUR + minutes(30))
    close_hours(cast, NOON, NOON + 12 * HOUR)
    with transaction.atomic():
        close_empty_days(book=1, until=NOON + (12 + 3648) * HOUR)
    with queries_of("prices a stretch in which nothing was billed"):
        (booked,) = price_all(TimeByClass({(cast.astro.pk, cast.a100.pk): Decimal(7200)}, {}, {}))
    assert booked.period.lower == NOON
    closed = ClosedBook.objects.get(book=1)
    assert closed.priced_until == closed.until == NOON + 3660 * HOUR


def test_an_hour_is_priced_once_in_order_and_only_when_it_is_closed(cast: Cast) -> None:
    set_prices(cast, borrowed=1)
    book(cast)
    how = TimeByClass({(cast.astro.pk, cast.a100.pk): Decimal(7200)}, {}, {})
    close_hours(cast, NOON, NOON + HOUR)
    price_all(how)
    for hour in (NOON, NOON + HOUR, NOON - HOUR):
        with pytest.raises(BookedOtherwise), transaction.atomic():
            price_hour(book=1, hour=hour, how=how)
    assert ClassCharge.objects.count() == 1


def test_who_is_corrected_gets_the_charge_back_too_and_who_pays_instead_pays_it(cast: Cast) -> None:
    set_prices(cast, per_gpu_hour=3, borrowed=1)
    segments = book(cast, gpus=2)
    close_hours(cast, NOON, NOON + HOUR)
    price_all(TimeByClass({(cast.astro.pk, cast.a100.pk): Decimal(1800)}, {}, {}))
    assert cost(cast, tenant=cast.astro) == 2
    with transaction.atomic():
        correct_usage(actor=None, segments=segments, reason="a test", payer=Payer(cast.bio, cast.charlie))
    assert (cost(cast, tenant=cast.astro), cost(cast, tenant=cast.bio)) == (0, 2)
    (identity,) = capacity_report(NOON, NOON + HOUR).identities
    assert (identity.written_off, identity.classes, identity.closes) == (0, 1, True)
    anew = list(UsageSegment.objects.filter(version=1).select_related("generation"))
    with transaction.atomic():
        correct_usage(actor=None, segments=anew, reason="a test")
    (identity,) = capacity_report(NOON, NOON + HOUR).identities
    assert (identity.written_off, identity.classes, identity.closes, cost(cast)) == (2, 1, True, 0)


def test_what_is_taken_back_before_its_hour_is_settled_makes_nothing_else_dearer(cast: Cast) -> None:
    set_prices(cast, per_gpu_hour=3, borrowed=9)
    wrong = book(cast, lease_id=1, gpus=4)  # two GPU-hours
    book(cast, lease_id=2, gpus=2, ends=NOON + HOUR)  # two more GPU-hours
    close_hours(cast, NOON, NOON + HOUR)
    with transaction.atomic():
        correct_usage(actor=None, segments=wrong, reason="a test")
    price_all(TimeByClass({(cast.astro.pk, cast.a100.pk): Decimal(3600)}, {}, {}))
    assert (ClassCharge.objects.get().borrowed, cost(cast)) == (1800, 9)


def test_who_pays_instead_pays_what_the_other_would_have_paid(cast: Cast) -> None:
    set_prices(cast, per_gpu_hour=3, borrowed=9)
    wrong = book(cast, lease_id=1, gpus=4)
    book(cast, lease_id=2, gpus=2, ends=NOON + HOUR, tenant=cast.bio, user=cast.charlie)
    close_hours(cast, NOON, NOON + HOUR)
    with transaction.atomic():
        correct_usage(actor=None, segments=wrong, reason="a test", payer=Payer(cast.bio, cast.charlie))
    price_all(TimeByClass({(cast.astro.pk, cast.a100.pk): Decimal(3600)}, {}, {}))
    assert (cost(cast, tenant=cast.astro), cost(cast, tenant=cast.bio)) == (0, 12 + 6)


def test_only_who_held_time_where_it_is_unsettled_waits_for_what_classes_cost(cast: Cast) -> None:
    set_prices(cast, borrowed=1)
    book(cast, lease_id=1)
    book(cast, lease_id=2, generation=cast.v100, tenant=cast.bio, user=cast.charlie)  # no class price
    book(cast, lease_id=3, book=2, tenant=cast.bio, user=cast.charlie)
    for number in (1, 2):
        close_hours(cast, NOON, NOON + HOUR, book=number)
    price_all(NOTHING, book=2)
    day = NOON - 12 * HOUR, NOON + 12 * HOUR
    assert unsettled(*day, tenants=[cast.astro.pk]) == unsettled(*day) == {1: NOON}
    assert unsettled(*day, tenants=[cast.bio.pk]) == unsettled(*day, book=2) == {}
    assert unsettled(NOON + minutes(10), NOON + HOUR) == {1: NOON + minutes(10)}
    assert unsettled(NOON + minutes(31), day[1]) == unsettled(day[0], NOON) == {}
    price_all(NOTHING)
    assert unsettled(*day) == {}


moments = st.integers(0, 3 * 3600 * 10**6)
amounts = st.decimals(0, 9, places=6)
leases = st.tuples(moments, moments, st.integers(1, 5), st.booleans(), moments, moments)


@dataclass(frozen=True)
class Past:
    """A random day, for tests: usage, prices, and corrections.

    - `leases`: for each lease, two bounds of its time, its GPUs, whether it is of team Astro (else of Bio), and two
      bounds of its preemptible time. Bounds are microseconds after noon, in any order. The first third of each lease is
      idle.
    - `prices`: the A100's price per GPU-hour and the prices of its classes (None: the class has no price).
    - `borrowed`: the borrowed time of Astro and of Bio, in thousands of GPU-seconds.
    - `before`, `after`: the indexes of the leases to correct before and after class charges are booked.
    """

    leases: list[tuple[int, int, int, bool, int, int]]
    prices: dict[str, Decimal | None]
    borrowed: tuple[Decimal, Decimal]
    before: set[int]
    after: set[int]


pasts = st.builds(
    Past,
    leases=st.lists(leases, min_size=1, max_size=5),
    prices=st.fixed_dictionaries(
        {"per_gpu_hour": amounts} | dict.fromkeys(Price.CLASSES, st.none() | amounts)
    ),
    borrowed=st.tuples(amounts, amounts),
    before=st.sets(st.integers(0, 4)),
    after=st.sets(st.integers(0, 4)),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(pasts)
def test_whatever_was_held_how_the_books_close_and_all_reports_agree(cast: Cast, past: Past) -> None:
    with transaction.atomic():
        how = play(cast, past)
        first = NOON - 12 * HOUR
        correct(cast, past.before)
        price_all(how)
        correct(cast, past.after)

        (identity,) = capacity_report(first, first + 24 * HOUR).identities
        assert identity.closes
        stands = UsageSegment.objects.uncorrected().with_charges()
        costs = dict(stands.order_by().values_list("book").annotate(Sum("full_cost")))
        assert costs.get(1, 0) == cost(cast)
        by_user: dict[tuple[int, int], Decimal] = defaultdict(Decimal)
        for row in usage_report(cast.olga, None, None, by=[By.JOB, By.USER, By.TENANT]).rows:
            by_user[row.tenant_id or 0, row.user_id or 0] += row.cost
        cut = [
            usage_report(cast.olga, *part, by=[By.USER, By.TENANT]) for part in ((None, at(5)), (at(5), None))
        ]
        for row in (row for report in cut for row in report.rows):
            by_user[row.tenant_id or 0, row.user_id or 0] -= row.cost
        assert set(by_user.values()) <= {Decimal(0)}
        now = first + 24 * HOUR
        total = sum((one.money for one in spent(first, now, []).values()), Decimal(0))
        assert total == cost(cast)
        assert first_found() is None
        transaction.set_rollback(True)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(pasts)
def test_it_is_the_same_whether_a_correction_comes_before_its_hour_is_settled_or_after(
    cast: Cast, past: Past
) -> None:
    found = []
    for before, after in ((past.before, set()), (set(), past.before)):
        with transaction.atomic():
            how = play(cast, past)
            correct(cast, before)
            price_all(how)
            correct(cast, after)
            report = usage_report(cast.olga, None, None, by=[By.JOB, By.USER, By.TENANT])
            (identity,) = capacity_report(NOON, NOON + 3 * HOUR).identities
            assert identity.closes
            found.append([(row.tenant, row.job_id, row.gpu_seconds, row.cost) for row in report.rows])
            transaction.set_rollback(True)
    assert found[0] == found[1]


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["rebill", "take back"]), st.integers(0, 4)),
        st.tuples(st.just("settle"), st.just(0)),
    ),
    max_size=6,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(pasts, steps)
def test_in_whatever_order_it_is_billed_anew_settled_and_taken_back_each_reversal_cancels_what_was_booked(
    cast: Cast, past: Past, steps: list[tuple[str, int]]
) -> None:
    with transaction.atomic():
        how = play(cast, past)
        for step, number in steps:
            if step == "settle":
                price_all(how)
            else:
                bill_instead(cast, number, nobody=step == "take back")
        whole = NOON - 24 * HOUR, NOON + 24 * HOUR
        pairs: dict[Any, list[Decimal]] = defaultdict(list)
        for one in taken_back(UsageReader(cast.olga, *whole, cast.uni)):
            pairs[one.correction].append(one.cost)
        assert all(sum(costs) == 0 for costs in pairs.values() if len(costs) > 1)
        for team in (cast.astro, cast.bio):
            of_team = UsageSegment.objects.filter(tenant=team)
            billed = sum((one.cost for one in of_team.filter(version=0)), Decimal(0))
            settled = ClassCharge.objects.filter(segment__in=of_team, transaction__kind="pricing")
            billed += sum((one.amount for one in settled), Decimal(0))
            told = sum((one.cost for one in taken_back(UsageReader(cast.olga, *whole, team))), Decimal(0))
            assert sum(line.cost for line in lines_of(UsageReader(cast.olga, *whole, team))) == billed - told
        for number in range(5):
            bill_instead(cast, number, nobody=True)
        left = LedgerEntry.objects.filter(account__kind__in=["usage", "cost"]).order_by()
        assert {amount for _, amount in left.values_list("account").annotate(Sum("amount"))} <= {0}
        transaction.set_rollback(True)


def bill_instead(cast: Cast, lease: int, *, nobody: bool) -> None:
    """Corrects the bill of a lease: takes back its usage segments that are not yet corrected.

    Bills the other team for them (Bio instead of Astro, Astro instead of Bio). With `nobody`, bills nobody.
    """
    stands = UsageSegment.objects.uncorrected().filter(lease_id=lease).select_related("generation")
    if not stands:
        return
    other = Payer(cast.bio, cast.charlie) if stands[0].tenant == cast.astro else Payer(cast.astro, cast.bob)
    correct_usage(actor=None, segments=list(stands), reason="a test", payer=None if nobody else other)


def play(cast: Cast, past: Past) -> TimeByClass:
    """Books the usage of `past` and closes its day. Returns which time was idle, preemptible or borrowed."""
    set_prices(cast, **past.prices)
    stretches: dict[int, list[tuple[datetime, datetime]]] = {}
    unused: dict[int, list[tuple[datetime, datetime]]] = {}
    for number, (a, z, gpus, ours, c, d) in enumerate(past.leases):
        begins, ends = at(min(a, z)), at(max(a, z) + 1)
        stretches[number] = [(at(min(c, d)), at(max(c, d)))]
        unused[number] = [(begins, begins + (ends - begins) / 3)]
        who = (cast.astro, cast.bob) if ours else (cast.bio, cast.charlie)
        book(
            cast, lease_id=number, job_id=number, tenant=who[0], user=who[1], gpus=gpus, begins=begins, ends=ends,
            unused=unused[number],
        )  # fmt: skip
    first = NOON - 12 * HOUR  # whole days are closed, so daily rollups are written, too
    close_hours(cast, first, first + 24 * HOUR)
    teams = zip((cast.astro, cast.bio), past.borrowed, strict=True)
    return TimeByClass({(one.pk, cast.a100.pk): 1000 * some for one, some in teams}, stretches, unused)


def at(microseconds: int) -> datetime:
    return NOON + timedelta(microseconds=microseconds)


def correct(cast: Cast, leases: set[int]) -> None:
    """Corrects the bills of leases: takes back their usage segments that are not yet corrected.

    Leases with an even ID are billed to team Bio instead, leases with an odd ID to nobody.
    """
    for number in sorted(leases):
        stands = UsageSegment.objects.uncorrected().filter(lease_id=number).select_related("generation")
        if stands:
            payer = None if number % 2 else Payer(cast.bio, cast.charlie)
            correct_usage(actor=None, segments=list(stands), reason="a test", payer=payer)


@pytest.mark.django_db(transaction=True)
class TestTheDatabase:
    FORGED = "INSERT INTO accounting_classcharge VALUES (%s, '2026-05-01', %s, 0, 0, 0, 0, %s, %s, %s)"

    @pytest.fixture
    def segment(self, cast: Cast) -> UsageSegment:
        (booked,) = book(cast, gpus=2)  # one GPU-hour at 3
        return booked

    def forge(self, segment: UsageSegment, *charge: object, kind: str = "pricing") -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO accounting_ledgertransaction (book, month, key, kind, period, description, recorded_at)"
                " VALUES (1, '2026-05-01', 'forged', %s, '[2026-05-04 12:00Z, 2026-05-04 13:00Z)', '', now())"
                " RETURNING id",
                [kind],
            )
            (number,) = cursor.fetchone()
            cursor.execute(self.FORGED, [segment.pk, number, *charge])

    def test_refuses_a_charge_that_is_not_what_the_classes_cost(
        self, cast: Cast, segment: UsageSegment
    ) -> None:
        close_hours(cast, NOON, NOON + HOUR)
        for charge in ((3600, 1, -1), (3601, 1, -2), (3600, 4, -2)):
            with pytest.raises(IntegrityError, match="charges what its segments do not say"):
                self.forge(segment, *charge)
        with pytest.raises(IntegrityError, match="has no entries"):  # the charge itself is valid
            self.forge(segment, 3600, 1, -2)
        with pytest.raises(IntegrityError, match="of another kind"):
            self.forge(segment, 3600, 1, -2, kind="trade")

    def test_refuses_to_price_what_is_not_closed_or_was_taken_back(
        self, cast: Cast, segment: UsageSegment
    ) -> None:
        with pytest.raises(IntegrityError, match="charges what its segments do not say"):
            self.forge(segment, 3600, 1, -2)
        close_hours(cast, NOON, NOON + HOUR)
        with transaction.atomic():
            correct_usage(actor=None, segments=[segment], reason="a test")
        with pytest.raises(IntegrityError, match="charges what its segments do not say"):
            self.forge(segment, 3600, 1, -2)

    def test_never_changes_a_charge_and_seals_show_who_did(self, cast: Cast, segment: UsageSegment) -> None:
        set_prices(cast, borrowed=1)
        close_hours(cast, NOON, NOON + HOUR)
        price_all(TimeByClass({(cast.astro.pk, cast.a100.pk): Decimal(3600)}, {}, {}))
        for command in (
            "UPDATE accounting_classcharge SET amount = -1",
            "DELETE FROM accounting_classcharge",
        ):
            with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
                connection.cursor().execute(command)
        seal_book(1)
        assert first_broken() is None
