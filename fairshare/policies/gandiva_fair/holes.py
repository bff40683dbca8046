"""After all turns: a gang that begins and leaves a hole on its node gives way to one of its account that fills it."""

from __future__ import annotations

import numpy as np

from fairshare.model import NOWHERE
from fairshare.policies.gandiva_fair.picked import Picked
from fairshare.policies.gandiva_fair.places import Spot
from fairshare.policies.gandiva_fair.turns import Turns


def fill_holes(picked: Picked, turns: Turns) -> bool:
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
