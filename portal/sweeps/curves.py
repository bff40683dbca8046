"""Prepares the line chart of a sweep: its metric in the course of chosen members, or of the best and those at work."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from accounting.core.numbers import read_whole
from portal.jobs.metric_charts import MOST_JOBS
from portal.jobs.metrics import compared
from scheduling.models import Sweep, SweepMember
from scheduling.sweeps.parameters import text_of

MOST_BEST = 3  # members of which the curves are drawn, if as many more are at work
MOST_LABELLED = 3  # parameters in the name of a curve
BETWEEN = re.compile(r"[,# ]+")  # between the indices of chosen members


def read_chosen(text: str) -> list[int]:
    """Returns the indices of members in the text, at most MOST_JOBS; words that are no numbers are left out."""
    found = (read_whole(word) for word in BETWEEN.split(text[:200]))
    return list(dict.fromkeys(index for index in found if index is not None))[:MOST_JOBS]


def with_or_without(index: int, chosen: Sequence[int], drawn: Sequence[int]) -> str:
    """Returns the text of the choice in which the member is drawn if it is not now, and not drawn if it is.

    `drawn` are the members of which curves are drawn now: those in `chosen`, or the usual ones.
    """
    more = [*(chosen or drawn)[: MOST_JOBS - 1], index]
    left = [one for one in drawn if one != index] if index in drawn else more
    return ",".join(map(str, left))


def curves_of(
    sweep: Sweep, best_members: Sequence[SweepMember], chosen: Sequence[int] = ()
) -> dict[str, Any] | None:
    """Returns the template context of the chart; None if the sweep has no metric, or if no value of it is known.

    - `best_members`: members with a value of the metric, the best first.
    - `chosen`: the indices of the members to draw; empty for the best ones and those at work.
    """
    if not sweep.metric:
        return None
    members = _chosen_of(sweep, chosen) if chosen else _members_of(sweep, best_members)
    jobs = [member.job for member in members if member.job]
    if not jobs:
        return None
    context = compared(jobs, labels=[_label(sweep, member) for member in members], only=sweep.metric)
    drawn = [member.index for member in members if member.job]
    return context | {"drawn": drawn, "are_chosen": bool(chosen)} if context["charts"] else None


def _chosen_of(sweep: Sweep, chosen: Sequence[int]) -> Sequence[SweepMember]:
    of = SweepMember.objects.filter(sweep=sweep, job__isnull=False).select_related("job").defer("job__spec")
    return sorted(of.filter(index__in=chosen), key=lambda one: chosen.index(one.index))


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
