"""Stores trades: a trade continues over rounds while its terms stay the same, and is booked when it ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal

from accounting.core.bulk import insert_values, update_rows
from accounting.core.wording import fixed
from accounting.ledger import TradedTime, book_trades
from accounting.models import Generation, Tenant
from fairshare import model as fs
from scheduling.models import Cluster, Round, Trade
from scheduling.shares.snapshot import SnapshotIndex

MICROSECOND = Decimal("0.000001")
# Two trades with equal values in these columns are the same trade.
SAME = ("seller_id", "buyer_id", "slow_id", "fast_id", "fast_gpus", "slow_gpus")


def record_trades(round_: Round, decision: fs.Decision, legend: SnapshotIndex) -> None:
    """Stores the new trades of a round's decision. Ends and books open trades that the decision does not continue.

    A trade with unchanged terms continues, but only until the end of the UTC hour, because reports count a trade in the
    hour in which it began.
    """
    hour = round_.at.replace(minute=0, second=0, microsecond=0)
    before, ended = defaultdict[tuple[float, ...], list[Trade]](list), []
    for one in _open(round_.cluster):
        if one.begins < hour:
            ended.append(one)
        else:
            before[tuple(getattr(one, name) for name in SAME)].append(one)
    new = []
    for trade in decision.trades:
        row = _row(trade, legend)
        if same := before.get(row[: len(SAME)]):
            same.pop()
        else:
            new.append((round_.pk, *row, round_.at))
    _end(round_.cluster, [*ended, *(one for rest in before.values() for one in rest)], ends=round_.at)
    insert_values(Trade, ["round", *SAME, "price", "seller_speedup", "buyer_speedup", "begins"], new)


def end_trades(cluster: Cluster, *, ends: datetime) -> None:
    """Ends all open trades of a cluster at the time `ends`, and books them."""
    _end(cluster, _open(cluster), ends=ends)


def _open(cluster: Cluster) -> list[Trade]:
    return list(Trade.objects.filter(round__cluster=cluster, ends=None).order_by("pk"))


def _row(trade: fs.Trade, legend: SnapshotIndex) -> tuple[float, ...]:
    """Returns the trade's terms, then its price, the seller's speed-up and the buyer's speed-up.

    The terms are the columns in SAME: primary keys of the two sides and the two generations, and the numbers of GPUs.
    """
    return (
        legend.accounts[trade.seller][0],
        legend.accounts[trade.buyer][0],
        legend.generations[trade.slow],
        legend.generations[trade.fast],
        trade.fast_gpus,
        trade.slow_gpus,
        trade.price,
        trade.seller_speedup,
        trade.buyer_speedup,
    )


def _end(cluster: Cluster, trades: Sequence[Trade], *, ends: datetime) -> None:
    """Ends open trades at the time `ends`, and books the GPU time that they moved.

    A trade that began later than `ends` gets a length of 0.
    """
    tenants = Tenant.objects.in_bulk({pk for one in trades for pk in (one.seller_id, one.buyer_id)})
    generations = Generation.objects.in_bulk({pk for one in trades for pk in (one.slow_id, one.fast_id)})
    for one in trades:
        one.ends = max(ends, one.begins)
    traded = (_traded(cluster, one, one.ends, tenants, generations) for one in trades if one.ends)
    book_trades([one for one in traded if one is not None])
    update_rows(trades, ["ends"])


def _traded(
    cluster: Cluster,
    trade: Trade,
    ends: datetime,
    tenants: Mapping[int, Tenant],
    generations: Mapping[int, Generation],
) -> TradedTime | None:
    """Returns the GPU time that a trade moved until `ends`; None if the GPU time of either side rounds to 0
    microseconds."""
    seconds = Decimal(str((ends - trade.begins).total_seconds()))
    given, taken = (_gpu_seconds(gpus, seconds) for gpus in (trade.fast_gpus, trade.slow_gpus))
    if given <= 0 or taken <= 0:
        return None
    seller, buyer = tenants[trade.seller_id], tenants[trade.buyer_id]
    slow, fast = generations[trade.slow_id], generations[trade.fast_id]
    return TradedTime(
        book=cluster.pk,
        key=f"trade:{trade.pk}",
        seller=seller,
        buyer=buyer,
        slow=slow,
        fast=fast,
        fast_gpu_seconds=given,
        slow_gpu_seconds=taken,
        begins=trade.begins,
        ends=ends,
        description=(
            f"{seller.name} gave {fixed(trade.fast_gpus, 3)} {fast.name} for"
            f" {fixed(trade.slow_gpus, 3)} {slow.name} of {buyer.name}"
        ),
    )


def _gpu_seconds(gpus: float, seconds: Decimal) -> Decimal:
    return (Decimal(str(gpus)) * seconds).quantize(MICROSECOND)
