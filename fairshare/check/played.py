"""Holds a simulated economy and computes figures for the promises, such as shares and lag, independently of the policy.

- *Progress* is counted in GPUs, or in GPU-quanta over several rounds. A GPU on which a job runs at half of its best
  speed counts as half.
- The *lag* of a leaf account is the GPU time that it received minus the GPU time that it was due. If it is positive,
  the leaf received more than its share.
- `fluid` is a lag that cannot be avoided: even an ideal scheduler lets lags deviate by this much from 0, because gangs
  are indivisible (`Played.fluid`).
- *Harmless time* is GPU time that does not count as received by a leaf, because the leaf took it from nobody: no other
  leaf at or behind its share could use the GPUs. Only time that raises a lag above `fluid` can be harmless.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fairshare.check.economy import INF, Economy
from fairshare.check.fluid import earned, fluid_lag
from fairshare.check.oracle import Oracle
from fairshare.check.play import Placements, PlayedRound, PolicyUnderTest, play
from fairshare.model import NOWHERE, Bools, Floats


@dataclass(frozen=True)
class Played:
    """A simulated economy: the economy, the policy under test, and the rounds that the simulation produced."""

    economy: Economy
    judged: PolicyUnderTest
    seed: int
    rounds: list[PlayedRound]

    @classmethod
    def of(cls, economy: Economy, judged: PolicyUnderTest, seed: int = 0) -> Played:
        return cls(economy, judged, seed, play(economy, judged, seed=seed))

    def without_trading(self) -> Played:
        """Simulates the same economy under the same policy with trading switched off, and returns the result."""
        settings = replace(self.economy.settings, trading=False)
        return Played.of(replace(self.economy, settings=settings), self.judged, self.seed)

    @cached_property
    def _oracles(self) -> dict[tuple[int, ...], Oracle]:
        return {active: Oracle(self.economy, active) for active in {one.active for one in self.rounds}}

    def oracle(self, one: PlayedRound) -> Oracle:
        return self._oracles[one.active]

    @property
    def rounds_and_between(self) -> Iterator[PlayedRound]:
        """Yields all rounds, and an additional round before each round for which jobs came or went.

        The additional round has the placements that the policy would have chosen in a round between two quanta.
        """
        for one in self.rounds:
            if one.between is not None:
                yield replace(one, after=one.between)
            yield one

    @cached_property
    def phases(self) -> list[list[PlayedRound]]:
        """Groups consecutive rounds that have the same active jobs, and returns the groups in order."""
        found: list[list[PlayedRound]] = []
        for one in self.rounds:
            if found and found[-1][0].active == one.active:
                found[-1].append(one)
            else:
                found.append([one])
        return found

    @cached_property
    def shares(self) -> list[Floats]:
        """Returns, for each round, the GPUs that each leaf account is due according to the oracle, as an array (T,)."""
        found = []
        for one in self.rounds:
            share = np.zeros(len(self.economy.accounts))
            leaves = self.oracle(one).leaves
            share[leaves] = self.oracle(one).share[leaves]
            found.append(share)
        return found

    @cached_property
    def used(self) -> list[Floats]:
        """Returns, for each round, the GPUs that each account and all accounts below it hold together, as an array
        (T,)."""
        return [used(self.economy, one.after) for one in self.rounds]

    def received(self, number: int) -> Floats:
        """Returns the GPUs that each leaf account holds in round `number`, as an array (T,)."""
        found = np.zeros(len(self.economy.accounts))
        for j in self.rounds[number].after:
            found[self.economy.jobs[j].account] += self.economy.jobs[j].size
        return found

    @property
    def lag(self) -> Floats:
        """Returns the lag of each leaf after each of R rounds, in GPU-quanta, as an array (R, T).

        A leaf that is behind its share has a negative lag. The lag is 0 instead if the share exceeds what the leaf's
        gangs could use in an empty cluster. Harmless time is left out.
        """
        return self._counted[0]

    @cached_property
    def _counted(self) -> tuple[Floats, Floats]:
        """Returns the lag of each leaf after each of R rounds (R, T), and the GPU time that each leaf received in all
        rounds (T,).

        Both are in GPU-quanta. Harmless time is left out.
        """
        ahead, counted = np.zeros((2, len(self.economy.accounts)))
        found = []
        for one, share in zip(self.rounds, self.shares, strict=True):
            received = self.received(one.number)
            off = ahead + received - earned(share, received) - np.maximum(ahead, self.fluid)
            for leaf in np.flatnonzero((share > 0) & (off > 0)).tolist():
                if not could_use(self.economy, one, leaf, ahead < 1e-9):
                    # Time that does not count lowers what all leaves earn, this one included.
                    received[leaf] -= min(
                        off[leaf] / max(1.0 - share[leaf] / share.sum(), 1e-9), received[leaf]
                    )
            counted += received
            ahead = np.where(share > 0, ahead + received - earned(share, received), 0.0)
            found.append(np.where(share > self._alone[one.active], np.maximum(ahead, 0.0), ahead))
        return np.array(found), counted

    @cached_property
    def _alone(self) -> dict[tuple[int, ...], Floats]:
        """Returns the progress that each leaf could make in one round if only its own jobs ran, for each set of active
        jobs.

        The keys are tuples of active jobs. The values are arrays (T,). They are lower bounds: a leaf's jobs are placed
        in three orders, and the best result counts.
        """
        return {active: self._most_alone(active) for active in self._oracles}

    def _most_alone(self, active: tuple[int, ...]) -> Floats:
        jobs, found = self.economy.jobs, np.zeros(len(self.economy.accounts))
        for t in {jobs[j].account for j in active}:
            own = [j for j in active if jobs[j].account == t]
            larger, smaller = (
                sorted(own, key=lambda j: -jobs[j].size),
                sorted(own, key=lambda j: jobs[j].size),
            )
            found[t] = max(alone(self.economy, order) for order in (own, larger, smaller))
        return found

    @cached_property
    def fluid(self) -> float:
        """Returns by how much accounts deviate from their shares even under an ideal scheduler, in GPU-quanta.

        `fluid_lag` simulates this economy under an ideal stride scheduler. The result is the largest deviation of any
        leaf, in either direction, but at least the size of the largest gang.
        """
        lag, largest = fluid_lag(self.economy, self.shares)
        return max(float(np.abs(lag).max(initial=0.0)), float(largest))

    @property
    def served(self) -> float:
        """Returns the GPU time that all leaves together received, as a fraction of the GPU time due to them, at most 1.

        The fraction is below 1 if gangs leave gaps on nodes. Harmless time is left out.
        """
        due = sum(share.sum() for share in self.shares)
        return min(self._counted[1].sum() / due, 1.0) if due else 1.0

    @cached_property
    def credit(self) -> list[Floats]:
        """Returns an upper bound on each account's savings before each round, in GPU-quanta, as one array (T,) for each
        round.

        An account saves while it uses fewer GPUs than its guarantee. The `memory` setting limits the savings. An
        account without jobs loses them. GPU time beyond the guarantee plus this bound is surplus under any policy.
        """
        settings, credit, found = self.economy.settings, np.zeros(len(self.economy.accounts)), []
        largest = max((job.size for job in self.economy.jobs), default=0)
        for one, use in zip(self.rounds, self.used, strict=True):
            found.append(credit)
            most = self.oracle(one).guarantee[2]
            cap = settings.memory / settings.quantum * most + 2 * largest
            credit = np.where(most > 0, np.clip(credit + most - use, 0.0, cap), 0.0)
        return found

    def progress(self, since: int = 0) -> Floats:
        """Returns the progress of each leaf from round `since` to the end, in GPU-quanta, as an array (T,)."""
        found = np.zeros(len(self.economy.accounts))
        for one in self.rounds[since:]:
            for j, nodes in one.after.items():
                speed = self.economy.speed[j, self.economy.nodes[nodes[0]][0]]
                found[self.economy.jobs[j].account] += speed * self.economy.jobs[j].size
        return found

    def wants_more(self, one: int, other: int) -> bool:
        """Returns whether the owner prefers job `one` to job `other` of the same account.

        The owner prefers the job of higher priority and, among jobs of equal priority, the older one. An account whose
        jobs share evenly has no preference among jobs of equal priority.
        """
        jobs = self.economy.jobs
        if self.economy.accounts[jobs[one].account].evenly:
            return jobs[one].priority > jobs[other].priority
        return (-jobs[one].priority, one) < (-jobs[other].priority, other)

    def may_go_first(self, one: int, other: int) -> bool:
        """Returns whether job `one` may run before job `other` of the same account: the owner does not prefer
        `other`."""
        return one != other and not self.wants_more(other, one)


def alone(economy: Economy, jobs: list[int]) -> float:
    """Returns the progress that `jobs` would make in one round if no other jobs ran.

    The jobs are placed in the given order, each on the fastest generation where it fits.
    """
    free, found = [gpus for _, gpus in economy.nodes], 0.0
    held = np.zeros((len(economy.accounts), economy.generations))
    for j in jobs:
        gpus, workers, path = (
            economy.jobs[j].gpus,
            economy.jobs[j].workers,
            economy.paths[economy.jobs[j].account],
        )
        for k in sorted(np.flatnonzero(economy.able[j]).tolist(), key=lambda k: -economy.speed[j, k]):
            nodes = sorted((n for n, (at, _) in enumerate(economy.nodes) if at == k), key=lambda n: free[n])
            slots = [n for n in nodes for _ in range(free[n] // gpus)][:workers]
            if len(slots) == workers and _allowed(economy, held, j, k):
                for n in slots:
                    free[n] -= gpus
                held[path, k] += economy.jobs[j].size
                found += economy.speed[j, k] * economy.jobs[j].size
                break
    return found


def _allowed(economy: Economy, held: Floats, job: int, k: int) -> bool:
    """Returns whether the limits of the job's accounts allow the job to run on generation `k`.

    `held` (T, K): GPUs of each generation that each account already holds.
    """
    size = economy.jobs[job].size
    return all(
        held[t].sum() + size <= economy.accounts[t].cap_total
        and held[t, k] + size <= economy.accounts[t].cap.get(k, INF)
        for t in economy.paths[economy.jobs[job].account]
    )


def could_use(economy: Economy, one: PlayedRound, leaf: int, some: Bools) -> bool:
    """Returns whether a waiting job of another leaf account would fit if all gangs of the account `leaf` were gone.

    No other gang is moved to make room. `one`: the round. `some` (T,): marks the leaf accounts whose waiting jobs are
    considered.
    """
    rest = {j: nodes for j, nodes in one.after.items() if economy.jobs[j].account != leaf}
    kinds = {
        (economy.jobs[j].account, economy.jobs[j].workers, economy.jobs[j].gpus, economy.able[j].tobytes()): j
        for j in one.waiting
        if economy.jobs[j].account != leaf and some[economy.jobs[j].account]
    }
    return any(would_fit(economy, j, rest) for j in kinds.values())


def used(economy: Economy, places: Placements) -> Floats:
    """Returns the GPUs that each account and all accounts below it hold together under `places`, as an array (T,)."""
    found = np.zeros(len(economy.accounts))
    for j in places:
        found[economy.paths[economy.jobs[j].account]] += economy.jobs[j].size
    return found


def would_fit(economy: Economy, job: int, places: Placements) -> bool:
    """Returns whether the job fits into the GPUs that `places` leaves free, within the limits of the job's accounts.

    No other gang is moved to make room.
    """
    free = [gpus for _, gpus in economy.nodes]
    held = np.zeros((len(economy.accounts), economy.generations))
    for j, nodes in places.items():
        for node in nodes:
            free[node] -= economy.jobs[j].gpus
        held[economy.paths[economy.jobs[j].account], economy.nodes[nodes[0]][0]] += economy.jobs[j].size
    wanted = economy.jobs[job]
    for k in np.flatnonzero(economy.able[job]).tolist():
        slots = sum(left // wanted.gpus for left, (at, _) in zip(free, economy.nodes, strict=True) if at == k)
        if slots >= wanted.workers and _allowed(economy, held, job, k):
            return True
    return False


def siblings(economy: Economy, account: int) -> list[int]:
    """Returns the other accounts with the same parent."""
    parent = economy.accounts[account].parent if account != NOWHERE else NOWHERE
    return [t for t in economy.children[parent] if t != account]
