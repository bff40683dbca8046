"""The policy: from a snapshot and a seed to a decision, always the same for the same two."""

from __future__ import annotations

import numpy as np

from fairshare.demand import demand_rank
from fairshare.draw import draw_of
from fairshare.entitlement import Filling, capacity_of, ticket_share, water_fill
from fairshare.model import Bools, Decision, Floats, Ints, Snapshot
from fairshare.profiling import swap_for_samples
from fairshare.queues import job_order
from fairshare.quotas import limits_of, with_claims, within_borrowing
from fairshare.reasons import explain, may_run
from fairshare.selection import Selection
from fairshare.speed import preferred_turns
from fairshare.trading import trade
from fairshare.tree import Tree


def decide(snapshot: Snapshot, seed: int) -> Decision:
    """Who runs where for the next quantum, and why the others do not.

    Tickets become shares of each generation, shares are traded, what each account is owed against its
    share decides whose gang is next, and gangs are placed until nothing more fits.
    """
    accounts, jobs, settings = snapshot.accounts, snapshot.jobs, snapshot.settings
    tree = Tree.of(accounts.parent)
    able, reason = may_run(snapshot, tree)
    entitled, filling = share_out(snapshot, tree, able)
    trades = trade(filling, accounts.trades, jobs, able, settings) if settings.trading else ()
    share = filling.held

    order = job_order(jobs)
    limits = limits_of(accounts, tree, entitled, settings)
    selection = Selection(snapshot, tree, able, limits, order, draw_of(accounts.owed, share, settings, seed))
    selection.run()
    if settings.trading and settings.may_preempt:
        swap_for_samples(jobs, able, selection.generation, selection.packings, settings)

    run = np.flatnonzero(selection.picked)
    start, nodes = _places(selection, run)
    free = np.array([packing.free_gpus for packing in selection.packings], dtype=np.float64)
    return Decision(
        run=run,
        generation=selection.generation[run],
        place_start=start,
        place_node=nodes,
        reason=explain(
            jobs,
            able,
            reason,
            order,
            selection.picked,
            free=free,
            room=selection.quotas.left(limits.room),
            most=selection.quotas.left(),
            claims=selection.claims.left() if selection.claims else None,
        ),
        entitled=entitled,
        share=share,
        trades=trades,
    )


def shares_of(snapshot: Snapshot) -> tuple[Floats, Floats]:
    """(T, K) GPUs that tickets earn, and (T, K) those with what others leave, before trades."""
    tree = Tree.of(snapshot.accounts.parent)
    able, _ = may_run(snapshot, tree)
    entitled, filling = share_out(snapshot, tree, able)
    return entitled, filling.held


def share_out(snapshot: Snapshot, tree: Tree, able: Bools) -> tuple[Floats, Filling]:
    """(T, K) GPUs that tickets earn, and what each account gets of them and of what others leave.

    `able` (J, K) as from may_run.
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
