"""What tickets earn, what of it each account can use, and who gets what others leave.

An account's *entitlement* is its private cluster: its tickets among those of all active accounts beside it, level
by level, of every generation. *Guaranteed* is the best use that its jobs make of that: as much GPU time as they
can, on the generations where they are fastest. Its *share* is that and its part of what is left: what all get is
weighted max-min of GPU time over all generations together, at each level of the tree, and nobody's guaranteed
part goes to a slower generation for it. Gandiva_fair (EuroSys '20, section 3) divides each generation by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.entitlement import capacity_of
from fairshare.model import NOWHERE, Accounts, Bools, Floats, Ints, Snapshot
from fairshare.policies.gandiva_fair.classes import Classes, classes_of
from fairshare.policies.gandiva_fair.flow import EPSILON, Flow, Pools, across
from fairshare.quotas import with_claims, within_borrowing
from fairshare.tree import Tree


@dataclass(frozen=True, slots=True)
class Shares:
    """GPUs of each generation, on average over time; all (T, K)."""

    entitled: Floats  # what tickets earn
    guaranteed: Floats  # what of it the account and all below it can use
    share: Floats  # that and what others leave; of an inner account what all below it get


def share_out(snapshot: Snapshot, tree: Tree, able: Bools) -> Shares:
    """Divide the cluster among all that take part: `able` (J, K) says where their jobs may run."""
    accounts, capacity = with_claims(snapshot.accounts), capacity_of(snapshot.cluster)
    classes = classes_of(snapshot.jobs, able)
    shape = len(tree.parent), len(capacity)
    leaves = np.zeros(len(tree.parent))
    leaves[classes.leaf] = 1.0
    weight = accounts.tickets * (tree.sums(leaves) > 0)
    entitled = _by_tickets(tree, weight, capacity)
    guaranteed, share = np.zeros(shape), np.zeros(shape)
    if not len(classes.leaf):
        return Shares(entitled, guaranteed, share)
    accounts = within_borrowing(accounts, entitled)
    means = _by_tickets(tree, weight, capacity, accounts)
    flow, leaf = _within_caps(_flow(classes), classes.leaf, tree, accounts)
    flow, leaf = _with_leaves(flow, leaf, accounts.cap_total, means, guaranteed)
    above = _above(tree, leaf)
    for owner in above[::-1]:
        _guarantee(flow, owner, owner != leaf, accounts.cap_total, means=means, guaranteed=guaranteed)
    pools, parent = capacity[None, :], np.zeros(len(leaf), dtype=np.int64)
    for owner in above:
        _divide(flow, owner, parent, accounts, pools=pools, share=share)
        pools, parent = share, owner
    return Shares(entitled, guaranteed, share)


def _by_tickets(tree: Tree, weight: Floats, capacity: Floats, accounts: Accounts | None = None) -> Floats:
    """(T, K) GPUs: what an account has is divided among those below it by `weight` (T,), level by level.

    With `accounts` none passes on more than its caps allow: what those below it make of that keeps within them.
    """
    found = np.zeros((len(weight), len(capacity)))
    for depth, level in enumerate(tree.levels):
        above = tree.parent[level] if depth else np.zeros(len(level), dtype=np.int64)
        has = found[above] if depth else np.broadcast_to(capacity, (len(level), len(capacity)))
        if accounts is not None and depth:
            has = np.minimum(has, accounts.cap[above])
            all_ = across(has)
            part = np.divide(accounts.cap_total[above], all_, out=np.ones_like(all_), where=all_ > 0)
            has = has * np.minimum(part, 1.0)[:, None]
        beside = np.bincount(above, weight[level], len(weight) + 1)[above]
        found[level] = (
            has * np.divide(weight[level], beside, out=np.zeros(len(level)), where=beside > 0)[:, None]
        )
    return found


def _flow(classes: Classes) -> Flow:
    return Flow(
        classes.gpus.copy(),
        classes.able,
        classes.step,
        np.zeros(classes.able.shape),
        np.zeros(len(classes.leaf), bool),
    )


def _above(tree: Tree, leaf: Ints) -> Ints:
    """(depths, C) the account above each class's leaf at each depth, or the leaf; NOWHERE below it."""
    depth = np.zeros(len(tree.parent), dtype=np.int64)
    for number, level in enumerate(tree.levels):
        depth[level] = number
    found = np.full((len(tree.levels), len(leaf)), NOWHERE, dtype=np.int64)
    account, rows = leaf.copy(), np.arange(len(leaf))
    while len(rows):
        found[depth[account], rows] = account
        account = tree.parent[account]
        rows, account = rows[account != NOWHERE], account[account != NOWHERE]
    return found


def _within_caps(flow: Flow, leaf: Ints, tree: Tree, accounts: Accounts) -> tuple[Flow, Ints]:
    """The classes below accounts with a cap on some generation, each cut into parts that keep within it."""
    for owner in _above(tree, leaf)[::-1]:
        rows = np.flatnonzero(owner != NOWHERE)
        rows = rows[np.isfinite(accounts.cap[owner[rows]]).any(axis=1)]
        if not len(rows):
            continue
        side = _SideBySide.of(flow, rows, owner)
        demand = side.pools(accounts.cap[side.accounts]).by_account(side.flow.gpus)[:, None]
        used = side.best_use(
            np.minimum(accounts.cap[side.accounts], demand), accounts.cap_total[side.accounts]
        )
        row, k = np.nonzero(used.held > EPSILON)
        able = np.arange(flow.able.shape[1]) == k[:, None]
        parts = Flow(
            used.held[row, k], able, np.where(able, 0, 1), np.zeros(able.shape), np.zeros(len(row), bool)
        )
        whole = np.setdiff1d(np.arange(len(leaf)), rows)
        flow, leaf = flow.of(whole) + parts, np.concatenate([leaf[whole], leaf[side.rows[row]]])
    return flow, leaf


def _with_leaves(
    flow: Flow, leaf: Ints, cap_total: Floats, means: Floats, guaranteed: Floats
) -> tuple[Flow, Ints]:
    """Write what leaves make of their means; it becomes rows of its own, which keep to such speeds."""
    side = _SideBySide.of(flow, np.arange(len(leaf)), leaf)
    accounts = side.accounts
    used = side.best_use(means[accounts], cap_total[accounts])
    held = side.pools(means[accounts]).by_account(used.held)
    guaranteed[accounts] = held
    # What is beyond a cap nobody can use, neither here nor above.
    lack = np.bincount(side.account, used.unmet, len(accounts))
    room = np.minimum(cap_total[accounts] - held.sum(axis=1), lack)
    part = np.divide(np.maximum(room, 0.0), lack, out=np.zeros_like(lack), where=lack > 0)
    parts = [
        Flow(used.unmet * part[side.account], used.able, used.step, np.zeros_like(used.held), used.is_kept)
    ]
    rows = [leaf[side.rows]]
    left = used.held.copy()
    while left.any():
        slowest = np.where(left > 0, used.step, _FASTEST).min(axis=1)
        now = np.flatnonzero(slowest < _FASTEST)
        at = used.step[now] == slowest[now, None]
        able = used.able[now] & (used.step[now] >= slowest[now, None])
        kept = left[now] * at
        parts.append(Flow(kept.sum(axis=1), able, used.step[now], kept, np.ones(len(now), bool)))
        rows.append(leaf[side.rows[now]])
        left[now] -= kept
    whole = parts[0]
    for part_ in parts[1:]:
        whole += part_
    return whole, np.concatenate(rows)


def _guarantee(
    flow: Flow, owner: Ints, is_above: Bools, cap_total: Floats, *, means: Floats, guaranteed: Floats
) -> None:
    """Write what accounts at one depth that are no leaves make, with all below them, of their means.

    `owner` (C,) is the account at that depth above each row, or NOWHERE; `is_above` (C,) whether it is no leaf.
    """
    rows = np.flatnonzero((owner != NOWHERE) & is_above)
    if not len(rows):
        return
    side = _SideBySide.of(flow, rows, owner)
    accounts = side.accounts
    pools = side.pools(means[accounts])
    lack, has = pools.by_account(side.flow.unmet), pools.by_account(side.flow.gpus * side.flow.is_kept)
    part = np.divide(
        np.clip(cap_total[accounts] - has, 0.0, lack), lack, out=np.ones_like(lack), where=lack > 0
    )
    side.flow.gpus *= np.where(side.flow.is_kept, 1.0, part[side.account])
    flow.gpus[side.rows] = side.flow.gpus
    guaranteed[accounts] = pools.by_account(side.best_use(means[accounts], cap_total[accounts]).held)


def _divide(
    flow: Flow, owner: Ints, parent: Ints, accounts: Accounts, *, pools: Floats, share: Floats
) -> None:
    """Write the shares of the accounts at one depth: of what each parent has, a row of `pools`.

    `owner` and `parent` (C,) are the accounts at that depth and above it, of each class.
    """
    rows = np.flatnonzero(owner != NOWHERE)
    rows = rows[np.lexsort([owner[rows], parent[rows]])]
    flow.held[rows[~flow.is_kept[rows]]] = 0.0
    side = _SideBySide.of(flow, rows, owner)
    _, pool = np.unique(parent[side.rows[side.first]], return_inverse=True)
    found = Pools(side.flow, side.account, pool, pools[np.unique(parent[rows])])
    found.fill(accounts.tickets[side.accounts], accounts.cap_total[side.accounts])
    share[side.accounts] = found.by_account(side.flow.held)
    flow.held[side.rows] = side.flow.held


@dataclass(frozen=True, slots=True)
class _SideBySide:
    """Some classes, and the accounts that they belong to."""

    rows: Ints  # (R,) of the classes, account by account
    flow: Flow  # a copy of theirs
    accounts: Ints  # (A,)
    account: Ints  # (R,) index into `accounts`
    first: Ints  # (A,) where each account's rows begin

    @classmethod
    def of(cls, flow: Flow, rows: Ints, owner: Ints) -> _SideBySide:
        """Keeps the order of accounts in `rows` where each account's rows are together."""
        new = np.flatnonzero(np.diff(owner[rows], prepend=NOWHERE - 1))
        if len(np.unique(owner[rows])) < len(new):
            return cls.of(flow, rows[np.argsort(owner[rows], kind="stable")], owner)
        account = np.zeros(len(rows), dtype=np.int64)
        account[new[1:]] = 1
        return cls(rows, flow.of(rows), owner[rows[new]], np.cumsum(account), new)

    def pools(self, gpus: Floats) -> Pools:
        """Each account with a pool of its own: `gpus` (A, K)."""
        return Pools(self.flow, self.account, np.arange(len(self.accounts)), gpus)

    def best_use(self, gpus: Floats, most: Floats) -> Flow:
        """What each account makes of its own `gpus` (A, K), in all at most `most` (A,): the flow, which is changed.

        As much GPU time as it can, on the generations where it is fastest; a class that gains most goes first.
        """
        flow, pools = self.flow, self.pools(gpus)
        while _fastest_first(flow, self.account, pools):
            pass
        more = pools.by_account(flow.more.sum(axis=1))
        room = np.maximum(most - pools.by_account(flow.gpus * flow.is_kept), 0.0)
        part = np.minimum(np.divide(room, more, out=np.ones_like(more), where=more > 0), 1.0)
        flow.held *= np.where(flow.is_kept, 1.0, part[self.account])[:, None]
        pools.fill(np.ones(len(self.accounts)), most)
        return flow


def _fastest_first(flow: Flow, account: Ints, pools: Pools) -> bool:
    """One pass: each class that lacks takes where it is fastest of what is left there; False if none can.

    Classes that are equally fast on several generations wait until no other wants any, and take in proportion.
    """
    left = np.maximum(pools.gpus - pools.load, 0.0)
    left[left <= EPSILON * (1 + pools.gpus)] = 0.0
    lacks = flow.unmet
    lacks[lacks <= EPSILON * (1 + flow.gpus)] = 0.0
    open_ = flow.able & (left[account] > 0) & (lacks > 0)[:, None]
    if not open_.any():
        return False
    steps = np.where(open_, flow.step, _SLOWEST)
    best = steps.max(axis=1)
    fastest = open_ & (steps == best[:, None])
    strict = np.flatnonzero(fastest.sum(axis=1) == 1)
    if len(strict):
        k = fastest[strict].argmax(axis=1)
        gain = best[strict] - np.where(fastest[strict], _SLOWEST, steps[strict]).max(axis=1)
        where = account[strict] * flow.able.shape[1] + k
        order = np.lexsort([-gain, where])
        rows, k, where = strict[order], k[order], where[order]
        reach = np.cumsum(lacks[rows])
        new = np.flatnonzero(np.diff(where, prepend=-1))
        before = (
            reach - lacks[rows] - np.repeat((reach - lacks[rows])[new], np.diff(np.append(new, len(where))))
        )
        flow.held[rows, k] += np.clip(left[account[rows], k] - before, 0.0, lacks[rows])
        return True
    weight = fastest * left[account]
    total = weight.sum(axis=1, keepdims=True)
    wants = np.divide(lacks[:, None] * weight, total, out=np.zeros_like(weight), where=total > 0)
    asked = pools.by_account(wants)
    flow.held += (
        wants * np.minimum(np.divide(left, asked, out=np.ones_like(left), where=asked > 0), 1.0)[account]
    )
    return True


_SLOWEST, _FASTEST = np.iinfo(np.int64).min // 4, np.iinfo(np.int64).max // 4
