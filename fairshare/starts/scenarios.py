"""Simulates possible futures of a cluster: which waiting gang starts when, if running gangs end at given times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fairshare.driver import Situation
from fairshare.model import Bools, Floats, Jobs, Snapshot

# A simulated round lasts until the fraction ENDS of the running gangs has ended, but at least a quantum or the fraction
# SHORTEST of the time simulated so far, and at most a quantum or the fraction LONGEST of it, whichever is longer.
# So the relative precision is constant, and two weeks need few rounds.
ENDS, SHORTEST, LONGEST = 0.05, 0.05, 0.25
MOST_ROUNDS = 160


def sample_starts(
    now: Situation,
    jobs: Sequence[int],
    left: Floats,
    *,
    seed: int,
    ends_after: Sequence[tuple[int, int, float]] = (),
) -> Floats:
    """Returns the seconds until each of `jobs` is picked in one possible future, as an array in the order of `jobs`.
    Infinite: not within MOST_ROUNDS rounds.

    - `now`: the situation after the last round.
    - `left` (J,): seconds that each job of the snapshot holds GPUs until it ends.
    - `ends_after`: jobs that end when others have begun, as triples: a job, the job that must get GPUs first, and the
      seconds from then on. Until then the first job holds GPUs for `left`.

    Assumes that no job is submitted and no tickets or nodes change. The result depends on the arguments only.
    """
    found = np.full(len(now.view.jobs), np.inf)
    wanted = np.zeros(len(found), dtype=bool)
    wanted[np.asarray(jobs, dtype=np.int64)] = True
    chance = np.random.Generator(np.random.PCG64(seed))
    here = np.arange(len(found))  # the number of each job of the present view in the first view
    left, passed = left.copy(), 0.0
    quantum = now.view.settings.quantum
    lasted = 0.0
    for number in range(MOST_ROUNDS):
        plan = now.fill(seed) if number == 0 else now.decide(seed + number)
        picked = here[plan.run]
        new = picked[np.isinf(found[picked])]
        for job, before, seconds in ends_after:
            if before in new:
                left[job] = min(left[job], seconds)
        # GPUs became free at some time since the last simulated round.
        found[new] = passed - lasted * chance.random(len(new))
        if not np.isinf(found[wanted]).any():
            break
        lasted = _length(left[picked], passed, quantum)
        now = now.after(plan, lasted)
        left[picked] -= lasted
        passed += lasted
        goes_on = left[here] > 0
        if not goes_on.all():
            now, here = replace(now, view=_without(now.view, ~goes_on)), here[goes_on]
    return found[np.asarray(jobs, dtype=np.int64)]


def _length(left: Floats, passed: float, quantum: float) -> float:
    """Returns how long a simulated round lasts. `left` (P,): seconds until each running gang ends."""
    most = max(quantum, LONGEST * passed)
    if not len(left):
        return most
    place = int(ENDS * len(left))
    return float(np.clip(np.partition(left, place)[place], max(quantum, SHORTEST * passed), most))


def _without(view: Snapshot, gone: Bools) -> Snapshot:
    """Returns the snapshot without the jobs of the mask `gone`."""
    jobs, stays = view.jobs, ~gone
    sizes = np.diff(jobs.place_start)
    per_job = {
        name: values[stays]
        for name in Jobs.__slots__
        if name not in ("place_start", "place_node") and (values := getattr(jobs, name)) is not None
    }
    return replace(
        view,
        jobs=replace(
            jobs,
            place_start=np.concatenate([[0], np.cumsum(sizes[stays])]).astype(np.int64),
            place_node=jobs.place_node[np.repeat(stays, sizes)],
            **per_job,
        ),
    )
