"""The operators' reports as documents. The page, the files and the API all show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property
from itertools import pairwise

from django.core.paginator import Page, Paginator

from accounting.closing.archive import archived_until
from accounting.core.wording import to_the_minute
from accounting.models import Price
from accounting.pricing.price_history import price_history
from accounting.reports.chargeback import Charge, chargeback
from accounting.reports.utilisation import Use, closed_until, use_by_hour, use_by_hour_of_week
from portal.reports.fairness import edges
from portal.reports.formats import PERIOD, Cell, Column, Document, Kind, Table
from portal.reports.periods import ReportPeriod
from portal.reports.unsettled import NOTHING, Unsettled, state_of, unsettled_of
from scheduling.models import Cluster
from scheduling.reports.demand import wanted_by_hour
from scheduling.reports.job_waits import expansions, waits
from scheduling.reports.job_waste import CAUSES, Waste, Wasted, waste
from scheduling.reports.node_health import NodeHealth, counts_of_gpus, held_gpus, node_events, node_health

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
WASTE_WORDS = {"failed": "Failed", "cancelled": "Cancelled", "run_again": "Run again", "idle": "Idle"}
TOP = 25
MOST_EVENTS = 200  # the most events on a page; files have all events
NODES_PER_PAGE = 25


def seconds(key: str, heading: str) -> Column:
    """Returns a column of GPU-seconds. Formats for people show them as GPU-hours."""
    return Column(f"{key}_gpu_seconds", f"{heading}, GPU-h", Kind.GPU_TIME, digits=2)


def part(key: str, heading: str) -> Column:
    return Column(key, heading, Kind.NUMBER, digits=3)


def count(key: str, heading: str) -> Column:
    return Column(key, heading, Kind.NUMBER)


def lasting(key: str, heading: str) -> Column:
    """Returns a column of seconds. Pages show them as durations, such as "2 h 05 min"."""
    return Column(key, heading, Kind.DURATION)


@dataclass(frozen=True)
class Demand:
    """The GPU time in one interval, in GPU-seconds.

    - `wanted`: what jobs wanted; None until all hours of the interval are over.
    - `held`: what jobs held.
    - `usable`: the time of GPUs that were not drained, not down and not used outside Fairlot.
    - `beyond`: the sum of the shortages of each hour. The shortage of an hour is the wanted time minus the usable time,
      or 0 if enough was usable.

    All except `wanted` are None until the ledger has closed all hours of the interval.
    """

    begins: datetime
    ends: datetime
    wanted: Decimal | None
    held: Decimal | None
    usable: Decimal | None
    beyond: Decimal | None  # sum of the hours' demand above the usable GPU-seconds of the hour


@dataclass(frozen=True)
class GpuHeld:
    """The use of one GPU of a node: the seconds in which jobs held the GPU, and the seconds in which the node
    existed."""

    node: NodeHealth
    gpu: int
    held: float
    lasted: float

    @property
    def part(self) -> float | None:
        """Returns the fraction of the node's time in which jobs held the GPU; None if the node did not exist in the
        period."""
        return self.held / self.lasted if self.lasted else None


@dataclass(frozen=True)
class ReportRequest:
    """A reader's request for an operators' report: the period, the cluster, and the page number of the list of nodes.

    Each figure is read from the database at most once, when it is first used.
    """

    period: ReportPeriod
    cluster: Cluster | None
    page: str | None = None  # number of the page of nodes; None for a file, which has all nodes

    @property
    def is_page(self) -> bool:
        """Returns whether the report is for a page. A page shows only the first rows of long tables; a file has all
        rows."""
        return self.page is not None

    @property
    def bounds(self) -> tuple[datetime, datetime]:
        return self.period.begins, self.period.ends

    @property
    def book(self) -> int | None:
        return self.cluster.pk if self.cluster else None

    @cached_property
    def closed_until(self) -> datetime | None:
        """Returns the time until which the ledger has closed all hours. Returns None if no cluster of the report has a
        ledger yet.

        For all clusters, this is the earliest time among the attached clusters. Detached clusters count only if no
        attached cluster has a ledger.
        """
        if self.cluster:
            return closed_until(books=[self.cluster.pk])
        clusters = Cluster.objects.values_list("pk", flat=True)
        # No more hours of detached clusters are closed, so they count only if all clusters are detached.
        return closed_until(books=clusters.filter(detached_at=None)) or closed_until(
            books=clusters.exclude(detached_at=None)
        )

    @cached_property
    def closed(self) -> tuple[datetime, datetime]:
        """Returns the start and the end of the time for which the report reads the use of GPUs.

        For one cluster, this is the whole period. For all clusters, it ends at `closed_until` if the period ends later.
        """
        begins, ends = self.bounds
        if self.cluster:
            return begins, ends
        # For later hours, only some of the clusters have figures.
        return begins, min(ends, self.closed_until or ends)

    @cached_property
    def week(self) -> dict[tuple[int, int], Use]:
        return dict(use_by_hour_of_week(*self.closed, zone=self.period.zone.key, book=self.book))

    @cached_property
    def demand(self) -> list[Demand]:
        use = use_by_hour(*self.closed, book=self.book)
        wanted = wanted_by_hour(*self.bounds, cluster=self.cluster)
        return [_stretch(begins, ends, use, wanted) for begins, ends in pairwise(edges(self.period))]

    @cached_property
    def nodes(self) -> list[NodeHealth]:
        return node_health(*self.bounds, cluster=self.cluster)

    @cached_property
    def page_of_nodes(self) -> Page[NodeHealth]:
        return Paginator(self.nodes, NODES_PER_PAGE).get_page(self.page)

    @cached_property
    def gpus(self) -> list[GpuHeld]:
        """Returns how long jobs held each GPU, with one query. Covers all nodes for a file, or the nodes shown on the
        page."""
        nodes = self.nodes if self.page is None else list(self.page_of_nodes)
        held, lasted = held_gpus([node.node_id for node in nodes], *self.bounds)
        return [
            _held(node, gpu, held.get((node.node_id, gpu), 0.0), lasted.total_seconds())
            for node, count in zip(nodes, counts_of_gpus(nodes, held), strict=True)
            for gpu in range(count)
        ]

    @cached_property
    def waste(self) -> Waste:
        return waste(None, *self.bounds, jobs=TOP if self.is_page else None)

    @cached_property
    def charges(self) -> list[Charge]:
        return chargeback(*self.bounds, book=self.book)


def _held(node: NodeHealth, gpu: int, held: float, elapsed: float) -> GpuHeld:
    """Returns the use of one GPU: the seconds in which jobs held it, and the seconds in which its node existed.

    - `held`: the seconds in which leases held the GPU.
    - `elapsed`: the seconds of the period that have passed. Both results are at most this number.
    """
    # A lease may be older than the node's recorded history. The node existed at least while the GPU was held.
    return GpuHeld(
        node, gpu, min(held, elapsed), min(max(node.seconds_up + node.seconds_down, held), elapsed)
    )


def _stretch(
    begins: datetime, ends: datetime, use: Mapping[datetime, Use], wanted: Mapping[datetime, Decimal]
) -> Demand:
    """Returns the demand in the interval from `begins` to `ends` (excluded), as sums over the hours that begin in the
    interval.

    `use` and `wanted` have the amounts of each hour, by the start of the hour. `wanted` has only hours that are over,
    and `use` has only hours that the ledger has closed.
    """
    hour = timedelta(hours=1)
    first = begins + (-timedelta(minutes=begins.minute, seconds=begins.second)) % hour
    hours = [first + n * hour for n in range(max(0, -((first - ends) // hour)))]
    told = hours if hours and all(one in wanted for one in hours) else []
    closed = told if all(one in use for one in told) else []
    return Demand(
        begins=begins,
        ends=ends,
        wanted=sum((wanted[one] for one in told), Decimal(0)) if told else None,
        held=sum((use[one].held for one in closed), Decimal(0)) if closed else None,
        usable=sum((use[one].usable for one in closed), Decimal(0)) if closed else None,
        beyond=sum((max(Decimal(0), wanted[one] - use[one].usable) for one in closed), Decimal(0))
        if closed
        else None,
    )


def use_document(asked: ReportRequest) -> Document:
    columns = [seconds("busy", "Busy"), seconds("held", "Held"), seconds("usable", "Usable")]
    columns += [seconds("capacity", "Capacity"), part("held_part", "Held"), part("busy_part", "Busy")]
    week = Table(
        "week",
        "GPU use by hour of the week",
        [Column("weekday", "Weekday"), count("hour", "Hour"), *columns],
        [
            [
                WEEKDAYS[day - 1],
                hour,
                one.busy,
                one.held,
                one.usable,
                one.capacity,
                one.part_held,
                one.part_busy,
            ]
            for (day, hour), one in sorted(asked.week.items())
        ],
        note="The table contains only closed hours. Each hour is listed by its start. Held and "
        "busy parts are fractions of the capacity. Usable GPU time is the sum of held and free GPU time.",
    )
    demand = Table(
        "demand",
        "Demand and capacity",
        [
            Column("from", "From", Kind.MOMENT),
            Column("to", "To", Kind.MOMENT),
            seconds("wanted", "Wanted"),
            seconds("held", "Held"),
            seconds("usable", "Usable"),
            seconds("beyond", "Beyond capacity"),
        ],
        [[one.begins, one.ends, one.wanted, one.held, one.usable, one.beyond] for one in asked.demand],
        note="The column Wanted contains the GPU time that jobs wanted: their GPUs × the time from submission to "
        "end. The column Beyond capacity is a sum over the hours in which jobs wanted more GPU time than was "
        "usable. In each of these hours, it counts the wanted minus the usable GPU time.",
    )
    return _of_closed_hours("Use and demand", asked, [week, demand])


def nodes_document(asked: ReportRequest) -> Document:
    columns = [Column("cluster", "Cluster"), Column("node", "Node"), Column("generation", "GPU")]
    columns += [count("gpus", "GPUs"), Column("state", "State now"), Column("reason", "Reason")]
    columns += [
        count("failed_gpus", "Failed GPUs now"),
        seconds("held", "Held"),
        seconds("drained", "Drained"),
    ]
    columns += [seconds("down", "Down"), seconds("capacity", "Capacity"), count("times_down", "Times down")]
    columns += [
        count("gpu_failures", "GPU failures"),
        lasting("seconds_down", "Down, s"),
        lasting("seconds_up", "Up, s"),
    ]
    columns += [lasting("seconds_between_failures", "MTBF, s"), lasting("seconds_to_repair", "MTTR, s")]
    health = Table(
        "nodes",
        "Health of nodes",
        columns,
        [
            [
                one.cluster, one.node, one.generation, one.gpus, "gone" if one.is_gone else one.state, one.reason,
                one.failed_gpus, one.held, one.drained, one.down, one.capacity, one.times_down, one.gpu_failures,
                one.seconds_down, one.seconds_up, one.seconds_between_failures, one.seconds_to_repair,
            ]
            for one in asked.nodes
        ],
        note="GPU time covers only closed hours. All other figures are as observed. MTBF is the "
            "time up, divided by the number of failures of the node and its GPUs. MTTR is the "
            "time down, divided by the number of times the node went down.",
    )  # fmt: skip
    of_page = (
        ""
        if asked.page is None
        else " This table shows only the GPUs of the nodes on this page. The files contain the GPUs of all nodes."
    )
    gpus = Table(
        "gpus",
        "Use of each GPU",
        [
            Column("cluster", "Cluster"),
            Column("node", "Node"),
            Column("gpu_index", "GPU"),
            Column("generation", "GPU type"),
            seconds("held", "Held"),
            seconds("known", "Time in cluster"),
            part("held_part", "Held ÷ time in cluster"),
        ],
        [
            [
                one.node.cluster,
                one.node.node,
                str(one.gpu),
                one.node.generation,
                one.held,
                one.lasted,
                one.part,
            ]
            for one in asked.gpus
        ],
        note="The column Time in cluster contains the time that the node was in the cluster in this period, up to "
        "now. The column Held contains the part of this time in which jobs held the GPU, as observed from "
        f"leases.{of_page}",
    )
    happened, count_of_events = node_events(
        *asked.bounds, cluster=asked.cluster, most=MOST_EVENTS if asked.is_page else None
    )
    events = Table(
        "changes",
        "Changes of nodes",
        [
            Column("at", "At", Kind.MOMENT),
            Column("node", "Node"),
            Column("state_before", "Was"),
            Column("state", "Became"),
            count("gpus_before", "GPUs before"),
            count("gpus", "GPUs"),
            count("failed_before", "Failed before"),
            count("failed", "Failed"),
        ],
        [
            [
                one.at,
                one.node,
                one.state_before,
                one.state,
                one.gpus_before,
                one.gpus,
                one.failed_before,
                one.failed,
            ]
            for one in happened
        ],
        note="The latest change comes first.",
        more=count_of_events - len(happened),
    )
    return _of_closed_hours("Nodes", asked, [health, gpus, events])


def waits_document(asked: ReportRequest) -> Document:
    """Returns the waiting times of jobs as a document.

    It covers all clusters together, because the jobs of a team may run on any cluster.
    """
    sizes = [Column("generation", "GPU"), Column("size", "GPUs per job"), count("jobs", "Jobs")]
    waited = Table(
        "waits",
        "Waits",
        [
            *sizes,
            lasting("p50_seconds", "Median, s"), lasting("p90_seconds", "90 %, s"), lasting("p95_seconds", "95 %, s"),
            lasting("mean_seconds", "Mean, s"), lasting("longest_seconds", "Longest, s"),
        ],
        [
            [one.generation or "all", one.size or "all", one.jobs, one.p50, one.p90, one.p95, one.mean, one.most]
            for one in waits(None, *asked.bounds)
        ],
        note="A wait is the time from submission to the first GPUs. The table covers training "
            "jobs and sessions that got their first GPUs in this period.",
    )  # fmt: skip
    expanded = Table(
        "expansion",
        "Expansion factors",
        [
            *sizes,
            part("weighted", "Weighted mean"),
            part("p50", "Median"),
            part("p90", "90 %"),
            part("p95", "95 %"),
        ],
        [
            [one.generation or "all", one.size or "all", one.jobs, one.weighted, one.p50, one.p90, one.p95]
            for one in expansions(None, *asked.bounds)
        ],
        note="The expansion factor of a job is (time running + time waiting) ÷ time running. The "
        "table covers training jobs that ended in this period. In the weighted mean, the "
        "weight of a job is its number of GPUs × its time running.",
    )
    return _document("Waits", asked, [waited, expanded])


def waste_document(asked: ReportRequest) -> Document:
    """Returns the GPU time that jobs wasted on all clusters as a document: in total, and by team, user and job."""
    told = asked.waste
    archived = archived_until()
    lacks = ""
    if archived and asked.period.begins < archived:
        lacks = (
            f" Bills before {archived:%-d %B %Y} are archived. The table leaves out archived days "
            "(UTC) that are only partly in the period."
        )
    users = [one for one in told.users if one.wasted]
    tables = [
        _waste_table(
            ("waste", "Wasted GPU time"), [Column("generation", "GPU")], told.generations, _generation, total=told.total
        ),
        _waste_table(("waste_teams", "By team"), [Column("team", "Team")], told.tenants, lambda one: [one.tenant]),
        _waste_table(
            ("waste_users", "By user"), [Column("team", "Team"), Column("user", "User")], users,
            lambda one: [one.tenant, one.user],
        ),
        _waste_table(
            ("waste_jobs", "By job"),
            [Column("job_id", "Job"), Column("job", "Name"), Column("team", "Team"), Column("user", "User")],
            told.jobs, lambda one: [str(one.job_id), one.job, one.tenant, one.user],
        ),
    ]  # fmt: skip
    tables[-1] = replace(tables[-1], more=told.count_of_jobs - len(told.jobs))
    noted = [replace(table, note=table.note + lacks) for table in tables]
    return _document("Waste", asked, noted)


def _generation(one: Wasted) -> list[Cell]:
    return [one.generation]


def _waste_table(
    title: tuple[str, str],
    names: Sequence[Column],
    rows: Sequence[Wasted],
    named: Callable[[Wasted], list[Cell]],
    *,
    total: Wasted | None = None,
) -> Table:
    def cells(one: Wasted) -> list[Cell]:
        causes = [getattr(one, cause) for cause in CAUSES]
        return [one.held, *causes, one.wasted, None if one.part is None else float(one.part)]

    causes = [seconds(cause, word) for cause, word in WASTE_WORDS.items()]
    columns = [
        *names,
        seconds("held", "Held"),
        *causes,
        seconds("wasted", "Wasted"),
        part("part", "Wasted ÷ held GPU time"),
    ]
    return Table(
        *title,
        columns,
        [[*named(one), *cells(one)] for one in rows],
        totals=[["all", *[None] * (len(names) - 1), *cells(total)]] if total else (),
        note="Each wasted GPU-second has exactly one cause: a failed training job, a cancelled "
        "training job, work that was lost and run again, or an idle GPU.",
    )


def prices_document(asked: ReportRequest) -> Document:
    table = Table(
        "prices",
        "Prices",
        [
            Column("generation", "GPU"),
            Column("since", "Since", Kind.MOMENT),
            Column("until", "Until", Kind.MOMENT),
            Column("per_gpu_hour", "A GPU-hour", Kind.MONEY, digits=6),
            Column("before", "Before", Kind.MONEY, digits=6),
            *(Column(name, name.capitalize(), Kind.MONEY, digits=6) for name in Price.CLASSES),
            Column("currency", "Currency"),
            Column("set_by", "Set by"),
            Column("set_at", "Set at", Kind.MOMENT),
        ],
        [
            [one.generation, one.since, one.until, one.per_gpu_hour, one.before, one.idle, one.preemptible,
             one.borrowed, one.currency,
             one.set_by, one.set_at]
            for one in price_history(*asked.bounds)
        ],
        note="The table contains all prices that are valid at some time in the period. The column "
            "Until is empty if no later price is set.",
    )  # fmt: skip
    return _document("Prices", asked, [table])


def chargeback_document(asked: ReportRequest) -> Document:
    """Returns the cost of each team as a document with a single table. So its CSV file has one header line followed by
    rows."""
    table = Table(
        "chargeback",
        "Chargeback",
        [
            Column("path", "Path"), Column("team", "Team"), Column("slug", "Slug"), Column("parent", "Parent"),
            Column("generation", "GPU"), Column("gpu_seconds", "Held, GPU-h", Kind.GPU_TIME, digits=2),
            seconds("busy", "Busy"), seconds("idle", "Idle"), seconds("assembling", "Workers starting"),
            Column("cost", "Cost", Kind.MONEY, digits=6),
            Column("corrections", "Cost change by corrections", Kind.MONEY, digits=6), Column("currency", "Currency"),
        ],
        [
            [one.path, one.tenant, one.slug, one.parent, one.generation, *_borne([one]), one.currency]
            for one in asked.charges
        ],
        totals=[
            ["all", *[None] * 4, *_borne([one for one in asked.charges if one.currency == currency]), currency]
            for currency in sorted({one.currency for one in asked.charges})
        ],
        note="The table contains only closed hours. The row of a team does not include the teams "
            "below it. The costs add up to the amounts that the capacity report shows for teams.",
    )  # fmt: skip
    return _of_closed_hours(
        "Chargeback", asked, [table], waiting=unsettled_of(None, *asked.bounds, book=asked.book)
    )


def _borne(charges: Sequence[Charge]) -> list[Decimal]:
    names = ("gpu_seconds", "busy", "idle", "assembling", "cost", "corrections")
    return [sum((getattr(one, name) for one in charges), Decimal(0)) for name in names]


def _document(title: str, asked: ReportRequest, tables: Sequence[Table]) -> Document:
    period = asked.period
    facts = [(PERIOD, period.in_words)]
    if asked.cluster:
        facts.append(("Cluster", asked.cluster.name))
    return Document(title, tables, facts, period.zone)


def _of_closed_hours(
    title: str, asked: ReportRequest, tables: Sequence[Table], *, waiting: Unsettled = NOTHING
) -> Document:
    """Returns a document of these tables, with additional header lines.

    The lines say until when the ledger has closed the hours, and which figures may still change. `waiting` describes
    usage whose cost may still change because its prices are not final.
    """
    document, until = _document(title, asked, tables), asked.closed_until
    zone = asked.period.zone
    told = "nothing yet" if until is None else to_the_minute(until.astimezone(zone))
    is_over = until is not None and until >= asked.period.ends
    facts = [*document.facts, ("Closed until", told), *state_of(waiting, zone, is_over=is_over)]
    return replace(document, facts=facts)


SUBJECTS: dict[str, tuple[str, Callable[[ReportRequest], Document]]] = {
    "use": ("Use and demand", use_document),
    "nodes": ("Nodes", nodes_document),
    "waits": ("Waits", waits_document),
    "waste": ("Waste", waste_document),
    "prices": ("Prices", prices_document),
    "chargeback": ("Chargeback", chargeback_document),
}
