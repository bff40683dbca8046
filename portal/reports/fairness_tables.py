"""The tables of the fairness report. The page, the files and the API all show them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from accounting.models import Generation, Tenant
from portal.reports.formats import PERIOD, Cell, Column, Document, Kind, Table
from portal.reports.periods import ReportPeriod
from scheduling.core.amounts import Amounts
from scheduling.models import Cluster
from scheduling.shares.fairness import Compared, Finished, Indices, Row, Statement

# Columns in the order of the calculation: due = entitled - lent - unused + borrowed - sold + bought; owed = due -
# received.
COLUMNS = {
    "entitled": "Entitled",
    "lent": "Lent",
    "unused": "Unused",
    "borrowed": "Borrowed",
    "sold": "Sold",
    "bought": "Bought",
    "due": "Due",
    "received": "Received",
    "owed": "Owed",
}


@dataclass(frozen=True)
class FairnessReport:
    """The fairness report for one reader.

    `compared`, which compares tenants, is empty unless the reader is an operator. `statement`, which has a line for
    each generation, is None unless the report is on a single tenant.
    """

    period: ReportPeriod
    cluster: Cluster | None
    tenant: Tenant | None
    rows: list[Row]
    compared: list[Compared]
    indices: Indices | None
    over_time: list[Indices]
    finished: list[Finished]
    statement: Statement | None
    weights: list[Generation]


def fairness_document(report: FairnessReport) -> Document:
    return Document(
        title="Fairness",
        facts=[
            (PERIOD, report.period.in_words),
            ("Cluster", report.cluster.name if report.cluster else "All"),
            ("Teams", report.tenant.name if report.tenant else "All teams that you may see"),
        ],
        tables=list(_tables(report)),
        zone=report.period.zone,
        has_keys=False,
    )


def _tables(report: FairnessReport) -> Iterator[Table]:
    yield Table(
        "rows",
        "Entitled and received GPU time",
        [TEAM, GPU, *_measures("{}_gpu_seconds"), _ratio("delivered", "Received ÷ due")],
        [
            (row.tenant.name, row.generation.name, *_figures(row.amounts), _figure(row.amounts.delivered))
            for row in report.rows
        ],
        note="In this table, a GPU-hour counts the same on all GPU types. The row of a team does not "
        "include the teams below it.",
    )
    if report.indices:
        yield from _compared(report, report.indices)
    yield Table(
        "finished",
        "Finish-time fairness",
        [
            TEAM,
            Column("jobs_ended", "Jobs ended", Kind.NUMBER),
            Column("rho_known", "Jobs with a ratio", Kind.NUMBER),
            _ratio("rho_median", "Median ratio"),
            _ratio("rho_worst", "Worst ratio"),
            Column("worse_off_than_alone", "Jobs slower than on a private cluster", Kind.NUMBER),
            Column("left_out", "Jobs without a ratio", Kind.NUMBER),
        ],
        [
            (
                one.tenant.name,
                one.ended,
                one.told,
                _figure(one.median),
                _figure(one.worst),
                one.worse_off,
                one.left_out,
            )
            for one in report.finished
        ],
        note="The ratio of a job is its time from submission to end, divided by the time it would "
        "have taken on the team's private cluster. If the ratio is above 1, the job took "
        "longer on the shared cluster. Jobs that failed, were cancelled or have too few records have no ratio.",
    )
    if report.statement:
        yield _statement(report.statement)


def _compared(report: FairnessReport, over_all: Indices) -> Iterator[Table]:
    yield Table(
        "weights",
        "Weights of GPU types",
        [GPU, Column("published_weight", "Weight", Kind.NUMBER, 3)],
        [(generation.name, generation.weight.normalize()) for generation in report.weights],
    )
    yield Table(
        "compared",
        "Teams compared",
        [
            TEAM,
            *_measures("{}_weighted_gpu_seconds"),
            _ratio("delivered", "Received ÷ due"),
            _ratio("of_entitled", "Received ÷ entitled"),
        ],
        [
            (
                one.tenant.name,
                *_figures(one.amounts),
                _figure(one.amounts.delivered),
                _figure(one.of_entitlement),
            )
            for one in report.compared
        ],
        note="The table shows weighted GPU-hours: the GPU-hours of each GPU type times the weight "
        "of the type, summed over all types.",
    )
    yield Table(
        "indices",
        "Fairness over time",
        [
            Column("from", "From", Kind.MOMENT),
            Column("to", "To", Kind.MOMENT),
            Column("teams", "Teams", Kind.NUMBER),
            _ratio("jain", "Jain's index"),
            _ratio("max_min", "Worst-served ÷ best-served team"),
        ],
        [
            (index.begins, index.ends, index.tenants, _figure(index.jain), _figure(index.max_min))
            for index in (over_all, *report.over_time)
        ],
        note="The first row covers the whole period. The indices compare the teams' ratios of received to "
        "due GPU time. The last column is the lowest of these ratios, divided by the highest.",
    )


def _statement(statement: Statement) -> Table:
    nothing = [None] * len(COLUMNS)
    return Table(
        "own_speeds",
        "GPU time weighted by GPU speed",
        [
            TEAM,
            GPU,
            _ratio("measured_speed", "Measured speed"),
            Column("measured_jobs", "Jobs with measured speed", Kind.NUMBER),
            *_measures("{}_own_gpu_seconds"),
        ],
        [
            (
                statement.tenant.name,
                line.generation.name,
                _figure(line.speed),
                line.jobs,
                *(nothing if line.speed is None else _figures(line.own)),
            )
            for line in statement.lines
        ],
        note="Speeds are those of the team's jobs, relative to the slowest GPU type. An hour on a GPU "
        "type of speed 2 counts as 2 GPU-hours. GPU types without a measured speed are left out.",
    )


TEAM, GPU = Column("team", "Team"), Column("gpu", "GPU")


def _measures(key: str) -> list[Column]:
    return [Column(key.format(name), heading, Kind.GPU_TIME, 2) for name, heading in COLUMNS.items()]


def _ratio(key: str, heading: str) -> Column:
    return Column(key, heading, Kind.NUMBER, 3)


def _figures(amounts: Amounts) -> list[Cell]:
    return [_figure(getattr(amounts, name)) for name in COLUMNS]


def _figure(value: float | None) -> float | None:
    return None if value is None else float(value)
