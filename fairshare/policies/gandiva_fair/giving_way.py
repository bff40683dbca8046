"""After all turns gangs that begin give way to others of their account: to who fills a hole, and to who ran."""

from __future__ import annotations

import numpy as np

from fairshare.model import NOWHERE
from fairshare.policies.gandiva_fair.columns import anywhere
from fairshare.policies.gandiva_fair.picked import Picked
from fairshare.policies.gandiva_fair.places import Spot
from fairshare.policies.gandiva_fair.turns import Turns


def give_way(picked: Picked, turns: Turns) -> bool:
    """Returns whether any gang gave way to another one of its account."""
    went_on = _go_on(picked, turns)
    return _fill_holes(picked, turns) or went_on


def _go_on(picked: Picked, turns: Turns) -> bool:
    """Let gangs of one worker that ran go on where one that begins has their GPUs and is wanted less.

    When they had their turns their GPUs were others', who changed places since.
    """
    facts, account = picked.facts, picked.facts.jobs.account
    if not facts.may_move:
        return False
    last = np.full(len(facts.tree.parent), -1)
    begins = picked.chosen & (facts.jobs.running_on == NOWHERE)
    np.maximum.at(last, account[begins], facts.order[begins])
    stopped = picked.places.running & ~picked.chosen & anywhere(facts.sharing)
    found = False
    for other in facts.in_order(stopped & (facts.order < last[account])):
        own = facts.in_order(begins & picked.chosen & (account == facts.account[other]))
        less = (job for job in own[::-1] if facts.order[job] > facts.order[other])
        found |= facts.workers[other] == 1 and any(_takes(picked, turns, other, job) for job in less)
    return found


def _takes(picked: Picked, turns: Turns, other: int, job: int) -> bool:
    """Give a gang what a picked one has on some node, if that is enough."""
    facts, places, (k, nodes) = picked.facts, picked.places, picked.places.places[job]
    room = [int(places.free[k][node]) + facts.gpus[job] * nodes.count(node) for node in nodes]
    spot = Spot(k, [nodes[int(np.argmax(room))]])
    fits = facts.sharing[other, k] and max(room) >= facts.gpus[other]
    if not fits or not picked.exchange(job, other, spot):
        return False
    turns.exchanged(job, other)
    return True


def _fill_holes(picked: Picked, turns: Turns) -> bool:
    """Swap gangs of one worker that begin for waiting ones of the same account and priority that leave no hole.

    Only where both are within the guarantee, or neither is. Returns whether any was swapped.
    """
    facts, places, found = picked.facts, picked.places, False
    for k, free in enumerate(places.free):
        for node in np.flatnonzero(free > 0).tolist():
            for job in sorted(places.on[k][node], key=lambda job: -facts.order[job]):
                hole = int(free[node])
                if hole and facts.workers[job] == 1 and facts.running_on[job] == NOWHERE:
                    found |= _swap(picked, turns, job, Spot(k, [node]), hole)
    return found


def _swap(picked: Picked, turns: Turns, job: int, spot: Spot, hole: int) -> bool:
    """Give the gang's place to one that needs the hole beside it, too.

    One that ran until now comes before those that its account wants less, but not before the account's first one.
    """
    facts, k, size = picked.facts, spot.generation, picked.facts.size[job] + hole
    if not turns.is_same_claim(job, hole):
        return False
    for other in turns.alike(job):
        runs, fills = facts.running_on[other] != NOWHERE, facts.size[other] == size
        if facts.workers[other] > 1 or facts.size[other] > size or not (runs or fills):
            continue
        stays_out = not fills or (runs and turns.is_first(job))
        if facts.sharing[other, k] and not stays_out and picked.exchange(job, other, spot):
            turns.exchanged(job, other)
            return True
        if runs:
            return False
    return False
