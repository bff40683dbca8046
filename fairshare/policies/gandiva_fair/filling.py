"""Picks gangs one after another, over all generations together, until no GPU is free or no waiting gang can use one.

To pick a gang means to place it on nodes, so that it runs until the next round. Accounts take turns: in each turn, one
account offers the gang that it wants to run next. Stride scheduling or a lottery decides whose turn is next
(`turns.py`). A *claim* is a gang within the guarantees of its account and of all accounts above; claims come first.
"""

from __future__ import annotations

import numpy as np

from fairshare.columns import anywhere
from fairshare.entitlement import ticket_share
from fairshare.model import NOWHERE, Bools
from fairshare.policies.gandiva_fair.balances import Balances
from fairshare.policies.gandiva_fair.claims import claim_fast
from fairshare.policies.gandiva_fair.job_order import JobOrder
from fairshare.policies.gandiva_fair.picked import Picked
from fairshare.policies.gandiva_fair.placing import place
from fairshare.policies.gandiva_fair.replacing import replace_starting
from fairshare.policies.gandiva_fair.returning import return_home
from fairshare.policies.gandiva_fair.shares import Shares
from fairshare.policies.gandiva_fair.turns import Turns
from fairshare.policies.gandiva_fair.upgrading import move_to_faster, upgrade


def take_turns(picked: Picked, random: np.random.Generator) -> None:
    """Picks gangs for all GPUs that are shared by tickets. `picked` already has the gangs that must not be stopped.

    The steps are:
    1. Picks gangs within the guarantees of their accounts.
    2. Moves gangs to faster generations where their accounts are owed time, and may stop other gangs for that.
    3. Keeps running services and sessions on their nodes.
    4. Picks gangs for the remaining GPUs, beyond guarantees.
    5. Improves the result: moves picked gangs to faster generations and back to their nodes, replaces gangs that would
       start now by better choices of the same account, and picks more gangs that then fit.

    Gangs are moved and stopped only in the rounds that may do so; see `Settings.may_preempt` and `Settings.reclaim`.
    """
    facts, places = picked.facts, picked.places
    chance = random if facts.settings.ordering == "lottery" else None
    turns = _turns(picked, facts.shares, facts.balances, facts.sharing, chance)
    _fill(picked, turns, only_claims=True, may_move=True)
    if facts.may_move and (stopped := claim_fast(picked, may_stop=True)):
        # own gangs that are faster there go before other gangs of the accounts whose gangs were stopped
        move_to_faster(picked, held=True)
        turns.stopped(stopped)
        _fill(picked, turns, only_claims=True, may_move=True)
    _keep_services(picked, turns)
    _fill(picked, turns, only_claims=False, may_move=True)
    if facts.may_move:
        claim_fast(picked)
    if facts.settings.may_preempt:
        return_home(places)
    _fill_again(picked, turns)
    # Moves come first, because which gang an account replaces depends on the gangs beside it.
    while upgrade(picked) or replace_starting(picked, turns):
        _fill_again(picked, turns)


def _fill_again(picked: Picked, turns: Turns) -> None:
    """Picks further gangs, within and beyond guarantees, that fit now because picked gangs were moved."""
    turns.retry_all()
    _fill(picked, turns, only_claims=False, may_move=False)


def fill_idle(sharing: Picked, random: np.random.Generator) -> Picked:
    """Gives the GPUs that the sharing by tickets leaves over to gangs that were not picked. Returns all picked gangs.

    `sharing`: the gangs that were picked in the sharing. Running gangs that were not picked come first: they stay on
    their nodes if limits allow it and their GPUs are still free. A lottery by tickets then chooses among the waiting
    gangs. Preemptible gangs can run only in this step.
    """
    facts = sharing.facts
    if not any(sharing.places.free_gpus) or sharing.chosen.all():
        return sharing
    picked = sharing.on_idle()
    able = facts.able & ~picked.chosen[:, None]
    for job in facts.in_order(picked.places.running & ~picked.chosen):
        if able[job, facts.running_on[job]]:
            picked.pick_at_home(job)
    able &= ~picked.chosen[:, None]
    wants = np.zeros_like(facts.shares.share)
    np.add.at(wants, facts.jobs.account, able)
    tickets, each = facts.snapshot.accounts.tickets, np.ones(able.shape[1])
    parts = ticket_share(facts.tree, tickets, facts.tree.sums(wants) > 0, each)
    nothing = np.zeros_like(parts)
    turns = _turns(picked, Shares(nothing, nothing, parts), Balances.none(*parts.shape), able, random)
    _fill(picked, turns, only_claims=False, may_move=False)
    return picked


def _turns(
    picked: Picked, shares: Shares, balances: Balances, able: Bools, chance: np.random.Generator | None
) -> Turns:
    """Returns the turns in which accounts offer the gangs that are not picked yet.

    - `shares`: the GPUs that each account should have. They are its weight in stride scheduling or in the lottery.
    - `balances`: the GPU time that each account is owed from earlier rounds.
    - `able` (J, K): the generations on which each gang may run.
    - `chance`: the random generator of a lottery. None: stride scheduling.
    """
    facts, chosen = picked.facts, picked.chosen
    order = JobOrder.of(facts.jobs, facts.order, anywhere(able) & ~chosen, facts.settings)
    strict = picked.counts.is_strict
    turns = Turns(facts, able, order, shares, balances, chance, strict)
    for job in np.flatnonzero(chosen).tolist():
        if facts.takes_part(job):
            turns.charge(facts.account[job], facts.size[job])
    return turns


def _keep_services(picked: Picked, turns: Turns) -> None:
    """Picks running services and sessions on the nodes where they run, if their GPUs are still free and limits allow
    it.

    This is done after claims and before all other gangs, so that services and sessions are the last to lose GPUs beyond
    the guarantee of their account.
    """
    facts = picked.facts
    for job in facts.in_order(facts.rooted & ~picked.chosen):
        if facts.sharing[job, facts.running_on[job]] and picked.pick_at_home(job):
            turns.picked(job)


def _fill(picked: Picked, turns: Turns, *, only_claims: bool, may_move: bool) -> None:
    """Picks one gang per turn, until no account offers a gang or no GPU is free.

    - `only_claims`: only gangs within guarantees are picked.
    - `may_move`: gangs that were picked before may be moved to make room.
    """
    facts, counts, places = picked.facts, picked.counts, picked.places
    if any(places.free_gpus):
        if not only_claims:
            _mark_unplaceable(picked, turns, may_move=may_move)
        turns.open(only_claims=only_claims)
    while any(places.free_gpus) and (job := turns.next()) != NOWHERE:
        able = turns.generations(job)
        limited = counts.is_limited[facts.account[job]]
        allowed = [k for k in able if counts.allow(job, k)] if limited else able
        runs = facts.running_on[job] != NOWHERE
        later = NOWHERE if runs else _home_to_wait_for(picked, turns, job, allowed)
        if not allowed:
            turns.declined(job)
        elif place(picked, job, [later] if later != NOWHERE else allowed, may_move=may_move):
            picked.pick(job, places.places[job].generation)
            turns.accepted(job)
        elif later != NOWHERE:
            turns.declined(job, postpone=True)
        else:
            if len(allowed) == len(able):
                # Gangs of the same kind would not find room either.
                turns.unplaceable[turns.kind[job]] = 1
            turns.declined(job)


def _mark_unplaceable(picked: Picked, turns: Turns, *, may_move: bool) -> None:
    """Marks the kinds of gangs for which there is no room, so that their turns are skipped.

    Gangs of one kind have the same number of workers, GPUs per worker and generations. With `may_move`, only kinds that
    need more GPUs than are free in total are marked, because moving gangs could make room for the others.
    """
    facts, places = picked.facts, picked.places
    most = sum(places.free_gpus) if may_move and facts.settings.may_preempt else 0
    for kind, job in enumerate(turns.one_of_each_kind()):
        may_fit = facts.size[job] <= most or any(places.has_room(job, k) for k in turns.generations(job))
        turns.unplaceable[kind] |= not may_fit


def _home_to_wait_for(picked: Picked, turns: Turns, job: int, allowed: list[int]) -> int:
    """Returns the generation on which a waiting gang ran last, if the gang should now run only there. Otherwise returns
    NOWHERE.

    - A gang should run only there if its account is owed enough time there.
    - If it finds no room, it gets a second turn after the other jobs of its priority. It may then run on any
      generation.

    `allowed`: the generations where limits allow the gang.
    """
    facts, home = picked.facts, picked.places.home_of[job]
    if home not in allowed or len(allowed) == 1 or turns.is_postponed(job):
        return NOWHERE
    is_due = picked.due[facts.account[job], home] >= picked.least_due(job, home)
    return home if is_due else NOWHERE
