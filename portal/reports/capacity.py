"""The capacity report, for operators: how all GPU time was used, its value at the GPU prices, and which teams paid for
it.

The report divides the GPU time into classes: busy, idle, assembling (until all workers of a gang run), free, used
outside Fairlot, drained and down.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from accounting.core.calendar import HOUR
from accounting.core.clock import now_from_database
from accounting.core.consistent_read import consistent_read
from accounting.core.name_order import by_name
from accounting.core.wording import to_the_minute
from accounting.models import ReportSubscription
from accounting.reports.capacity import CLASSES, CapacityReport, CapacityRow, Identity, capacity_report
from portal.access import permitted
from portal.reports.by_mail import by_mail
from portal.reports.formats import PERIOD, STATE, Column, Document, Kind, Table, answer
from portal.reports.periods import LABELS, Query, ReportPeriod, asked_period
from portal.reports.unsettled import state_of, unsettled_of
from portal.user_request import UserRequest
from scheduling.books.closing import keeping_open, may_be_closed_until
from scheduling.models import Cluster, Lease

WORDS = {
    "busy": "Busy",
    "idle": "Held idle",
    "assembling": "Workers starting",
    "free": "Free",
    "others": "Used outside Fairlot",
    "drained": "Drained",
    "down": "Down",
}

SUMS, NO_SUMS = "The costs sum to capacity x price", "The costs do not sum to capacity x price"


@require_safe
@permitted("report.all")
@consistent_read()
def capacity(request: UserRequest) -> HttpResponse:
    cluster, period, report = read_capacity(request.GET, is_page=True)
    most = max((row.capacity for row in report.rows), default=Decimal(0))
    context = {
        "clusters": list(Cluster.objects.order_by(*by_name("name"))),
        "cluster": cluster,
        "period": period,
        "periods": LABELS,
        "report": report,
        "state": [
            text if label == STATE else f"{label}: {text}" for label, text in _state(cluster, period, report)
        ],
        "words": WORDS,
        "rows": [(row, list(_parts(row, most))) for row in report.rows],
        "identities": [(one, list(_lines(one))) for one in report.identities],
        "held_up": list(_held_up(cluster, report)),
        "open_until": report.until and report.until + HOUR,
        **by_mail(request.user, ReportSubscription.Report.CAPACITY),
    }
    return render(request, "reports/capacity.html", context)


@require_safe
@permitted("report.all")
def capacity_file(request: UserRequest, form: str) -> HttpResponseBase:
    return capacity_in_format(request.GET, form)


@consistent_read()
def capacity_in_format(query: Query, form: str) -> HttpResponseBase:
    """Returns the capacity report as a file with exact figures. `form` is the file format."""
    cluster, period, report = read_capacity(query)
    name = f"fairlot-capacity-{period.in_a_name}"
    return answer(capacity_document(cluster, period, report), form, name)


def read_capacity(
    query: Query, *, is_page: bool = False
) -> tuple[Cluster | None, ReportPeriod, CapacityReport]:
    """Returns (cluster, period, capacity report) for the URL query. The cluster is None if the report is on all
    clusters.

    Raises Http404 for an unknown cluster, and WrongQuestion for an invalid period. For a page (`is_page`), uses a
    default period instead of raising WrongQuestion.
    """
    name = query.get("cluster", "")
    cluster = get_object_or_404(Cluster, name=name) if name else None
    period = asked_period(query, is_page=is_page)
    return cluster, period, capacity_report(period.begins, period.ends, book=cluster.pk if cluster else None)


def capacity_document(cluster: Cluster | None, period: ReportPeriod, report: CapacityReport) -> Document:
    return Document(
        title="Capacity",
        facts=capacity_facts(cluster, period, report),
        tables=[
            Table(
                "classes",
                "GPU time by class",
                [
                    Column("generation", "GPU"),
                    *(Column(f"{name}_gpu_seconds", WORDS[name], Kind.GPU_TIME, 2) for name in CLASSES),
                    Column("capacity_gpu_seconds", "Capacity", Kind.GPU_TIME, 2),
                    Column("value", "Worth", Kind.MONEY, 2),
                    Column("currency", "Currency"),
                ],
                [
                    (
                        row.generation,
                        *(row.seconds[name] for name in CLASSES),
                        row.capacity,
                        row.value,
                        row.currency,
                    )
                    for row in report.rows
                ],
                note="All times are in GPU-hours. In each row, the classes of GPU time add up to the "
                "capacity. Worth is capacity x price.",
            ),
            Table(
                "bearers",
                "Who bears the cost",
                [
                    Column("borne_by", "Cost borne by"),
                    Column("amount", "Amount", Kind.MONEY, 6),
                    Column("currency", "Currency"),
                ],
                [
                    (name, amount, identity.currency)
                    for identity in report.identities
                    for name, amount, _ in (*_lines(identity), _Line("Capacity x price", identity.value))
                ],
                note="The last line, capacity x price, is the worth of all GPU time. All other lines add "
                "up exactly to the last line.",
            ),
        ],
        zone=period.zone,
        has_keys=False,
    )


def capacity_facts(
    cluster: Cluster | None, period: ReportPeriod, report: CapacityReport
) -> list[tuple[str, str]]:
    """Returns the header lines of the report as pairs (label, text).

    They state the scope, the period, and whether the figures may still change.
    """
    until = "nothing yet" if report.until is None else to_the_minute(report.until.astimezone(period.zone))
    return [
        (PERIOD, period.in_words),
        ("Cluster", cluster.name if cluster else "All"),
        ("Closed until", until),
        *_state(cluster, period, report),
        *((f"Costs in {one.currency}", SUMS if one.closes else NO_SUMS) for one in report.identities),
    ]


def _state(cluster: Cluster | None, period: ReportPeriod, report: CapacityReport) -> list[tuple[str, str]]:
    """Returns the header lines, as pairs (label, text), that say which figures may still change.

    The list is empty if the ledger has closed all hours of the period, and the prices of idle, preemptible and borrowed
    time are final.
    """
    is_closed = report.until is not None and report.until >= period.ends
    waiting = unsettled_of(None, period.begins, period.ends, book=cluster.pk if cluster else None)
    return state_of(waiting, period.zone, is_over=is_closed)


def _parts(row: CapacityRow, most: Decimal) -> Iterator[tuple[str, str, Decimal, float, float]]:
    """Yields the parts of one bar of the chart, as tuples (class, label, GPU-seconds, start, width).

    A class says how the time was used, such as busy or free. Start and width are in per cent of the widest bar, which
    stands for `most` GPU-seconds.
    """
    at = 0.0
    for name in CLASSES:
        width = float(row.seconds[name] / most * 100) if most else 0.0
        if width:
            yield name, WORDS[name], row.seconds[name], at, width
        at += width


class _Line(NamedTuple):
    """Who or what bears a part of the value of all GPU time, and the amount."""

    name: str
    amount: Decimal
    is_unallocated: bool = False


def _lines(identity: Identity) -> Iterator[_Line]:
    """Yields lines that divide the value of all GPU time (GPU-hours times price) into parts.

    The parts come in this order, and add up to the value of all GPU time:

    - The cost of each team.
    - Write-offs.
    - Cost reductions by class prices, which are the prices of idle, preemptible and borrowed time. Left out if zero.
    - The value of unallocated GPU time, which was free or used outside Fairlot, plus the rounding of bills.
    - The value of drained GPU time, and the value of down GPU time.
    """
    for share in identity.tenants:
        yield _Line(share.tenant, share.cost)
    yield _Line("Usage written off by corrections", identity.written_off)
    if identity.classes:
        yield _Line(
            "Cost reduction by separate prices of idle, preemptible and borrowed time", identity.classes
        )
    yield _Line("Unallocated", identity.unallocated, is_unallocated=True)
    yield _Line("Drained", identity.drained)
    yield _Line("Down", identity.down)


def _held_up(cluster: Cluster | None, report: CapacityReport) -> Iterator[Lease]:
    """Yields the leases that keep the ledger from closing the next hour, at most five for each cluster.

    The usage of these leases is not reported yet, or the ledger refuses it. Yields nothing if it is too early to close
    the next hour.
    """
    over = may_be_closed_until(now_from_database())
    if report.until is None or over < report.until + HOUR:
        return
    for one in [cluster] if cluster else Cluster.objects.order_by(*by_name("name")):
        yield from (
            keeping_open(one.pk, report.until + HOUR).select_related("job", "cluster").order_by("pk")[:5]
        )
