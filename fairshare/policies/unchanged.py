"""Decides whether a policy may reuse the division of the cluster that it computed for an earlier view."""

from __future__ import annotations

from dataclasses import fields, replace

from fairshare.model import Accounts, Jobs, Snapshot

# Fields that change from round to round even while the same jobs are active.
_OF_JOBS = frozenset({"running_on", "resident", "place_start", "place_node", "attained"})
_OF_ACCOUNTS = frozenset({"owed"})


def divides_alike(one: Snapshot, other: Snapshot) -> bool:
    """Returns whether two views lead to the same division: same hardware, accounts, jobs and settings.

    Where gangs run, and since when, may differ. To be fast, the function compares whether arrays are the same objects,
    not their contents. It may therefore return False for views that are equal.
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
