"""Contains the input for picking gangs: for choosing which gangs run until the next round.

Everything here is known before the first gang is picked. Sizes of arrays: J jobs, T accounts, K generations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.model import NOWHERE, Bools, Floats, Ints, Jobs, Settings, Snapshot
from fairshare.policies.gandiva_fair.balances import Balances, guaranteed_after_trades
from fairshare.policies.gandiva_fair.classes import speeds_of
from fairshare.policies.gandiva_fair.job_order import wanted_order
from fairshare.policies.gandiva_fair.shares import Shares
from fairshare.quotas import Limits
from fairshare.tree import Tree


@dataclass(frozen=True, slots=True)
class Facts:
    """The input for picking gangs in one decision. It does not change while gangs are picked.

    Some fields exist twice: as an array, and as a list, because lists give faster access to single entries.
    """

    snapshot: Snapshot
    jobs: Jobs
    settings: Settings
    tree: Tree
    able: Bools  # (J, K) where each job may run now
    sharing: Bools  # (J, K) `able`, but False for jobs that take no part in the sharing
    shares: Shares
    balances: Balances
    limits: Limits
    affinity: Floats  # (J, K) the result of `affinities`
    speed: Floats  # (J, K) the result of `speeds_of`
    order: Ints  # (J,) the result of `wanted_order`
    sizes: Ints  # (J,) GPUs of the whole gang
    size: list[int]  # `sizes` as a list
    workers: list[int]
    gpus: list[int]  # GPUs of one worker
    account: list[int]
    running_on: list[int]
    # (J,) services and sessions that have GPUs; they do not move while they run
    rooted: Bools
    stays: Bools  # (J,) gangs that do not leave a generation for gangs that are due time there
    may_move: bool  # whether running gangs may change places

    @classmethod
    def of(  # noqa: PLR0917 - what a decision has worked out before, in that order
        cls,
        snapshot: Snapshot,
        tree: Tree,
        able: Bools,
        shares: Shares,
        affinity: Floats,
        balances: Balances,
        limits: Limits,
    ) -> Facts:
        """Creates the facts of one decision from the results of earlier steps.

        `able`, `shares`, `affinity` and `limits` are the results of `may_run`, `share_out` (after trades), `affinities`
        and `limits_of`. `balances` says what accounts are owed from earlier rounds.
        """
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
            affinity=affinity,
            speed=speeds_of(jobs, able),
            order=wanted_order(jobs, snapshot.accounts, settings),
            sizes=sizes,
            size=sizes.tolist(),
            workers=jobs.workers.tolist(),
            gpus=jobs.gpus.tolist(),
            account=jobs.account.tolist(),
            running_on=jobs.running_on.tolist(),
            rooted=rooted,
            stays=rooted
            | (runs & ((jobs.resident < settings.min_hold) | jobs.on_any(snapshot.cluster.closed))),
            may_move=settings.is_quantum,
        )

    @property
    def leaves_idle(self) -> bool:
        """Returns whether some gangs may run only on GPUs that the sharing by tickets leaves over.

        There are two kinds of these gangs: preemptible gangs, and gangs beyond the limit of their account in
        `limits.claims`. The GPUs are given out to them in a separate step.
        """
        return self.limits.claims is not None or self.jobs.preemptible is not None

    def takes_part(self, job: int) -> bool:
        return self.jobs.preemptible is None or not self.jobs.preemptible[job]

    def in_order(self, chosen: Bools) -> list[int]:
        """Returns the gangs marked in `chosen` (J,) as a list. Each account's gangs are in the order in which the
        account wants them to run."""
        some = np.flatnonzero(chosen)
        ordered: list[int] = some[np.argsort(self.order[some])].tolist()
        return ordered

    def holders(self) -> Bools:
        """Returns which running gangs may keep their GPUs, as a mask (J,).

        In a round that may preempt, these are the running gangs that are still allowed on their generation. In any
        other round, these are all running gangs.
        """
        jobs = self.jobs
        holds: Bools = jobs.running_on != NOWHERE
        if self.settings.may_preempt and len(jobs) and self.able.shape[1]:
            holds = holds & self.able[np.arange(len(jobs)), jobs.running_on]
        return holds

    def within_guarantee(self, chosen: Bools) -> Bools:
        """Returns which of the gangs marked in `chosen` (J,) are within the guarantees of their account and of all
        accounts above it, as a mask (J,).

        The guarantee of an account covers its guaranteed GPUs. Guaranteed time that the account has saved covers more
        GPUs for one quantum. For example, 600 GPU-seconds cover 2 more GPUs in a quantum of 300 seconds.

        The guarantee covers gangs in the order in which the account wants them to run. For example, 5 GPUs cover gangs
        of 2 and 3 GPUs, but not a third gang. Preemptible gangs are never covered. Gangs that are not marked in
        `chosen` do not use up the guarantee.
        """
        jobs, tree = self.jobs, self.tree
        if not chosen.any():
            return chosen
        due = (
            guaranteed_after_trades(self.shares).sum(axis=1)
            + self.balances.guaranteed / self.settings.quantum
        )
        takes_part = chosen if jobs.preemptible is None else chosen & ~jobs.preemptible
        some = np.flatnonzero(takes_part)
        some = some[np.argsort(self.order[some])]
        within, account = np.ones(len(some), dtype=bool), jobs.account[some]
        for _ in tree.levels:
            # The first gangs of each account, as many as its guarantee covers.
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
