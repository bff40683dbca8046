"""The trade book as a file: a line for each side of each trade that the reader may see."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from accounting.csv_lines import csv_line, harmless
from portal.share.periods import read_period
from portal.share.trades import SeenTrade, Side, read_trades, seen, visible_ids
from portal.share.views import chosen_tenant
from scheduling.models import Trade

HEAD = [
    "trade", "from", "to", "team", "with", "gave_gpus", "gave", "got_gpus", "got", "rate", "gave_gpu_seconds",
    "got_gpu_seconds", "measured_speedup", "without_slow_gpus", "with_slow_gpus", "gain",
]  # fmt: skip


@require_safe
def trades_csv(request: HttpRequest) -> HttpResponse:
    """What the page shows, trade by trade and unrounded; what still runs has no end and no GPU-seconds yet."""
    tenant = chosen_tenant(request) if request.GET.get("team") else None
    period = read_period(request.GET.get("period"))
    generation = request.GET.get("generation", "").replace("\0", "")
    found = read_trades(request.user, period, generation=generation, tenant=tenant)
    return HttpResponse(
        "".join(trade_lines(found.iterator(), visible_ids(request.user))),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="fairlot-trades-{period.key}.csv"'},
    )


def trade_lines(trades: Iterable[Trade], mine: Collection[int]) -> Iterator[str]:
    yield csv_line(HEAD)
    for trade in trades:
        (shown,) = seen([trade], mine)
        for side in shown.sides:
            yield csv_line(_line(shown, side))


def _line(trade: SeenTrade, side: Side) -> list[object]:
    others = [one.tenant.name for one in trade.sides if one is not side]
    seconds = trade.seconds
    return [
        trade.id, harmless(trade.begins), harmless(trade.ends) if trade.ends else "", harmless(side.tenant.name),
        harmless(others[0] if others else trade.counterpart), repr(side.gave), harmless(side.gave_generation),
        repr(side.got), harmless(side.got_generation), repr(trade.price),
        "" if seconds is None else repr(side.gave * seconds), "" if seconds is None else repr(side.got * seconds),
        repr(side.speedup), repr(side.worth.without), repr(side.worth.with_trade), repr(side.gain),
    ]  # fmt: skip
