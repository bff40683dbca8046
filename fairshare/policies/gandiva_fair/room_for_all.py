"""Handles the simple case of a round: all gangs can run at the same time, so that no account has to wait for its turn.

`selection.py` tries this first.
"""

from __future__ import annotations

import numpy as np

from fairshare.columns import across
from fairshare.model import NOWHERE
from fairshare.policies.gandiva_fair.balances import guaranteed_after_trades
from fairshare.policies.gandiva_fair.classes import SAME_SPEED
from fairshare.policies.gandiva_fair.facts import Facts
from fairshare.policies.gandiva_fair.own_order import Rows
from fairshare.policies.gandiva_fair.picked import Picked
from fairshare.policies.gandiva_fair.returning import return_home
from fairshare.policies.gandiva_fair.search import place_all

# With at most this many running gangs, tries to move some of them so that all gangs find room.
_SMALL = 300


def pick_all(facts: Facts) -> Picked | None:
    """Picks all gangs that may run, except preemptible ones, if they all can run at the same time. Otherwise returns
    None.

    Returns None in these cases:
    - The gangs do not all fit, or limits do not allow all of them.
    - An account would make less progress than with its guaranteed GPUs, because some of its jobs would get slower GPUs.
    - This round may not move running gangs.
    - Nodes are closed to new gangs.

    If the gangs fit only after some running gangs are moved, the smallest running gangs are moved first. If more than
    _SMALL gangs run, none is moved.
    """
    if not facts.may_move or facts.snapshot.cluster.closed is not None:
        return None
    takes_part = facts.sharing.any(axis=1)
    if int(facts.sizes[takes_part].sum()) > int(facts.snapshot.cluster.capacity.sum()):
        return None
    running = np.flatnonzero(takes_part & (facts.jobs.running_on != NOWHERE))
    waiting = np.flatnonzero(takes_part & (facts.jobs.running_on == NOWHERE)).tolist()
    size = facts.sizes[running]
    may_go = np.where(facts.stays[running], np.inf, size)
    movable = sorted(set(size.tolist())) if len(running) <= _SMALL else []
    for largest in (0, *movable):
        picked = Picked(facts)
        stay, moving = running[may_go > largest].tolist(), running[may_go <= largest].tolist()
        stays = all(picked.pick_at_home(job) for job in stay)
        if stays and _place_rest(picked, [*waiting, *moving]) and not _is_worse_off(picked):
            return_home(picked.places)
            return picked
    return None


def _place_rest(picked: Picked, jobs: list[int]) -> bool:
    """Gives all gangs in `jobs` GPUs and picks them, in addition to the gangs picked so far. Returns whether this
    succeeded.

    It fails if the gangs do not all fit, or if limits do not allow one of them. After a failure, `picked` must not be
    used any more.
    """
    facts, places = picked.facts, picked.places
    if sum(facts.size[job] for job in jobs) > sum(places.free_gpus):
        return False
    if not place_all(places, jobs, [_by_speed(facts, job) for job in jobs]):
        return False
    for job in jobs:
        k = places.places[job].generation
        if not picked.counts.allow(job, k):
            return False
        picked.pick(job, k)
    return True


def _by_speed(facts: Facts, job: int) -> list[int]:
    """Returns the generations on which the job may run, the fastest first. The list is empty for a preemptible job."""
    speed = facts.speed[job]
    return sorted(np.flatnonzero(facts.sharing[job]).tolist(), key=lambda k: (-speed[k], k))


def _is_worse_off(picked: Picked) -> bool:
    """Returns whether any account makes less progress with the picked gangs than it would make with its guaranteed
    GPUs.

    Progress is a number of GPUs, each weighted by its speed for the job: 1 on the job's fastest generation, 0.5 at half
    that speed.
    """
    facts = picked.facts
    if (facts.speed[facts.able] > 1 / SAME_SPEED).all():
        return False
    guaranteed = np.where(facts.tree.is_leaf[:, None], guaranteed_after_trades(facts.shares), 0.0)
    rows = Rows.of(facts.jobs, facts.sharing, across(guaranteed), facts.snapshot.accounts.evenly)
    leaves = np.arange(len(rows.account))
    due = rows.progress(*rows.run(guaranteed[rows.account], leaves))[0]
    some = np.flatnonzero(picked.chosen)
    progress = facts.sizes[some] * facts.speed[some, picked.generation[some]]
    makes = np.bincount(facts.jobs.account[some], progress, len(guaranteed))[rows.account]
    return bool((makes < due - 1e-6 * (1 + due)).any())
