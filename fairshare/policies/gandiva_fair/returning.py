"""Moves picked gangs back to the nodes where they run, or ran last, to avoid migrations.

While gangs are picked, running gangs are sometimes moved to other nodes to make room. Once all gangs are picked, it can
turn out that they also fit without such a move. The same holds for waiting gangs that want back to nodes where they ran
last, because their frozen processes can go on only there.
"""

from __future__ import annotations

import numpy as np

from fairshare.model import NOWHERE
from fairshare.policies.gandiva_fair.places import Places, Spot
from fairshare.policies.gandiva_fair.room import Room


def return_home(places: Places) -> None:
    """Moves picked gangs back to the nodes where they run, or ran last, one generation at a time.

    To make room, other picked gangs can be moved to other nodes of the generation, except pinned gangs. If the gangs of
    the generation do not all fit then, none of them is moved.

    `places`: the gangs that were given GPUs, changed in place.
    """
    here: list[list[int]] = [[] for _ in places.nodes]
    for job, spot in places.places.items():
        here[spot.generation].append(job)
    running: list[bool] = places.running.tolist()
    for k, jobs in enumerate(here):
        stay: dict[int, Spot] = {}
        back: set[int] = set()
        moved = False
        for job in jobs:
            home = places.home(job)
            if home is None or home.generation != k:
                continue
            if running[job]:
                stay[job] = home
            elif places.facts.running_on[job] == NOWHERE:
                back.add(job)
            else:
                continue
            moved |= places.places[job] != home
        if moved:
            stay |= {job: places.places[job] for job in jobs if job in places.pinned}
            _ = _pack(places, k, stay, jobs, back) or _pack(places, k, stay, jobs, set())


def _pack(places: Places, k: int, stay: dict[int, Spot], jobs: list[int], back: set[int]) -> bool:
    """Gives all gangs in `jobs` GPUs on nodes of generation `k`, from scratch.

    Returns False and changes nothing if they do not all fit.

    - `stay`: for some of the gangs, the spot (generation and nodes) that they must get.
    - `jobs`: all gangs that were given GPUs of this generation.
    - `back`: gangs that come before all others except those in `stay`.

    The gangs in `stay` are placed first, then those in `back`, then the others, those with the largest workers first.
    Each gang outside `stay` gets the nodes where it ran last if it fits there, and otherwise the nodes where it fits
    most tightly.
    """
    facts = places.facts
    nodes = [node for spot in stay.values() for node in spot.nodes]
    gpus = [facts.gpus[job] for job, spot in stay.items() for _ in spot.nodes]
    capacity = np.array(places.capacity[k].gpus, dtype=np.int64)
    free = Room(capacity - np.bincount(nodes, gpus, len(capacity)).astype(np.int64))
    if min(free.gpus, default=0) < 0:
        return False
    found = dict(stay)
    rest = [job for job in jobs if job not in stay]
    for job in sorted(rest, key=lambda job: (job not in back, -facts.gpus[job], -facts.workers[job], job)):
        spot = places.home(job)
        if spot is None or spot.generation != k or not places.fits(job, spot, free):
            found_nodes = free.nodes_for(facts.workers[job], facts.gpus[job])
            if found_nodes is None:
                return False
            spot = Spot(k, found_nodes)
        for node in spot.nodes:
            free.add(node, -facts.gpus[job])
        found[job] = spot
    moved = [job for job in jobs if places.places[job] != found[job]]
    for job in moved:
        places.take_back(job)
    for job in moved:
        places.give(job, found[job])
    return True
