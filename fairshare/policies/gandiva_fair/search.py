"""Searches for places for all given gangs together, by depth-first search."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from fairshare.policies.gandiva_fair.facts import Facts
from fairshare.policies.gandiva_fair.places import Places, Spot

# Limit on the steps of the search. In small clusters the search ends before the limit and is exact.
STEPS = 3000


def place_all(places: Places, jobs: Sequence[int], prefer: Sequence[Sequence[int]]) -> bool:
    """Places all `jobs` beside the gangs already placed. Returns False and changes nothing if the search fails.

    `prefer` has, for each job, the generations where it may be placed, the best first. Gangs with large workers are
    placed first. A gang is placed where it fits most tightly; other places are tried if the remaining gangs then find
    no room. To notice this early, the search compares free and needed GPUs for sets of generations (Hall's condition).
    It gives up after STEPS + `len(jobs)` steps.
    """
    facts = places.facts
    order = sorted(range(len(jobs)), key=lambda i: _tightness(facts, jobs[i], len(prefer[i])))
    jobs, prefer = [jobs[i] for i in order], [prefer[i] for i in order]
    needs = _needs(facts, jobs, prefer)
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
        if any(sum(places.free_gpus[k] for k in choice) < need[placed + 1] for choice, need in needs):
            places.take_back(jobs[placed])
            continue
        placed += 1
        if placed < len(jobs):
            options.append(_options(places, jobs[placed], prefer[placed]))
    return True


def _needs(
    facts: Facts, jobs: Sequence[int], prefer: Sequence[Sequence[int]]
) -> list[tuple[frozenset[int], list[int]]]:
    """Returns how many GPUs the remaining jobs need within sets of generations, for each step of the search.

    The search places the jobs in the given order, one at each step. `prefer`: the generations that each job accepts.

    The result has a pair for each set of generations that is the choice of some job: the set, and a list of `len(jobs)`
    + 1 numbers. Number i is for the time after i steps, when `jobs[i:]` remain. It counts the GPUs that these jobs
    need. Jobs that also accept a generation outside the set are not counted.
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
    """Returns places that the search should try for the gang. The best one is last, because the search takes places
    from the end.

    If several places would leave the same numbers of free GPUs on nodes, only one of them is returned.
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
    home = places.home(job)
    if home is None or home.generation not in generations:
        return found[::-1]
    if places.fits(job, home, places.free[home.generation]):
        found.insert(0, home)
    return found[::-1]
