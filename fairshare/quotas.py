"""Computes how many GPUs the limits of accounts still allow while gangs are picked.

A limit of an account counts the GPUs of the account and of all accounts below it. There are three kinds:
- Limits on all GPUs of the account (`with_room`).
- Limits on the GPUs that it may borrow beyond its entitlement (`within_borrowing`).
- Limits beyond which its jobs may still run, but only on GPUs that nobody else can use (`with_claims`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fairshare.demand import EPSILON
from fairshare.model import Accounts, Floats, Settings
from fairshare.tree import Tree


class Left(NamedTuple):
    """The GPUs that each account may still get: of each generation, and of all generations together."""

    each: Floats  # (T, K) GPUs of a generation, if everything left is spent on it
    total: Floats  # (T,) GPUs of all generations together


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of all accounts in this round, one set of caps for each kind of limit."""

    room: Accounts  # capped by what accounts may have at all
    most: Accounts  # capped by `room` and by what accounts may borrow
    claims: Accounts | None  # capped by `most` and by the accounts' claims; None: no account has a claim


def with_room(accounts: Accounts) -> Accounts:
    """Returns the accounts with caps lowered to what their limits allow in this round.

    A limit allows less than usual when, for example, an account's GPU-hours are nearly used up.
    """
    return _cut(accounts, accounts.room, accounts.room_total, accounts.room_cost)


def with_claims(accounts: Accounts) -> Accounts:
    """Returns the accounts with caps lowered to what `with_room` and their *soft* limits allow.

    Beyond a soft limit, an account's jobs may still run, but only on GPUs that nobody else can use.
    """
    return _cut(with_room(accounts), accounts.claim, accounts.claim_total, accounts.claim_cost)


def within_borrowing(accounts: Accounts, entitled: Floats) -> Accounts:
    """Returns the accounts with caps lowered to each account's entitlement plus the GPUs that it may borrow.

    `entitled` (T, K): each account's entitlement in GPUs of each generation.
    """
    if accounts.borrow is None:
        return accounts
    return _cut(accounts, _bound(entitled, accounts.borrow))


def limits_of(accounts: Accounts, tree: Tree, entitled: Floats, settings: Settings) -> Limits:
    """Returns the limits that apply when gangs are picked.

    An account that is owed GPU time may borrow more: as many GPUs as would make up for this time in one quantum. So a
    gang that is larger than the limit on borrowing can still run from time to time.
    """
    room, claims = with_room(accounts), with_claims(accounts)
    if accounts.borrow is not None:
        owed = np.maximum(tree.sums(accounts.owed), 0.0) / settings.quantum
        # On average, an account stays within its limit on borrowing.
        most = _bound(entitled, accounts.borrow) + owed
        bounded, claims = _cut(room, most), _cut(claims, most)
    else:
        bounded = room
    soft = (accounts.claim, accounts.claim_total, accounts.claim_cost)
    is_soft = any(claim is not None for claim in soft)
    return Limits(room, bounded, claims if is_soft else None)


def _bound(entitled: Floats, borrow: Floats) -> Floats:
    """Returns each account's entitlement plus the GPUs that it may borrow, as an array (T, K).

    `borrow` (T, K) is a fraction of the entitlement. The result is infinite where borrowing is not limited.
    """
    bound: Floats = np.full_like(entitled, np.inf)
    limited = np.isfinite(borrow)
    bound[limited] = entitled[limited] * (1 + borrow[limited]) + EPSILON
    return bound


def _cut(
    accounts: Accounts, cap: Floats | None, total: Floats | None = None, cost: Floats | None = None
) -> Accounts:
    least = accounts.cap_cost
    if cost is not None:
        least = cost if least is None else np.minimum(least, cost)
    return replace(
        accounts,
        cap=accounts.cap if cap is None else np.minimum(accounts.cap, cap),
        cap_total=accounts.cap_total if total is None else np.minimum(accounts.cap_total, total),
        cap_cost=least,
    )


class Quotas:
    """The GPUs that each account with a limit, and all accounts below it, have been given so far in this round."""

    def __init__(self, tree: Tree, accounts: Accounts) -> None:
        self._tree, self._accounts = tree, accounts
        self._used = np.zeros(accounts.cap.shape)
        limited = np.isfinite(accounts.cap_total) | np.isfinite(accounts.cap).any(axis=1)
        if accounts.cap_cost is not None:
            limited |= np.isfinite(accounts.cap_cost)
        below = limited.copy()
        for level in tree.levels[1:]:
            below[level] |= below[tree.parent[level]]
        self.below = below  # (T,) accounts with a limit of their own, or below an account with a limit
        self._limited: dict[int, list[int]] = {}
        for level in tree.levels:
            for account in level[below[level]].tolist():
                inherited = self._limited.get(int(tree.parent[account]), [])
                self._limited[account] = [account, *inherited] if limited[account] else inherited

    def limits_any(self, account: int) -> bool:
        """Returns whether the account, or an account above it, has a limit."""
        return account in self._limited

    def allow(self, account: int, generation: int, gpus: int) -> bool:
        """Returns whether the limits of the account and of all accounts above it allow `gpus` more GPUs of the
        generation."""
        return all(self._allows(t, generation, gpus) for t in self._limited.get(account, ()))

    def allow_beside(self, starts: Quotas, account: int, generation: int, gpus: int) -> bool:
        """Returns whether running gangs of the account may keep `gpus` GPUs of the generation beside those of `starts`.

        Running gangs may be beyond a limit that was lowered since they started. But no gang may start under a limit
        while others are beyond it. So a limit forbids the GPUs only if it counts GPUs of `starts`.
        """
        return all(
            (not starts._used[t, generation] or self._allows_of(t, generation, gpus))
            and (not starts._used[t].any() or self._allows_in_total(t, generation, gpus))
            for t in self._limited.get(account, ())
        )

    def _allows(self, t: int, generation: int, gpus: int) -> bool:
        return self._allows_of(t, generation, gpus) and self._allows_in_total(t, generation, gpus)

    def _allows_of(self, t: int, generation: int, gpus: int) -> bool:
        return bool(self._used[t, generation] + gpus <= self._accounts.cap[t, generation])

    def _allows_in_total(self, t: int, generation: int, gpus: int) -> bool:
        is_within = self._used[t].sum() + gpus <= self._accounts.cap_total[t]
        return bool(is_within) and self._pays(t, generation, gpus)

    def _pays(self, t: int, generation: int, gpus: int) -> bool:
        most, price = self._accounts.cap_cost, self._accounts.price
        if most is None or price is None:
            return True
        return bool(self._used[t] @ price + gpus * price[generation] <= most[t] * (1 + EPSILON))

    def use(self, account: int, generation: int, gpus: int) -> None:
        for t in self._limited.get(account, ()):
            self._used[t, generation] += gpus

    def left(self, accounts: Accounts | None = None) -> Left:
        """Returns the GPUs that each account may still get under its caps and those of the accounts above.

        `accounts`: the same accounts with other caps, which are used instead. They must not add a cap to an account
        that had none.
        """
        # `_used` counts only accounts that had a cap from the start.
        accounts = accounts or self._accounts
        cap = accounts.cap - self._used
        if accounts.cap_cost is not None and accounts.price is not None:
            left = (accounts.cap_cost * (1 + EPSILON) - self._used @ accounts.price)[:, None]
            with np.errstate(divide="ignore", invalid="ignore"):  # a GPU may cost nothing
                cap = np.fmin(cap, np.where(accounts.price > 0, left / accounts.price, np.inf))
        cap_total = accounts.cap_total - self._used.sum(axis=1)
        return Left(self._tree.least_on_path(cap), self._tree.least_on_path(cap_total))
