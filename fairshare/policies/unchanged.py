"""Decides whether a policy may reuse the division of the cluster that it computed in an earlier round.

A division says how many GPUs of each generation each account gets. It does not say which gangs run.
"""

from __future__ import annotations

from dataclasses import fields, replace

from fairshare.model import Accounts, Jobs, Snapshot

# Fields that change from round to round even while the same jobs are active.
_OF_JOBS = frozenset({"running_on", "resident", "place_start", "place_node", "attained"})
_OF_ACCOUNTS = frozenset({"owed"})


def divides_alike(one: Snapshot, other: Snapshot) -> bool:
    """Returns whether the division computed for one view is also valid for the other view.

    It is valid if hardware, accounts, jobs and settings are the same. These may differ:
    - where gangs run and since when, and how much GPU time jobs have had;
    - what accounts are owed;
    - the settings `may_preempt` and `reclaim`.

    Arrays count as the same only if they are the same objects, because comparing their contents would be slow. The
    result can therefore be False for equal views. It is always False if nodes of `one` are closed to new gangs.
    """
    if one.cluster.closed is not None:  # where a job may run depends on where it runs
        return False
    return (
        one.cluster is other.cluster
        and _same(one.jobs, other.jobs, but=_OF_JOBS)
        and _same(one.accounts, other.accounts, but=_OF_ACCOUNTS)
        and replace(one.settings, may_preempt=True, reclaim=False)
        == replace(other.settings, may_preempt=True, reclaim=False)
    )


def _same(one: Jobs | Accounts, other: Jobs | Accounts, *, but: frozenset[str]) -> bool:
    names = [field.name for field in fields(one) if field.name not in but]
    return all(getattr(one, name) is getattr(other, name) for name in names)
