from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.db import IntegrityError, transaction
from hypothesis import example, given
from hypothesis import strategies as st

from accounting.actions import take_back_usage
from accounting.actions.quotas import limit_of
from accounting.core.errors import Refused
from accounting.limits.periods import calendar_period, period_of
from accounting.limits.quotas import is_reached, limit_usage, never_fits
from accounting.limits.spending import Amount, Spending, UnbookedUsage, left_of, limited_by, spent
from accounting.models import Quota, Tenant, UsageHour
from tests import make
from tests.accounting.booking import NOON, book, close_hours, minutes
from tests.make import Cast
from tests.query_counts import queries_of

HOURS, MONEY = Quota.Kind.GPU_HOURS, Quota.Kind.MONEY


def quota(tenant: Tenant, limit: str, *, kind: str = Quota.Kind.GPUS, **which) -> Quota:
    if kind in Quota.OF_A_PERIOD:
        which.setdefault("period", "month")
    return Quota.objects.create(tenant=tenant, kind=kind, limit=Decimal(limit), **which)


class TestPeriods:
    @pytest.mark.parametrize(
        ("now", "begins", "ends"),
        [
            (datetime(2026, 12, 31, 23, 59, tzinfo=UTC), (2026, 12, 1), (2027, 1, 1)),
            (datetime(2026, 2, 1, tzinfo=UTC), (2026, 2, 1), (2026, 3, 1)),
            (datetime.fromisoformat("2026-03-01T00:30+01:00"), (2026, 2, 1), (2026, 3, 1)),
        ],
    )
    def test_a_month_is_that_of_utc(
        self, now: datetime, begins: tuple[int, int, int], ends: tuple[int, int, int]
    ) -> None:
        assert period_of("month", None, now) == (datetime(*begins, tzinfo=UTC), datetime(*ends, tzinfo=UTC))

    def test_a_quarter_begins_with_january_april_july_or_october(self) -> None:
        ends = datetime(2026, 7, 1, tzinfo=UTC)
        assert period_of("quarter", None, ends - minutes(1)) == (datetime(2026, 4, 1, tzinfo=UTC), ends)
        assert period_of("quarter", None, ends)[0] == ends

    def test_a_rolling_period_begins_at_a_full_hour_and_does_not_end(self) -> None:
        assert period_of("rolling", 7, NOON + minutes(59)) == (NOON - timedelta(days=7), None)

    @given(st.sampled_from([1, 3]), st.datetimes(datetime(2001, 1, 1), datetime(2100, 1, 1)))
    def test_calendar_periods_follow_on_each_other(self, months: int, naive: datetime) -> None:
        now = naive.replace(tzinfo=UTC)
        begins, ends = calendar_period(months, now)
        assert begins <= now < ends
        assert calendar_period(months, ends)[0] == ends
        assert calendar_period(months, begins - minutes(1))[1] == begins


class TestSpending:
    def left(self, *quotas: Quota, held: tuple[UnbookedUsage, ...] = ()) -> list[Decimal]:
        spending = Spending(quotas, NOON, held)
        return [spending.left(one, (one.tenant_id, one.user_id)) / 3600 for one in quotas]

    def test_it_counts_the_subtree_the_period_and_what_runs(self, cast: Cast) -> None:
        all_of_uni = quota(cast.uni, "100", kind=HOURS)
        of_astro = quota(cast.astro, "10", kind=HOURS)
        of_v100 = quota(cast.astro, "1", kind=HOURS, generation=cast.v100)
        of_bio = quota(cast.bio, "1.5", kind=HOURS, generation=cast.a100)
        money = quota(cast.astro, "10", kind=MONEY)
        quotas = (all_of_uni, of_astro, of_v100, of_bio, money)
        month = period_of("month", None, NOON)[0]
        book(cast, begins=month - minutes(60), ends=month + minutes(30))  # 2 GPU-hours in this month
        book(cast, lease_id=2, generation=cast.v100, gpus=2)  # 1 GPU-hour
        book(cast, lease_id=3, tenant=cast.bio, user=cast.charlie)  # 2 GPU-hours
        (wrong,) = book(cast, lease_id=4)
        take_back_usage(actor=cast.ada, segments=[wrong], reason="a test")
        left = [Decimal(text) for text in ("95", "7", "0", "-0.5", "2.8")]
        assert self.left(*quotas) == left
        # Two GPUs run for a quarter of an hour.
        runs = UnbookedUsage(cast.astro.pk, cast.bob.pk, cast.v100.pk, 2, NOON - minutes(15))
        left = [Decimal(text) for text in ("94.5", "6.5", "-0.5", "-0.5", "2.2")]
        assert self.left(*quotas, held=(runs,)) == left

    def test_of_users_each_team_counts_by_itself(self, cast: Cast) -> None:
        make.membership(cast.bob, cast.bio)
        of_bob = quota(cast.uni, "3", kind=HOURS, user=cast.bob)
        of_each = quota(cast.astro, "1", kind=HOURS, each_user=True)
        book(cast)  # 2 GPU-hours of Bob
        book(cast, lease_id=2, tenant=cast.bio)
        book(cast, lease_id=3, user=cast.alice, gpus=2)
        spending = Spending([of_bob, of_each], NOON, ())
        astro, bio = cast.astro.pk, cast.bio.pk
        assert [spending.left(of_bob, (team, cast.bob.pk)) for team in (astro, bio)] == [3600, 3600]
        assert spending.left(of_each, (astro, cast.bob.pk)) == -3600
        assert spending.left(of_each, (astro, cast.alice.pk)) == 0
        assert spending.left(of_each, (astro, cast.charlie.pk)) == 3600

    @example(seconds=[1200 * 10**6, 4800 * 10**6, 1], more=0)
    @given(seconds=st.lists(st.integers(1, 3599 * 10**6), min_size=1, max_size=12), more=st.integers(-2, 2))
    def test_what_is_used_is_divided_once_it_is_added(self, seconds: list[int], more: int) -> None:
        """Proves that a limit of 2 GPU-hours is reached at the exact microsecond, even if the usage is the sum of many
        amounts."""
        limit = Quota(pk=1, tenant_id=1, kind=HOURS, period="month", limit=Decimal(2))
        rest = 2 * 3600 * 10**6 - sum(seconds[:-1]) + more
        amounts = [*seconds[:-1], max(rest, 0)]
        spending = Spending([], NOON, ())
        spending.paths = {1: "1/"}
        month = period_of("month", None, NOON)[0]
        spending._read[month] = {
            (1, user, 1): Amount(Decimal(some).scaleb(-6)) for user, some in enumerate(amounts)
        }
        used = spending.used(limit, (1, None))
        assert is_reached(limit, used) == (sum(amounts) >= 7200 * 10**6)
        assert left_of(limit, used) == 7200 - Decimal(sum(amounts)).scaleb(-6)

    def test_thirds_of_an_hour_reach_a_limit_of_hours(self, cast: Cast) -> None:
        limit = quota(cast.uni, "2", kind=HOURS)
        for lease, (tenant, user, seconds) in enumerate(
            [(cast.astro, cast.bob, 1200), (cast.bio, cast.charlie, 4800), (cast.astro, cast.alice, 1200)]
        ):
            book(cast, lease_id=lease, tenant=tenant, user=user, gpus=1,
                 begins=NOON - timedelta(seconds=seconds), ends=NOON)  # fmt: skip
        used = Spending([limit], NOON, ()).used(limit, (cast.uni.pk, None))
        assert used == 2
        assert limit_usage(limit, used, cast.astro, cast.bob, NOON).is_reached
        Quota.objects.filter(pk=limit.pk).update(limit="2.001")
        limit.refresh_from_db()
        assert not limit_usage(limit, used, cast.astro, cast.bob, NOON).is_reached

    def test_rolling_days_let_go_of_what_is_older(self, cast: Cast) -> None:
        book(cast, begins=NOON - timedelta(days=8), ends=NOON - timedelta(days=8) + minutes(30))
        book(cast, lease_id=2)
        week, month = (quota(cast.astro, "10", kind=HOURS, period="rolling", days=days) for days in (7, 9))
        assert self.left(week, month) == [8, 6]

    def test_closed_hours_are_read_as_sums_and_say_the_same(self, cast: Cast) -> None:
        """Proves that the spending of a period stays the same once its hours are closed and are read from rollups.

        The period begins in the middle of an hour, so the rollup of that hour cannot be used.
        """
        begins = NOON - timedelta(hours=3)
        book(cast, begins=begins, ends=NOON + minutes(10))
        book(cast, lease_id=2, tenant=cast.bio, user=cast.charlie, begins=begins, ends=begins + minutes(90))
        since = begins + minutes(20)
        before = dict(spent(since, NOON, ()))
        assert before[cast.astro.pk, cast.bob.pk, cast.a100.pk].gpu_seconds == 4 * 170 * 60
        close_hours(cast, begins, NOON)
        assert UsageHour.objects.count() == 5
        assert dict(spent(since, NOON, ())) == before

    def test_open_and_closed_hours_take_few_queries(self, cast: Cast) -> None:
        quotas = [quota(cast.uni, "100", kind=kind) for kind in (HOURS, MONEY)]
        with queries_of("what two quotas leave, without usage"):
            self.left(*quotas)
        book(cast, begins=NOON - minutes(60), ends=NOON - minutes(30))
        with queries_of("what two quotas leave, with open hours"):
            self.left(*quotas)
        close_hours(cast, NOON - minutes(60), NOON)
        with queries_of("what two quotas leave, with closed hours"):
            self.left(*quotas)
        with queries_of("what no quotas leave"):
            Spending([], NOON, ())

    def test_a_standing_reads_as_a_sentence(self, cast: Cast) -> None:
        quota(cast.uni, "2", kind=HOURS, generation=cast.a100)
        quota(cast.astro, "100", kind=MONEY, each_user=True, period="quarter", at_limit="warn")
        book(cast)
        quotas = list(Quota.objects.in_force_for(cast.astro, cast.bob.pk))
        spending = Spending(quotas, NOON, ())
        found = [
            limit_usage(
                one,
                spending.used(one, limited_by(one, cast.astro.pk, cast.bob.pk)),
                cast.astro,
                cast.bob,
                NOON,
            )
            for one in quotas
        ]
        said = [(str(one), one.is_reached) for one in found]
        assert said == [
            ("Uni has used 2 of 2 GPU-hours of A100 per calendar month (UTC)", True),
            ("bob in Astro has used 6 of 100 EUR per calendar quarter (UTC)", False),
        ]

    def test_what_is_not_reached_does_not_read_as_if_it_were(self, cast: Cast) -> None:
        limit = quota(cast.astro, "2", kind=HOURS)
        just_below = limit_usage(limit, Decimal("1.9999996"), cast.astro, cast.bob, NOON)
        assert "used 1.999 of 2 GPU-hours" in str(just_below)
        least = quota(cast.astro, "0.004", kind=HOURS, at_limit="warn")
        assert "used 0 of 0.004 GPU" in str(limit_usage(least, Decimal("0.0001"), cast.astro, cast.bob, NOON))


class TestTheDatabase:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"kind": HOURS, "period": ""},
            {"kind": "gpus", "period": "month"},
            {"kind": HOURS, "period": "rolling"},
            {"kind": HOURS, "period": "month", "days": 3},
            {"kind": "borrowed", "at_limit": "idle"},
            {"kind": "gpus", "limit": "-1"},
        ],
    )
    def test_it_refuses_a_limit_that_makes_no_sense(self, cast: Cast, wrong: dict[str, str]) -> None:
        with pytest.raises(IntegrityError), transaction.atomic():
            Quota.objects.create(**({"tenant": cast.astro, "limit": "1"} | wrong))

    def test_a_limit_may_be_there_once_for_each_thing_that_happens(self, cast: Cast) -> None:
        for at_limit in Quota.AtLimit.values:
            quota(cast.astro, "5", at_limit=at_limit)
        with pytest.raises(IntegrityError), transaction.atomic():
            quota(cast.astro, "6")


@pytest.mark.parametrize(
    ("which", "field"),
    [
        ({"kind": "beer"}, "kind"),
        ({"kind": HOURS, "period": "year"}, "period"),
        ({"kind": HOURS, "period": "rolling"}, "days"),
        ({"kind": HOURS, "period": "rolling", "days": 367}, "days"),
        ({"kind": "gpus", "at_limit": "shout"}, "at_limit"),
        ({"kind": "longest_run", "at_limit": "idle"}, "at_limit"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_with_its_field(
    cast: Cast, which: dict[str, object], field: str
) -> None:
    with pytest.raises(Refused) as refusal:
        limit_of(cast.astro, **which)
    assert refusal.value.field == field


class TestNeverFits:
    def test_without_quotas_everything_may_fit(self, cast: Cast) -> None:
        assert never_fits(cast.astro, [], 10_000) is None

    def test_a_gang_larger_than_a_limit_never_fits(self, cast: Cast) -> None:
        quota(cast.astro, "4", generation=cast.a100)
        quota(cast.astro, "2", generation=cast.a100, at_limit="warn")
        assert never_fits(cast.astro, [cast.a100.pk], 4) is None
        why = never_fits(cast.astro, [cast.a100.pk], 8)
        assert why == "Astro may hold at most 4 A100 at once; this job needs 8 GPUs"
        assert never_fits(cast.bio, [cast.a100.pk], 8) is None

    def test_another_accepted_generation_saves_it(self, cast: Cast) -> None:
        quota(cast.astro, "4", generation=cast.a100)
        assert never_fits(cast.astro, [cast.a100.pk, cast.v100.pk], 8) is None
        assert never_fits(cast.astro, [], 8) is None
        quota(cast.astro, "2", generation=cast.v100)
        assert never_fits(cast.astro, [], 8) == (
            "Astro may hold at most 4 A100 at once; Astro may hold at most 2 V100 at once; this job needs 8 GPUs"
        )

    def test_a_limit_of_a_tenant_above_counts(self, cast: Cast) -> None:
        quota(cast.uni, "6")
        quota(cast.astro, "12")
        assert never_fits(cast.astro, [], 8) == "Uni may hold at most 6 GPUs at once; this job needs 8 GPUs"

    def test_a_limit_of_a_user_counts_for_that_user(self, cast: Cast) -> None:
        quota(cast.uni, "6", user=cast.bob)
        quota(cast.uni, "7", each_user=True)
        said = "bob in Uni may hold at most 6 GPUs at once; this job needs 7 GPUs"
        assert never_fits(cast.astro, [], 7, cast.bob.pk) == said
        assert never_fits(cast.astro, [], 7, cast.alice.pk) is None
        assert never_fits(cast.astro, [], 8, cast.alice.pk) is not None

    def test_no_hours_at_all_is_never(self, cast: Cast) -> None:
        stars = make.tenant("Stars", parent=cast.astro)
        quota(cast.astro, "0", kind=HOURS, generation=cast.a100)
        assert never_fits(stars, [cast.a100.pk], 1) == "Astro may not use any A100; this job needs 1 GPU"
        Quota.objects.update(limit=Decimal("0.5"))
        assert never_fits(stars, [cast.a100.pk], 1) is None
