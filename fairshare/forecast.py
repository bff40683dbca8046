"""Forecasts when a waiting gang starts. It simulates the next rounds as if no job were submitted or ended."""

from __future__ import annotations

from collections.abc import Iterable

from fairshare.driver import Situation
from fairshare.model import Decision

# At most this many rounds are played within a quantum. A policy that asks for more is asked less often than live.
ROUNDS_BETWEEN = 4


def rounds_until_start(now: Situation, job: int, *, seed: int, most: int) -> int | None:
    """Returns the number of quanta until the policy picks `job`. 0 means that the job can start immediately on free
    GPUs.

    Returns None if the job is not picked within `most` quanta. Assumes that no job is submitted or ends and no tickets
    change. The result is an estimate and tends to be too high, because running jobs may end sooner.
    """
    return first_rounds(now, [job], seed=seed, most=most)[job]


def first_rounds(now: Situation, jobs: Iterable[int], *, seed: int, most: int) -> dict[int, int | None]:
    """Returns the result of `rounds_until_start` for each of `jobs`, simulating the rounds only once.

    The simulation includes the rounds between two quanta for which the policy asks. A job that starts in such a round
    counts as starting in the next quantum.
    """
    found: dict[int, int | None] = dict.fromkeys(jobs)
    _note(found, now.fill(seed), 0)
    for number in range(1, most + 1):
        if None not in found.values():
            break
        quantum = left = now.view.settings.quantum
        plan = now.decide(seed + number)
        _note(found, plan, number)
        while plan.ask_again is not None and (wait := max(plan.ask_again, quantum / ROUNDS_BETWEEN)) < left:
            now, left = now.after(plan, wait), left - wait
            plan = now.fill(seed + number)
            if number < most:
                _note(found, plan, number + 1)
        now = now.after(plan, left)
    return found


def _note(found: dict[int, int | None], plan: Decision, number: int) -> None:
    for job in plan.run.tolist():
        if job in found and found[job] is None:
            found[job] = number
