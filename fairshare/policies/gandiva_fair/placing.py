"""Chooses the generation on which a gang is placed.

It prefers the generation where the gang runs, then generations on which its account is owed time, then the fastest
ones, then any.
"""

from __future__ import annotations

from fairshare.policies.gandiva_fair.classes import SAME_SPEED
from fairshare.policies.gandiva_fair.picked import Picked


def place(picked: Picked, job: int, generations: list[int], *, may_move: bool) -> bool:
    """Places the gang on one of `generations`. Returns whether it succeeded.

    With `may_move`, other picked gangs may be moved to make room.
    """
    facts, places = picked.facts, picked.places
    if facts.running_on[job] in generations and picked.go_home(job):
        return True
    groups = _groups(picked, job, generations)
    chosen = [
        ks for ks, due in groups if len(groups) == 1 or due >= min(picked.least_due(job, k) for k in ks)
    ]
    if any(places.has_room(job, k) for k in generations):
        if any(places.place(job, ks, held=True) for ks in chosen):
            return True
        if any(places.place(job, ks, held=False) for ks, _ in groups):
            return True
        by_due = sorted(groups, key=lambda group: -group[1])
        return any(places.place(job, ks, held=True) for ks, _ in by_due)
    if not may_move or not facts.settings.may_preempt:
        return False
    if picked.make_room(job, [k for ks in chosen for k in ks], picked.is_ahead):
        return True
    # Gangs of the same account may become slower: their owner wants all of them to run.
    own, account = facts.account[job], facts.account
    return picked.make_room(job, generations, lambda other, _: account[other] == own)


def _groups(picked: Picked, job: int, generations: list[int]) -> list[tuple[list[int], float]]:
    """Returns groups of generations on which the job is equally fast, the fastest group first.

    Each result is a pair: the generations of the group, and the GPU-seconds that the account is owed there in total.
    """
    due: list[float] = picked.due[picked.facts.account[job]].tolist()
    home = picked.places.home_of[job]
    if len(generations) == 1:
        return [(generations, due[generations[0]])]
    groups = []
    for ks in _as_fast(picked, job, generations):
        first = sorted(ks, key=lambda k: (k != home, -due[k])) if len(ks) > 1 else ks
        groups.append((first, sum(due[k] for k in first)))
    return groups


def _as_fast(picked: Picked, job: int, generations: list[int]) -> list[list[int]]:
    """Returns groups of generations on which the job is equally fast, the fastest group first."""
    speeds = picked.facts.speed[job]
    key = speeds.tobytes(), tuple(generations)
    found = picked.as_fast.get(key)
    if found is None:
        speed: list[float] = speeds.tolist()
        found = picked.as_fast[key] = []
        for k in sorted(generations, key=lambda k: -speed[k]):
            if found and speed[k] * SAME_SPEED >= speed[found[-1][0]]:
                found[-1].append(k)
            else:
                found.append([k])
    return found
