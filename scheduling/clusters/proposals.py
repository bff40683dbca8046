"""Says what other scheduling settings of a cluster would change: present and new values, and what follows from them.

Stores nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.db.models.fields.json import KT

from accounting.core.clock import now_from_database
from accounting.core.wording import counted, duration, percent
from scheduling.clusters.actions import check_settings
from scheduling.models import Cluster, Job, Lease

# The settings that are proposed and changed together; the policy and the shadow policy have their own page.
SETTINGS = {
    "ordering": "Ordering",
    "slicing": "Time slicing",
    "quantum_seconds": "Quantum",
    "min_hold_seconds": "Minimum time before suspension",
    "notice_seconds": "Suspension notice",
    "overhead_limit": "Highest allowed switching overhead",
    "cpu_per_gpu": "Default CPUs per GPU",
    "memory_per_gpu": "Default memory per GPU",
    "cpu_limit_per_gpu": "Maximum CPUs requested per GPU",
    "memory_limit_per_gpu": "Maximum memory requested per GPU",
    "trading": "Trade GPU time between GPU types",
}


@dataclass(frozen=True, slots=True)
class SettingChange:
    """How one setting of a cluster would change. `before` and `after` are values for people; `effect` is what
    follows."""

    name: str
    label: str
    before: str
    after: str
    effect: str


def changes_by(cluster: Cluster, settings: Mapping[str, Any]) -> list[SettingChange]:
    """Returns the changes that these settings would make, each with its effect. Settings that stay are left out.

    Raises Refused, like `update_cluster`, if a setting is unknown or its value is invalid.
    """
    check_settings(settings)
    changed = copy(cluster)
    for name, value in settings.items():
        setattr(changed, name, value)
    return [
        SettingChange(
            name,
            label,
            _in_words(cluster, name),
            _in_words(changed, name),
            EFFECTS[name](cluster, changed),
        )
        for name, label in SETTINGS.items()
        if getattr(cluster, name) != getattr(changed, name)
    ]


def _in_words(cluster: Cluster, name: str) -> str:
    value = getattr(cluster, name)
    match name:
        case "ordering" | "slicing":
            return str(getattr(cluster, f"get_{name}_display")())
        case "trading":
            return "on" if value else "off"
        case "overhead_limit":
            return f"{value * 100:g} %"
        case "cpu_per_gpu" | "memory_per_gpu" | "cpu_limit_per_gpu" | "memory_limit_per_gpu":
            unit = " GiB" if name.startswith("memory") else ""
            return "none" if value is None else f"{value:g}{unit}"
    return f"{value:g} s"


def _of_ordering(before: Cluster, after: Cluster) -> str:
    return "The next round picks gangs in this way if not all fit. Shares stay the same over time."


def _of_slicing(before: Cluster, after: Cluster) -> str:
    if after.backend == Cluster.Backend.KUBERNETES:
        return "Kubernetes cannot freeze gangs, so all three choices save a checkpoint and exit."
    running = _running(after)
    named = Job.objects.alias(pattern=KT("spec__checkpoint")).filter(pattern__gt="")
    patterns = running.filter(job__in=named).count()
    gangs = f"Of {counted(running.count(), 'running gang')}, {patterns} with a checkpoint pattern"
    match after.slicing:
        case Cluster.Slicing.CHECKPOINT:
            return f"{gangs} would resume from a checkpoint when their turn is over; the others begin again."
        case Cluster.Slicing.FREEZE:
            return (
                f"{gangs}. All would be frozen when their turn is over, and keep their GPU memory meanwhile."
            )
    return f"{gangs} would save and exit when their turn is over; the others are frozen and keep their GPU memory."


def _of_quantum(before: Cluster, after: Cluster) -> str:
    was, becomes = before.effective_quantum, after.effective_quantum
    rounds = f"A quantum round every {duration(becomes)} instead of {duration(was)}"
    if becomes > after.quantum_seconds:
        rounds += ", because switching is slow"
    if not after.switch_seconds:
        return f"{rounds}. No switch has been measured yet."
    costs = f"switching would take up to {percent(after.switch_seconds / becomes)} of the time"
    return f"{rounds}; {costs} instead of {percent(before.switch_seconds / was)}."


def _of_min_hold(before: Cluster, after: Cluster) -> str:
    now = now_from_database()
    young = [
        _running(after).filter(running_from__gt=now - timedelta(seconds=one.min_hold_seconds)).count()
        for one in (before, after)
    ]
    running = counted(_running(after).count(), "running gang")
    return f"Of {running}, {young[1]} could not be suspended now; with the present value {young[0]}."


def _of_notice(before: Cluster, after: Cluster) -> str:
    warned = _running(after).filter(job__kind__in=[Job.Kind.REPLICA, Job.Kind.SESSION]).count()
    return (
        f"Replicas and sessions, {warned} of which run now, would be warned {duration(after.notice_seconds)} before a "
        "suspension."
    )


def _of_trading(before: Cluster, after: Cluster) -> str:
    if after.trading:
        return "The next round may trade GPU time between teams where both gain."
    return "The next round makes no trades: each team gets only GPU types that its own tickets buy, or that are free."


def _of_defaults(before: Cluster, after: Cluster) -> str:
    return "Holds for workers that start from now on; running ones keep what they have."


def _of_limits(before: Cluster, after: Cluster) -> str:
    return "Holds for jobs that are submitted from now on."


EFFECTS: dict[str, Callable[[Cluster, Cluster], str]] = {
    "ordering": _of_ordering,
    "slicing": _of_slicing,
    "quantum_seconds": _of_quantum,
    "overhead_limit": _of_quantum,
    "min_hold_seconds": _of_min_hold,
    "notice_seconds": _of_notice,
    "trading": _of_trading,
    "cpu_per_gpu": _of_defaults,
    "memory_per_gpu": _of_defaults,
    "cpu_limit_per_gpu": _of_limits,
    "memory_limit_per_gpu": _of_limits,
}


def _running(cluster: Cluster) -> QuerySet[Lease]:
    return Lease.objects.filter(cluster=cluster, state=Lease.State.RUNNING)
