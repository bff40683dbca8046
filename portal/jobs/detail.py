"""Data for a job's page: the job's leases, speed, cost and forecast."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import groupby

from django.db.models import OuterRef, Prefetch, QuerySet, Subquery, Sum

from accounting.core.clock import now_from_database
from accounting.core.prepared import KeyedQuery, Prepared, Sql
from accounting.models import Generation, User
from accounting.usage.aggregate import union_all
from accounting.usage.plan import UsagePlan
from accounting.usage.scope import Scope
from portal.wording import LEASE_ENDS, LEASE_STOPS
from scheduling.models import HeldGpu, Job, JobForecast, JobSpeed, Lease, Schedule, ServiceRevision
from scheduling.models.event_codes import Cause
from scheduling.reports.unbooked import unbooked_costs
from scheduling.spec.job_spec import dump_stored

MOST_STRIPES = 400
WATCHED_SECONDS = 3.0


@dataclass(frozen=True)
class Speed:
    """A job's measured speed on one generation. `ratio` is the speed relative to the job's slowest measured
    generation."""

    generation: str
    rate: float | None  # steps per second
    steps: float
    seconds: float
    ratio: float | None


@dataclass(frozen=True)
class Stripe:
    """A lease as a rectangle in the timeline of a job. `x` and `width` are in per cent of the timeline's width."""

    x: str
    width: str
    series: int
    label: str


@dataclass(frozen=True)
class Strip:
    begins: datetime
    ends: datetime
    stripes: list[Stripe]
    generations: list[tuple[str, int]]  # name, and number of its colour


@dataclass(frozen=True)
class Cost:
    """The cost of a job until now: booked usage and usage that the ledger has not booked yet."""

    gpu_seconds: Decimal
    unbooked: Decimal  # GPU-seconds, included in `gpu_seconds`; their cost is included in `amounts`
    amounts: list[tuple[str, Decimal]]  # currency and sum
    generations: list[GenerationCost]


@dataclass
class GenerationCost:
    name: str
    currency: str
    gpu_seconds: Decimal = Decimal(0)
    cost: Decimal = Decimal(0)


def present_lease(job: Job) -> Lease | None:
    """Returns the job's open lease with its GPUs; None if the job has ended or has no open lease."""
    if job.has_ended:
        return None
    # A job that moves has two open leases: the one that holds GPUs comes before the reserved one.
    return _with_gpus(job.leases.filter(state__in=Lease.OPEN).order_by("epoch")).first()


def leases_of(job: Job) -> QuerySet[Lease]:
    """Returns all leases of a job, newest first, with the related data that `places` and `why_ended` need."""
    return _with_gpus(_moved_leases(job.pk))


def _moved_leases(job: int) -> QuerySet[Lease]:
    """Returns the leases of a job, newest first, each with the annotation `moved_to`.

    `moved_to` is the GPU type to which the job moved when the lease ended; None if the job did not move.
    """
    goes_on = Lease.objects.filter(job=job, decided_at=OuterRef("stop_asked_at"), epoch__gt=OuterRef("epoch"))
    goes_on = goes_on.exclude(state=Lease.State.CLOSED, held_from=None)  # the move was withdrawn
    moved_to = Subquery(goes_on.values("generation__name")[:1])
    return Lease.objects.filter(job=job).order_by("-epoch").annotate(moved_to=moved_to)


FEW_LEASES = 25
_leases = Prepared(lambda job: _moved_leases(job).select_related("generation")[: FEW_LEASES + 1])
_held_gpus = Prepared(
    lambda leases: (
        HeldGpu.objects.filter(lease__in=leases).select_related("node").order_by("node__name", "gpu_index")
    )
)


_forecast = Prepared(lambda job: JobForecast.objects.filter(job=job))


def forecast_of(job: Job) -> JobForecast | None:
    """Returns the forecast of when a waiting job starts; None if the job is not waiting or has no forecast."""
    return _forecast.first(job.pk) if job.state in Job.WAITING else None


def few_leases(job: Job) -> list[Lease] | None:
    """Returns the leases that `leases_of` finds, as a list; None if there are more than FEW_LEASES.

    This is faster than `leases_of`, because it uses two prepared queries.
    """
    found: list[Lease] = _leases(job.pk)
    if len(found) > FEW_LEASES:
        return None
    gpus: dict[int, list[HeldGpu]] = {lease.pk: [] for lease in found}
    for gpu in _held_gpus(list(gpus)):
        gpus[gpu.lease_id].append(gpu)
    for lease in found:
        lease.gpu_list = gpus[lease.pk]  # type: ignore[attr-defined]  # annotated
    return found


def why_ended(lease: Lease) -> str:
    """Returns a short text that says why a lease ended; "" while the lease is open.

    `lease` must come from `leases_of` or `few_leases`.
    """
    if lease.end_reason != Lease.End.STOPPED:
        return LEASE_ENDS[lease.end_reason]
    moved_to: str | None = lease.moved_to  # type: ignore[attr-defined]  # annotated
    if moved_to and lease.stop_cause != Cause.RESIZED:
        return f"moved to {'other GPUs' if moved_to == lease.generation.name else moved_to}"
    return LEASE_STOPS.get(lease.stop_cause, LEASE_ENDS[lease.end_reason])


def _with_gpus(leases: QuerySet[Lease]) -> QuerySet[Lease]:
    gpus = HeldGpu.objects.select_related("node").order_by("node__name", "gpu_index")
    return leases.select_related("generation").prefetch_related(
        Prefetch("held_gpus", gpus, to_attr="gpu_list")
    )


def places(lease: Lease) -> list[tuple[str, str]]:
    """Returns a pair (node name, GPU indexes) for each node of a lease, such as ("k1", "0, 1").

    `lease` must come from `leases_of` or `few_leases`.
    """
    grouped = groupby(lease.gpu_list, key=lambda gpu: gpu.node.name)  # type: ignore[attr-defined]  # annotated
    return [(node, ", ".join(str(gpu.gpu_index) for gpu in gpus)) for node, gpus in grouped]


def speeds_of(job: Job) -> list[Speed]:
    """Returns the job's measured speed on each generation, fastest first.

    Leaves out generations on which the job was measured for less than WATCHED_SECONDS.
    """
    rows = [(row, row.rate) for row in _watched(job.pk)]
    slowest = min((rate for _, rate in rows if rate), default=None)
    speeds = [
        Speed(
            generation=row.generation.name,
            rate=rate,
            steps=row.steps,
            seconds=row.seconds,
            ratio=rate / slowest if rate and slowest else None,
        )
        for row, rate in rows
    ]
    return sorted(speeds, key=lambda speed: -(speed.rate or 0))


_watched = Prepared(
    lambda job: JobSpeed.objects.filter(job=job, seconds__gte=WATCHED_SECONDS).select_related("generation")
)


def cost_of(job: Job, user: User, leases: Sequence[Lease] | None = None) -> Cost:
    """Returns the job's cost: the cost that the ledger has booked, plus the cost of usage that is not booked yet.

    The booked cost includes only what was billed to teams that `user` may see. `leases` is all leases of the job if the
    caller has already read them, otherwise None.
    """
    found: dict[tuple[str, str], GenerationCost] = {}

    def add(generation: str, currency: str, seconds: Decimal, cost: Decimal) -> None:
        row = found.setdefault((generation, currency), GenerationCost(generation, currency))
        row.gpu_seconds += seconds
        row.cost += cost

    for booked in _booked(job, user):
        add(*booked)
    unbooked = Decimal(0)
    for lease, seconds, cost, currency in unbooked_costs(job.leases.all() if leases is None else leases):
        add(lease.generation.name, currency, seconds, cost)
        unbooked += seconds
    rows = [found[key] for key in sorted(found)]
    amounts: dict[str, Decimal] = {}
    for row in rows:
        amounts[row.currency] = amounts.get(row.currency, Decimal(0)) + row.cost
    total = sum((row.gpu_seconds for row in rows), Decimal(0))
    return Cost(total, unbooked, sorted(amounts.items()), rows)


def _booked(job: Job, user: User) -> list[tuple[str, str, Decimal, Decimal]]:
    """Returns the job's booked usage as rows (generation, currency, GPU-seconds, cost).

    Several rows may have the same generation and currency, so the caller must add them up. The rows cover all teams
    that `user` may see, because a correction may have billed a part of the job to another team.
    """
    plan = UsagePlan(Scope(user, None, None), by_job=True)
    seen = plan.scope.tenants

    def asking(keys: list[int] | None) -> Sql | None:
        pk, *teams = keys or [0]
        booked = plan.of(None if seen is None else teams, job_id=pk)
        # Of archived months only rollups exist.
        parts = [(some, "cost") for some in booked.rollups()] + [
            (some, "full_cost") for some in booked.segments()
        ]
        names = "generation__name", "currency"
        summed = [
            rows.values(*names).annotate(seconds=Sum("gpu_seconds"), money=Sum(cost)) for rows, cost in parts
        ]
        return union_all(summed, [*names, "seconds", "money"])

    return KeyedQuery(("a job", seen is None, plan.about), asking).ask([job.pk, *(seen or ())])


def strip_of(job: Job, leases: Sequence[Lease] | None = None) -> Strip | None:
    """Returns the timeline of a job, from its submission until its end or now. The timeline shows when the job held
    GPUs, and of which type.

    Returns None if the job never held GPUs. `leases` is all leases of the job, newest first, if the caller has already
    read them.
    """
    held = _held_leases(job.pk) if leases is None else [one for one in leases if one.held_from is not None]
    if not held:
        return None
    first = job.created_at if len(held) < MOST_STRIPES else held[-1].held_from
    begins = first or job.created_at
    ends = job.ended_at or now_from_database()
    whole = max((ends - begins).total_seconds(), 1e-6)
    series = colours_of(lease.generation for lease in held)

    def percent(seconds: float) -> float:
        return 100 * min(max(seconds / whole, 0.0), 1.0)

    stripes = []
    for lease in reversed(held):
        until = lease.held_until or ends
        since = lease.held_from or begins
        x = percent((since - begins).total_seconds())
        width = max(percent((until - since).total_seconds()), 0.15)
        stripes.append(
            Stripe(
                x=f"{x:.3f}%",
                width=f"{width:.3f}%",
                series=series[lease.generation.name],
                label=f"{lease.gpus} × {lease.generation.name}",
            )
        )
    return Strip(begins, ends, stripes, list(series.items()))


_held_leases = Prepared(
    lambda job: (
        Lease.objects.filter(job=job)
        .exclude(held_from=None)
        .order_by("-epoch")
        .select_related("generation")[:MOST_STRIPES]
    )
)
_generation_keys = Prepared(lambda: Generation.objects.order_by("pk").values_list("pk"))


def colours_of(generations: Iterable[Generation]) -> dict[str, int]:
    """Returns the colour number (1 to 6) of each generation, by name.

    The number depends only on the order in which generations were created, so it is the same on every page.
    """
    ids = {generation.pk: generation.name for generation in generations}
    every = enumerate(_generation_keys())
    found = {ids[pk]: number % 6 + 1 for number, (pk,) in every if pk in ids}
    return dict(sorted(found.items()))


def yaml_of(job: Job | Schedule | ServiceRevision) -> str:
    """Returns the stored job specification as YAML. Fields that have their default value are left out."""
    return dump_stored(job.spec)


def generation_names(job: Job) -> list[str]:
    """Returns the names of the generations that the job accepts. The list is empty if the job accepts every
    generation."""
    return [name for (name,) in _generation_names(job.generation_ids)]


_generation_names = Prepared(lambda ids: Generation.objects.filter(pk__in=ids).values_list("name"))
