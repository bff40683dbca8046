"""Selects the gangs that run until the next round, and their nodes. This is the second half of a decision of the
policy.

If all gangs can run at the same time, all of them run. Otherwise accounts take turns to run their gangs: first gangs
within guarantees, then gangs for the GPUs that remain. A gang preferably runs on a generation where its account is owed
time and where the gang is fast.

Sizes of arrays: T accounts, K generations, J jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import Bools, Floats, Ints, Snapshot
from fairshare.policies.gandiva_fair.balances import Balances
from fairshare.policies.gandiva_fair.claims import claim_fast
from fairshare.policies.gandiva_fair.facts import Facts
from fairshare.policies.gandiva_fair.filling import fill_idle, take_turns
from fairshare.policies.gandiva_fair.holds import pick_held
from fairshare.policies.gandiva_fair.picked import Picked
from fairshare.policies.gandiva_fair.room_for_all import pick_all
from fairshare.policies.gandiva_fair.shares import Shares
from fairshare.policies.gandiva_fair.upgrading import upgrade
from fairshare.quotas import Limits
from fairshare.reasons import explain
from fairshare.tree import Tree


@dataclass(frozen=True, slots=True)
class Picks:
    """The result of `select`: the gangs that run until the next round, their nodes, and the reasons why all other gangs
    wait."""

    generation: Ints  # (J,) generation on which the job runs; NOWHERE for jobs that do not run
    nodes: dict[int, Ints]  # for each picked job, the node of each worker, by rank
    preemptible: Ints | None  # picked jobs that run only on GPUs left over; None: such jobs are not possible
    reason: Ints  # (J,) a Reason; 0 for picked jobs


def select(  # noqa: PLR0917 - what a decision has worked out before, in that order
    snapshot: Snapshot,
    tree: Tree,
    able: Bools,
    reason: Ints,
    shares: Shares,
    affinity: Floats,
    balances: Balances,
    limits: Limits,
    random: np.random.Generator,
) -> Picks:
    """Picks the gangs that run until the next round and chooses their nodes, by the GPU time that each account is due.

    - `snapshot`: the policy's input.
    - `tree`: the account tree.
    - `able` (J, K): whether each job may run on each generation now.
    - `reason` (J,): why a job may not run on any generation, as a `Reason`.
    - `shares`: the guaranteed GPUs of each account, and its share after trades.
    - `affinity` (J, K): how strongly each job should prefer each generation, from -1 to 1; see `affinities`.
    - `balances`: the GPU time that accounts are owed from earlier rounds.
    - `limits`: the limits of accounts that apply when gangs are picked.
    - `random`: used only for two lotteries. The first decides the order of turns, if the ordering is set to lottery.
      The second decides who gets GPUs that would otherwise stay free.
    """
    facts = Facts.of(snapshot, tree, able, shares, affinity, balances, limits)
    picked = _pick(facts, random) if able.size else Picked(facts)
    counts, places = picked.counts, picked.places
    explained = explain(
        snapshot.jobs,
        able,
        reason,
        facts.order,
        picked.chosen,
        free=np.array(places.free_gpus, dtype=np.float64),
        room=counts.left_of_room(),
        most=counts.left(),
        claims=counts.left_of_claims(),
    )
    return Picks(
        picked.generation,
        {job: places.nodes[k][nodes] for job, (k, nodes) in places.places.items()},
        np.array(picked.idle_jobs or [], dtype=np.int64) if facts.leaves_idle else None,
        explained,
    )


def _pick(facts: Facts, random: np.random.Generator) -> Picked:
    all_of_them = pick_all(facts)
    if all_of_them is None:
        picked = Picked(facts)
        pick_held(picked)
        take_turns(picked, random)
    else:
        picked = all_of_them
        claim_fast(picked)
    if facts.leaves_idle:
        picked = fill_idle(picked, random)
    if all_of_them is not None or facts.leaves_idle:  # `take_turns` has already done this
        upgrade(picked)
    return picked
