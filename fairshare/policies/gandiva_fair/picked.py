"""Contains the gangs picked so far in a decision, with their places and what accounts may still get."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from fairshare.model import NOWHERE, Bools, Floats
from fairshare.policies.gandiva_fair.counts import Counts
from fairshare.policies.gandiva_fair.facts import Facts
from fairshare.policies.gandiva_fair.making_room import Moved, Yields, make_room
from fairshare.policies.gandiva_fair.places import Places, Spot


class Picked:
    """The gangs picked so far in a decision. A new instance has no picked gangs."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.counts = Counts(facts)
        self.generation = np.full(len(facts.jobs), NOWHERE, dtype=np.int64)
        # GPU-seconds of each generation that each leaf is due until the next round, less those of its picked gangs.
        self.due: Floats = facts.balances.owed + facts.shares.share * facts.settings.quantum  # (T, K)
        # Picked jobs that run only on GPUs left over; None while gangs in the sharing are still being picked.
        self.idle_jobs: list[int] | None = None
        # Groups of equally fast generations for a gang, cached by the gang's speeds and its generations.
        self.as_fast: dict[tuple[bytes, tuple[int, ...]], list[list[int]]] = {}
        holds = facts.holders()
        settled = facts.within_guarantee(holds) | (holds & facts.rooted)
        self.places = Places(facts, holds, settled)

    @property
    def chosen(self) -> Bools:
        """Returns which gangs are picked, as a mask (J,)."""
        chosen: Bools = self.generation != NOWHERE
        return chosen

    def on_idle(self) -> Picked:
        """Returns a copy of this object for giving out the GPUs that the sharing leaves free.

        The copy and `self` share the record of picked gangs, so that a gang picked with the copy is also picked in
        `self`. Only the copy lists this gang in `idle_jobs`.

        Some limits (`limits.claims`) allow an account more GPUs if nobody else can use them. The copy ignores these
        limits.
        """
        picked = copy(self)
        picked.counts, picked.idle_jobs = self.counts.beyond_claims(), []
        return picked

    def pick(self, job: int, generation: int) -> None:
        """Marks a gang as picked and counts its GPUs against limits. The gang must already have a place."""
        self.generation[job] = generation
        if self.idle_jobs is not None:
            self.idle_jobs.append(job)
        self._count(job, generation, self.facts.size[job])

    def pick_at_home(self, job: int) -> bool:
        """Picks a running gang on the nodes where it runs. Returns False if limits or missing GPUs forbid it."""
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
        """Replaces the picked gangs `jobs` by the gang `other`, which is placed at `spot`.

        Returns False and changes nothing if limits forbid it.
        """
        before = {job: self.drop(job) for job in jobs}
        if not self.counts.allow(other, spot.generation):
            for job, home in before.items():
                self.pick_again(job, home)
            return False
        self.places.give(other, spot)
        self.pick(other, spot.generation)
        return True

    def drop(self, job: int) -> Spot:
        """Removes a gang from the picked gangs and returns the place that it had."""
        self._count(job, int(self.generation[job]), -self.facts.size[job])
        self.generation[job] = NOWHERE
        return self.places.take_back(job)

    def pick_again(self, job: int, spot: Spot) -> bool:
        """Picks a dropped gang again at the place that it had. Returns False if other gangs now use that place."""
        if not self.places.fits(job, spot, self.places.free[spot.generation]):
            return False
        self.places.give(job, spot)
        self.pick(job, spot.generation)
        return True

    def is_ahead(self, job: int, k: int) -> bool:
        """Returns whether the gang should make room on generation `k`, because its account has received too much time
        there.

        A gang without a preference makes room if its account is ahead of its share there by half of the GPU-seconds
        that the gang uses in one quantum. The more the gang prefers the generation (its affinity), the further ahead
        the account must be. Returns False for gangs that must stay, such as running services and sessions.
        """
        facts = self.facts
        turn = facts.size[job] * facts.settings.quantum
        ahead = self.due[facts.account[job], k] <= -turn * (0.5 + facts.affinity[job, k])
        return bool(ahead and not facts.stays[job])

    def is_due(self, job: int, k: int) -> bool:
        """Returns whether the job's account is owed enough time of generation `k` to move the job to it.

        The time must also cover the cost of the move.
        """
        least = self.least_due(job, k) + self.facts.size[job] * self.facts.settings.switch_cost
        return bool(self.due[self.facts.account[job], k] >= least)

    def least_due(self, job: int, k: int) -> float:
        """Returns the GPU-seconds that the account must be owed on generation `k` before the job should run there."""
        facts = self.facts
        return float(facts.size[job] * facts.settings.quantum * (0.5 - facts.affinity[job, k]))

    def may_change(self, job: int, before: int, now: int) -> bool:
        """Returns whether limits allow a picked gang to change from generation `before` to generation `now`."""
        if not self.counts.is_limited[self.facts.account[job]]:
            return True
        size = self.facts.size[job]
        self._count(job, before, -size)
        allowed = self.counts.allow(job, now)
        self._count(job, before, size)
        return allowed

    def change(self, job: int, now: int) -> None:
        """Records that a picked gang was moved to generation `now`, and counts its GPUs against the limits there."""
        size = self.facts.size[job]
        self._count(job, int(self.generation[job]), -size)
        self._count(job, now, size)
        self.generation[job] = now

    def follow(self, moved: Moved) -> None:
        """Records the new generation of each moved gang, and counts its GPUs against the limits there."""
        for job, _ in moved:
            now = self.places.places[job].generation
            if now != self.generation[job]:
                self.change(job, now)

    def bring_back(self, moved: Moved) -> None:
        """Moves gangs back to the places that they left, the last move first, and records their generations."""
        for job, spot in moved[::-1]:
            self.places.take_back(job)
            self.places.give(job, spot)
        self.follow(moved)

    def is_within_limits(self, moved: Moved) -> bool:
        """Returns whether limits allow all moved gangs together at their new places.

        This must be checked after several moves, because each single move was checked without the others.
        """
        now = [(job, int(self.generation[job])) for job, _ in moved]
        return all(self.may_change(job, k, k) for job, k in now)

    def make_room(self, job: int, generations: list[int], yields: Yields) -> bool:
        """Places the gang on one of `generations` by moving picked gangs within their limits. Returns whether it
        succeeded.

        `yields` says whether a gang has to leave a generation for this gang.
        """
        moved = make_room(self.places, job, generations, self.may_change, yields)
        if moved is None:
            return False
        self.follow(moved)
        if self.is_within_limits(moved) and self.counts.allow(job, self.places.places[job].generation):
            return True
        self.places.take_back(job)
        self.bring_back(moved)
        return False
