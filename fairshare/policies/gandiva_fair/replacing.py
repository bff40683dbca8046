"""Improves which gangs of an account run, after the gangs of a round have been picked (local search by exchange).

A picked gang that does not run yet would have to start. Another gang of the same account replaces it in two cases:
- The other gang is running and was not picked. It can continue instead.
- The other gang is larger and also uses the GPUs that are free on the same node.

`filling.py` calls `replace_starting`.
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
    """Replaces picked gangs that would start now by better gangs of the same account. Returns whether any gang was
    replaced.

    The file's docstring says which gangs are better.

    - `picked`: the gangs picked so far, changed in place.
    - `turns`: the order of turns. It is informed of each replacement.
    """
    went_on = _resume_running(picked, turns)
    return _fill_nodes(picked, turns) or went_on


def _resume_running(picked: Picked, turns: Turns) -> bool:
    """Replaces gangs that would start by running gangs of the same account that were not picked. Returns whether any
    gang was replaced.

    The account must want the running gang more than the gangs that it replaces. Nothing changes in rounds that may not
    move running gangs.
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


def _replace(picked: Picked, turns: Turns, running: int, less: Iterable[int]) -> list[int]:
    """Picks the gang `running` in place of some of the picked gangs in `less`. Returns the gangs that it replaces.

    `less`: gangs of the same account that would start, in the order in which they should be replaced.

    All replaced gangs are on one generation. `running` gets their GPUs and free GPUs there, so that its nodes can
    change. Returns an empty list and changes nothing if `running` does not fit, or if limits do not allow it.
    """
    facts, places = picked.facts, picked.places
    on: dict[int, list[int]] = defaultdict(list)
    room: dict[int, Room] = {}
    for job in less:
        k, nodes = places.places[job]
        if not facts.sharing[running, k]:
            continue
        on[k].append(job)
        if k not in room:
            room[k] = Room(np.array(places.free[k].gpus))
        for node in nodes:
            room[k].add(node, facts.gpus[job])
        found = room[k].nodes_for(facts.workers[running], facts.gpus[running])
        if found is None:
            continue
        lacks = {
            node for node in found if places.free[k].gpus[node] < facts.gpus[running] * found.count(node)
        }
        gone = [one for one in on[k] if lacks.intersection(places.places[one].nodes)]
        if gone and picked.exchange(gone, running, Spot(k, found)):
            turns.replaced(gone, running)
            return gone
    return []


def _fill_nodes(picked: Picked, turns: Turns) -> bool:
    """Replaces gangs that would start by larger gangs that also use the node's free GPUs. Returns whether any gang was
    replaced.

    For example, a gang of 4 GPUs would start on a node with 8 GPUs, and the other 4 are free. A gang of 8 GPUs replaces
    it. Both gangs have one worker, and the same account and priority.
    """
    facts, places, found = picked.facts, picked.places, False
    priority: list[int] = facts.jobs.priority.tolist()
    # kinds of gangs, with the free GPUs beside them, for which a swap failed since the last success
    in_vain = set[tuple[int, ...]]()
    for k, free in enumerate(places.free):
        for node in in_order(free.at_least(1)):
            for job in sorted(places.on[k][node], key=lambda job: -facts.order[job]):
                unused = free.gpus[node]
                if not unused or facts.workers[job] > 1 or facts.running_on[job] != NOWHERE:
                    continue
                alike = facts.account[job], priority[job], k, facts.size[job], unused, turns.is_first(job)
                if alike in in_vain:
                    continue
                if _swap(picked, turns, job, Spot(k, [node]), unused):
                    in_vain.clear()
                    found = True
                else:
                    in_vain.add(alike)
    return found


def _swap(picked: Picked, turns: Turns, job: int, spot: Spot, unused: int) -> bool:
    """Replaces the picked gang `job` by a larger gang that also uses all free GPUs of its node. Returns whether it was
    replaced.

    - `job`: a gang of one worker that would start.
    - `spot`: the generation and the node of `job`.
    - `unused`: the number of free GPUs on this node.

    Other gangs of one worker with the same account and priority are tried in the order in which the account wants them.
    The first gang with exactly `unused` GPUs more than `job` replaces it, if limits allow this. There are two special
    rules for running gangs:
    - A running gang never replaces the gang that the account wants most of all.
    - If a running gang of the wanted size or smaller does not replace `job`, the search ends.
    """
    facts, k, size = picked.facts, spot.generation, picked.facts.size[job] + unused
    # The larger gang must not exceed a guarantee, unless it is already exceeded.
    if not turns.is_same_claim(job, unused):
        return False
    for other in turns.of_same_priority(job):
        runs, fills = facts.running_on[other] != NOWHERE, facts.size[other] == size
        if facts.workers[other] > 1 or facts.size[other] > size or not (runs or fills):
            continue
        stays_out = not fills or (runs and turns.is_first(job))
        if facts.sharing[other, k] and not stays_out and picked.exchange([job], other, spot):
            turns.replaced([job], other)
            return True
        if runs:
            return False
    return False
