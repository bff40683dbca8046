"""Handles the simple case that all gangs fit together: picks all of them. Running gangs stay where possible."""

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
    """Picks all gangs that can run, except preemptible ones, if all of them can run at the same time. Otherwise returns
    None.

    Also returns None in three cases:
    - An account would make less progress than with its guaranteed GPUs.
    - Running gangs must not be moved in this round.
    - Nodes are closed.

    Running gangs are moved only if necessary: at first none may be moved, then only the smallest, then gradually larger
    ones. If more than _SMALL gangs run, none is moved.
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
    """Places and picks all `jobs` beside the gangs picked so far. Returns whether all of them fit."""
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
    """Returns the generations on which the job may run, its fastest first; none for a preemptible job."""
    speed = facts.speed[job]
    return sorted(np.flatnonzero(facts.sharing[job]).tolist(), key=lambda k: (-speed[k], k))


def _is_worse_off(picked: Picked) -> bool:
    """Returns whether any account makes less progress with the picked gangs than with its guaranteed GPUs."""
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
