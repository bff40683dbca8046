"""Gangs that were picked go where they are faster and their account is due time; who is ahead there makes way."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np

from fairshare.policies.gandiva_fair.classes import SAME_SPEED
from fairshare.policies.gandiva_fair.picked import Moved, Picked

# Gangs that seek faster GPUs of a generation in vain before no other one tries.
_TRIES = 32
# Gangs that are ahead on a generation for which those that are due their turns there try to make room elsewhere.
_SWAPS = 4


def claim_fast(picked: Picked) -> None:
    """Gangs go where they are faster and their account is due a turn; those that are ahead there make way.

    Of the gangs of one account those that gain more for each GPU go first, and others save up for them.
    """
    facts, speed = picked.facts, picked.facts.speed
    wants, saving = _faster(picked), set[tuple[int, int]]()
    # Generations between which no larger gang changed places since one moved.
    stuck = set[tuple[int, int]]()
    in_vain = np.zeros(speed.shape[1], dtype=np.int64)
    for job, k in wants:
        account, here = facts.account[job], int(picked.generation[job])
        slower = speed[job, k] <= speed[job, here]
        if slower or (account, k) in saving or in_vain[k] == _TRIES:
            continue
        if not picked.is_due(job, k):
            saving.add((account, k))
            found = _claim(picked, job, here, k, only_own=True)
        else:
            found = _claim(picked, job, here, k)
            if not found and (here, k) not in stuck:
                group = [other for other, to in wants if to == k and picked.generation[other] == here]
                found = _swap(picked, [job, *group[:_TRIES]], here, k)
                stuck.add((here, k))
        in_vain[k] += not found
        if found:
            stuck.clear()


def _faster(picked: Picked) -> list[tuple[int, int]]:
    """Picked jobs with the generations on which they are faster, those of the account furthest behind first."""
    facts, share = picked.facts, np.maximum(picked.facts.shares.share, 1e-9)
    some = np.flatnonzero(picked.chosen & ~facts.stays)
    now = facts.speed[some, picked.generation[some]]
    row, k = np.nonzero(facts.able[some] & (facts.speed[some] > now[:, None] * SAME_SPEED))
    job = some[row]
    behind = (np.array(picked.due) / share)[facts.jobs.account[job], k]
    order = np.lexsort((job, now[row] - facts.speed[job, k], -behind))
    return list(zip(job[order].tolist(), k[order].tolist(), strict=True))


def _claim(picked: Picked, job: int, here: int, k: int, *, only_own: bool = False) -> bool:
    """Move a gang to a generation from which others go wherever they find room, `only_own` of its account."""
    if not picked.may_change(job, here, k):
        return False
    places, due = picked.places, picked.due[picked.facts.account[job]]
    before, spot = due[k], places.take_back(job)
    others = places.make_room(job, (k,), picked.may_change, _yields_to(picked, job, here, only_own=only_own))
    if others is None:
        places.give(job, spot)
        return False
    moved: Moved = [*others, (job, spot)]
    picked.follow(moved)
    if (only_own and due[k] < before - 1e-6) or not picked.is_within_limits(moved):
        picked.bring_back(moved)
        return False
    return True


def _yields_to(picked: Picked, job: int, here: int, *, only_own: bool) -> Callable[[int, int], bool]:
    """Whether a picked gang leaves its generation to the job, which runs `here`."""
    facts = picked.facts
    speed, account = facts.speed, facts.account

    def yields(other: int, k: int) -> bool:
        if account[other] != account[job]:
            return not only_own and picked.is_ahead(other, k)
        gains_less = speed[other, k] - speed[other, here] < speed[job, k] - speed[job, here]
        return bool(gains_less and not facts.stays[other])

    return yields


def _swap(picked: Picked, group: list[int], here: int, k: int) -> bool:
    """Let a larger gang that is ahead on `k` change places with gangs `here` that are due their turns there."""
    facts, due = picked.facts, np.array([of[k] for of in picked.due])
    some = np.flatnonzero(picked.generation == k)
    some = some[facts.able[some, here]]
    some = some[np.argsort(due[facts.jobs.account[some]], kind="stable")]
    ahead = (job for job in some.tolist() if picked.is_ahead(job, k))
    return any(_swap_for(picked, larger, group, here, k) for larger in islice(ahead, _SWAPS))


def _swap_for(picked: Picked, larger: int, group: list[int], here: int, k: int) -> bool:
    """Let as many of the group as it takes change places with the larger gang; False, and no change, in vain."""
    places = picked.places
    moved: Moved = [(larger, places.take_back(larger))]
    for job in group:
        due = picked.generation[job] == here and picked.is_due(job, k)
        if not due or not picked.may_change(job, here, k):
            continue
        spot = places.take_back(job)
        if not places.place(job, (k,), held=True):
            places.give(job, spot)
            continue
        moved.append((job, spot))
        picked.change(job, k)
        if picked.may_change(larger, k, here) and places.place(larger, (here,), held=True):
            picked.change(larger, here)
            return True
    places.give(larger, moved[0][1])
    picked.bring_back(moved)
    return False
