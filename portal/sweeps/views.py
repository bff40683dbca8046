"""The page of a sweep, and its actions. The list is in portal/sweeps/listing.py, the form in
portal/sweeps/editing.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.paginator import Paginator
from django.db.models import Expression
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from portal.forms.posting import tell
from portal.fragments import render_page
from portal.reports.formats.answers import csv_answer
from portal.sorting import Sorting
from portal.sweeps.chart import MOST_LINES, draw
from portal.sweeps.curves import curves_of, read_chosen, with_or_without
from portal.sweeps.detail import causes_of, cost_of, waiting_of
from portal.sweeps.listing import label_of
from portal.user_request import UserRequest
from scheduling.metrics.reading import latest_of
from scheduling.models import Sweep, SweepMember
from scheduling.spec.job_spec import dump_stored
from scheduling.sweeps.actions import cancel_sweep, run_failed_again
from scheduling.sweeps.parameters import text_of
from scheduling.sweeps.tables import METRIC, PARAMETER, best_of, best_succeeded, csv_of, expression_of

MEMBERS_PER_PAGE = 50
MOST_METRICS = 8  # columns of the table; the CSV file has all
MEMBER_STATES = {
    "pending": ("warn", "clock"),
    "active": ("info", "play"),
    "succeeded": ("good", "check-circle"),
    "failed": ("bad", "x-circle"),
    "cancelled": ("muted", "slash"),
    "stopped": ("muted", "stop"),
    "skipped": ("muted", "slash"),
}


@require_safe
def sweep(request: UserRequest, pk: int) -> HttpResponse:
    """Shows a sweep: its members with their parameters and metrics, the numbers of members by state, and a chart."""
    shown = visible_sweep(request, pk)
    state = request.GET.get("state", "")
    members = shown.members.select_related("job").defer("job__spec")
    if state in SweepMember.State.values:
        members = members.filter(state=state)
    sorting = sorting_of(shown)
    page = Paginator(sorting.order(members, request.GET), MEMBERS_PER_PAGE).get_page(request.GET.get("page"))
    metrics = _metrics_of(shown)
    best_members = best_of(shown, MOST_LINES)
    best = best_succeeded(best_members)
    causes = causes_of(shown, page)
    active = [one for one in page if one.state == SweepMember.State.ACTIVE and one.job_id]
    latest = latest_of([one.job_id for one in active if one.job_id]) if active else {}
    chosen = read_chosen(request.GET.get("curves", ""))
    curves = curves_of(shown, best_members, chosen)
    drawn = curves["drawn"] if curves else []
    context = {
        "sweep": shown,
        "chip": label_of(shown),
        "counts": _counts(shown),
        "state": state,
        "sort": sorting.chosen(request.GET),
        "page": page,
        "parameters": [(f"{PARAMETER}{name}", name) for name in shown.names],
        "metrics": [(f"{METRIC}{name}", name) for name in metrics],
        "hidden_metrics": len({*shown.metric_names} - {*metrics}),
        "rows": [
            _row(shown, member, metrics, causes, latest)
            | {
                "is_drawn": member.index in drawn,
                "curves": with_or_without(member.index, chosen, drawn) if member.job_id else "",
            }
            for member in page
        ],
        "has_causes": any(causes.values()),
        "waiting": waiting_of(shown, request.user),
        "cost": cost_of(shown, request.user),
        "now": timezone.now(),
        "best": best,
        "best_value": _metric_text(best.metrics[shown.metric]) if best else "",
        "chart": draw(shown, best_members),
        "curves": curves,
        "chosen": chosen,
        "yaml": dump_stored(shown.spec),
        "may_change": Sweep.objects.changeable_by(request.user).filter(pk=pk).exists(),
        "may_run_failed": "failed" in shown.counts
        and shown.state in (Sweep.State.RUNNING, Sweep.State.FINISHED),
    }
    return render_page(request, "sweeps/sweep.html", context)


@require_safe
def members_csv(request: UserRequest, pk: int) -> HttpResponse:
    """Downloads all members of a sweep as a CSV file."""
    return csv_answer(csv_of(visible_sweep(request, pk)), f"fairlot-sweep-{pk}")


@require_POST
def cancel(request: UserRequest, pk: int) -> HttpResponse:
    shown = visible_sweep(request, pk)
    tell(
        request,
        lambda: cancel_sweep(actor=request.user, sweep=shown),
        f"The sweep {shown.name} has been cancelled. Its running jobs end within their grace period.",
    )
    return redirect("sweep", pk=pk)


@require_POST
def run_failed(request: UserRequest, pk: int) -> HttpResponse:
    shown = visible_sweep(request, pk)
    tell(
        request,
        lambda: run_failed_again(actor=request.user, sweep=shown),
        f"The failed members of {shown.name} run again.",
    )
    return redirect("sweep", pk=pk)


def visible_sweep(request: UserRequest, pk: int) -> Sweep:
    """Returns the sweep with this key. Raises Http404 if the user may not see the sweep."""
    seen = Sweep.objects.visible_to(request.user).select_related("tenant", "owner", "cluster", "cancelled_by")
    return get_object_or_404(seen, pk=pk)


def sorting_of(shown: Sweep) -> Sorting:
    """Returns the orders of a sweep's members. By default, the best member comes first, if the sweep has a metric."""
    columns: dict[str, Sequence[str | Expression]] = {
        name: (name,) for name in ("index", "state", "attempts")
    }
    keys = (
        *(f"{PARAMETER}{name}" for name in shown.names),
        *(f"{METRIC}{name}" for name in {shown.metric: None, **dict.fromkeys(shown.metric_names)} if name),
    )
    columns |= {key: (expression_of(key),) for key in keys}
    usual = "index"
    if shown.metric in shown.metric_names:
        usual = f"{'-' if shown.goal == Sweep.Goal.MAX else ''}{METRIC}{shown.metric}"
    return Sorting(columns, usual=usual, last="index")


def _metrics_of(shown: Sweep) -> list[str]:
    """Returns the metrics that the table shows: first the one by which members are compared, which stands beside the
    state, so that a phone shows it.

    It is shown also before a member has ended, for the values of those at work. Programs often print their parameters
    too. Those have a column already.
    """
    first = [shown.metric] if shown.metric else []
    others = (name for name in shown.metric_names if name != shown.metric and name not in shown.names)
    return [*first, *others][:MOST_METRICS]


def _row(
    shown: Sweep,
    member: SweepMember,
    metrics: list[str],
    causes: Mapping[int, str],
    latest: Mapping[int, Mapping[str, float]],
) -> dict[str, Any]:
    """Returns a row of the table. `latest` has the metrics of the members at work, by job."""
    tone, icon = MEMBER_STATES[member.state]
    values = latest.get(member.job_id or 0, member.metrics)
    return {
        "member": member,
        "chip": (member.get_state_display(), tone, icon),
        "cause": causes.get(member.index, ""),
        "parameters": [text_of(member.parameters[name]) for name in shown.names],
        "metrics": [_metric_text(values[name]) if name in values else "–" for name in metrics],
    }


def _metric_text(value: float) -> str:
    """Returns a metric with six significant digits, in the notation in which programs print it."""
    return f"{float(value):.6g}"


def _counts(shown: Sweep) -> list[tuple[str, str, int]]:
    """Returns (state, label, number of members) for each state that members have."""
    return [
        (state.value, state.label, shown.counts[state])
        for state in SweepMember.State
        if state in shown.counts
    ]
