"""What tickets earn, what of it each account can use, and who gets what others leave.

An account's *entitlement* is its private cluster: its tickets among those of all active accounts beside it, level
by level, of every generation. *Guaranteed* is the best use that its jobs make of that: as much GPU time as they
can, on the generations where they are fastest. Its *share* is that and its part of what is left: what all get is
weighted max-min of GPU time over all generations together, at each level of the tree, and nobody's guaranteed
part goes to a slower generation for it. Gandiva_fair (EuroSys '20, section 3) divides each generation by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fairshare.entitlement import active_tickets, by_tickets, capacity_of
from fairshare.model import NOWHERE, Accounts, Bools, Floats, Ints, Snapshot
from fairshare.policies.gandiva_fair.classes import Classes, Steps, classes_of
from fairshare.policies.gandiva_fair.columns import across, anywhere, count, highest
from fairshare.policies.gandiva_fair.families import Families
from fairshare.policies.gandiva_fair.flow import EPSILON, Flow, Pools, part_of
from fairshare.policies.gandiva_fair.network import Groups, Network
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
    accounts = _without_idle_caps(accounts, tree, classes, capacity)
    shape = len(tree.parent), len(capacity)
    weight = active_tickets(accounts, tree, classes.leaf, classes.able)
    entitled = by_tickets(tree, weight, capacity)
    guaranteed = np.zeros(shape)
    if not len(classes.leaf):
        return Shares(entitled, guaranteed, np.zeros(shape))
    accounts = within_borrowing(accounts, entitled)
    means = by_tickets(tree, weight, capacity, partial(_passed_on, accounts))
    flow, above = _flow(classes.leaf, classes.gpus, classes.able, classes.step), _above(tree)
    flow, most = _within_caps(flow, tree, above, accounts, capacity)
    flow = _with_leaves(_side_by_side(flow, above), most, means, guaranteed)
    flow = _side_by_side(flow.of(np.flatnonzero(flow.gpus > EPSILON)), above)
    _guarantee(_within_leaves(flow, most), tree, above, most=most, means=means, guaranteed=guaranteed)
    share = _divide(
        flow, tree, above, tickets=accounts.tickets, most=most, capacity=capacity, guaranteed=guaranteed
    )
    return Shares(entitled, guaranteed, share)


def _without_idle_caps(accounts: Accounts, tree: Tree, classes: Classes, capacity: Floats) -> Accounts:
    """Caps on generations that keep nobody from anything are none: of what is not there, or not wanted."""
    wants = np.zeros(accounts.cap.shape)
    np.add.at(wants, classes.leaf, classes.gpus[:, None] * classes.able)
    binds = accounts.cap < np.minimum(tree.sums(wants), capacity)
    return replace(accounts, cap=np.where(binds, accounts.cap, np.inf))


def _passed_on(accounts: Accounts, has: Floats, above: Ints) -> Floats:
    """(A, K) what accounts `above` (A,) hand down of what they have (A, K): no more than their caps allow."""
    has = np.minimum(has, accounts.cap[above])
    total = across(has)
    part = np.divide(accounts.cap_total[above], total, out=np.ones_like(total), where=total > 0)
    return has * np.minimum(part, 1.0)[:, None]


def _flow(leaf: Ints, gpus: Floats, able: Bools, step: Steps) -> Flow:
    """Rows that hold nothing yet."""
    return Flow(leaf, gpus, able, step, np.zeros(able.shape), np.zeros(able.shape), np.zeros(len(leaf), bool))


def _above(tree: Tree) -> Ints:
    """(depths, T) the account above each account at each depth, or itself; NOWHERE below it."""
    found = np.full((len(tree.levels), len(tree.parent)), NOWHERE, dtype=np.int64)
    for depth, level in enumerate(tree.levels):
        found[:, level] = found[:, tree.parent[level]] if depth else NOWHERE
        found[depth, level] = level
    return found


def _side_by_side(flow: Flow, above: Ints) -> Flow:
    """The rows in an order in which those of all below any account are side by side."""
    place = np.empty(above.shape[1], dtype=np.int64)
    place[np.lexsort(above[::-1])] = np.arange(len(place))
    where = place[flow.leaf]
    return flow if (np.diff(where) >= 0).all() else flow.of(np.argsort(where, kind="stable"))


def _within_caps(
    flow: Flow, tree: Tree, above: Ints, accounts: Accounts, capacity: Floats
) -> tuple[Flow, Floats]:
    """Rows that keep within caps on single generations, and (T,) the most GPUs that each account can use in all.

    A row is cut into a part for each capped generation and one for the others. What is below a capped account that
    is no leaf is cut into such parts as it would use of all there is within that account's caps.
    """
    most = np.bincount(flow.leaf, flow.gpus, len(tree.parent)).astype(np.float64)
    for level in tree.levels[::-1]:
        most[level] = np.minimum(most[level], accounts.cap_total[level])
        inner = level[tree.parent[level] != NOWHERE]
        np.add.at(most, tree.parent[inner], most[inner])
    capped = np.isfinite(accounts.cap)
    rows = np.flatnonzero(anywhere(capped[flow.leaf] & flow.able))
    if len(rows):
        cap = accounts.cap[flow.leaf[rows]]
        wants = np.zeros(accounts.cap.shape)
        np.add.at(wants, flow.leaf[rows], flow.gpus[rows, None] * flow.able[rows])
        wants = wants[flow.leaf[rows]]
        part = np.minimum(np.divide(cap, wants, out=np.ones_like(cap), where=wants > 0), 1.0)
        row, k = np.nonzero(flow.able[rows] & capped[flow.leaf[rows]])
        free = flow.able[rows] & ~capped[flow.leaf[rows]]
        others = rows[free.any(axis=1)]
        flow = (
            flow.of(np.setdiff1d(np.arange(len(flow.leaf)), rows))
            + _flow(flow.leaf[others], flow.gpus[others], free[free.any(axis=1)], flow.step[others])
            + _alone(flow.leaf[rows[row]], flow.gpus[rows[row]] * part[row, k], k, flow.able.shape[1])
        )
    inner = capped.any(axis=1) & ~tree.is_leaf
    for depth in range(len(tree.levels) - 1, -1, -1):
        level = tree.levels[depth][inner[tree.levels[depth]]]
        if not len(level):
            continue
        flow = _side_by_side(flow, above)
        side = _SideBySide.below(flow, level, above[depth])
        if not len(side.rows):
            continue
        whole = flow.of(np.setdiff1d(np.arange(len(flow.leaf)), side.rows))
        side.flow.gpus = _at_most(flow.gpus, above[depth + 1 :, flow.leaf], most)[side.rows]
        used = side.best_use(np.minimum(accounts.cap[side.accounts], capacity), most[side.accounts])
        used.held *= capped[side.accounts][side.account]
        row, k = np.nonzero(used.held > EPSILON)
        uncapped = used.able & ~capped[side.accounts][side.account]
        flow = (
            whole
            + _flow(used.leaf, used.gpus - across(used.held), uncapped, used.step).of(
                np.flatnonzero(uncapped.any(axis=1))
            )
            + _alone(used.leaf[row], used.held[row, k], k, flow.able.shape[1])
        )
    return flow, most


def _at_most(gpus: Floats, owners: Ints, most: Floats) -> Floats:
    """(C,) what rows can use where each of their `owners` (depths, C) has at most `most` (T,), the deepest first."""
    for owner in owners[::-1]:
        some = owner != NOWHERE
        all_ = np.bincount(owner[some], gpus[some], len(most))
        part = np.divide(most, all_, out=np.ones_like(all_), where=all_ > most)
        gpus = gpus * np.where(some, part[owner], 1.0)
    return gpus


def _alone(leaf: Ints, gpus: Floats, k: Ints, generations: int) -> Flow:
    """Rows that use one generation each."""
    able = np.arange(generations) == k[:, None]
    return _flow(leaf, gpus, able, np.where(able, 0, 1).astype(np.int16))


def _with_leaves(flow: Flow, most: Floats, means: Floats, guaranteed: Floats) -> Flow:
    """Write what leaves make of their means, and mark it as theirs."""
    side = _SideBySide.below(flow, np.unique(flow.leaf), np.arange(len(most)))
    accounts = side.accounts
    used = side.best_use(means[accounts], most[accounts])
    used.held[used.held <= EPSILON] = 0.0
    guaranteed[accounts] = side.pools(means[accounts]).by_account(used.held)
    unmet = used.unmet
    best = highest(_open_steps(used.step, used.able))
    alike = ~anywhere((used.step != best[:, None]) & used.able)
    flat, rest = used.of(np.flatnonzero(alike)), used.of(np.flatnonzero(~alike))
    flat.gpus, flat.base = across(flat.held) + unmet[alike], flat.held.copy()
    row, k = np.nonzero(rest.held)
    has, step = rest.held[row, k], rest.step[row]
    able = rest.able[row] & (step >= rest.step[row, k][:, None])
    sure = _flow(rest.leaf[row], has, able, step)
    sure.held[np.arange(len(row)), k], sure.is_kept[:] = has, True
    return flat + _flow(rest.leaf, unmet[~alike], rest.able, rest.step) + sure


def _within_leaves(flow: Flow, most: Floats) -> Flow:
    """A copy of rows that can use no more than their leaves may have: `most` (T,)."""
    lack = _may_lack(flow, flow.leaf, most)
    return replace(flow.of(np.arange(len(flow.leaf))), gpus=across(flow.held) + lack)


def _may_lack(flow: Flow, owner: Ints, most: Floats) -> Floats:
    """(C,) what rows lack, of each `owner` (C,) no more than it may have beside what it has: at most `most` (T,)."""
    groups = Groups.of(owner, most)
    return groups.cut(flow.unmet[:, None], groups.room(flow.held))[:, 0]


def _guarantee(
    flow: Flow, tree: Tree, above: Ints, *, most: Floats, means: Floats, guaranteed: Floats
) -> None:
    """Write what accounts that are no leaves make, with all below them, of their means.

    Cuts what rows could use to what the caps above them leave.
    """
    sure = tree.sums(guaranteed)  # of leaves, as yet
    lack = _lacks(flow, tree)
    for depth in range(len(above) - 2, -1, -1):
        level = tree.levels[depth][~tree.is_leaf[tree.levels[depth]]]
        guaranteed[level] = sure[level]
        may_lack = np.maximum(most - across(sure), 0.0)
        is_cut = lack > may_lack + EPSILON * (1.0 + lack)
        concerned = is_cut | (_is_left(means, sure) & (lack > EPSILON))
        side = _SideBySide.below(flow, level[concerned[level]], above[depth])
        if not len(side.rows):
            continue
        accounts = side.accounts
        unmet = _may_lack(side.flow, side.account, most[accounts])
        side.flow.gpus = np.where(side.flow.is_kept, side.flow.gpus, across(side.flow.held) + unmet)
        flow.gpus[side.rows] = side.flow.gpus
        lack = _lacks(flow, tree)
        pools = side.pools(means[accounts])
        guaranteed[accounts] = pools.by_account(side.best_use(means[accounts], most[accounts]).held)


def _divide(
    flow: Flow,
    tree: Tree,
    above: Ints,
    *,
    tickets: Floats,
    most: Floats,
    capacity: Floats,
    guaranteed: Floats,
) -> Floats:
    """(T, K) the shares of all accounts: totals are decided from the roots down, generations by the last depth."""
    share = np.zeros_like(guaranteed)
    if not len(flow.leaf):
        return share
    owners = above[:, flow.leaf]
    owners = np.where(owners == NOWHERE, flow.leaf, owners)
    groups = [Groups.of(owner, most) for owner in owners]
    family = Groups.of(np.zeros_like(flow.leaf), np.full(1, np.inf))
    Network(flow, capacity, _that_bind(flow, groups)).fill()
    # Where there is nothing beyond what leaves are guaranteed, that is what all get.
    for depth, owner in enumerate(owners if across(flow.more).sum() > EPSILON else ()):
        here = owner[groups[depth].first]
        inside = _that_bind(flow, groups[depth + 1 :])
        families = Families(flow, capacity, inside, groups[depth], family)
        families.divide(tickets[here], across(guaranteed[here]))
        family = groups[depth]
    everybody = np.zeros_like(flow.leaf)
    Pools(flow, everybody, np.zeros(1, dtype=np.int64), capacity[None]).speed_up()
    np.add.at(share, flow.leaf, flow.held)
    return tree.sums(share)


def _that_bind(flow: Flow, groups: Sequence[Groups]) -> list[Groups]:
    """Those of the groups of each depth where some cannot have all that they want; the deepest first."""
    return [some for some in groups[::-1] if (some.most < some.sums(flow.gpus) - EPSILON).any()]


def _lacks(flow: Flow, tree: Tree) -> Floats:
    """(T,) GPUs that all rows below each account could still use."""
    return tree.sums(np.bincount(flow.leaf, flow.unmet, len(tree.parent)).astype(np.float64))


def _is_left(gpus: Floats, given: Floats) -> Bools:
    """(A,) whether anything of the `gpus` (A, K) that each has is not `given`."""
    found: Bools = gpus - given > EPSILON * (1.0 + across(gpus))[:, None]
    return anywhere(found)


@dataclass(frozen=True, slots=True)
class _SideBySide:
    """Some classes, and the accounts that they belong to."""

    rows: Ints  # (R,) of the classes, account by account
    flow: Flow  # a copy of theirs
    accounts: Ints  # (A,)
    account: Ints  # (R,) index into `accounts`

    @classmethod
    def below(cls, flow: Flow, accounts: Ints, above: Ints) -> _SideBySide:
        """The rows of some accounts of one depth; `above` (T,) is the account there of each.

        Those of all below any account are side by side in `flow`.
        """
        is_one = np.zeros(len(above) + 1, dtype=bool)  # and NOWHERE
        is_one[accounts] = True
        owner = above[flow.leaf]
        rows = np.flatnonzero(is_one[owner])
        owner = owner[rows]
        begins = np.diff(owner, prepend=NOWHERE) != 0
        return cls(rows, flow.of(rows), owner[begins], np.cumsum(begins) - 1)

    def pools(self, gpus: Floats) -> Pools:
        """Each account with a pool of its own: `gpus` (A, K)."""
        return Pools(self.flow, self.account, np.arange(len(self.accounts)), gpus)

    def best_use(self, gpus: Floats, most: Floats) -> Flow:
        """What each account makes of its own `gpus` (A, K), in all at most `most` (A,): the flow, which is changed.

        As much GPU time as it can, on the generations where it is fastest; a class that gains most goes first.
        """
        flow, pools = self.flow, self.pools(gpus)
        _fastest_first(flow, self.account, gpus, np.maximum(gpus - pools.load, 0.0))
        more = pools.by_account(across(flow.more))
        sure = pools.by_account(across(flow.held)) - more
        part = np.divide(np.clip(most - sure, 0.0, more), more, out=np.ones_like(more), where=more > 0)
        if (part < 1).any():
            flow.held -= flow.more * (1.0 - part)[self.account][:, None]
        pools.complete(most)
        return flow


def _fastest_first(flow: Flow, account: Ints, gpus: Floats, left: Floats) -> None:
    """Each class that lacks takes where it is fastest of what is `left` (A, K) there of `gpus`, again and again.

    Classes that are equally fast on several generations wait until no other wants any, and take in proportion.
    """
    generations, lacks = left.shape[1], flow.unmet
    enough = EPSILON * (1 + flow.gpus)
    rows = np.flatnonzero(lacks > enough)
    while True:
        left[left <= EPSILON * (1 + gpus)] = 0.0
        open_ = flow.able.take(rows, axis=0) & (left > 0).take(account[rows], axis=0)
        goes_on = np.flatnonzero(anywhere(open_) & (lacks[rows] > enough[rows]))
        rows, open_ = rows[goes_on], open_.take(goes_on, axis=0)
        if not len(rows):
            return
        owner, steps = account[rows], _open_steps(flow.step.take(rows, axis=0), open_)
        best = highest(steps)
        fastest = open_ & (steps == best[:, None])
        strict = np.flatnonzero(count(fastest) == 1)
        if len(strict):
            at_best = fastest.take(strict, axis=0)
            k = at_best.argmax(axis=1)
            gain = best[strict] - highest(_open_steps(steps.take(strict, axis=0), ~at_best))
            where = owner[strict] * generations + k
            order = np.lexsort([-gain, where])
            who, k, where = rows[strict[order]], k[order], where[order]
            reach = np.cumsum(lacks[who])
            new = np.flatnonzero(np.diff(where, prepend=-1))
            before = (
                reach - lacks[who] - np.repeat((reach - lacks[who])[new], np.diff(np.append(new, len(where))))
            )
            takes = np.clip(left[account[who], k] - before, 0.0, lacks[who])
            flow.held[who, k] += takes
            lacks[who] -= takes
            left -= np.bincount(where, takes, left.size).reshape(left.shape)
            continue
        weight = fastest * left[owner]
        wants = weight * (lacks[rows] / across(weight))[:, None]
        first = np.flatnonzero(np.diff(owner, prepend=-1))
        asked = np.zeros_like(left)
        asked[owner[first]] = np.add.reduceat(wants, first, axis=0)
        part = part_of(left, asked)
        wants *= part[owner]
        flow.held[rows] += wants
        lacks[rows] -= across(wants)
        left -= asked * part


def _open_steps(step: Steps, open_: Bools) -> Steps:
    """(R, K) the `step` where a row is `open_`, and elsewhere less than any."""
    found: Steps = step * open_ + _SLOWEST * ~open_
    return found


_SLOWEST = np.int16(-10_000)
