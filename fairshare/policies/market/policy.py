"""The policy `market`: divides GPU time by a market equilibrium, and orders and places gangs as gandiva_fair does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from fairshare.entitlement import private_clusters
from fairshare.model import Bools, Floats, Snapshot
from fairshare.policies.base import Need, option
from fairshare.policies.gandiva_fair.policy import GandivaFair
from fairshare.policies.gandiva_fair.shares import Shares, share_out
from fairshare.policies.market.shares import market_shares
from fairshare.policies.tickets import MEMORY, ORDERING
from fairshare.tree import Tree

# Largest relative error of prices and purchases that still counts as an equilibrium.
MOST_MISSED = 1e-3


@dataclass(frozen=True, slots=True)
class MarketOptions:
    """Options of the policy `market`: how accounts take turns, and for how long GPU time that accounts are owed is
    remembered."""

    ordering: Literal["stride", "lottery"] = option("stride", ORDERING)
    memory: float = option(3600.0, MEMORY, least=0.0)


class Market(GandivaFair):
    """A policy that computes shares by a competitive equilibrium, in which tickets are income. This takes the place of
    trades.

    Each generation has a price at which demand equals supply. The income of an account is divided among the active
    accounts below it, in proportion to their tickets. Each user buys the GPUs on which its jobs make most progress, by
    their measured speeds. A job counts as having its best speed on generations where it was not measured.

    The result has three properties:
    - No user would rather have the GPUs of another user of equal income.
    - Every user makes at least the progress of its private cluster (its entitlement), unless a limit prevents this.
    - No GPU remains unused that a user could use.

    An account is guaranteed as many GPUs as with gandiva_fair, but at most all GPUs that it bought. If it bought more,
    the rest is surplus. If no equilibrium is found, shares are computed as by gandiva_fair without trades.
    """

    name: ClassVar[str] = "market"
    version: ClassVar[int] = 1
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RATES, Need.OWN_ORDER, Need.RECLAIM})
    options_type: ClassVar[type[MarketOptions]] = MarketOptions

    def _seen(self, view: Snapshot, owed: Floats) -> Snapshot:
        seen = super()._seen(view, owed)
        return replace(seen, settings=replace(seen.settings, trading=False))

    def _share_out(self, seen: Snapshot, tree: Tree, sharing: Bools) -> tuple[Shares, str | None]:
        by_tickets, market = share_out(seen, tree, sharing), market_shares(seen, tree, sharing)
        if not market.missed <= MOST_MISSED:
            return by_tickets, (
                f"No market equilibrium was found: the prices differ from an equilibrium by {market.missed:.2%}."
                " Shares are max-min fair by tickets instead, as with gandiva_fair without trades."
            )
        bought, most = market.share.sum(axis=1), by_tickets.guaranteed.sum(axis=1)
        kept = np.minimum(np.divide(most, bought, out=np.ones_like(bought), where=bought > 0), 1.0)
        private = private_clusters(seen, tree, sharing)
        return Shares(private, kept[:, None] * market.share, market.share), None
