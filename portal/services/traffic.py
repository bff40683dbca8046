"""The charts of a service's traffic: requests per second, latency, and requests that failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from accounting.core.clock import now_from_database
from accounting.core.wording import NO_NUMBER, percent
from portal.jobs.metric_charts import Charts, Panel, TimeAxis, number_with, panel_of
from portal.jobs.metrics import moment_of, timedelta_text
from portal.sessions.traffic import FLUSH_SECONDS
from scheduling.backends.summaries import Summary, of_value
from scheduling.models import Cluster, Service
from scheduling.services.traffic import FAILURES, Outcome, Traffic
from scheduling.services.traffic_samples import TrafficPoints, read_traffic

PERIODS = {
    "1h": ("Last hour", timedelta(hours=1)),
    "6h": ("6 hours", timedelta(hours=6)),
    "1d": ("Day", timedelta(days=1)),
    "30d": ("30 days", timedelta(days=30)),
}
USUAL = "1h"
# The names of requests that did not end well: of the lines of a chart, and beside their number.
ERRORS: Mapping[Outcome, str] = {
    Outcome.CLIENT_ERROR: "4xx",
    Outcome.SERVER_ERROR: "5xx",
    Outcome.NO_REPLICA: "no replica",
    Outcome.NO_ANSWER: "unreachable",
    Outcome.TIMED_OUT: "timed out",
}
COUNTED: Mapping[Outcome, str] = {
    Outcome.CLIENT_ERROR: "Client errors (4xx)",
    Outcome.SERVER_ERROR: "Server errors (5xx)",
    Outcome.NO_REPLICA: "No replica ready",
    Outcome.NO_ANSWER: "Replica unreachable",
    Outcome.TIMED_OUT: "Timed out",
    Outcome.LEFT: "Sender left",
}
LONG_SECONDS = 10.0  # from this latency on, the chart has seconds instead of milliseconds


def traffic_context(service: Service, asked: str) -> dict[str, Any]:
    """Returns what the part of a service's page with its traffic shows. `asked` is a key of PERIODS, or anything."""
    last = asked if asked in PERIODS else USUAL
    ends = service.removed_at or counted_until()
    found = read_traffic(service, begins=ends - PERIODS[last][1], ends=ends)
    whole = found.whole
    context = {
        "traffic_last": last,
        "traffic_periods": [(key, label) for key, (label, _) in PERIODS.items()],
        "traffic_note": not_counted(service),
        "charts": None,
    }
    if whole.is_empty:
        return context
    return context | {
        "charts": Charts(TimeAxis(found.count), [("", panels_of(found))]),
        "traffic_figures": figures_of(found, whole),
        "times": json.dumps([moment_of(found.time_of(place)) for place in range(found.count)]),
        "axis": [moment_of(found.begins), moment_of(found.ends)],
        "step_text": timedelta_text(found.seconds),
    }


def counted_until() -> datetime:
    """Returns the time until which web servers have stored what they counted."""
    return now_from_database() - timedelta(seconds=FLUSH_SECONDS)


def not_counted(service: Service) -> str:
    """Returns a sentence on which requests Fairlot cannot count."""
    if service.cluster.backend == Cluster.Backend.LOCAL:
        return "Requests that programs send to the address of a replica itself are not counted."
    where = f"http://{service.name} inside the cluster"
    return f"Requests that pods send to {where} do not pass Fairlot and are not counted."


def panels_of(found: TrafficPoints) -> list[Panel]:
    axis = TimeAxis(found.count)
    rates: dict[float, Summary] = {place: of_value(found.rate_of(place)) for place in range(found.count)}
    high = _percentile(found, 0.95)
    seconds = max((point.high for point in high.values()), default=0.0) >= LONG_SECONDS
    panels = [_panel("requests", "Requests", "per second", [("", rates)], axis)]
    if high:
        lines = [("p50", _percentile(found, 0.5)), ("p95", high)]
        if not seconds:
            lines = [
                (label, {at: of_value(1000 * one.mean) for at, one in some.items()}) for label, some in lines
            ]
        panels.append(_panel("latency", "Latency", "s" if seconds else "ms", lines, axis))
    shown = [outcome for outcome in ERRORS if found.whole.count(outcome)] or [Outcome.SERVER_ERROR]
    errors = [(ERRORS[outcome], _part(found, outcome)) for outcome in shown]
    return [*panels, _panel("errors", "Errors", "% of requests", errors, axis)]


def failed_part(traffic: Traffic) -> float:
    """Returns which part of the requests failed without a fault of their sender."""
    failed = sum(traffic.count(outcome) for outcome in FAILURES)
    return failed / traffic.requests if traffic.requests else 0.0


def figures_of(found: TrafficPoints, whole: Traffic) -> list[tuple[str, str]]:
    """Returns the figures of the whole period: pairs of a label and a text."""
    p50, p95 = whole.percentile(0.5), whole.percentile(0.95)
    covered = (found.ends - found.begins).total_seconds()
    return [
        ("Requests", f"{whole.requests}"),
        ("Per second", number_with(whole.requests / covered, "")),
        ("Latency p50", latency_text(p50)),
        ("Latency p95", latency_text(p95)),
        ("Failed", percent(failed_part(whole))),
        *((COUNTED[outcome], f"{number}") for outcome in COUNTED if (number := whole.count(outcome))),
    ]


def latency_text(seconds: float | None) -> str:
    if seconds is None:
        return NO_NUMBER
    return number_with(seconds, "s") if seconds >= LONG_SECONDS else number_with(1000 * seconds, "ms")


def _panel(
    key: str, title: str, unit: str, lines: list[tuple[str, dict[float, Summary]]], axis: TimeAxis
) -> Panel:
    return panel_of(f"traffic-{key}", title, unit, lines, axis, from_zero=True)


def _percentile(found: TrafficPoints, part: float) -> dict[float, Summary]:
    values = {place: point.percentile(part) for place, point in sorted(found.points.items())}
    return {place: of_value(value) for place, value in values.items() if value is not None}


def _part(found: TrafficPoints, outcome: Outcome) -> dict[float, Summary]:
    return {
        place: of_value(100 * point.count(outcome) / point.requests)
        for place, point in sorted(found.points.items())
    }
