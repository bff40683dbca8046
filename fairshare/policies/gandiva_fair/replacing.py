"""Replaces picked gangs that would start now by better choices of the same account.

A better choice is either a gang that is already running, or a gang that leaves no GPU of the node free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from fairshare.columns import anywhere
from fairshare.model import NOWHERE
from fairshare.policies.gandiva_fair.picked import Picked
from fairshare.policies.gandiva_fair.places import Spot
from fairshare.policies.gandiva_fair.room import Room, in_order
from fairshare.policies.gandiva_fair.turns import Turns


def replace_starting(picked: Picked, turns: Turns) -> bool:
    """Replaces picked gangs that would start now by other gangs of the same account.

    The replacement is either a gang that is already running, or a gang that leaves no GPU of its node free. Returns
    whether any gang was replaced.
    """
    went_on = _resume_running(picked, turns)
    return _fill_holes(picked, turns) or went_on


def _resume_running(picked: Picked, turns: Turns) -> bool:
    """Lets running gangs that were not picked continue. They replace picked gangs of the same account that would start
    and that the account wants less.

    Such a running gang was not picked in its turn, because other gangs had been given its GPUs. Those gangs have been
    moved since. Returns whether any gang was replaced.
    """
    facts = picked.facts
    if not facts.may_move:
        return False
    begins: dict[int, list[int]] = defaultdict(list)  # starting gangs by account, the least wanted last
    for job in facts.in_order(picked.chosen & (facts.jobs.running_on == NOWHERE)):
        begins[facts.account[job]].append(job)
    found, in_vain = False, set[tuple[int, int]]()
    for other in facts.in_order(picked.places.running & ~picked.chosen & anywhere(facts.sharing)):
        own = begins[facts.account[other]]
        # If one gang of a kind fails, so do later gangs of the kind, which have fewer gangs to replace.
        kind = facts.account[other], turns.kind[other]
        if kind in in_vain:
            continue
        less = (job for job in reversed(own) if facts.order[job] > facts.order[other])
        gone = _replace(picked, turns, other, less)
        if gone:
            for job in gone:
                own.remove(job)
            in_vain.clear()
            found = True
        else:
            in_vain.add(kind)
    return found


def _replace(picked: Picked, turns: Turns, other: int, less: Iterable[int]) -> list[int]:
    """Replaces some of the picked gangs in `less` by the gang `other`. Returns the replaced gangs.

    All replaced gangs are on one generation. Gangs that come first in `less` are replaced first. Returns an empty list
    and changes nothing if the GPUs of all these gangs do not suffice.
    """
    facts, places = picked.facts, picked.places
    on: dict[int, list[int]] = defaultdict(list)
    room: dict[int, Room] = {}
    for job in less:
        k, nodes = places.places[job]
        if not facts.sharing[other, k]:
            continue
        on[k].append(job)
        if k not in room:
            room[k] = Room(np.array(places.free[k].gpus))
        for node in nodes:
            room[k].add(node, facts.gpus[job])
        found = room[k].nodes_for(facts.workers[other], facts.gpus[other])
        if found is None:
            continue
        lacks = {node for node in found if places.free[k].gpus[node] < facts.gpus[other] * found.count(node)}
        gone = [one for one in on[k] if lacks.intersection(places.places[one].nodes)]
        if gone and picked.exchange(gone, other, Spot(k, found)):
            turns.exchanged(gone, other)
            return gone
    return []


def _fill_holes(picked: Picked, turns: Turns) -> bool:
    """Replaces one-worker gangs that would start by larger gangs that also use the free GPUs of the node.

    Both gangs have the same account and priority, and either both are within the guarantee or neither is. Returns
    whether any gang was replaced.
    """
    facts, places, found = picked.facts, picked.places, False
    priority: list[int] = facts.jobs.priority.tolist()
    # kinds of gangs, with the hole beside them, for which a swap failed since the last success
    in_vain = set[tuple[int, ...]]()
    for k, free in enumerate(places.free):
        for node in in_order(free.at_least(1)):
            for job in sorted(places.on[k][node], key=lambda job: -facts.order[job]):
                hole = free.gpus[node]
                if not hole or facts.workers[job] > 1 or facts.running_on[job] != NOWHERE:
                    continue
                alike = facts.account[job], priority[job], k, facts.size[job], hole, turns.is_first(job)
                if alike in in_vain:
                    continue
                if _swap(picked, turns, job, Spot(k, [node]), hole):
                    in_vain.clear()
                    found = True
                else:
                    in_vain.add(alike)
    return found


def _swap(picked: Picked, turns: Turns, job: int, spot: Spot, hole: int) -> bool:
    """Replaces the picked gang `job` at `spot` by a gang that also uses the `hole` free GPUs of its node.

    Returns whether `job` was replaced. The candidates are gangs of one worker with the same account and priority as
    `job`. They are tried in the order in which the account wants them. The first one that fills the node replaces
    `job`. The search stops without a replacement at two kinds of running gangs:
    - A running gang that fits on the node, but does not fill it.
    - A running gang that fills the node but may not replace `job`, for example because `job` is the gang that the
      account wants most of all.
    """
    facts, k, size = picked.facts, spot.generation, picked.facts.size[job] + hole
    if not turns.is_same_claim(job, hole):
        return False
    for other in turns.alike(job):
        runs, fills = facts.running_on[other] != NOWHERE, facts.size[other] == size
        if facts.workers[other] > 1 or facts.size[other] > size or not (runs or fills):
            continue
        stays_out = not fills or (runs and turns.is_first(job))
        if facts.sharing[other, k] and not stays_out and picked.exchange([job], other, spot):
            turns.exchanged([job], other)
            return True
        if runs:
            return False
    return False
