"""Moves picked gangs back to the nodes where they run, if all other gangs still fit.

This is done once all gangs are picked, and avoids unnecessary migrations.
"""

from __future__ import annotations

import numpy as np

from fairshare.policies.gandiva_fair.places import Places, Spot
from fairshare.policies.gandiva_fair.room import Room


def return_home(places: Places) -> None:
    """Moves picked running gangs back to the nodes where they run, one generation at a time.

    A generation is left unchanged if the other gangs would not fit.
    """
    here: list[list[int]] = [[] for _ in places.nodes]
    for job, spot in places.places.items():
        here[spot.generation].append(job)
    running: list[bool] = places.running.tolist()
    for k, jobs in enumerate(here):
        stay: dict[int, Spot] = {}
        moved = False
        for job in jobs:
            if running[job] and places.home_of[job] == k and (home := places.home(job)) is not None:
                stay[job] = home
                moved |= places.places[job] != home
        if moved:
            stay |= {job: places.places[job] for job in jobs if job in places.pinned}
            _pack(places, k, stay, jobs)


def _pack(places: Places, k: int, stay: dict[int, Spot], jobs: list[int]) -> None:
    """Places `jobs` on generation `k` from scratch. Gangs in `stay` get the given places.

    Changes nothing if not all gangs fit.
    """
    facts = places.facts
    nodes = [node for spot in stay.values() for node in spot.nodes]
    gpus = [facts.gpus[job] for job, spot in stay.items() for _ in spot.nodes]
    capacity = np.array(places.capacity[k].gpus, dtype=np.int64)
    free = Room(capacity - np.bincount(nodes, gpus, len(capacity)).astype(np.int64))
    if min(free.gpus, default=0) < 0:
        return
    found = dict(stay)
    rest = [job for job in jobs if job not in stay]
    for job in sorted(rest, key=lambda job: (-facts.gpus[job], -facts.workers[job], job)):
        spot = places.home(job)
        if spot is None or spot.generation != k or not places.fits(job, spot, free):
            found_nodes = free.nodes_for(facts.workers[job], facts.gpus[job])
            if found_nodes is None:
                return
            spot = Spot(k, found_nodes)
        for node in spot.nodes:
            free.add(node, -facts.gpus[job])
        found[job] = spot
    moved = [job for job in jobs if places.places[job] != found[job]]
    for job in moved:
        places.take_back(job)
    for job in moved:
        places.give(job, found[job])
