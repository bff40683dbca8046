"""Chooses the generation on which a gang gets GPUs, and gives it GPUs of this generation.

`filling.py` calls `place` for each gang whose turn it is. The GPU time that an account is *due* on a generation is
counted in GPU-seconds: what it should receive there until the next round, including what it is owed, minus what its
gangs picked so far will use. The number is negative if the account is ahead of its share.

Generations are preferred in this order:
1. The generation where the gang runs now, if its nodes are available.
2. Generations on which the account is due enough time for the gang. Faster generations come first.
3. Any other generation on which no running gang has to give up GPUs. Faster generations come first.
4. Any other generation. Generations on which the account is due most time come first.
"""

from __future__ import annotations

from fairshare.policies.gandiva_fair.classes import SAME_SPEED
from fairshare.policies.gandiva_fair.picked import Picked


def place(picked: Picked, job: int, generations: list[int], *, may_move: bool) -> bool:
    """Gives the gang GPUs of one of `generations`. Returns False and changes nothing if it finds no room for the gang.

    - `picked`: the gangs picked so far, and the state of all GPUs. The result is recorded in `picked.places`.
    - `may_move`: whether gangs that were picked earlier in this round may be moved if no generation has room. It has no
      effect in rounds that may not preempt.
    """
    facts, places = picked.facts, picked.places
    if facts.running_on[job] in generations and picked.go_home(job):
        return True
    groups = _speed_groups(picked, job, generations)
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


def _speed_groups(picked: Picked, job: int, generations: list[int]) -> list[tuple[list[int], float]]:
    """Groups generations on which the job is about equally fast. Returns the groups, the fastest first.

    Each group is a pair: its generations, and the GPU-seconds that the job's account is due on all of them together. If
    the gang runs or ran last on one of the generations, this one comes first. The others are sorted by the GPU-seconds
    that the account is due there, most first.
    """
    due: list[float] = picked.due[picked.facts.account[job]].tolist()
    home = picked.places.home_of[job]
    if len(generations) == 1:
        return [(generations, due[generations[0]])]
    groups = []
    for ks in _equally_fast(picked, job, generations):
        first = sorted(ks, key=lambda k: (k != home, -due[k])) if len(ks) > 1 else ks
        groups.append((first, sum(due[k] for k in first)))
    return groups


def _equally_fast(picked: Picked, job: int, generations: list[int]) -> list[list[int]]:
    """Groups generations on which the job is about equally fast. Returns the groups, the fastest first.

    The highest speed in a group is at most SAME_SPEED times the lowest.
    """
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
