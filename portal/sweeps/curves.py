"""Prepares the line chart of a sweep: its metric in the course of the best members and of those at work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from portal.jobs.metric_charts import MOST_JOBS
from portal.jobs.metrics import compared
from scheduling.models import Sweep, SweepMember
from scheduling.sweeps.parameters import text_of

MOST_BEST = 3  # members of which the curves are drawn, if as many more are at work
MOST_LABELLED = 3  # parameters in the name of a curve


def curves_of(sweep: Sweep, best_members: Sequence[SweepMember]) -> dict[str, Any] | None:
    """Returns the template context of the chart; None if the sweep has no metric, or if no value of it is known.

    `best_members`: members with a value of the metric, the best first.
    """
    members = _members_of(sweep, best_members) if sweep.metric else []
    jobs = [member.job for member in members if member.job]
    if not jobs:
        return None
    context = compared(jobs, labels=[_label(sweep, member) for member in members], only=sweep.metric)
    return context if context["charts"] else None


def _members_of(sweep: Sweep, best_members: Sequence[SweepMember]) -> Sequence[SweepMember]:
    """Returns at most MOST_JOBS members with a job: the best ones, then those at work, and then the next best."""
    of = SweepMember.objects.filter(sweep=sweep, job__isnull=False).select_related("job").defer("job__spec")
    succeeded = [one for one in best_members if one.state == SweepMember.State.SUCCEEDED and one.job_id]
    ranks = {one.pk: rank for rank, one in enumerate(succeeded[:MOST_JOBS])}
    best = sorted(of.filter(pk__in=ranks), key=lambda one: ranks[one.pk]) if ranks else []
    active = of.filter(state=SweepMember.State.ACTIVE, job__first_started_at__isnull=False)
    at_work = list(active.order_by("index")[:MOST_JOBS])
    return [*best[:MOST_BEST], *at_work, *best[MOST_BEST:]][:MOST_JOBS]


def _label(sweep: Sweep, member: SweepMember) -> str:
    values = [f"{name} {text_of(member.parameters[name])}" for name in sweep.names[:MOST_LABELLED]]
    return f"{member.index}: {', '.join(values)}" if values else f"member {member.index}"
