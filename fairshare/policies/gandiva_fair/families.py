"""The totals of accounts of one depth of the tree: weighted max-min within each family, exact, with all flows open.

What an account has in all is decided; of which generations that is, only the last depth decides. All accounts of a
depth rise together, each family towards the level at which its members would share what their parent has, until a
set of generations is full that some of them cannot avoid, nor any of their family in their place. Those stop, and the
others go on. The level of each bottleneck is found by Newton's method for cuts, from above, as in the parametric
maximum flow of Gallo, Grigoriadis and Tarjan (SIAM Journal on Computing 18, 1989).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairshare.model import Bools, Floats, Ints
from fairshare.policies.gandiva_fair.columns import across
from fairshare.policies.gandiva_fair.flow import EPSILON, Flow, part_of
from fairshare.policies.gandiva_fair.network import Exchange, Groups, Network

_HALVINGS = 64  # of an interval, until it is as short as numbers allow


@dataclass(frozen=True, slots=True)
class _Rise:
    """Accounts that rise together from one level of their families to another, and those that rise no more."""

    rising: Bools  # (A,)
    has: Floats  # (A,) of those that rise no more
    floor: Floats  # (A,) what they are guaranteed
    top: Floats  # (A,) what they can use
    tickets: Floats  # (A,)
    family: Ints  # (A,)
    low: Floats  # (F,) GPUs for a ticket
    high: Floats

    def at(self, part: float | Floats) -> Floats:
        """(A,) what all have after some part of the way up."""
        level = self.low + part * (self.high - self.low)
        return np.where(
            self.rising, np.clip(level[self.family] * self.tickets, self.floor, self.top), self.has
        )


class Families(Network):
    """The accounts of one depth, those with the same parent being a family; all share one pool."""

    def __init__(
        self, flow: Flow, gpus: Floats, bounds: Sequence[Groups], accounts: Groups, families: Groups
    ) -> None:
        """`gpus` (K,) is what there is. `bounds` are of groups inside the `accounts` (A), which are in `families` (F).

        What each family has in all is what its rows hold now, and stays so.
        """
        super().__init__(flow, gpus, bounds)
        self._accounts, self._families = accounts, families
        self._family = families.of_row[accounts.first]
        self._total = families.sums(across(flow.held))
        self._rounded = (1 + len(gpus)) * self._nothing
        self._nothing *= 2 * (1 + len(gpus))

    def exchanges(self) -> list[Exchange]:
        accounts, leaves = self._accounts, self.leaves
        return [
            *super().exchanges(),
            Exchange(accounts, self.bounds, [leaves]),
            Exchange(self._families, [*self.bounds, accounts], [leaves, accounts]),
        ]

    def divide(self, tickets: Floats, guaranteed: Floats) -> None:
        """Share out what each family has by the `tickets` (A,) of its members, who have what is `guaranteed` (A,)."""
        flow, accounts = self.flow, self._accounts
        flow.held = flow.sure
        has = accounts.sums(across(flow.held))
        top = has + np.minimum(accounts.sums(self._wanted())[:, 0], accounts.room(flow.held))
        floor = np.clip(guaranteed, has, top)
        low, high = np.zeros(len(self._total)), self._by_family(top / tickets, np.maximum)
        rise = _Rise(top > floor + EPSILON, floor, floor, top, tickets, self._family, low, high)
        while True:
            rise = replace(rise, high=self._fair_level(rise))
            part, stuck = self._raise(rise)
            if not stuck.any():
                break
            low = rise.low + part * (rise.high - rise.low)
            rise = replace(
                rise,
                rising=rise.rising & ~stuck,
                has=np.where(stuck, rise.at(part), rise.has),
                low=low,
                high=high,
            )

    def _by_family(self, values: Floats, put_together: np.ufunc = np.add) -> Floats:
        """(F,) of the values (A,) of members."""
        found: Floats = put_together.reduceat(values, np.flatnonzero(np.diff(self._family, prepend=-1)))
        return found

    def _fair_level(self, rise: _Rise) -> Floats:
        """(F,) the level at which members have what their family has."""
        low, high = np.zeros(len(self._total)), np.ones(len(self._total))
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            enough = self._by_family(rise.at(middle)) >= self._total
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return rise.low + high * (rise.high - rise.low)

    def _raise(self, rise: _Rise) -> tuple[float, Bools]:
        """Let accounts rise as far as all can; returns that part of the way, and (A,) who can go no further."""
        part, stuck = 1.0, np.zeros_like(rise.rising)
        has = rise.at(part)
        self._set(has)
        self._accounts = replace(self._accounts, least=has, most=np.where(rise.rising, rise.top, has))
        while (full := self._balance()).any():
            before = part
            part, stuck = self._bottleneck(full, part, rise)
            self._accounts = replace(self._accounts, least=rise.at(part))
            if not stuck.any() or part >= before:  # by rounding alone
                self._fit()
                inside = self._accounts.sums(across(self.flow.held * full))
                return part, stuck | (rise.rising & (inside > EPSILON))
        return part, stuck

    def _set(self, has: Floats) -> None:
        """Let accounts have so much (A,) in all, whatever that overloads."""
        flow, accounts = self.flow, self._accounts
        now = accounts.sums(across(flow.held))
        more = self._more
        flow.held -= (
            more * part_of(np.maximum(now - has, 0.0), accounts.sums(across(more)))[accounts.of_row][:, None]
        )
        self._grow(accounts.cut(self._wanted(), np.maximum(has - now, 0.0))[:, 0])

    def _bottleneck(self, full: Bools, part: float, rise: _Rise) -> tuple[float, Bools]:
        """Newton's step: the part of the way, less than `part`, at which all that must be in `full` (K,) fits there.

        Returns it and (A,) who is held down by that. Nobody can leave `full`: who has some there has all that it can
        elsewhere, and so have its whole family, or else it has no more than it must at `part`.
        """
        flow, accounts, nothing = self.flow, self._accounts, self._nothing
        has, inside = accounts.sums(across(flow.held)), accounts.sums(across(flow.held * full))
        could = accounts.sums(across(self._wanted(flow.able & ~full))) > nothing
        outside = np.where(could, np.maximum(accounts.most, has), has) - inside
        least, forced = self._guaranteed_in(full), self._total - self._by_family(outside)

        def needs(part: float) -> Floats:
            return self._by_family(np.maximum(rise.at(part) - outside, least))

        low, high, there = 0.0, part, float(self.gpus[full].sum()) + self._rounded
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            fits = np.maximum(needs(middle), forced).sum() <= there
            low, high = (middle, high) if fits else (low, middle)
        pressed = (rise.at(part) - outside > least + nothing) & (rise.at(low) - outside >= least - nothing)
        return low, rise.rising & pressed & (needs(low) >= forced - nothing)[self._family]

    def _guaranteed_in(self, full: Bools) -> Floats:
        """(A,) what of the guarantees of leaves has to be in `full` (K,) generations."""
        flow, leaves = self.flow, self.leaves
        kept = across((flow.held - self._free) * full)
        must = leaves.sums(kept) + np.maximum(
            leaves.sums(across(flow.base) - across(self._free * ~full)), 0.0
        )
        found = np.bincount(self._accounts.of_row[leaves.first], must, len(self._accounts.first))
        return found.astype(np.float64)
