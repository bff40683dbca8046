"""The policy: from a snapshot and a seed to a decision, always the same for the same two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.demand import demand_rank
from fairshare.entitlement import capacity_of, ticket_share
from fairshare.model import Bools, Decision, Floats, Ints, Jobs, Snapshot, Trade
from fairshare.policies.gandiva_fair_1.draw import draw_of
from fairshare.policies.gandiva_fair_1.filling import Filling, water_fill
from fairshare.policies.gandiva_fair_1.profiling import swap_for_samples
from fairshare.policies.gandiva_fair_1.queues import job_order
from fairshare.policies.gandiva_fair_1.selection import Selection
from fairshare.policies.gandiva_fair_1.speed import preferred_turns
from fairshare.policies.gandiva_fair_1.trading import trade
from fairshare.quotas import Limits, limits_of, with_claims, within_borrowing
from fairshare.reasons import explain, may_run
from fairshare.trading.limits import TradeLimits
from fairshare.tree import Tree


@dataclass(frozen=True, slots=True)
class Division:
    """What of a decision depends neither on what accounts are owed nor on where gangs run.

    As long as cluster, tickets, limits and settings stay, and the same jobs are there, it stays too.
    """

    tree: Tree
    able: Bools  # (J, K) where each job may run now
    reason: Ints  # (J,) why nowhere, if so
    order: Ints  # (J,) the rank of each job
    entitled: Floats  # (T, K), and so is
    share: Floats
    trades: tuple[Trade, ...]


def divide(snapshot: Snapshot) -> Division:
    """Tickets become shares of each generation, and shares are traded."""
    accounts, jobs, settings = snapshot.accounts, snapshot.jobs, snapshot.settings
    tree = Tree.of(accounts.parent)
    able, reason = may_run(snapshot, tree)
    sharing = jobs.sharing(able)
    entitled, filling = share_out(snapshot, tree, sharing)
    trades: tuple[Trade, ...] = ()
    if settings.trading:
        limits = TradeLimits.of(accounts, entitled)
        trades = trade(filling, accounts.trades, jobs, sharing, settings, limits=limits)
    return Division(tree, able, reason, job_order(jobs), entitled, filling.held, trades)


def decide(
    snapshot: Snapshot, seed: int, division: Division | None = None, *, explained: bool = True
) -> Decision:
    """Who runs where for the next quantum, and why the others do not.

    What each account is owed against its share decides whose gang is next, and gangs are placed until
    nothing more fits. `division` is that of the snapshot, if it is known already. Without
    `explained` the others have a Reason only where they could not run in an empty cluster.
    """
    accounts, jobs, settings = snapshot.accounts, snapshot.jobs, snapshot.settings
    known = division or divide(snapshot)
    limits = limits_of(accounts, known.tree, known.entitled, settings)
    draw = draw_of(accounts.owed, known.share, settings, seed)
    selection = Selection(snapshot, known.tree, known.able, limits, known.order, draw)
    selection.run()
    if selection.leaves_idle:
        selection.fill_idle(seed)
    if settings.trading and settings.may_preempt:
        sharing = jobs.sharing(known.able)
        swap_for_samples(jobs, sharing, selection.generation, selection.packings, settings)

    run = np.flatnonzero(selection.picked)
    start, nodes = _places(selection, run)
    return Decision(
        run=run,
        generation=selection.generation[run],
        place_start=start,
        place_node=nodes,
        reason=_explained(jobs, known, limits, selection) if explained else known.reason,
        entitled=known.entitled,
        share=known.share,
        trades=known.trades,
        preemptible=np.array(selection.preemptible, dtype=np.int64) if selection.leaves_idle else None,
    )


def _explained(jobs: Jobs, known: Division, limits: Limits, selection: Selection) -> Ints:
    return explain(
        jobs,
        known.able,
        known.reason,
        known.order,
        selection.picked,
        free=np.array([packing.free_gpus for packing in selection.packings], dtype=np.float64),
        room=selection.quotas.left(limits.room) if selection.room is None else selection.room.left(),
        most=selection.quotas.left(),
        claims=selection.claims.left() if selection.claims else None,
    )


def share_out(snapshot: Snapshot, tree: Tree, able: Bools) -> tuple[Floats, Filling]:
    """(T, K) GPUs that tickets earn, and what each account gets of them and of what others leave.

    `able` (J, K) as from may_run, of the jobs that take part.
    """
    accounts, jobs, capacity = with_claims(snapshot.accounts), snapshot.jobs, capacity_of(snapshot.cluster)
    rank = demand_rank(tree, accounts, jobs, able)
    single = 1 << np.arange(len(capacity))
    entitled = ticket_share(tree, accounts.tickets, rank[:, single] > 0, capacity)
    if accounts.borrow is not None:
        accounts = within_borrowing(accounts, entitled)
        rank = demand_rank(tree, accounts, jobs, able)
    return entitled, water_fill(tree, accounts, rank, preferred_turns(tree, jobs, able), capacity)


def _places(selection: Selection, run: Ints) -> tuple[Ints, Ints]:
    """(P + 1,) where each picked gang's workers begin in the second array, of their nodes."""
    places = [selection.packings[selection.generation[job]].nodes_of(job) for job in run.tolist()]
    start = np.cumsum([0, *map(len, places)], dtype=np.int64)
    return start, np.concatenate([np.empty(0, dtype=np.int64), *places])
