from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from accounting.actions import take_back_usage
from accounting.models import Quota, Tenant
from accounting.quotas import Limits, effective_limits, gpu_hours_left, month_of, never_fits
from tests import make
from tests.accounting.booking import NOON, book, minutes
from tests.make import Cast

HOURS = Quota.Kind.GPU_HOURS_MONTH


def quota(tenant: Tenant, limit: str, *, kind: str = Quota.Kind.GPUS, generation=None) -> Quota:
    return Quota.objects.create(tenant=tenant, kind=kind, generation=generation, limit=Decimal(limit))


def test_limits_are_each_tenants_own(cast: Cast, django_assert_num_queries) -> None:
    quota(cast.uni, "8")
    quota(cast.astro, "4", generation=cast.a100)
    quota(cast.astro, "100", kind=HOURS)
    with django_assert_num_queries(1):
        limits = effective_limits([cast.uni, cast.astro, cast.bio])
    assert limits == {cast.uni.pk: Limits(8, {}), cast.astro.pk: Limits(None, {cast.a100.pk: 4})}
    assert effective_limits([cast.bio]) == {}


@pytest.mark.parametrize(
    ("now", "begins", "ends"),
    [
        (datetime(2026, 12, 31, 23, 59, tzinfo=UTC), (2026, 12, 1), (2027, 1, 1)),
        (datetime(2026, 2, 1, tzinfo=UTC), (2026, 2, 1), (2026, 3, 1)),
        (datetime.fromisoformat("2026-03-01T00:30+01:00"), (2026, 2, 1), (2026, 3, 1)),
    ],
)
def test_a_month_is_that_of_utc(
    now: datetime, begins: tuple[int, int, int], ends: tuple[int, int, int]
) -> None:
    assert month_of(now) == (datetime(*begins, tzinfo=UTC), datetime(*ends, tzinfo=UTC))


def test_hours_left_count_the_subtree_this_month_and_what_runs(cast: Cast) -> None:
    quota(cast.uni, "100", kind=HOURS)
    quota(cast.astro, "10", kind=HOURS)
    quota(cast.astro, "1", kind=HOURS, generation=cast.v100)
    quota(cast.bio, "1.5", kind=HOURS, generation=cast.a100)
    month = month_of(NOON)[0]
    book(cast, begins=month - minutes(60), ends=month + minutes(30))  # 2 GPU-hours are of this month
    book(cast, lease_id=2, generation=cast.v100, gpus=2)  # 1 GPU-hour
    book(cast, lease_id=3, tenant=cast.bio, user=cast.charlie)  # 2 GPU-hours
    (wrong,) = book(cast, lease_id=4)
    take_back_usage(actor=cast.ada, segments=[wrong], reason="a test")
    left = {
        (cast.uni.pk, None): 95,
        (cast.astro.pk, None): 7,
        (cast.astro.pk, cast.v100.pk): 0,
        (cast.bio.pk, cast.a100.pk): Decimal("-0.5"),
    }
    assert gpu_hours_left(NOON) == left
    running = {(cast.astro.pk, cast.v100.pk): 1800.0}
    left |= {
        (cast.uni.pk, None): Decimal("94.5"),
        (cast.astro.pk, None): Decimal("6.5"),
        (cast.astro.pk, cast.v100.pk): Decimal("-0.5"),
    }
    assert gpu_hours_left(NOON, running) == left
    fresh = gpu_hours_left(NOON + timedelta(days=31))
    assert fresh[cast.uni.pk, None] == 100


def test_hours_left_take_few_queries(cast: Cast, django_assert_num_queries) -> None:
    with django_assert_num_queries(1):
        assert gpu_hours_left(NOON) == {}
    quota(cast.uni, "100", kind=HOURS)
    with django_assert_num_queries(3):
        gpu_hours_left(NOON)


class TestNeverFits:
    def test_without_quotas_everything_may_fit(self, cast: Cast) -> None:
        assert never_fits(cast.astro, [], 10_000) is None

    def test_a_gang_larger_than_a_limit_never_fits(self, cast: Cast) -> None:
        quota(cast.astro, "4", generation=cast.a100)
        assert never_fits(cast.astro, [cast.a100.pk], 4) is None
        why = never_fits(cast.astro, [cast.a100.pk], 8)
        assert why == "Astro may hold at most 4 A100 at once; this job needs 8"
        assert never_fits(cast.bio, [cast.a100.pk], 8) is None

    def test_another_accepted_generation_saves_it(self, cast: Cast) -> None:
        quota(cast.astro, "4", generation=cast.a100)
        assert never_fits(cast.astro, [cast.a100.pk, cast.v100.pk], 8) is None
        assert never_fits(cast.astro, [], 8) is None
        quota(cast.astro, "2", generation=cast.v100)
        assert never_fits(cast.astro, [], 8) == (
            "Astro may hold at most 4 A100 at once; Astro may hold at most 2 V100 at once; this job needs 8"
        )

    def test_a_limit_of_a_tenant_above_counts(self, cast: Cast) -> None:
        quota(cast.uni, "6")
        quota(cast.astro, "12")
        assert never_fits(cast.astro, [], 8) == "Uni may hold at most 6 GPUs at once; this job needs 8"

    def test_no_hours_at_all_is_never(self, cast: Cast) -> None:
        stars = make.tenant("Stars", parent=cast.astro)
        quota(cast.astro, "0", kind=HOURS, generation=cast.a100)
        assert never_fits(stars, [cast.a100.pk], 1) == "Astro may use no A100 at all; this job needs 1"
        Quota.objects.update(limit=Decimal("0.5"))
        assert never_fits(stars, [cast.a100.pk], 1) is None
