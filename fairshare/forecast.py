"""Playing rounds ahead: when would a waiting gang get its turn if nothing else happened?"""

from __future__ import annotations

from collections.abc import Iterable

from fairshare.driver import Situation
from fairshare.model import Decision

# Rounds between two quanta that are played at most; a policy that wants more of them is asked less often than live.
ROUNDS_BETWEEN = 4


def rounds_until_start(now: Situation, job: int, *, seed: int, most: int) -> int | None:
    """Quantum rounds until `job` is picked; 0 when free GPUs hold it at once; None when not within `most`.

    Assumes that nobody submits, ends or changes tickets meanwhile, so that it is a latest time as far as
    running jobs end sooner, and not a promise.
    """
    return first_rounds(now, [job], seed=seed, most=most)[job]


def first_rounds(now: Situation, jobs: Iterable[int], *, seed: int, most: int) -> dict[int, int | None]:
    """Like `rounds_until_start`, of several jobs in one play.

    Where the policy asks for rounds between two quanta, these are played, too; what starts in one has started by the
    next quantum.
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
