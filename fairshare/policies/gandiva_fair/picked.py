"""The gangs that were picked so far: where each goes, what that leaves of limits and of what accounts are due."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairshare.model import NOWHERE, Bools, Floats
from fairshare.policies.gandiva_fair.clearing import Moved, Yields, make_room
from fairshare.policies.gandiva_fair.counts import Counts
from fairshare.policies.gandiva_fair.facts import Facts
from fairshare.policies.gandiva_fair.places import Places, Spot


class Picked:
    """The picked gangs; nobody at first."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.counts = Counts(facts)
        self.generation = np.full(len(facts.jobs), NOWHERE, dtype=np.int64)
        # GPU-seconds of each generation that are left of what each leaf is due until the next round.
        self.due: Floats = facts.balances.owed + facts.shares.share * facts.settings.quantum  # (T, K)
        self.idle_jobs: list[int] = []  # those that run only because nobody else wants their GPUs
        # By the speeds of a gang and generations, those that are as fast as each other.
        self.as_fast: dict[tuple[bytes, tuple[int, ...]], list[list[int]]] = {}
        holds = facts.holders()
        settled = facts.within_guarantee(holds) | (holds & facts.rooted)
        self.places = Places(facts, holds, settled)

    @property
    def chosen(self) -> Bools:
        """(J,)"""
        chosen: Bools = self.generation != NOWHERE
        return chosen

    def pick(self, job: int, generation: int) -> None:
        """Count the gang, which has its place, as picked."""
        self.generation[job] = generation
        if self.counts.is_idle:
            self.idle_jobs.append(job)
        self._count(job, generation, self.facts.size[job])

    def pick_at_home(self, job: int) -> bool:
        """Pick the gang where it runs, if limits allow that and its nodes are still there for it."""
        k = self.facts.running_on[job]
        if not self.counts.allow(job, k) or not self.go_home(job):
            return False
        self.pick(job, k)
        return True

    def go_home(self, job: int) -> bool:
        return self.places.stay(job) if self.facts.rooted[job] else self.places.go_home(job)

    def _count(self, job: int, generation: int, gpus: int) -> None:
        facts = self.facts
        account = facts.account[job]
        if self.counts.is_limited[account]:
            self.counts.use(job, generation, gpus)
        if facts.jobs.preemptible is None or facts.takes_part(job):
            self.due[account, generation] -= gpus * facts.settings.quantum

    def exchange(self, jobs: Sequence[int], other: int, spot: Spot) -> bool:
        """Pick a gang in the place of some that were picked; False, and no change, where limits forbid that."""
        before = {job: self.drop(job) for job in jobs}
        if not self.counts.allow(other, spot.generation):
            for job, home in before.items():
                self.pick_again(job, home)
            return False
        self.places.give(other, spot)
        self.pick(other, spot.generation)
        return True

    def drop(self, job: int) -> Spot:
        """Pick the gang no more. Returns where it was."""
        self._count(job, int(self.generation[job]), -self.facts.size[job])
        self.generation[job] = NOWHERE
        return self.places.take_back(job)

    def pick_again(self, job: int, spot: Spot) -> bool:
        """Pick a gang that was dropped where it was; False where others have that now."""
        if not self.places.fits(job, spot, self.places.free[spot.generation]):
            return False
        self.places.give(job, spot)
        self.pick(job, spot.generation)
        return True

    # Gangs that were picked change places

    def is_ahead(self, job: int, k: int) -> bool:
        """Whether a picked gang has more of its generation than its account is due there."""
        facts = self.facts
        turn = facts.size[job] * facts.settings.quantum
        ahead = self.due[facts.account[job], k] <= -turn * (0.5 + facts.meant[job, k])
        return bool(ahead and not facts.stays[job])

    def is_due(self, job: int, k: int) -> bool:
        """Whether the job's account is due a turn on a generation that is worth a switch."""
        least = self.least_due(job, k) + self.facts.size[job] * self.facts.settings.switch_cost
        return bool(self.due[self.facts.account[job], k] >= least)

    def least_due(self, job: int, k: int) -> float:
        """GPU-seconds that the job's account is due at least where the job has a turn on a generation."""
        facts = self.facts
        return float(facts.size[job] * facts.settings.quantum * (0.5 - facts.meant[job, k]))

    def may_change(self, job: int, before: int, now: int) -> bool:
        """Whether limits let a picked gang go to another generation."""
        if not self.counts.is_limited[self.facts.account[job]]:
            return True
        size = self.facts.size[job]
        self._count(job, before, -size)
        allowed = self.counts.allow(job, now)
        self._count(job, before, size)
        return allowed

    def change(self, job: int, now: int) -> None:
        """Count a gang that changed places where it is now."""
        size = self.facts.size[job]
        self._count(job, int(self.generation[job]), -size)
        self._count(job, now, size)
        self.generation[job] = now

    def follow(self, moved: Moved) -> None:
        """Count gangs that changed places where they are now."""
        for job, _ in moved:
            now = self.places.places[job].generation
            if now != self.generation[job]:
                self.change(job, now)

    def bring_back(self, moved: Moved) -> None:
        """Bring gangs back where they were before they changed places, the last first."""
        for job, spot in moved[::-1]:
            self.places.take_back(job)
            self.places.give(job, spot)
        self.follow(moved)

    def is_within_limits(self, moved: Moved) -> bool:
        """Whether gangs that changed places one by one may all be there together."""
        now = [(job, int(self.generation[job])) for job, _ in moved]
        return all(self.may_change(job, k, k) for job, k in now)

    def make_room(self, job: int, generations: list[int], yields: Yields) -> bool:
        """Place the gang by moving picked ones, within their limits."""
        moved = make_room(self.places, job, generations, self.may_change, yields)
        if moved is None:
            return False
        self.follow(moved)
        if self.is_within_limits(moved) and self.counts.allow(job, self.places.places[job].generation):
            return True
        self.places.take_back(job)
        self.bring_back(moved)
        return False
