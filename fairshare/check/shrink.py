"""Reduces a failing test case: removes every part of an economy that is not needed to break the promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from fairshare.check.economy import INF, Account, Economy
from fairshare.model import NOWHERE, Settings


def shrink(economy: Economy, breaks: Callable[[Economy], bool], *, tries: int = 400) -> Economy:
    """Returns a smaller economy for which `breaks` still returns True, found by removing one part after another.

    Calls `breaks` at most `tries` times.
    """
    changed = True
    while changed and tries > 0:
        changed = False
        for smaller in _smaller(economy):
            tries -= 1
            if tries < 0:
                break
            if breaks(smaller):
                economy, changed = smaller, True
                break
    return economy


def _smaller(economy: Economy) -> Iterator[Economy]:
    """Yields slightly simpler economies: with fewer rounds, jobs, accounts or nodes, or with fields set to their
    defaults.

    For rounds and for jobs, large reductions come first.
    """
    if economy.rounds > 2:
        for rounds in (economy.rounds // 2, economy.rounds * 3 // 4, economy.rounds - 1):
            yield replace(economy, rounds=max(rounds, 1))
    jobs = economy.jobs
    part = len(jobs) // 2
    while part:
        for at in range(0, len(jobs), part):
            yield replace(economy, jobs=jobs[:at] + jobs[at + part :])
        part //= 2
    for t in range(len(economy.accounts) - 1, -1, -1):
        if not any(t in economy.paths[job.account] for job in jobs):
            yield _without(economy, t)
    for n in range(len(economy.nodes)):
        left = economy.nodes[:n] + economy.nodes[n + 1 :]
        if {k for k, _ in left} == {k for k, _ in economy.nodes}:
            yield replace(economy, nodes=left)
    settings = economy.settings
    for name in ("ordering", "min_hold", "switch_cost"):
        usual = getattr(Settings(), name)
        if getattr(settings, name) != usual:
            yield replace(economy, settings=replace(settings, **{name: usual}))
    yield from _simpler_accounts(economy)
    yield from _simpler_jobs(economy)


def _without(economy: Economy, account: int) -> Economy:
    def index(t: int) -> int:
        return t - (t > account)

    accounts = [
        replace(one, parent=index(one.parent)) for t, one in enumerate(economy.accounts) if t != account
    ]
    jobs = [replace(job, account=index(job.account)) for job in economy.jobs]
    return replace(economy, accounts=tuple(accounts), jobs=tuple(jobs))


def _simpler_accounts(economy: Economy) -> Iterator[Economy]:
    for t, account in enumerate(economy.accounts):
        simpler: list[Account] = []
        if account.cap:
            simpler.append(replace(account, cap={}))
        if account.cap_total < INF:
            simpler.append(replace(account, cap_total=INF))
        if account.tickets != 1.0:
            simpler.append(replace(account, tickets=1.0))
        if account.parent != NOWHERE:
            simpler.append(replace(account, parent=economy.accounts[account.parent].parent))
        for one in simpler:
            accounts = (*economy.accounts[:t], one, *economy.accounts[t + 1 :])
            still_inner = {other.parent for other in accounts}
            if not any(job.account in still_inner for job in economy.jobs):
                yield replace(economy, accounts=accounts)


def _simpler_jobs(economy: Economy) -> Iterator[Economy]:
    for at, job in enumerate(economy.jobs):
        simpler = []
        if job.comes:
            simpler.append(replace(job, comes=0))
        if job.goes is not None:
            simpler.append(replace(job, goes=None))
        if job.priority:
            simpler.append(replace(job, priority=0))
        if job.rate:
            simpler.append(replace(job, rate={}))
        if job.accepts is not None:
            simpler.append(replace(job, accepts=None))
        if job.workers > 1:
            simpler += [replace(job, workers=1), replace(job, workers=job.workers - 1)]
        if job.gpus > 1:
            simpler += [replace(job, gpus=1), replace(job, gpus=job.gpus - 1)]
        for one in simpler:
            yield replace(economy, jobs=(*economy.jobs[:at], one, *economy.jobs[at + 1 :]))
