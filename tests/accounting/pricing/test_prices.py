from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from threading import Barrier

import pytest
from django.db import connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting import actions
from accounting.core.calendar import HOUR
from accounting.core.clock import now_from_database
from accounting.core.errors import BookedOtherwise, NotAllowed, Refused
from accounting.ledger import Usage, book_usage
from accounting.limits.spending import UnbookedUsage, money_held, money_spent
from accounting.models import AuditEvent, LedgerTransaction, Price, UsageSegment
from accounting.pricing.price_history import price_history
from accounting.pricing.tariff import prices_at
from tests import make
from tests.accounting.booking import NOON, book, minutes, usage
from tests.make import LONG_AGO, Cast
from tests.waiting import PATIENCE, wait_for


def told(cast: Cast) -> list[tuple[datetime | None, datetime | None, Decimal]]:
    prices = Price.objects.filter(generation=cast.a100).order_by("valid")
    return [(price.valid.lower, price.valid.upper, price.per_gpu_hour) for price in prices]


def set_price(cast: Cast, price: str, since: datetime | None = None) -> Price:
    return actions.set_price(actor=cast.ada, generation=cast.a100, per_gpu_hour=Decimal(price), since=since)


def test_a_new_price_ends_the_running_one(cast: Cast) -> None:
    set_price(cast, "4", NOON)
    assert told(cast) == [(LONG_AGO, NOON, 3), (NOON, None, 4)]
    set_price(cast, "3.5", NOON - minutes(60))  # begins before a price that is already set
    assert told(cast) == [
        (LONG_AGO, NOON - minutes(60), 3), (NOON - minutes(60), NOON, Decimal("3.5")), (NOON, None, 4),
    ]  # fmt: skip
    set_price(cast, "5", NOON)  # replaces the price that begins at the same moment
    assert told(cast)[-1] == (NOON, None, 5)
    before = LONG_AGO - minutes(1)
    set_price(cast, "1", before)
    assert told(cast)[0] == (before, LONG_AGO, 1)
    assert prices_at(NOON) == {cast.v100.pk: Decimal("1.20"), cast.a100.pk: 5}


def test_classes_have_prices_of_their_own_where_they_are_given(cast: Cast) -> None:
    price = actions.set_price(
        actor=cast.ada, generation=cast.a100, per_gpu_hour=Decimal(4), since=NOON, borrowed=Decimal("0.5")
    )
    assert [price.of_class(name) for name in Price.CLASSES] == [4, 4, Decimal("0.5")]
    event = AuditEvent.objects.latest("pk")
    assert event.after == {
        "per_gpu_hour": "4",
        "borrowed": "0.5",
        "currency": "EUR",
        "since": "2026-05-04T12:00:00Z",
    }
    with pytest.raises(Refused, match="0 or more") as refusal:
        actions.set_price(actor=cast.ada, generation=cast.a100, per_gpu_hour=Decimal(4), idle=Decimal(-1))
    assert refusal.value.field == "idle"


def test_a_price_stays_in_the_currency_in_which_it_was_set(cast: Cast, settings) -> None:
    book(cast)
    settings.FAIRLOT_CURRENCY = "USD"
    book(cast, lease_id=2, begins=NOON + minutes(30), ends=NOON + minutes(60))
    set_price(cast, "4", NOON + minutes(60))
    book(cast, lease_id=3, begins=NOON + minutes(30), ends=NOON + minutes(75))
    booked = UsageSegment.objects.order_by("lease_id", "period").values_list("cost", "currency")
    assert list(booked) == [(6, "EUR"), (6, "EUR"), (6, "EUR"), (4, "USD")]
    assert prices_at(NOON) == {}  # limits on money use these prices; no earlier price is in dollars
    assert prices_at(NOON + minutes(60)) == {cast.a100.pk: 4}
    last = {line.currency: (line.per_gpu_hour, line.before) for line in price_history(NOON, NOON + HOUR * 2)}
    assert last == {"EUR": (Decimal("1.2"), None), "USD": (4, None)}


def test_what_runs_in_another_currency_counts_for_no_limit(cast: Cast, settings) -> None:
    held = [UnbookedUsage(cast.astro.pk, cast.bob.pk, cast.a100.pk, 4, NOON)]
    assert money_spent(NOON, NOON + minutes(30), held, None) == 6
    settings.FAIRLOT_CURRENCY = "USD"
    assert money_spent(NOON, NOON + minutes(30), held, None) == 0
    assert money_held(NOON, NOON + minutes(30), held) == {"EUR": 6}


def test_a_price_begins_now_unless_told_otherwise(cast: Cast) -> None:
    early = now_from_database()
    price = set_price(cast, "4")
    assert early < price.valid.lower < now_from_database()


def test_a_price_never_changes_the_past(cast: Cast) -> None:
    book(cast)
    with pytest.raises(
        Refused, match="Usage of GPU type A100 has already been billed until 2026-05-04 12:30:00 UTC"
    ) as refusal:
        set_price(cast, "4", NOON + minutes(29))
    assert refusal.value.field == "since"
    set_price(cast, "4", NOON + minutes(30))
    (later,) = book(cast, begins=NOON + minutes(30), ends=NOON + minutes(60))
    assert (later.price_per_gpu_hour, later.cost) == (4, 8)


def remove_price(cast: Cast, price: Price) -> None:
    actions.remove_price(actor=cast.ada, price=price)


def test_a_planned_price_can_be_removed_and_the_one_before_it_stays(cast: Cast) -> None:
    soon, later = now_from_database() + HOUR, now_from_database() + 2 * HOUR
    first, second = set_price(cast, "4", soon), set_price(cast, "5", later)
    remove_price(cast, first)
    assert told(cast) == [(LONG_AGO, later, 3), (later, None, 5)]
    event = AuditEvent.objects.get(verb="price.remove")
    assert (event.before["per_gpu_hour"], event.after["per_gpu_hour"]) == ("4.000000", "3.000000")
    assert event.before["since"][:19] == f"{soon:%Y-%m-%dT%H:%M:%S}"
    with pytest.raises(Refused, match="no longer exists"):
        remove_price(cast, first)
    remove_price(cast, second)
    assert told(cast) == [(LONG_AGO, None, 3)]


def test_only_admins_remove_prices_and_only_planned_ones(cast: Cast) -> None:
    begun, planned = set_price(cast, "4"), set_price(cast, "5", now_from_database() + HOUR)
    with pytest.raises(Refused, match="has begun"):
        remove_price(cast, begun)
    with pytest.raises(NotAllowed):
        actions.remove_price(actor=cast.olga, price=planned)
    book(cast, begins=planned.valid.lower, ends=planned.valid.lower + minutes(1))
    with pytest.raises(Refused, match="has already been billed"):
        remove_price(cast, planned)
    assert Price.objects.filter(pk__in=[begun.pk, planned.pk]).count() == 2


def test_the_first_price_of_a_gpu_type_leaves_none_when_it_is_removed(cast: Cast) -> None:
    new = make.generation("H100")
    soon, later = now_from_database() + HOUR, now_from_database() + 2 * HOUR
    planned, last = (
        actions.set_price(actor=cast.ada, generation=new, per_gpu_hour=Decimal(5), since=since)
        for since in (soon, later)
    )
    remove_price(cast, planned)
    assert list(Price.objects.filter(generation=new)) == [last]


@given(hours=st.lists(st.integers(1, 9), min_size=1, max_size=6), taken=st.data())
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_setting_and_removing_a_planned_price_changes_nothing(cast: Cast, hours: list[int], taken) -> None:
    now = now_from_database()
    Price.objects.filter(generation=cast.a100, valid__startswith__gt=now).delete()  # of the example before
    Price.objects.filter(generation=cast.a100).update(valid=DateTimeTZRange(LONG_AGO, None))
    for hour in dict.fromkeys(hours):
        set_price(cast, str(hour), now + 2 * hour * HOUR)
    before = told(cast)
    between = taken.draw(st.integers(0, 10).map(lambda hour: now + (2 * hour + 1) * HOUR))
    remove_price(cast, set_price(cast, "99", between))
    assert told(cast) == before


@pytest.mark.parametrize("price", ["-1", "NaN", "1e9", "0.0000001"])
def test_a_bad_price_is_refused(cast: Cast, price: str) -> None:
    with pytest.raises(Refused) as refusal:
        set_price(cast, price, NOON)
    assert refusal.value.field == "per_gpu_hour"
    with pytest.raises(Refused, match="time zone"):
        set_price(cast, "4", datetime(2026, 5, 4))
    assert told(cast) == [(LONG_AGO, None, 3)]


class TestAtOnce:
    """Tests of simultaneous changes in several threads, each with a separate database connection."""

    pytestmark = pytest.mark.django_db(transaction=True)

    @pytest.fixture
    def cast(self, transactional_db: None) -> Cast:
        return make.cast()

    @staticmethod
    def on_own_connection(work: Callable[[], object]) -> object:
        try:
            return work()
        finally:
            connection.close()

    @staticmethod
    def wait_for_a_lock_to_be_waited_for() -> None:
        def waits() -> bool:
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
                return bool(cursor.fetchone()[0])

        wait_for(waits, what="somebody waits for a lock", every=0.01)

    def test_two_changes_of_a_price_never_overlap(self, cast: Cast) -> None:
        for attempt in range(5):
            barrier, start = Barrier(2), NOON + timedelta(days=attempt)

            def change(at: datetime, barrier: Barrier = barrier) -> None:
                barrier.wait(timeout=PATIENCE)
                set_price(cast, str(at.minute), at)

            with ThreadPoolExecutor(2) as pool:
                work = [
                    pool.submit(self.on_own_connection, lambda at=at: change(at))
                    for at in (start + minutes(1), start + minutes(2))
                ]
                for done in work:
                    done.result(timeout=PATIENCE)
        prices = told(cast)
        assert len(prices) == 11
        assert all(before[1] == after[0] for before, after in pairwise(prices))
        assert all(begins is None or begins.minute in (0, price) for begins, _, price in prices[1:])

    def test_a_price_waits_for_what_is_being_booked(self, cast: Cast) -> None:
        with ThreadPoolExecutor(1) as pool:
            with transaction.atomic():
                book_usage([Usage(**usage(cast))])
                change = pool.submit(self.on_own_connection, lambda: set_price(cast, "4", NOON))
                self.wait_for_a_lock_to_be_waited_for()
            with pytest.raises(Refused, match="has already been billed until"):
                change.result(timeout=PATIENCE)
        assert told(cast) == [(LONG_AGO, None, 3)]

    def test_a_booking_waits_for_a_price_that_is_being_set(self, cast: Cast) -> None:
        with ThreadPoolExecutor(1) as pool:
            with transaction.atomic():
                connection.cursor().execute(
                    "SELECT id FROM accounting_generation WHERE id = %s FOR NO KEY UPDATE", [cast.a100.pk]
                )
                booking = pool.submit(self.on_own_connection, lambda: book(cast))
                self.wait_for_a_lock_to_be_waited_for()
                Price.objects.filter(generation=cast.a100).update(per_gpu_hour=5)
            booking.result(timeout=PATIENCE)
        assert UsageSegment.objects.get().cost == 10

    def booked_meanwhile(self, cast: Cast, **change: object) -> Future[object]:
        """Books default usage and, at the same time, usage with `change` on another connection.

        Returns the result of the usage with `change`, which waits for a lock until the default usage is committed.
        """
        with ThreadPoolExecutor(1) as pool:
            with transaction.atomic():
                book_usage([Usage(**usage(cast))])
                again = pool.submit(self.on_own_connection, lambda: book(cast, **change))
                self.wait_for_a_lock_to_be_waited_for()
            again.exception(timeout=PATIENCE)
        return again

    def test_the_same_usage_booked_twice_at_once_is_booked_once(self, cast: Cast) -> None:
        segments = self.booked_meanwhile(cast).result()
        assert segments == [UsageSegment.objects.get()]

    def test_usage_of_which_a_part_is_booked_at_once_gets_the_rest(self, cast: Cast) -> None:
        hour = {"begins": NOON - minutes(60), "ends": NOON + minutes(30)}
        segments = self.booked_meanwhile(cast, **hour).result()
        assert segments == list(UsageSegment.objects.order_by("period"))
        assert len(segments) == 2

    @pytest.mark.parametrize("change", [{"gpus": 5}, {"begins": NOON + minutes(5)}])
    def test_other_usage_of_a_lease_booked_at_once_is_refused(
        self, cast: Cast, change: dict[str, object]
    ) -> None:
        assert isinstance(self.booked_meanwhile(cast, **change).exception(), BookedOtherwise)
        assert LedgerTransaction.objects.count() == 1
