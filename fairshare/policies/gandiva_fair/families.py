"""Computes the total share of each account at one depth of the tree, max-min fairly by tickets among siblings.

The children of one parent are called a family. Only the total GPUs of each account are decided here. The generations
are decided after the last depth.

All accounts begin with their guaranteed GPUs and then grow together. A level is a number of GPUs per ticket. Each
family grows towards its target: the level at which its members together have all GPUs of their parent.

On the way, a set of generations can become a bottleneck: accounts that can use no other generation need all of its
GPUs. These accounts then stop, and all others continue. Newton's method finds the level of each bottleneck, beginning
with a level that is too high, as in the parametric maximum flow of Gallo, Grigoriadis and Tarjan (SIAM Journal on
Computing 18, 1989).
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
    """The state of the algorithm: which accounts still get more GPUs, and how many GPUs the other accounts have.

    A rise leads each family from a low level to a high level. A level is a number of GPUs per ticket.
    """

    rising: Bools  # (A,)
    has: Floats  # (A,) GPUs of each account that has stopped
    floor: Floats  # (A,) GPUs guaranteed to each account
    top: Floats  # (A,) GPUs that each account can use
    tickets: Floats  # (A,)
    family: Ints  # (A,)
    low: Floats  # (F,) GPUs per ticket
    high: Floats

    def at(self, part: float | Floats) -> Floats:
        """Returns the GPUs of each account at a level between the low and the high level of its family, as an array
        (A,).

        `part`: where the level is between the two, from 0 (low) to 1 (high). A level is a number of GPUs per ticket.
        Accounts that have stopped keep the GPUs that they have.
        """
        level = self.low + part * (self.high - self.low)
        return np.where(
            self.rising, np.clip(level[self.family] * self.tickets, self.floor, self.top), self.has
        )


class Families(Network):
    """A network flow that divides GPUs among all accounts of one depth, grouped into families of siblings.

    All accounts draw on the same GPUs.
    """

    def __init__(
        self, flow: Flow, gates: Gates, bounds: Sequence[Groups], accounts: Groups, families: Groups
    ) -> None:
        """Creates the network for A accounts in F families of siblings.

        - `flow`: the rows (classes of jobs) with the GPUs that they hold. Their sum over a family is the family's
          total, which `divide` distributes among its members.
        - `gates`: limits on single generations.
        - `bounds`: limits on the total GPUs of accounts, each as a group of rows. The limits of leaf accounts come
          first.
        - `accounts` and `families`: the rows of each account and of each family.
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
        """Divides the total of each family among its members by tickets.

        - `tickets` (A,): tickets of each account.
        - `guaranteed` (A,): GPUs that each account keeps at least.
        - `start` (K, C): guaranteed GPUs of each row (class of jobs) on each generation, with which the division
          begins.
        """
        accounts = self._accounts
        self.flow.held = start.copy()
        has = accounts.sums(start.sum(axis=0))
        top = has + np.minimum(accounts.sums(self.wanted()), accounts.room(start.sum(axis=0)))
        floor = np.minimum(guaranteed, top)
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
        """Combines the values (A,) of the members of each family into one, as an array (F,).

        `put_together` is the numpy function that combines them, by default the sum.
        """
        found: Floats = put_together.reduceat(values, np.flatnonzero(np.diff(self._family, prepend=-1)))
        return found

    def _fair_level(self, rise: _Rise) -> Floats:
        """Returns the level at which the members of each family together have the family's total, as an array (F,).

        A level is a number of GPUs per ticket. `rise` says which accounts rise and which have stopped.
        """
        low, high = np.zeros(len(self._total)), np.ones(len(self._total))
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            enough = self._by_family(rise.at(middle)) >= self._total
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return rise.low + high * (rise.high - rise.low)

    def _raise(self, rise: _Rise) -> tuple[float, Bools]:
        """Raises all accounts that have not stopped, together and as far as possible, from the low towards the high
        levels of `rise`.

        Returns a pair: how far they came, from 0 (low levels) to 1 (high levels), and a mask (A,) of the accounts that
        cannot get more.
        """
        part, stuck = 1.0, np.zeros_like(rise.rising)
        has = rise.at(part)
        self._set(has)
        self._accounts = replace(self._accounts, least=has, most=np.where(rise.rising, rise.top, has))
        while (stopped := self._balance()).any():
            full = self._reached(stopped)
            before, (part, now) = part, self._bottleneck(full, part, rise)
            stuck = now if now.any() else stuck
            self._accounts = replace(self._accounts, least=rise.at(part))
            if not now.any() or part >= before:  # only a rounding error is left
                self._fit()
                there = self.gates.before(full)
                inside = self._accounts.sums((self.flow.held * there).sum(axis=0))
                return part, stuck if stuck.any() else rise.rising & (inside > EPSILON)
        return part, stuck

    def _set(self, has: Floats) -> None:
        """Changes the GPUs that rows (classes of jobs) hold so that each account has `has` (A,) in total.

        The result may exceed the capacity of gates (limits).
        """
        flow, accounts = self.flow, self._accounts
        now = accounts.sums(flow.held.sum(axis=0))
        less, more = (np.where(change > EPSILON, change, 0.0) for change in (now - has, has - now))
        if less.any():
            spare = self._spare()
            flow.held -= spare * accounts.part(spare.sum(axis=0), less)
        wanted = self.wanted()
        self._grow(wanted * accounts.part(wanted, more))

    def _bottleneck(self, full: Bools, part: float, rise: _Rise) -> tuple[float, Bools]:
        """Computes how far accounts can rise before the gates (limits) marked in `full` are exhausted.

        - `full` (M,): marks gates that form a cut of the network: no account can move GPUs from a marked gate to one
          that is not marked.
        - `part`: how far the accounts have risen from the low levels (0) to the high levels (1) of `rise`. A level is a
          number of GPUs per ticket. At `part`, the accounts need more GPUs of the marked gates than there are.

        Returns a pair. The first element is a number lower than `part`, at which the GPUs of the marked gates suffice
        (Newton's step). The second is a mask (A,) of the accounts that must stop there. They meet two conditions:
        - The account would otherwise get more GPUs of the marked gates than its guarantee requires.
        - Its family already has all GPUs that it can get from other gates.
        """
        flow, accounts, nothing, there = self.flow, self._accounts, self._nothing, self.gates.before(full)
        has, inside = (accounts.sums(held.sum(axis=0)) for held in (flow.held, flow.held * there))
        could = accounts.sums(self.wanted(np.logical_or.reduce(flow.able & ~there))) > nothing
        outside = np.where(could, np.maximum(accounts.most, has), has) - inside
        least, forced = self._guaranteed_in(there), self._total - self._by_family(outside)

        def needs(part: float) -> Floats:
            return self._by_family(np.maximum(rise.at(part) - outside, least))

        # What accounts had before fits, up to rounding.
        least_width = float(np.maximum(needs(0.0), forced).sum())
        low, high, width = 0.0, part, max(self.gates.width(full), least_width) + self._rounded
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            fits = np.maximum(needs(middle), forced).sum() <= width
            low, high = (middle, high) if fits else (low, middle)
        pressed = (rise.at(part) - outside > least + nothing) & (rise.at(low) - outside >= least - nothing)
        return low, rise.rising & pressed & (needs(low) >= forced - nothing)[self._family]

    def _guaranteed_in(self, there: Bools) -> Floats:
        """Returns the part of each account's guarantee that must stay at the marked places, in GPUs, as an array (A,).

        A place is a pair of a generation and a row (class of jobs). `there` (K, C) marks places.
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
