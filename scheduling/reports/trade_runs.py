"""Runs of trades. A run is a sequence of trades between the same two tenants without a gap, shown as one row."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import QuerySet

from accounting.access.visibility import ANOTHER
from accounting.models import Generation, Tenant
from fairshare.trading.gains import Worth, worth_to_buyer, worth_to_seller
from scheduling.models import Trade

# Each round ends the trades of the previous round and makes its own a moment later, which is no gap.
GAP = 2.0  # seconds


@dataclass(frozen=True)
class RunSide:
    """One tenant's side of a run of trades: the GPU-seconds that the tenant gave and got, and what each is worth to the
    tenant.

    The worth is in GPU-seconds of the slow generation. It follows from the tenant's own speed-ups, as measured during
    the run.
    """

    tenant: Tenant
    gave: float
    gave_generation: str
    got: float
    got_generation: str
    other: str  # name of the other tenant; "another team" if the reader may not see it
    speedup: float
    worth: Worth  # measured in GPU-seconds of the slow generation

    @property
    def gain(self) -> float:
        return self.worth.gain


@dataclass(frozen=True)
class Run:
    """A run: consecutive trades between the same two tenants, in the same two generations, on one cluster."""

    first: int  # id of the run's first trade
    last: int
    count: int
    begins: datetime
    ends: datetime | None  # None while the last trade runs
    last_begins: datetime
    slow: str
    fast: str
    lowest_price: float
    highest_price: float
    sides: list[RunSide]  # only those of the reader's tenants: one or two

    @property
    def has_one_price(self) -> bool:
        return f"{self.lowest_price:.2f}" == f"{self.highest_price:.2f}"


def read_runs(trades: QuerySet[Trade], mine: Collection[int]) -> list[Run]:
    """Groups `trades` into runs, and returns the runs, latest first.

    `mine` are the ids of the tenants that the reader may see; the runs name no other tenants. Leaves out runs that
    lasted no time, because they exchanged nothing.
    """
    try:
        inner, params = trades.order_by().select_related(None).query.sql_with_params()
    except EmptyResultSet:  # Django finds that no row can match, because the reader is in no team
        return []
    # The inner query is SQL that Django generated, with parameters; everything else in this statement is constant.
    sql = f"""
        WITH single AS (SELECT found.*, round.cluster_id, coalesce(found.ends, now()) AS until
                          FROM ({inner}) AS found JOIN scheduling_round AS round ON round.id = found.round_id),
        marked AS (SELECT *, begins > lag(until) OVER same + make_interval(secs => %s) AS is_new FROM single
                   WINDOW same AS (PARTITION BY cluster_id, seller_id, buyer_id, slow_id, fast_id
                                   ORDER BY begins, id)),
        numbered AS (SELECT *, count(*) FILTER (WHERE is_new) OVER same AS run,
                            extract(epoch FROM until - begins)::float8 AS seconds FROM marked
                     WINDOW same AS (PARTITION BY cluster_id, seller_id, buyer_id, slow_id, fast_id
                                     ORDER BY begins, id))
        SELECT min(id), max(id), count(*), min(begins), max(until), bool_or(ends IS NULL), max(begins),
               seller_id, buyer_id, slow_id, fast_id, min(price), max(price),
               sum(fast_gpus * seconds), sum(slow_gpus * seconds),
               sum(fast_gpus * seconds * seller_speedup), sum(fast_gpus * seconds * buyer_speedup)
          FROM numbered
         GROUP BY cluster_id, seller_id, buyer_id, slow_id, fast_id, run
        HAVING sum(fast_gpus * seconds) > 0 AND sum(slow_gpus * seconds) > 0
         ORDER BY max(begins) DESC, max(id) DESC
    """  # noqa: S608
    tenants, names = Tenant.objects.in_bulk(), dict(Generation.objects.values_list("pk", "name"))
    with connection.cursor() as cursor:
        cursor.execute(sql, [*params, GAP])
        return [_run(row, tenants, names, mine) for row in cursor.fetchall()]


def _run(
    row: tuple[Any, ...], tenants: dict[int, Tenant], names: dict[int, str], mine: Collection[int]
) -> Run:
    first, last, count, begins, until, goes_on, last_begins, *parties, lowest, highest = row[:13]
    seller, buyer = (tenants[pk] for pk in parties[:2])
    slow, fast = (names[pk] for pk in parties[2:])
    # `sold` and `bought`: the fast GPU-seconds times the seller's and the buyer's speed-ups
    fast_time, slow_time, sold, bought = row[13:]

    def name(tenant: Tenant) -> str:
        return tenant.name if tenant.pk in mine else ANOTHER

    sides = [
        RunSide(
            seller, fast_time, fast, slow_time, slow, name(buyer),
            speedup=sold / fast_time, worth=worth_to_seller(fast_time, slow_time, sold / fast_time),
        ),
        RunSide(
            buyer, slow_time, slow, fast_time, fast, name(seller),
            speedup=bought / fast_time, worth=worth_to_buyer(fast_time, slow_time, bought / fast_time),
        ),
    ]  # fmt: skip
    return Run(
        first, last, count, begins, None if goes_on else until, last_begins, slow, fast, lowest, highest,
        sides=[side for side in sides if side.tenant.pk in mine],
    )  # fmt: skip
