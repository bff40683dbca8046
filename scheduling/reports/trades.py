"""Trades as a given reader may see them: with the sides of the reader's tenants, without the names of other tenants."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import F, FloatField, Q, QuerySet, Sum
from django.db.models.expressions import ExpressionWrapper
from django.db.models.functions import Coalesce, Extract, Now

from accounting.access.visibility import ANOTHER
from accounting.core.name_order import name_key
from accounting.models import Tenant, User
from fairshare.trading.gains import Worth, worth_to_buyer, worth_to_seller
from scheduling.models import Trade


@dataclass(frozen=True)
class Side:
    """One tenant's side of a trade: the GPUs that the tenant gave and got, and what each is worth to the tenant.

    The worth is in GPUs of the slow generation. It follows from the tenant's own measured speed-up.
    """

    tenant: Tenant
    gave: float
    gave_generation: str
    got: float
    got_generation: str
    speedup: float
    worth: Worth  # measured in GPUs of the slow generation

    @property
    def gain(self) -> float:
        return self.worth.gain


@dataclass(frozen=True)
class SeenTrade:
    """A trade as a reader may see it, with only the sides of the reader's tenants."""

    id: int
    begins: datetime
    ends: datetime | None
    slow: str
    fast: str
    price: float
    sides: list[Side]  # only those of the reader's tenants: one or two
    counterpart: str  # name of the other side; "another team" if the reader may not see it

    @property
    def seconds(self) -> float | None:
        return (self.ends - self.begins).total_seconds() if self.ends else None


def read_trades(
    user: User, begins: datetime, ends: datetime, *, generation: str = "", tenant: Tenant | None = None
) -> QuerySet[Trade]:
    """Returns the trades that `user` may see and that began in [begins, ends), latest first.

    `generation` limits the result to trades that include the generation of this name. `tenant` limits the result to
    trades of tenants in its subtree.
    """
    trades = Trade.objects.visible_to(user).filter(begins__gte=begins, begins__lt=ends)
    if generation:
        trades = trades.filter(Q(slow__name=generation) | Q(fast__name=generation))
    if tenant:
        below = Tenant.objects.within(tenant)
        trades = trades.filter(Q(seller__in=below) | Q(buyer__in=below))
    return trades.select_related("seller", "buyer", "slow", "fast")


def seen(trades: Iterable[Trade], mine: Collection[int]) -> list[SeenTrade]:
    """Returns the trades as SeenTrade objects, which hide other tenants. `mine` are the ids of the tenants that the
    reader may see."""
    return [_seen(trade, mine) for trade in trades]


def _seen(trade: Trade, mine: Collection[int]) -> SeenTrade:
    sides = [side for side in (_seller(trade), _buyer(trade)) if side.tenant.pk in mine]
    others = [tenant for tenant in (trade.seller, trade.buyer) if tenant.pk not in mine]
    return SeenTrade(
        id=trade.pk,
        begins=trade.begins,
        ends=trade.ends,
        slow=trade.slow.name,
        fast=trade.fast.name,
        price=trade.price,
        sides=sides,
        counterpart=ANOTHER if others else sides[1].tenant.name,
    )


def _seller(trade: Trade) -> Side:
    return Side(
        tenant=trade.seller,
        gave=trade.fast_gpus,
        gave_generation=trade.fast.name,
        got=trade.slow_gpus,
        got_generation=trade.slow.name,
        speedup=trade.seller_speedup,
        worth=worth_to_seller(trade.fast_gpus, trade.slow_gpus, trade.seller_speedup),
    )


def _buyer(trade: Trade) -> Side:
    return Side(
        tenant=trade.buyer,
        gave=trade.slow_gpus,
        gave_generation=trade.slow.name,
        got=trade.fast_gpus,
        got_generation=trade.fast.name,
        speedup=trade.buyer_speedup,
        worth=worth_to_buyer(trade.fast_gpus, trade.slow_gpus, trade.buyer_speedup),
    )


@dataclass(frozen=True)
class Total:
    """The GPU-seconds of one generation that the reader's tenants, taken together, gave and got in trades."""

    generation: str
    gave: float
    got: float

    @property
    def net(self) -> float:
        return self.got - self.gave


def totals(trades: QuerySet[Trade], mine: Collection[int]) -> list[Total]:
    """Returns the totals of `trades` by generation, for the tenants whose ids are in `mine`.

    A trade that has not ended counts up to now.
    """
    seconds = Extract(Coalesce(F("ends"), Now()) - F("begins"), "epoch")

    def summed(gpus: str, generation: str, side: str) -> dict[str, float]:
        amount = ExpressionWrapper(F(gpus) * seconds, output_field=FloatField())
        rows = trades.filter(**{f"{side}__in": mine}).order_by().values_list(f"{generation}__name")
        return dict(rows.annotate(total=Sum(amount)))

    gave = [summed("fast_gpus", "fast", "seller"), summed("slow_gpus", "slow", "buyer")]
    got = [summed("slow_gpus", "slow", "seller"), summed("fast_gpus", "fast", "buyer")]
    names = sorted({name for sums in (*gave, *got) for name in sums}, key=name_key)
    return [
        Total(name, sum(sums.get(name, 0.0) for sums in gave), sum(sums.get(name, 0.0) for sums in got))
        for name in names
    ]
