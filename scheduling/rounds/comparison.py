"""Compares the decisions of a cluster's policy with the decisions of its shadow policy for the same snapshots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from accounting.core.clock import now_from_database
from accounting.core.name_order import name_key
from accounting.models import Generation, Tenant
from fairshare import model as fs
from fairshare.validate import stays_put
from scheduling.models import Cluster, ShadowRound

LOOKS_BACK = timedelta(days=1)
STATES = {"waiting": "Jobs waiting", "waiting_gpus": "GPUs that waiting jobs need", "given": "GPUs given"}


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    real: float
    shadow: float


@dataclass(frozen=True, slots=True)
class TeamShare:
    """A team's average number of GPUs of one generation, under the real policy and under the shadow policy."""

    tenant: Tenant
    generation: str
    real: float
    shadow: float


@dataclass(frozen=True, slots=True)
class Comparison:
    real_name: str
    shadow_name: str
    rounds: int
    since: datetime | None
    figures: Sequence[Figure]
    shares: Sequence[TeamShare]


def figures_of(plan: fs.Decision, view: fs.Snapshot) -> dict[str, int]:
    """Returns four numbers about a decision, by name.

    - `waiting`: the number of jobs that could run but wait.
    - `waiting_gpus`: the number of GPUs that these jobs need.
    - `given`: the number of GPUs that picked gangs get.
    - `switches`: the number of running gangs that are stopped or moved.
    """
    jobs = view.jobs
    size = jobs.workers * jobs.gpus
    never = [int(reason) for reason in fs.Reason if reason.is_never]
    waits = (plan.reason != 0) & (jobs.blocked == 0) & ~np.isin(plan.reason, never)
    runs = jobs.running_on != fs.NOWHERE
    return {
        "waiting": int(waits.sum()),
        "waiting_gpus": int(size[waits].sum()),
        "given": int(plan.gpus(jobs).sum()),
        "switches": int((runs & ~stays_put(plan, jobs)).sum()),
    }


def compare(cluster: Cluster) -> Comparison:
    """Compares the policy and the shadow policy of a cluster, over the last day's rounds that both have decided."""
    name, version = cluster.shadow or ("", 0)
    now = now_from_database()
    rows = list(
        ShadowRound.objects.filter(
            round__cluster=cluster, policy=name, version=version, round__at__gte=now - LOOKS_BACK
        )
        .select_related("round")
        .defer("state", "plan")
        .order_by("round__number")
    )
    # Each decision is in force until the next round.
    ends = [*(row.round.at for row in rows[1:]), now] if rows else []
    most = 2 * cluster.effective_quantum  # in a longer gap nobody had jobs
    lasted = [min((end - row.round.at).total_seconds(), most) for row, end in zip(rows, ends, strict=True)]
    real = rows[-1].round if rows else None
    return Comparison(
        real_name=f"{real.policy} {real.policy_version}" if real else cluster.policy,
        shadow_name=f"{name} {version}",
        rounds=len(rows),
        since=rows[0].round.at if rows else None,
        figures=_figures(rows, lasted),
        shares=_shares(rows, lasted),
    )


def _figures(rows: Sequence[ShadowRound], lasted: Sequence[float]) -> list[Figure]:
    seconds = sum(lasted)
    if not seconds:
        return []
    found = [
        Figure(label, *(sum(part * lasts for part, lasts in zip(parts, lasted, strict=True)) / seconds
                        for parts in _both(rows, name)))
        for name, label in STATES.items()
    ]  # fmt: skip
    switches = [sum(parts) * 3600 / seconds for parts in _both(rows, "switches")]
    decided = [sum(row.round.decide_ms for row in rows), sum(row.decide_ms for row in rows)]
    found.append(Figure("Gangs stopped or moved per hour", *switches))
    found.append(Figure("Decision, ms", *(total / len(rows) for total in decided)))
    return found


def _both(rows: Sequence[ShadowRound], name: str) -> tuple[list[int], list[int]]:
    return [row.real_figures[name] for row in rows], [row.own_figures[name] for row in rows]


def _shares(rows: Sequence[ShadowRound], lasted: Sequence[float]) -> list[TeamShare]:
    seconds = sum(lasted)
    if not seconds:
        return []
    found: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row, lasts in zip(rows, lasted, strict=True):
        for which, rates in enumerate((row.round.shares, row.shares)):
            for rate in rates:
                found[rate["tenant"], rate["generation"]][which] += _gpus(rate) * lasts / seconds
    tenants = Tenant.objects.in_bulk({tenant for tenant, _ in found})
    names = Generation.objects.in_bulk({generation for _, generation in found})
    shares = [
        TeamShare(tenants[tenant], names[generation].name, real, shadow)
        for (tenant, generation), (real, shadow) in found.items()
        if tenant in tenants
    ]
    return sorted(shares, key=lambda one: (one.tenant.path, name_key(one.generation)))


def _gpus(rate: Mapping[str, float]) -> float:
    """Returns the number of GPUs that a team should get according to its ShareRate, after loans and trades."""
    return rate["entitled"] - rate["lent"] - rate["unused"] + rate["borrowed"] + rate["bought"] - rate["sold"]
