"""Searches for nodes for several gangs together, by depth-first search with backtracking.

The *spot* of a gang is its generation together with the node of each worker.

`room_for_all.py` uses it to find out whether all gangs of a round fit at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from fairshare.policies.gandiva_fair.facts import Facts
from fairshare.policies.gandiva_fair.places import Places, Spot

# Limit on the steps of the search. In small clusters the search ends before the limit and is exact.
STEPS = 3000


def place_all(places: Places, jobs: Sequence[int], prefer: Sequence[Sequence[int]]) -> bool:
    """Gives all gangs in `jobs` GPUs that are still free. Returns False and changes nothing if it does not find room
    for all.

    `prefer`: for each gang, the generations on which it may run, the best first.

    Gangs with the largest workers are placed first. A gang gets the nodes where it runs or ran last, if possible, and
    otherwise the nodes where it fits most tightly. If a later gang finds no room, another spot is tried for an earlier
    gang.

    The search gives up after STEPS + `len(jobs)` steps. It can therefore fail although there is room for all gangs.
    """
    facts = places.facts
    order = sorted(range(len(jobs)), key=lambda i: _tightness(facts, jobs[i], len(prefer[i])))
    jobs, prefer = [jobs[i] for i in order], [prefer[i] for i in order]
    needs = _remaining_needs(facts, jobs, prefer)
    options = [_options(places, jobs[0], prefer[0])] if jobs else []
    steps, placed = 0, 0
    while placed < len(jobs):
        steps += 1
        tired = steps > STEPS + len(jobs)
        if tired or not options[-1]:
            options.pop()
            if tired or not options:
                for job in jobs[:placed]:
                    places.take_back(job)
                return False
            placed -= 1
            places.take_back(jobs[placed])
            continue
        places.give(jobs[placed], options[-1].pop())
        # Hall's condition: the remaining gangs need more GPUs of a set of generations than are free there.
        if any(sum(places.free_gpus[k] for k in choice) < need[placed + 1] for choice, need in needs):
            places.take_back(jobs[placed])
            continue
        placed += 1
        if placed < len(jobs):
            options.append(_options(places, jobs[placed], prefer[placed]))
    return True


def _remaining_needs(
    facts: Facts, jobs: Sequence[int], prefer: Sequence[Sequence[int]]
) -> list[tuple[frozenset[int], list[int]]]:
    """Returns how many GPUs the remaining gangs need of each set of generations, at each step of the search.

    The result has one pair for each different set in `prefer`. The first element of the pair is the set, the second a
    list of numbers. Entry i of the list is the GPUs of those gangs in `jobs[i:]` that accept only generations of the
    set. If fewer GPUs of the set are free, these gangs do not all fit (Hall's condition).

    - `jobs`: the gangs, in the order in which the search places them.
    - `prefer`: for each gang, the generations that it accepts.
    """
    found = []
    for choice in sorted(map(frozenset, set(map(tuple, prefer))), key=sorted):
        inside = [
            facts.size[job] if choice.issuperset(own) else 0 for job, own in zip(jobs, prefer, strict=True)
        ]
        found.append((choice, [*accumulate(reversed(inside), initial=0)][::-1]))
    return found


def _tightness(facts: Facts, job: int, choice: int) -> tuple[int, int, int, int]:
    return -facts.gpus[job], -facts.workers[job], choice, job


def _options(places: Places, job: int, generations: Sequence[int]) -> list[Spot]:
    """Returns the spots that the search should try for the gang, the best one last.

    The best spot is the one where the gang runs or ran last. The other spots are:
    - For a gang of one worker: nodes on which it fits. Nodes with fewer free GPUs are better. Of several nodes of a
      generation with equally many free GPUs, only one is returned.
    - For a gang of several workers: one spot on each generation. The first of `generations` is the best.
    """
    found: list[Spot] = []
    workers, gpus = places.facts.workers[job], places.facts.gpus[job]
    for k in generations:
        free = places.free[k]
        if workers > 1:
            nodes = free.nodes_for(workers, gpus)
            found += [] if nodes is None else [Spot(k, nodes)]
            continue
        found += [Spot(k, [node]) for node in free.sizes(gpus).values()]
    if workers == 1:
        found.sort(key=lambda spot: places.free[spot.generation].gpus[spot.nodes[0]])
    # The best spot is last, because the search takes spots from the end.
    home = places.home(job)
    if home is None or home.generation not in generations:
        return found[::-1]
    if places.fits(job, home, places.free[home.generation]):
        found.insert(0, home)
    return found[::-1]
