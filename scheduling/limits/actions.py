"""Action that sets the trade limits of a team, for the team's managers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db import transaction

from accounting.access import audit
from accounting.access.permissions import require
from accounting.actions.checks import check_fields
from accounting.core.errors import Refused
from accounting.models import Generation, Tenant, User
from scheduling.models import TradeLimit


@dataclass(frozen=True, slots=True)
class Allowance:
    """A limit on a team's trades of one generation. `generation` None means all generations for which the team has no
    separate Allowance.

    - `trades`: False forbids all trades of the generation.
    - `most_gpus`: the maximum number of GPUs given away at a time; None means no limit.
    - `most_part`: another maximum, as a fraction of the team's entitlement; None means no limit. If both maximums are
      given, the lower one applies.
    """

    generation: Generation | None = None
    trades: bool = True
    most_gpus: Decimal | None = None
    most_part: Decimal | None = None

    @property
    def says_nothing(self) -> bool:
        return self.generation is None and self.trades and self.most_gpus is None and self.most_part is None


@transaction.atomic(durable=True)
def set_trade_limits(
    *, actor: User | None, tenant: Tenant, allowances: Sequence[Allowance]
) -> list[TradeLimit]:
    """Replaces all trade limits of `tenant`, and requests a round that applies them. An empty list of `allowances`
    removes all limits.

    Raises NotAllowed unless the actor manages the tenant. Raises Refused if two allowances are for the same generation
    or an amount is invalid.
    """
    require(actor, "trade_limits.set", tenant)
    held = Tenant.objects.select_for_update(no_key=True).filter(pk=tenant.pk).first()
    if held is None:
        raise Refused(f"{tenant} no longer exists.")
    before = list(held.trade_limits.select_related("generation"))
    wanted = [_limit(held, one) for one in allowances if not one.says_nothing]
    if len({limit.generation_id for limit in wanted}) < len(wanted):
        raise Refused("There are two limits for the same GPU type. Enter only one.", "generation")
    held.trade_limits.all().delete()
    TradeLimit.objects.bulk_create(wanted)
    after = list(held.trade_limits.select_related("generation"))
    if _told(before) != _told(after):
        audit.record(
            actor=actor,
            verb="tenant.set_trade_limits",
            target=held,
            tenant=held,
            before=_told(before),
            after=_told(after),
        )
    return after


def _limit(tenant: Tenant, asked: Allowance) -> TradeLimit:
    limit = TradeLimit(
        tenant=tenant,
        generation=asked.generation,
        trades=asked.trades,
        most_gpus=asked.most_gpus,
        most_part=asked.most_part,
    )
    check_fields(limit, "most_gpus", "most_part")
    if not asked.trades and (asked.most_gpus is not None or asked.most_part is not None):
        raise Refused("A GPU type that is not traded needs no maximum. Leave both maximums empty.", "trades")
    if asked.most_gpus is not None and asked.most_gpus < 0:
        raise Refused("A limit must be 0 or more.", "most_gpus")
    if asked.most_part is not None and not 0 <= asked.most_part <= 1:
        raise Refused("A fraction must be from 0 to 1 (0 to 100 %).", "most_part")
    return limit


def _told(limits: Sequence[TradeLimit]) -> dict[str, Any]:
    return {str(limit.generation or "other GPUs"): limit.terms for limit in limits}
