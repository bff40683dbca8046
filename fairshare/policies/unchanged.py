"""Tells whether a policy may use again what it worked out for an earlier view."""

from __future__ import annotations

from dataclasses import fields, replace

from fairshare.model import Accounts, Jobs, Snapshot

# What changes from round to round though the same jobs are there.
_OF_JOBS = frozenset({"running_on", "resident", "place_start", "place_node", "attained"})
_OF_ACCOUNTS = frozenset({"owed"})


def divides_alike(one: Snapshot, other: Snapshot) -> bool:
    """Whether two views have the very same hardware, accounts, jobs and settings, but for where gangs run and when.

    It compares objects, not their contents, so that it takes no time; False says nothing.
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
