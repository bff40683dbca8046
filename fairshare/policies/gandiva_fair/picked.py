"""Keeps the record of one round: which gangs are picked so far, on which nodes, and what accounts may still get.

To pick a gang means to decide that it runs until the next round. The place of a gang is its generation and the node of
each worker.
"""

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
    """The gangs picked so far in a round, with their places. A new instance has no picked gangs.

    It also keeps the GPUs that limits still allow (`counts`), and the GPU time that accounts are still due on each
    generation (`due`). The time due is the account's share until the next round, plus what it is owed from earlier
    rounds, minus what its picked gangs will use. It is negative if the account gets too much.
    """

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
        """Returns an object for picking gangs on the GPUs that the sharing by tickets leaves over.

        It shares the record of picked gangs with `self`: a gang that is picked with one of them is picked in both. It
        differs from `self` in two points:
        - It lists the gangs that are picked with it in `idle_jobs`.
        - It ignores the limits in `limits.claims`, which do not apply to these GPUs.
        """
        picked = copy(self)
        picked.counts, picked.idle_jobs = self.counts.beyond_claims(), []
        return picked

    def pick(self, job: int, generation: int) -> None:
        """Records that a gang is picked. Its GPUs then count against limits, and against the time that its account is
        due.

        The gang must already be placed on nodes of the generation.
        """
        self.generation[job] = generation
        if self.idle_jobs is not None:
            self.idle_jobs.append(job)
        self._count(job, generation, self.facts.size[job])

    def pick_at_home(self, job: int) -> bool:
        """Picks a running gang on the nodes where it runs.

        Returns False and changes nothing if limits do not allow it or its GPUs are not available.
        """
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

        Returns False and changes nothing if limits do not allow `other` to run there.
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
        """Removes a gang from the picked gangs and from its nodes. Returns the place that it had."""
        self._count(job, int(self.generation[job]), -self.facts.size[job])
        self.generation[job] = NOWHERE
        return self.places.take_back(job)

    def pick_again(self, job: int, spot: Spot) -> bool:
        """Picks a gang that was dropped, at the place `spot` that it had. Returns False and changes nothing if GPUs
        there are no longer free."""
        if not self.places.fits(job, spot, self.places.free[spot.generation]):
            return False
        self.places.give(job, spot)
        self.pick(job, spot.generation)
        return True

    def is_ahead(self, job: int, k: int) -> bool:
        """Returns whether the gang should leave generation `k`, because its account gets too much time there.

        This is true if the account gets at least (0.5 + affinity) × Q more time than it is due. Q is the GPU-seconds
        that the gang uses in one quantum. The affinity, from -1 to 1, says how strongly the gang should prefer the
        generation. With an affinity below -0.5, the gang should leave even if its account is still due a little time.

        Returns False for gangs that must not leave a generation, such as running services and sessions.
        """
        facts = self.facts
        turn = facts.size[job] * facts.settings.quantum
        ahead = self.due[facts.account[job], k] <= -turn * (0.5 + facts.affinity[job, k])
        return bool(ahead and not facts.stays[job])

    def is_due(self, job: int, k: int) -> bool:
        """Returns whether the gang's account is due enough time on generation `k` to move the gang there.

        The account must be due at least `least_due`, plus the GPU time that is lost when the gang moves.
        """
        least = self.least_due(job, k) + self.facts.size[job] * self.facts.settings.switch_cost
        return bool(self.due[self.facts.account[job], k] >= least)

    def least_due(self, job: int, k: int) -> float:
        """Returns how many GPU-seconds an account must be due on generation `k` before its gang should run there.

        The result is (0.5 - affinity) × the GPU-seconds that the gang uses in one quantum. The affinity, from -1 to 1,
        says how strongly the gang should prefer the generation. With an affinity above 0.5, the result is negative: the
        gang may run there although its account already gets a little too much time.
        """
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
        """Records that a picked gang was moved to generation `now`.

        Its GPUs then count against the limits of this generation, and against the time that its account is due there.
        They no longer count on the generation that it left.
        """
        size = self.facts.size[job]
        self._count(job, int(self.generation[job]), -size)
        self._count(job, now, size)
        self.generation[job] = now

    def follow(self, moved: Moved) -> None:
        """Records the current generation of each gang in `moved` after the gangs were moved."""
        for job, _ in moved:
            now = self.places.places[job].generation
            if now != self.generation[job]:
                self.change(job, now)

    def bring_back(self, moved: Moved) -> None:
        """Moves gangs back to the places that they left, the last move first, and records their generations.

        `moved`: the moved gangs, each with the place that it left.
        """
        for job, spot in moved[::-1]:
            self.places.take_back(job)
            self.places.give(job, spot)
        self.follow(moved)

    def is_within_limits(self, moved: Moved) -> bool:
        """Returns whether limits allow all gangs in `moved` together on the generations to which they were moved.

        Call this after several moves: each move was checked alone, but the moves together can exceed a limit.
        """
        now = [(job, int(self.generation[job])) for job, _ in moved]
        return all(self.may_change(job, k, k) for job, k in now)

    def make_room(self, job: int, generations: list[int], yields: Yields) -> bool:
        """Places a gang that fits nowhere on one of `generations`, by moving picked gangs. The caller then has to pick
        the gang.

        Returns False and changes nothing if the gang cannot be placed, or if limits do not allow the result.

        `yields`: a function that is called with a picked gang and its generation. It returns True if the gang must make
        room even if it becomes slower or is larger than `job`. All other gangs move only to GPUs on which they are
        about as fast or faster.
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
