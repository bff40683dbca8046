"""Playing rounds ahead: when would a waiting gang get its turn if nothing else happened?"""

from __future__ import annotations

from collections.abc import Iterable

from fairshare.driver import Situation


def rounds_until_start(now: Situation, job: int, *, seed: int, most: int) -> int | None:
    """Quantum rounds until `job` is picked; 0 when free GPUs hold it at once; None when not within `most`.

    Assumes that nobody submits, ends or changes tickets meanwhile, so that it is a latest time as far as
    running jobs end sooner, and not a promise.
    """
    return first_rounds(now, [job], seed=seed, most=most)[job]


def first_rounds(now: Situation, jobs: Iterable[int], *, seed: int, most: int) -> dict[int, int | None]:
    """Like `rounds_until_start`, of several jobs in one play."""
    found: dict[int, int | None] = dict.fromkeys(jobs)
    for number in range(most + 1):
        plan = now.decide(seed + number) if number else now.fill(seed)
        for job in plan.run.tolist():
            if job in found and found[job] is None:
                found[job] = number
        if None not in found.values():
            break
        if number:
            now = now.after(plan)
    return found
