"""What a decision knows before the first gang is picked, as arrays and, for single gangs, as lists."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import NOWHERE, Bools, Floats, Ints, Jobs, Settings, Snapshot
from fairshare.policies.gandiva_fair.balances import Balances, tier_one
from fairshare.policies.gandiva_fair.classes import speeds_of
from fairshare.policies.gandiva_fair.line import wanted_order
from fairshare.policies.gandiva_fair.shares import Shares
from fairshare.quotas import Limits
from fairshare.tree import Tree


@dataclass(frozen=True, slots=True)
class Facts:
    """What all that pick gangs look at, and nobody changes."""

    snapshot: Snapshot
    jobs: Jobs
    settings: Settings
    tree: Tree
    able: Bools  # (J, K) where each job may run now
    sharing: Bools  # (J, K) the same of those jobs that take part in the sharing
    shares: Shares
    balances: Balances
    limits: Limits
    meant: Floats  # (J, K) as from meant_for
    speed: Floats  # (J, K) as from speeds_of
    order: Ints  # (J,) as from wanted_order
    sizes: Ints  # (J,) GPUs of the whole gang
    size: list[int]  # the same
    workers: list[int]
    gpus: list[int]  # of one worker
    account: list[int]
    running_on: list[int]
    # (J,) services and sessions that have GPUs: as long as they go on, they go on there.
    rooted: Bools
    stays: Bools  # (J,) gangs that no one else's turn on a generation moves
    may_move: bool  # whether gangs that run may change places

    @classmethod
    def of(  # noqa: PLR0917 - what a decision has worked out before, in that order
        cls,
        snapshot: Snapshot,
        tree: Tree,
        able: Bools,
        shares: Shares,
        meant: Floats,
        balances: Balances,
        limits: Limits,
    ) -> Facts:
        """`able` (J, K) as from may_run, `meant` (J, K) as from meant_for, `limits` as from limits_of."""
        jobs, settings = snapshot.jobs, snapshot.settings
        sizes, runs = jobs.workers * jobs.gpus, jobs.running_on != NOWHERE
        rooted = runs & (False if jobs.keeps is None else jobs.keeps)
        return cls(
            snapshot=snapshot,
            jobs=jobs,
            settings=settings,
            tree=tree,
            able=able,
            sharing=jobs.sharing(able),
            shares=shares,
            balances=balances,
            limits=limits,
            meant=meant,
            speed=speeds_of(jobs, able),
            order=wanted_order(jobs, snapshot.accounts, settings),
            sizes=sizes,
            size=sizes.tolist(),
            workers=jobs.workers.tolist(),
            gpus=jobs.gpus.tolist(),
            account=jobs.account.tolist(),
            running_on=jobs.running_on.tolist(),
            rooted=rooted,
            stays=rooted | (runs & (jobs.resident < settings.min_hold)),
            may_move=settings.is_quantum,
        )

    @property
    def leaves_idle(self) -> bool:
        """Whether there are gangs that may run only where nobody else wants the GPUs."""
        return self.limits.claims is not None or self.jobs.preemptible is not None

    def takes_part(self, job: int) -> bool:
        return self.jobs.preemptible is None or not self.jobs.preemptible[job]

    def in_order(self, chosen: Bools) -> list[int]:
        """The `chosen` (J,) gangs, as their owners want them."""
        some = np.flatnonzero(chosen)
        ordered: list[int] = some[np.argsort(self.order[some])].tolist()
        return ordered

    def holders(self) -> Bools:
        """(J,) the gangs that have GPUs and may go on with them. Where nobody may be stopped, all."""
        jobs = self.jobs
        holds: Bools = jobs.running_on != NOWHERE
        if self.settings.may_preempt and len(jobs) and self.able.shape[1]:
            holds = holds & self.able[np.arange(len(jobs)), jobs.running_on]
        return holds

    def within_guarantee(self, chosen: Bools) -> Bools:
        """(J,) the chosen gangs, in the order of their owners, for which the guarantees up the tree suffice."""
        jobs, tree = self.jobs, self.tree
        if not chosen.any():
            return chosen
        due = tier_one(self.shares).sum(axis=1) + self.balances.guaranteed / self.settings.quantum
        takes_part = chosen if jobs.preemptible is None else chosen & ~jobs.preemptible
        some = np.flatnonzero(takes_part)
        some = some[np.argsort(self.order[some])]
        within, account = np.ones(len(some), dtype=bool), jobs.account[some]
        for _ in tree.levels:
            # Of each account the first gangs, as far as what is due to it goes.
            there = np.flatnonzero(within & (account != NOWHERE))
            there = there[np.argsort(account[there], kind="stable")]
            size = self.sizes[some[there]]
            sums = np.cumsum(size)
            first = np.flatnonzero(np.diff(account[there], prepend=-2))
            before = np.repeat(sums[first] - size[first], np.diff(np.append(first, len(there))))
            within[there] = sums - before <= due[account[there]] + 1e-6
            account = np.where(account == NOWHERE, NOWHERE, tree.parent[account])
        found = np.zeros(len(jobs), dtype=bool)
        found[some[within]] = True
        return found
