"""Divides GPUs among the accounts of one depth of the tree by water-filling: max-min fairly by tickets among siblings.

The children of one parent are a *family*. The total GPUs of each family are known from the depth above, and are divided
here among the members of the family. Only the total of each account is decided; its generations are chosen later. The
module `shares.py` calls this one for each depth, from the roots down.

Each family has a *level*, in GPUs per ticket. At level 2, an account with 3 tickets has 6 GPUs, but no fewer than its
guarantee and no more than it can use. At the *target level* of a family, its members together have the family's total.
All families rise to their target levels at the same time, because all accounts draw on the same GPUs: when one family
has risen half of its way, so have all others.

On the way, some generations can become a bottleneck: all their GPUs are needed by accounts that can get no more GPUs
elsewhere. These accounts then stop, and all others continue. Newton's method finds the bottleneck from above (Gallo,
Grigoriadis and Tarjan: parametric maximum flow, SIAM Journal on Computing 18, 1989):
1. At the target levels, some gates together cannot let through what accounts need. They are a minimum cut of the flow
   network.
2. The levels are lowered until these gates just suffice.
3. At the lower levels, other gates can still be overloaded. Step 2 is then repeated with them. When no gate is
   overloaded, the last gates are the bottleneck.

Sizes of arrays: A accounts, F families, K generations; C rows of the network (classes of jobs, or the GPUs guaranteed
to a class); M gates (each a limit on the GPUs of one generation for a group of rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairshare.model import Bools, Floats, Ints
from fairshare.policies.gandiva_fair.flow import EPSILON, Flow
from fairshare.policies.gandiva_fair.gates import Gates
from fairshare.policies.gandiva_fair.network import Exchange, Groups, Network

_HALVINGS = 64  # halvings of an interval that make it as short as floats allow


@dataclass(frozen=True, slots=True)
class _Rise:
    """A step of the water-filling, in which the level of each family rises from `low` to `high` (GPUs per ticket).

    It also says which accounts are still rising, and how many GPUs each of the stopped accounts keeps.
    """

    rising: Bools  # (A,)
    has: Floats  # (A,) GPUs of each account that has stopped
    floor: Floats  # (A,) GPUs guaranteed to each account
    top: Floats  # (A,) GPUs that each account can use
    tickets: Floats  # (A,)
    family: Ints  # (A,)
    low: Floats  # (F,) GPUs per ticket
    high: Floats

    def at(self, progress: float | Floats) -> Floats:
        """Returns the GPUs of each account after a fraction of the rise, as an array (A,).

        `progress`: the fraction, from 0 (each family is at its low level) to 1 (at its high level). It is one number
        for all families, or an array (F,). Accounts that have stopped keep their GPUs.
        """
        level = self.low + progress * (self.high - self.low)
        return np.where(
            self.rising, np.clip(level[self.family] * self.tickets, self.floor, self.top), self.has
        )


class Families(Network):
    """A flow network that divides GPUs among all accounts of one depth of the tree, grouped into families of
    siblings."""

    def __init__(
        self, flow: Flow, gates: Gates, bounds: Sequence[Groups], accounts: Groups, families: Groups
    ) -> None:
        """Creates the network for A accounts in F families of siblings.

        - `flow`: the rows (classes of jobs, or their guarantees) with the GPUs that they hold. The rows of a family
          together hold the total of the family.
        - `gates`: the limits on single generations.
        - `bounds`: the least and the most total GPUs of accounts at greater depths, leaf accounts first.
        - `accounts`: the least and the most total GPUs of the A accounts.
        - `families`: the F families, each as a group of all rows of its members.
        """
        rounding = float(gates.nothing[0]) * (1 + len(flow.able))
        super().__init__(flow, replace(gates, nothing=gates.nothing * 0 + 2 * rounding), bounds)
        self._accounts, self._families = accounts, families
        self._family = families.of_row[accounts.first]
        self._total = families.sums(flow.held.sum(axis=0))
        self._rounded, self._nothing = rounding, 2 * rounding

    def exchanges(self) -> list[Exchange]:
        accounts = self._accounts
        return [
            *super().exchanges(),
            Exchange(accounts, self.bounds),
            Exchange(self._families, [*self.bounds, accounts]),
        ]

    def divide(self, tickets: Floats, guaranteed: Floats, start: Floats) -> None:
        """Divides the total of each family among its members by tickets. The result is in `flow.held`: the GPUs of the
        rows of each account add up to the total of the account.

        - `tickets` (A,): tickets of each account.
        - `guaranteed` (A,): GPUs guaranteed to each account.
        - `start` (K, C): the guaranteed GPUs of each row (class of jobs) on each generation. The division begins with
          them.
        """
        accounts = self._accounts
        self.flow.held = start.copy()
        has = accounts.sums(start.sum(axis=0))
        top = has + np.minimum(accounts.sums(self.wanted()), accounts.room(start.sum(axis=0)))
        floor = np.minimum(guaranteed, top)
        low, high = np.zeros(len(self._total)), self._by_family(top / tickets, np.maximum)
        rise = _Rise(top > floor + EPSILON, floor, floor, top, tickets, self._family, low, high)
        while True:
            rise = replace(rise, high=self._target_levels(rise))
            progress, stuck = self._raise(rise)
            if not stuck.any():
                break
            low = rise.low + progress * (rise.high - rise.low)
            rise = replace(
                rise,
                rising=rise.rising & ~stuck,
                has=np.where(stuck, rise.at(progress), rise.has),
                low=low,
                high=high,
            )

    def _by_family(self, values: Floats, combine: np.ufunc = np.add) -> Floats:
        """Returns the sum of `values` (A,) over the members of each family, as an array (F,).

        `combine`: another numpy function that replaces the sum, such as the maximum.
        """
        found: Floats = combine.reduceat(values, np.flatnonzero(np.diff(self._family, prepend=-1)))
        return found

    def _target_levels(self, rise: _Rise) -> Floats:
        """Returns the target level of each family, in GPUs per ticket, as an array (F,).

        It is the level at which the members of the family together have the family's total. Members that have stopped
        keep their GPUs. The level is searched between `rise.low` and `rise.high`. If the family's total is not reached
        even at `rise.high`, the result is `rise.high`.
        """
        low, high = np.zeros(len(self._total)), np.ones(len(self._total))
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            enough = self._by_family(rise.at(middle)) >= self._total
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return rise.low + high * (rise.high - rise.low)

    def _raise(self, rise: _Rise) -> tuple[float, Bools]:
        """Raises the levels of all families together from low towards high, as far as the GPUs of the network suffice.
        Accounts that have not stopped get more GPUs by this.

        Returns a pair:
        - The fraction of the rise that was possible, from 0 (low levels) to 1 (high levels).
        - A mask (A,) of the accounts that must stop because they cannot get more GPUs. If it marks no account, the high
          levels were reached.
        """
        progress, stuck = 1.0, np.zeros_like(rise.rising)
        has = rise.at(progress)
        self._set_totals(has)
        self._accounts = replace(self._accounts, least=has, most=np.where(rise.rising, rise.top, has))
        while (stopped := self._balance()).any():
            full = self._reached(stopped)
            before, (progress, now) = progress, self._bottleneck(full, progress, rise)
            stuck = now if now.any() else stuck
            self._accounts = replace(self._accounts, least=rise.at(progress))
            if not now.any() or progress >= before:  # only a rounding error is left
                self._fit()
                there = self.gates.before(full)
                inside = self._accounts.sums((self.flow.held * there).sum(axis=0))
                return progress, stuck if stuck.any() else rise.rising & (inside > EPSILON)
        return progress, stuck

    def _set_totals(self, has: Floats) -> None:
        """Changes the GPUs that rows (classes of jobs) hold so that each account has `has` (A,) GPUs in total.

        Gates (limits on single generations) can be overloaded afterwards. The caller then moves GPUs to other
        generations.
        """
        flow, accounts = self.flow, self._accounts
        now = accounts.sums(flow.held.sum(axis=0))
        less, more = (np.where(change > EPSILON, change, 0.0) for change in (now - has, has - now))
        if less.any():
            spare = self._spare()
            flow.held -= spare * accounts.part(spare.sum(axis=0), less)
        wanted = self.wanted()
        self._grow(wanted * accounts.part(wanted, more))

    def _bottleneck(self, full: Bools, progress: float, rise: _Rise) -> tuple[float, Bools]:
        """Returns how far accounts can rise until the gates marked in `full` are exhausted, and which accounts must
        then stop.

        - `full` (M,): marks the overloaded gates, and all gates to which their GPUs could be moved (a cut of the
          network).
        - `progress`: a fraction of `rise` at which accounts need more GPUs than the marked gates let through.

        Returns a pair:
        - A smaller fraction of the rise, at which the GPUs of the marked gates suffice (one step of Newton's method).
        - A mask (A,) of the accounts that must stop at this fraction.

        An account must stop if two conditions are met:
        - It can get more GPUs only through the marked gates.
        - Its family needs all of its *forced* GPUs: those GPUs of the family's total that only the marked gates can let
          through. They are reserved for the family from the start.
        """
        flow, accounts, nothing, there = self.flow, self._accounts, self._nothing, self.gates.before(full)
        has, inside = (accounts.sums(held.sum(axis=0)) for held in (flow.held, flow.held * there))
        could = accounts.sums(self.wanted(np.logical_or.reduce(flow.able & ~there))) > nothing
        outside = np.where(could, np.maximum(accounts.most, has), has) - inside
        least, forced = self._guaranteed_in(there), self._total - self._by_family(outside)

        def needs(progress: float) -> Floats:
            return self._by_family(np.maximum(rise.at(progress) - outside, least))

        # What accounts had before fits, up to rounding.
        least_width = float(np.maximum(needs(0.0), forced).sum())
        low, high, width = 0.0, progress, max(self.gates.width(full), least_width) + self._rounded
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            fits = np.maximum(needs(middle), forced).sum() <= width
            low, high = (middle, high) if fits else (low, middle)
        pressed = (rise.at(progress) - outside > least + nothing) & (
            rise.at(low) - outside >= least - nothing
        )
        return low, rise.rising & pressed & (needs(low) >= forced - nothing)[self._family]

    def _guaranteed_in(self, there: Bools) -> Floats:
        """Returns the least GPUs that each account must keep at the marked places so that all guarantees hold, as an
        array (A,).

        A place is a pair of a generation and a row (class of jobs). `there` (K, C) marks places. The GPUs at all other
        places stay unchanged.
        """
        held = self.flow.held
        outside, stays = (held * ~there).sum(axis=0), (held * self.flow.is_kept * there).sum(axis=0)
        must = stays
        for groups in self.bounds:
            least = np.maximum(groups.sums(must), groups.least - groups.sums(outside))
            must = np.zeros_like(must)
            must[groups.first] = least
        found: Floats = self._accounts.sums(must)
        return found
