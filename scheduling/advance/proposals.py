"""Says what an advance reservation would have and whom it would hit, before it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from django.db.models import Sum

from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.core.name_order import by_name
from accounting.core.texts import why_no_name
from accounting.core.wording import counted
from accounting.models import Generation, Tenant, User
from accounting.pricing.tariff import prices_at
from scheduling.advance.windows import Window, most_reserved, windows_of
from scheduling.draining.drained_jobs import DrainedJobs, jobs_to_drain
from scheduling.models import AdvanceReservation, AdvanceWindow, Cluster, Job, Node, Round

LONGEST_WINDOW = timedelta(days=31)
LONGEST_REPEAT = timedelta(days=366)
WEEK = timedelta(weeks=1)


@dataclass(frozen=True, slots=True)
class Terms:
    """What an operator asks for: a team, GPUs of one type, and one window or weekly windows.

    `nodes`: named nodes, all of whose GPUs are reserved. If it is empty, Fairlot chooses nodes for `gpus` GPUs.
    """

    name: str
    tenant: Tenant
    generation: Generation
    begins: datetime
    ends: datetime
    gpus: int | None = None
    nodes: tuple[Node, ...] = ()
    weekly_until: datetime | None = None
    zone: str = "UTC"
    lends: bool = True


@dataclass(frozen=True, slots=True)
class Loss:
    """What a reservation takes from the entitlement of another team while a window is open, in GPUs on average."""

    tenant: Tenant
    entitled: float
    less: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """A reservation that could be made: its windows and the GPUs of each node."""

    cluster: Cluster
    terms: Terms
    windows: list[Window]
    gpus_of: dict[Node, int]

    @property
    def gpus(self) -> int:
        return sum(self.gpus_of.values())

    @property
    def gpu_hours(self) -> float:
        """Returns the GPU-hours of all windows together."""
        return self.gpus * sum((one.ends - one.begins).total_seconds() for one in self.windows) / 3600

    @property
    def most_cost(self) -> Decimal:
        """Returns what the team pays at present prices if it uses all reserved time."""
        price = prices_at(now_from_database()).get(self.terms.generation.pk, Decimal(0))
        return price * Decimal(str(self.gpu_hours))


@dataclass(frozen=True, slots=True)
class Effect:
    """Whom a proposal hits.

    - `running`: jobs of other teams that hold GPUs of its nodes now and may be stopped, as far as the reader sees them.
    - `waiting`: the waiting jobs of each other team that accept this GPU type, most first.
    - `losses`: what other teams lose of their entitlement while a window is open.
    """

    running: DrainedJobs
    waiting: list[tuple[Tenant, int]]
    losses: list[Loss]


def propose(cluster: Cluster, terms: Terms, *, changed: AdvanceReservation | None = None) -> Proposal:
    """Returns the reservation that `terms` describe. `changed`: the stored one that it would replace.

    Raises Refused, naming the field, for terms that are not valid or for which GPUs are missing.
    """
    now = now_from_database()
    if why := why_no_name(terms.name):
        raise Refused(f"The name {why}.", "name")
    if terms.tenant.archived_at is not None:
        raise Refused("This team is archived.", "team")
    _check_times(terms, now, changed)
    windows = windows_of(terms.begins, terms.ends, weekly_until=terms.weekly_until, zone=ZoneInfo(terms.zone))
    windows = [one for one in windows if one.ends > now]
    if not windows:
        raise Refused("The window must end in the future.", "ends")
    return Proposal(cluster, terms, windows, _gpus_of(cluster, terms, windows, changed))


def effect_of(made: Proposal, reader: User) -> Effect:
    """Returns whom the proposal would hit now, as far as `reader` sees it."""
    terms, below = made.terms, Tenant.objects.within(made.terms.tenant)
    running = jobs_to_drain(list(made.gpus_of), reader)
    own = set(below.values_list("pk", flat=True))
    first = made.windows[0].begins
    hit = [
        one for one in running.seen if one.job.tenant_id not in own and (one.ends is None or one.ends > first)
    ]
    waiting: dict[int, int] = {}
    jobs = Job.objects.filter(cluster=made.cluster).waiting().exclude(tenant__in=own)
    for tenant, accepted in jobs.values_list("tenant", "generation_ids"):
        if not accepted or terms.generation.pk in accepted:
            waiting[tenant] = waiting.get(tenant, 0) + 1
    entitled: dict[int, float] = {}
    latest = Round.objects.filter(cluster=made.cluster).only("shares").order_by("-number").first()
    for rate in latest.shares if latest else ():
        if rate["generation"] == terms.generation.pk and rate["tenant"] not in own:
            entitled[rate["tenant"]] = entitled.get(rate["tenant"], 0.0) + rate["entitled"]
    nodes = Node.objects.present().filter(cluster=made.cluster, generation=terms.generation)
    total = nodes.aggregate(gpus=Sum("gpus", default=0))["gpus"]
    named = Tenant.objects.in_bulk([*waiting, *entitled])
    return Effect(
        DrainedJobs(hit, running.hidden),
        sorted(((named[pk], count) for pk, count in waiting.items()), key=lambda row: -row[1]),
        [
            Loss(named[pk], gpus, gpus * made.gpus / total)
            for pk, gpus in sorted(entitled.items(), key=lambda row: -row[1])
            if gpus > 0 and total
        ],
    )


def _check_times(terms: Terms, now: datetime, changed: AdvanceReservation | None) -> None:
    begun = changed is not None and terms.begins == changed.begins
    if terms.begins < now and not begun:
        raise Refused("The window must begin in the future.", "begins")
    if terms.ends <= terms.begins:
        raise Refused("The window must end after it begins.", "ends")
    if terms.ends - terms.begins > LONGEST_WINDOW:
        raise Refused(f"A window lasts at most {LONGEST_WINDOW.days} days.", "ends")
    if terms.weekly_until is None:
        return
    if terms.ends - terms.begins > WEEK:
        raise Refused("Windows that repeat weekly last at most a week.", "ends")
    if not terms.begins < terms.weekly_until <= terms.begins + LONGEST_REPEAT:
        raise Refused(
            f"Weekly windows end after they begin, at most {LONGEST_REPEAT.days} days later.", "weekly_until"
        )


def _gpus_of(
    cluster: Cluster, terms: Terms, windows: Sequence[Window], changed: AdvanceReservation | None
) -> dict[Node, int]:
    taken = most_reserved(windows, _others(cluster, windows, changed))
    nodes = Node.objects.present().filter(cluster=cluster).select_related("generation")
    if bool(terms.nodes) == (terms.gpus is not None):
        raise Refused("Give either a number of GPUs or nodes.", "gpus")
    if terms.nodes:
        for node in terms.nodes:
            if node.cluster_id != cluster.pk or node.generation_id != terms.generation.pk or not node.gpus:
                raise Refused(
                    f"{node.name} is no node of {cluster.name} with {terms.generation.name}.", "nodes"
                )
            if taken.get(node.pk):
                raise Refused(
                    f"{counted(taken[node.pk], 'GPU')} of {node.name} are reserved in this time already.",
                    "nodes",
                )
        return {node: node.gpus for node in terms.nodes}
    wanted = terms.gpus or 0
    if wanted < 1:
        raise Refused("Reserve at least one GPU.", "gpus")
    free = {
        node: node.gpus - taken.get(node.pk, 0)
        for node in nodes.filter(generation=terms.generation).order_by(*by_name("name"))
    }
    there = sum(free.values())
    if there < wanted:
        raise Refused(
            f"{cluster.name} has {counted(there, f'{terms.generation.name} GPU')} that no other reservation has in"
            " this time.",
            "gpus",
        )
    chosen: dict[Node, int] = {}
    # Ready nodes first, then the fewest nodes, and of those that suffice the smallest.
    ordered = sorted(free, key=lambda node: (node.state != Node.State.READY, -free[node]))
    while (missing := wanted - sum(chosen.values())) > 0:
        left = [node for node in ordered if node not in chosen and free[node] > 0]
        enough = [node for node in left if free[node] >= missing and node.state == Node.State.READY]
        node = min(enough, key=lambda one: free[one]) if enough else left[0]
        chosen[node] = min(free[node], missing)
    return chosen


def _others(
    cluster: Cluster, windows: Sequence[Window], changed: AdvanceReservation | None
) -> list[tuple[Window, dict[int, int]]]:
    """Returns the windows of other reservations at the time of `windows`, with the GPUs that they have by node."""
    found = AdvanceWindow.objects.filter(
        reservation__cluster=cluster, begins__lt=max(one.ends for one in windows), ends__gt=windows[0].begins
    ).exclude(reservation=changed)
    rows = found.select_related("reservation").prefetch_related("reservation__nodes")
    return [
        (Window(row.begins, row.ends), {one.node_id: one.gpus for one in row.reservation.nodes.all()})
        for row in rows
    ]
