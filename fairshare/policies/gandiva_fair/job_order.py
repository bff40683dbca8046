"""Determines the order in which each account wants its own jobs to run.

The order between different accounts is decided elsewhere, in `turns.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairshare.columns import sort_keys
from fairshare.model import NOWHERE, Accounts, Bools, Ints, Jobs, Settings


@dataclass(frozen=True, slots=True)
class JobOrder:
    """Jobs of all accounts in one list, sorted by account. The jobs of each account are in the order in which it wants
    them to run.

    A position is an index into this list.
    """

    jobs: Ints  # sorted by account, then by rank
    listed: list[int]  # `jobs` as a list
    account: Ints  # the account of each of `jobs`
    level_end: Ints  # for each position, the end of the jobs with the same account and priority
    begin: dict[int, int]  # first position of each account
    end: dict[int, int]

    @classmethod
    def of(cls, jobs: Jobs, order: Ints, chosen: Bools, settings: Settings) -> JobOrder:
        """Returns the list of the jobs marked in `chosen` (J,).

        `order` (J,): the rank of each job, from `wanted_order`. The jobs of an account are sorted by rank, the lowest
        first. In additional rounds between two quanta (`settings.reclaim`), running jobs come before waiting jobs.
        """
        wanted = np.empty(len(jobs), dtype=np.int64)
        wanted[order] = np.arange(len(jobs))
        some = wanted[chosen[wanted]]
        running = jobs.running_on[some] != NOWHERE
        by = np.lexsort((~running & settings.reclaim, *sort_keys(jobs.account[some])))
        some, running = some[by], running[by]
        account = jobs.account[some]
        alike = [account, jobs.priority[some], running & _keeps(jobs)[some]]
        if settings.reclaim:
            alike.append(running)
        new = np.ones(len(some) + 1, dtype=bool)
        new[1:-1] = np.any([key[1:] != key[:-1] for key in alike], axis=0)
        edges = np.flatnonzero(new)
        level_end = np.repeat(edges[1:], np.diff(edges)) if len(some) else edges[:0]
        return cls._by_account(some, account, level_end)

    @classmethod
    def _by_account(cls, jobs: Ints, account: Ints, level_end: Ints) -> JobOrder:
        begin = np.flatnonzero(np.diff(account, prepend=NOWHERE))
        end = np.append(begin[1:], len(jobs))[: len(begin)]
        owners = account[begin].tolist()
        return cls(
            jobs,
            jobs.tolist(),
            account,
            level_end,
            dict(zip(owners, begin.tolist(), strict=True)),
            dict(zip(owners, end.tolist(), strict=True)),
        )

    def without(self, gone: Bools) -> JobOrder:
        """Returns a copy of the list without the jobs marked in `gone` (J,)."""
        stays = ~gone[self.jobs]
        before = np.append(0, np.cumsum(stays))  # for each position, the number of jobs before it that stay
        return JobOrder._by_account(self.jobs[stays], self.account[stays], before[self.level_end[stays]])


def wanted_order(jobs: Jobs, accounts: Accounts, settings: Settings) -> Ints:
    """Returns the rank of each job, as an array (J,). An account wants its jobs with lower ranks to run first.

    Running services and sessions have the lowest ranks. All other jobs follow by priority, the highest first. Jobs of
    equal priority keep the order that they have in `jobs`.

    Accounts that share evenly (`accounts.evenly`) are an exception. Among their jobs of equal priority, the job that
    has received the least GPU time, divided by its number of GPUs, comes first. For a running job, one quantum is
    subtracted, so that two jobs do not replace each other after every quantum.
    """
    had = np.zeros(len(jobs))
    running = jobs.running_on != NOWHERE
    if accounts.evenly is not None and jobs.attained is not None:
        each = (
            jobs.attained.sum(axis=1) / np.maximum(jobs.workers * jobs.gpus, 1) - settings.quantum * running
        )
        had = np.where(accounts.evenly[jobs.account], each, 0.0)
    rank = np.empty(len(jobs), dtype=np.int64)
    ordered = np.lexsort((np.arange(len(jobs)), had, -jobs.priority, ~(running & _keeps(jobs))))
    rank[ordered] = np.arange(len(jobs))
    return rank


def alike(*columns: Ints) -> Ints:
    """Returns a number for each of J jobs, as an array (J,). Two jobs have the same number if they are equal in all
    columns, and different numbers if not.

    `columns`: arrays (J,) of integers ≥ 0, such as the account and the size of each job.
    """
    many = len(columns[0])
    found, span = np.zeros(many, dtype=np.int64), 1
    for column in columns:
        values = int(column.max(initial=0)) + 1
        if span * values >= 2**62:
            found = np.unique(found, return_inverse=True)[1]
            span = len(found) + 1
        found, span = found * values + column, span * values
    if span > 4 * many:
        return np.unique(found, return_inverse=True)[1]
    occurs = np.zeros(span, dtype=np.int64)
    occurs[found] = 1
    number: Ints = (np.cumsum(occurs) - 1)[found]
    return number


def _keeps(jobs: Jobs) -> Bools:
    return np.zeros(len(jobs), dtype=bool) if jobs.keeps is None else jobs.keeps
