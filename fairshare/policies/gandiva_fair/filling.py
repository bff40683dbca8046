"""Picks gangs one after another, over all generations together, until no GPU is free or no waiting gang can use one."""

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
    """Picks gangs in turns of their accounts: first gangs within guarantees, then gangs for the GPUs that remain."""
    facts, places = picked.facts, picked.places
    chance = random if facts.settings.ordering == "lottery" else None
    turns = _turns(picked, facts.shares, facts.balances, facts.sharing, chance)
    _fill(picked, turns, only_claims=True, may_move=True)
    if facts.may_move and (stopped := claim_fast(picked, may_stop=True)):
        # own gangs that are faster there go before other gangs of the accounts whose gangs were stopped
        move_to_faster(picked, held=True)
        turns.stopped(stopped)
        _fill(picked, turns, only_claims=True, may_move=True)
    _stay_rooted(picked, turns)
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
    """Picks further gangs that fit now, after picked gangs were moved."""
    turns.retry_all()
    _fill(picked, turns, only_claims=False, may_move=False)


def fill_idle(sharing: Picked, random: np.random.Generator) -> Picked:
    """Gives the GPUs that the sharing leaves free to further gangs. Returns all picked gangs, including these.

    `sharing`: the gangs that were picked in the sharing. First, running gangs that were not picked stay on their nodes,
    if possible. A lottery then chooses among the waiting gangs.
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
    """Returns the order in which accounts offer gangs that are not picked yet.

    - `shares` and `balances`: the GPUs that accounts are due, and the GPU time that they are owed.
    - `able` (J, K): the generations on which each gang may run.
    - `chance`: the random generator of a lottery, or None for stride scheduling.
    """
    facts, chosen = picked.facts, picked.chosen
    order = JobOrder.of(facts.jobs, facts.order, anywhere(able) & ~chosen, facts.settings)
    strict = picked.counts.is_strict
    turns = Turns(facts, able, order, shares, balances, chance, strict)
    for job in np.flatnonzero(chosen).tolist():
        if facts.takes_part(job):
            turns.used(facts.account[job], facts.size[job])
    return turns


def _stay_rooted(picked: Picked, turns: Turns) -> None:
    """Picks running services and sessions and leaves them on their nodes, if their GPUs are still free and limits allow
    it.

    This happens before other surplus is given out, so that services and sessions are the last to lose GPUs beyond their
    guarantee.
    """
    facts = picked.facts
    for job in facts.in_order(facts.rooted & ~picked.chosen):
        if facts.sharing[job, facts.running_on[job]] and picked.pick_at_home(job):
            turns.picked(job)


def _fill(picked: Picked, turns: Turns, *, only_claims: bool, may_move: bool) -> None:
    """Picks and places one gang per turn, until no turn is left or no GPU is free.

    If a gang finds no room although no limit restricts it, gangs of the same shape and generations are skipped from
    then on. With `only_claims`, only gangs within guarantees are picked. With `may_move`, picked gangs may be moved to
    make room.
    """
    facts, counts, places = picked.facts, picked.counts, picked.places
    if any(places.free_gpus):
        if not only_claims:
            _give_up(picked, turns, may_move=may_move)
        turns.open(only_claims=only_claims)
    while any(places.free_gpus) and (job := turns.next()) != NOWHERE:
        able = turns.generations(job)
        limited = counts.is_limited[facts.account[job]]
        allowed = [k for k in able if counts.allow(job, k)] if limited else able
        runs = facts.running_on[job] != NOWHERE
        later = NOWHERE if runs else _waits_for_home(picked, turns, job, allowed)
        if not allowed:
            turns.passed(job)
        elif place(picked, job, [later] if later != NOWHERE else allowed, may_move=may_move):
            picked.pick(job, places.places[job].generation)
            turns.took(job)
        elif later != NOWHERE:
            turns.passed(job, later=True)
        else:
            if len(allowed) == len(able):
                turns.unplaceable[turns.kind[job]] = 1
            turns.passed(job)


def _give_up(picked: Picked, turns: Turns, *, may_move: bool) -> None:
    """Marks the kinds of gangs that cannot find room, so that their turns are skipped.

    Gangs of one kind have the same shape and the same generations. With `may_move`, a kind is not marked if moving
    picked gangs could make room for it.
    """
    facts, places = picked.facts, picked.places
    most = sum(places.free_gpus) if may_move and facts.settings.may_preempt else 0
    for kind, job in enumerate(turns.one_of_each_kind()):
        may_fit = facts.size[job] <= most or any(places.has_room(job, k) for k in turns.generations(job))
        turns.unplaceable[kind] |= not may_fit


def _waits_for_home(picked: Picked, turns: Turns, job: int, allowed: list[int]) -> int:
    """Decides whether a waiting gang should take only GPUs of the generation where it ran last.

    Returns this generation, or NOWHERE if the gang may take GPUs of any generation in `allowed` (those that limits
    allow). The gang is bound to the generation only while its account is owed time there. If it finds no room there, it
    is offered again after the other jobs of its priority, and may then run on any allowed generation.
    """
    facts, home = picked.facts, picked.places.home_of[job]
    if home not in allowed or len(allowed) == 1 or turns.is_late(job):
        return NOWHERE
    is_due = picked.due[facts.account[job], home] >= picked.least_due(job, home)
    return home if is_due else NOWHERE
