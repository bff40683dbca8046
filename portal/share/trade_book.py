"""Writes the trade book (the list of trades of GPU time between teams) to a file.

Each trade has two rows, one for each of its teams. The row of a team that the reader may not see is left out. The file
also has the totals that the ledger booked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from django.http.response import HttpResponseBase
from django.utils import timezone
from django.views.decorators.http import require_safe

from accounting.access.visibility import visible_ids
from accounting.models import Tenant, User
from accounting.reports.trade_totals import BookedTrades, booked_trades
from portal.reports.formats import PERIOD, Cell, Column, Document, Kind, Table, answer
from portal.reports.periods import Query
from portal.reports.scope import chosen_tenant
from portal.share.periods import Period, asked_stretch
from portal.user_request import UserRequest
from scheduling.models import Trade
from scheduling.reports.trades import SeenTrade, Side, read_trades, seen, totals

AT_ONCE = 500
# Headings of GPU times.
TIMES = {"gave": "Given", "got": "Received", "net": "Received minus given", "sum": "Received minus given"}


@require_safe
def trades_file(request: UserRequest, form: str) -> HttpResponseBase:
    return trades_in_format(request.user, request.GET, form)


def trades_in_format(user: User, query: Query, form: str) -> HttpResponseBase:
    """Returns the trades in the period of the URL query as a file. `form` is the file format.

    A CSV file contains only the table of trades. For a trade that has not ended, the end and the GPU-seconds are empty.
    """
    period = asked_stretch(query)
    tenant = chosen_tenant(user, query)
    document = trade_book(user, period, generation=query.get("generation", ""), tenant=tenant)
    return answer(document, form, file_name(period), alone="trades")


def file_name(period: Period) -> str:
    """Returns the name of the trade book's file for a period, without extension."""
    days = period.days
    return f"fairlot-trades-{f'{days.first}-{days.last}' if days else period.key}"


def trade_book(user: User, period: Period, *, generation: str = "", tenant: Tenant | None = None) -> Document:
    found = read_trades(user, period.begins, period.ends, generation=generation, tenant=tenant)
    mine = visible_ids(user)
    sides = set(Tenant.objects.within(tenant).values_list("pk", flat=True)) & mine if tenant else mine
    booked = booked_trades(period.begins, period.ends, None if user.is_operator and tenant is None else sides)
    facts = [(PERIOD, period.label), ("Teams", tenant.name if tenant else "All teams that you may see")]
    return Document(
        title="Trades",
        facts=[*facts, ("GPU", generation)] if generation else facts,
        tables=[
            Table("trades", "Trades", COLUMNS, _rows(found.iterator(chunk_size=AT_ONCE), mine)),
            Table(
                "totals",
                "GPU time by GPU type",
                [Column("generation", "GPU"), *_times("gave", "got", "net")],
                [(one.generation, one.gave, one.got, one.net) for one in totals(found, sides)],
                note="The table contains sums over the trades above. For a trade that still runs, the sums "
                "include its time until now.",
            ),
            *([] if generation else [_booked(booked)]),
        ],
        zone=period.days.zone if period.days else timezone.get_current_timezone(),
    )


def _times(*names: str) -> list[Column]:
    return [Column(f"{name}_gpu_seconds", f"{TIMES[name]}, GPU-h", Kind.GPU_TIME, 4) for name in names]


def _booked(booked: Iterable[BookedTrades]) -> Table:
    return Table(
        "booked",
        "Trades booked in the ledger",
        [Column("generation", "GPU"), *_times("gave", "got", "sum")],
        [(one.generation, one.gave, one.got, one.sum) for one in booked],
        note="The table contains only trades that have ended. GPU times are exact to the microsecond. For all "
        "teams together, the column “Received minus given” is 0.",
    )


COLUMNS = [
    Column("trade", "Trade", Kind.ID),
    Column("from", "From", Kind.SECOND),
    Column("to", "To", Kind.SECOND),
    Column("team", "Team"),
    Column("with", "Other team"),
    Column("gave_gpus", "GPUs given", Kind.NUMBER, 3),
    Column("gave", "Given GPU type"),
    Column("got_gpus", "GPUs received", Kind.NUMBER, 3),
    Column("got", "Received GPU type"),
    Column("rate", "Exchange rate", Kind.NUMBER, 3),
    *_times("gave", "got"),
    Column("measured_speedup", "Measured speed-up", Kind.NUMBER, 3),
    Column("without_slow_gpus", "GPUs given, converted to slower GPUs", Kind.NUMBER, 3),
    Column("with_slow_gpus", "GPUs received, converted to slower GPUs", Kind.NUMBER, 3),
    Column("gain", "Gain", Kind.NUMBER, 3),
]


def _rows(trades: Iterable[Trade], mine: Collection[int]) -> Iterator[tuple[Cell, ...]]:
    for trade in trades:
        (shown,) = seen([trade], mine)
        for side in shown.sides:
            yield _row(shown, side)


def _row(trade: SeenTrade, side: Side) -> tuple[Cell, ...]:
    others = [one.tenant.name for one in trade.sides if one is not side]
    seconds = trade.seconds
    return (
        trade.id, trade.begins, trade.ends, side.tenant.name, others[0] if others else trade.counterpart,
        side.gave, side.gave_generation, side.got, side.got_generation, trade.price,
        None if seconds is None else side.gave * seconds, None if seconds is None else side.got * seconds,
        side.speedup, side.worth.without, side.worth.with_trade, side.gain,
    )  # fmt: skip
