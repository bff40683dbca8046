"""Preempts gangs of accounts that are ahead of their share, so that a gang of another account can move to a faster
generation.

`claims.py` calls this for a picked gang whose account is owed enough GPU time on the faster generation. It is the last
resort, after moving other gangs has not made enough room there.

The GPU time that an account is *due* on a generation is counted in GPU-seconds: what it should receive there until the
next round, including what it is owed, minus what its picked gangs will use. The account is *ahead* if this number is
negative.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from fairshare.model import Ints
from fairshare.policies.gandiva_fair.picked import Picked
from fairshare.policies.gandiva_fair.places import Spot
from fairshare.policies.gandiva_fair.room import Room


def preempt_for(picked: Picked, job: int, k: int) -> list[int]:
    """Moves a picked gang to generation `k`, and drops picked gangs of other accounts there to make room.

    Returns the dropped gangs: they are not picked any more. Returns an empty list and changes nothing if too few gangs
    can be dropped, or if limits do not allow the move.

    `picked`: the gangs picked so far, changed in place.
    """
    facts, places, here = picked.facts, picked.places, int(picked.generation[job])
    if not picked.may_change(job, here, k):
        return []
    room, there = Room(np.array(places.free[k].gpus)), defaultdict[int, list[int]](list)
    for other in _droppable(picked, k).tolist():
        if facts.account[other] != facts.account[job] and other not in places.pinned:
            for node in places.places[other].nodes:
                room.add(node, facts.gpus[other])
                there[node].append(other)
    nodes = room.nodes_for(facts.workers[job], facts.gpus[job])
    if nodes is None:
        return []
    spot, stopped = Spot(k, nodes), dict[int, Spot]()
    for node in dict.fromkeys(nodes):
        for other in there[node]:
            if places.free[k].gpus[node] >= facts.gpus[job] * nodes.count(node):
                break
            if other not in stopped and picked.is_ahead(other, k):
                stopped[other] = picked.drop(other)
    if places.fits(job, spot, places.free[k]):
        places.take_back(job)
        places.give(job, spot)
        picked.change(job, k)
    gone = [other for other in [*stopped][::-1] if not picked.pick_again(other, stopped[other])]
    for other in gone:
        # Else the account would spend the time that it is due there on a gang that it wants less than the stopped gang.
        picked.due[facts.account[other], k] -= facts.size[other] * facts.settings.quantum
    return gone


def _droppable(picked: Picked, k: int) -> Ints:
    """Returns the picked gangs on generation `k` that may be dropped, in the order in which they should be dropped.

    A gang may be dropped if its account gets all GPU time that it is due even without the gang. This must be true on
    generation `k`, and in total over all generations on which the gang may run. Running services and sessions are never
    dropped, nor gangs within their minimum time before preemption.

    The gangs of the account that is furthest ahead come first, and among these the gangs that the account wants least.
    """
    facts = picked.facts
    some = np.flatnonzero((picked.generation == k) & ~facts.stays)
    due, turn = picked.due[facts.jobs.account[some]], facts.sizes[some] * facts.settings.quantum
    ahead = (due[:, k] <= -turn) & ((due * facts.able[some]).sum(axis=1) <= -turn)
    some, due = some[ahead], due[ahead, k]
    found: Ints = some[np.lexsort((-facts.order[some], due))]
    return found
