"""When the hours of a cluster are closed, every second of every GPU is in exactly one class, and the classes add up to
the capacity.

Hypothesis generates random histories of nodes and jobs. Each history is observed, billed and closed; then the booked
GPU time must equal a separate count for each GPU. In the histories daylight saving time changes, a month ends, and the
database's clock jumps forward and back over closed hours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import F
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from accounting.closing.hours import open_book
from accounting.core.calendar import first_of_month
from accounting.ledger import TradedTime, book_trades
from accounting.ledger.partitions import add_months
from accounting.models import (
    CapacitySegment,
    ClosedBook,
    Generation,
    LedgerEntry,
    NodeHour,
    Price,
    UsageDay,
    UsageHour,
    UsageSegment,
)
from accounting.reports.capacity import capacity_report
from accounting.reports.usage import By, usage_report
from accounting.verification import first_found
from scheduling.backends.base import End, Phase, Use
from scheduling.books.closing import close_hours
from scheduling.books.pricing import price_classes
from scheduling.leases.actions import bill_running, hand_over
from scheduling.leases.gpu_use import note_gpu_use
from scheduling.models import Cluster, HeldGpu, Job, Lease, Node, ShareHour
from tests.make import LONG_AGO
from tests.scheduling.world import World, world

HOUR, SECOND, MICROSECOND = timedelta(hours=1), timedelta(seconds=1), timedelta(microseconds=1)
BERLIN = ZoneInfo("Europe/Berlin")
CLASSES = ("busy", "idle", "assembling", "free", "others", "drained", "down")


@dataclass(frozen=True)
class Stretch:
    """The period of a history, in full hours. In it, daylight saving time changes in Berlin, and a month ends in Berlin
    and in UTC."""

    begins: datetime
    hours: int

    @property
    def ends(self) -> datetime:
        return self.begins + self.hours * HOUR

    def at(self, seconds: float) -> datetime:
        return self.begins + timedelta(seconds=seconds)


# In both years the clocks change on the last day of the month; the hours begin shortly before that day and end shortly
# after it.
SPRING = Stretch(datetime(2024, 3, 30, 22, tzinfo=UTC), 28)
AUTUMN = Stretch(datetime(2021, 10, 30, 21, tzinfo=UTC), 29)
LONGEST = 29 * 3600

FAST, ALSO_FAST, SLOW, LATE = range(4)  # indices of the nodes; the node LATE is missing at first
GPUS = 4  # GPUs of each node before any change
# Sets of GPUs, as (node, index), that a gang may hold; some sets span two nodes.
PLACES: Sequence[Sequence[tuple[int, int]]] = (
    [(FAST, 0), (FAST, 1)],
    [(FAST, 2)],
    [(ALSO_FAST, 0), (ALSO_FAST, 1), (ALSO_FAST, 2), (ALSO_FAST, 3)],
    [(FAST, 2), (FAST, 3), (ALSO_FAST, 0), (ALSO_FAST, 1)],
    [(SLOW, 0), (SLOW, 1), (SLOW, 2)],
    [(SLOW, 3), (LATE, 0)],
)
SLOW_PLACES = (4, 5)
JOBS = 4  # jobs with even numbers belong to Bob in Astro, jobs with odd numbers to Charlie in Bio


@dataclass(frozen=True)
class Change:
    """A change of a node in a history: the node's state from `at` on, in seconds after the start of the period."""

    at: float
    node: int
    state: str = "ready"
    gpus: int = GPUS
    slow: bool = False  # whether the node then has GPUs of the slow generation
    failed: int = 0
    others: int = 0


@dataclass(frozen=True)
class Turn:
    """A planned attempt of a job in a history. It begins `begins` seconds after the start of the period, and holds the
    GPUs of PLACES[`place`] for `lasts` seconds.

    The attempt is left out if these GPUs or the job are in use when it should begin.
    """

    job: int
    place: int
    begins: float
    lasts: float
    assembles: float = 0
    # (from, to) in seconds after the begin; may go beyond the end of the attempt
    idle: tuple[float, float] | None = None
    told_late: float = 0  # the least number of seconds after which the observer sees the end
    stopped: bool = False  # the gang ends because it is preempted; otherwise it is lost


@dataclass(frozen=True)
class Look:
    """One visit of the observer in a history: what the observer does at the time `at`, in seconds after the start of
    the period.

    From this visit on, the database's clock is wrong by `off` seconds.
    """

    at: float
    off: float = 0
    bills_first: bool = False
    sees: bool = True  # whether the observer sees running gangs
    measures: bool = True
    twice: bool = False
    tells_all: bool = False  # the observer also sees ends that `told_late` would delay


@dataclass(frozen=True)
class Trade:
    """A trade in a history, an hour long: Astro sold fast GPU time for slow GPU time.

    In the same hour each team borrowed `borrowed` GPU-seconds.
    """

    hour: int
    fast: Decimal
    slow: Decimal
    borrowed: int


@dataclass(frozen=True)
class History:
    stretch: Stretch
    changes: Sequence[Change] = ()
    turns: Sequence[Turn] = ()
    looks: Sequence[Look] = ()
    trades: Sequence[Trade] = ()
    prices: tuple[Decimal, Decimal] = (Decimal(3), Decimal(4))  # of fast GPUs, before and after the change
    price_changes: float = 12.5 * 3600
    class_prices: dict[str, Decimal | None] = field(default_factory=dict)
    intervals: Sequence[tuple[float, float]] = ()


@dataclass
class Held:
    """What the ledger should contain about an attempt: what the observer has reported, and until when the attempt is
    billed.

    A later report never changes time that is already billed.
    """

    turn: Turn
    lease: Lease
    really_begins: datetime  # the begin by a correct clock
    begins: datetime
    last_seen: datetime
    running: datetime | None = None
    ends: datetime | None = None
    idle: list[tuple[datetime, datetime]] = field(default_factory=list)
    billed: datetime | None = None

    def not_billed(self, moment: datetime) -> datetime:
        return max(moment, self.begins, self.billed or self.begins)

    @property
    def really_ends(self) -> datetime:
        return self.really_begins + timedelta(seconds=self.turn.lasts)

    @property
    def really_runs(self) -> datetime:
        return self.really_begins + timedelta(seconds=self.turn.assembles)

    @property
    def tenant(self) -> int:
        return self.lease.job.tenant_id

    def edges(self) -> Iterator[datetime]:
        yield from (one for one in (self.begins, self.running, self.ends) if one)
        for stretch in self.idle:
            yield from stretch

    def holds(self, at: datetime) -> bool:
        return self.begins <= at and (self.ends is None or at < self.ends)

    def class_at(self, at: datetime) -> str:
        if self.running is None or at < self.running:
            return "assembling"
        return "idle" if any(begins <= at < ends for begins, ends in self.idle) else "busy"


class Clock:
    """Replaces the clock of the database. Actions and triggers read the time that `set` has set."""

    FAKE = """
        CREATE SCHEMA clock;
        CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$
            SELECT current_setting('clock.now')::timestamptz
        $$;
        SET LOCAL search_path = public, clock, pg_catalog;
    """

    def __init__(self, now: datetime) -> None:
        with connection.cursor() as cursor:
            cursor.execute(self.FAKE)
        self.set(now)

    def set(self, now: datetime) -> None:
        self.now = now
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('clock.now', %s, true)", [now.isoformat()])


@pytest.fixture
def clock(db: None) -> Clock:
    return Clock(AUTUMN.begins - 24 * HOUR)


@pytest.fixture
def lab(clock: Clock) -> World:
    """Returns a world with four nodes. Three exist before every history begins; the last one, "late", is missing at
    first."""
    lab = world(v100=0)
    people = lab.people
    for name, generation in (
        ("fast", people.a100), ("also-fast", people.a100), ("slow", people.v100), ("late", people.v100)
    ):  # fmt: skip
        lab.node(name, generation, GPUS)
    Node.objects.filter(name="late").update(gone_at=clock.now)
    # Hours are priced only after the last round; here the shares of all hours count as known.
    Cluster.objects.update(last_round_at=AUTUMN.ends + timedelta(days=9999))
    # Creates the partitions for the months of all histories once.
    add_months(first_of_month(at) for one in (SPRING, AUTUMN) for at in (one.begins, one.ends))
    return lab


@contextmanager
def undone() -> Iterator[None]:
    """Rolls back all writes of the `with` block at its end."""
    # An outer atomic block would forbid durable transactions inside it.
    before = transaction.savepoint()
    try:
        yield
    finally:
        transaction.savepoint_rollback(before)


def in_order(*some: Sequence[Any]) -> list[Any]:
    """Returns the events of all sequences, sorted by time. Of events at the same time, those of an earlier sequence
    come first."""
    return sorted((one for each in some for one in each), key=when)


def when(one: Change | Turn | Look) -> float:
    return one.begins if isinstance(one, Turn) else one.at


class Observer:
    """Plays a history in the place of Fairlot's watcher and worker: changes nodes, starts gangs, records at its visits
    what it sees, bills it, and closes hours."""

    def __init__(self, lab: World, clock: Clock, history: History) -> None:
        self.lab, self.clock, self.history, self.stretch = lab, clock, history, history.stretch
        self.people, self.book = lab.people, lab.cluster.pk
        self.nodes = list(Node.objects.order_by("pk"))
        self.jobs = [self._job(number) for number in range(JOBS)]
        self.held: list[Held] = []
        # (since, change) for each node. `since` is never in a closed hour, because a change does not affect closed
        # hours.
        self.noted = [
            (self.stretch.at(-1800), Change(-1800, node, slow=node == SLOW))
            for node in (FAST, ALSO_FAST, SLOW)
        ]
        self.really = self.stretch.begins  # the time of a correct clock
        self.off = timedelta(0)

    def _job(self, number: int) -> Job:
        people = self.people
        tenant, owner = ((people.astro, people.bob), (people.bio, people.charlie))[number % 2]
        return Job.objects.create(
            cluster=self.lab.cluster, tenant=tenant, owner=owner, name=f"job-{number}", spec={},
            gpus_per_worker=1, workers=1, created_at=self.stretch.begins,
        )  # fmt: skip

    def generation(self, slow: bool) -> Generation:
        return self.people.v100 if slow else self.people.a100

    def watch(self) -> None:
        with transaction.atomic():
            open_book(book=self.book, since=self.stretch.begins)
        self._note_prices()
        length = self.stretch.hours * 3600
        looks = [one for one in self.history.looks if one.at <= length]
        # One more look after the end of the stretch, at which all late ends are known.
        looks.append(Look(length + 7500, tells_all=True))
        for one in in_order(self.history.changes, self.history.turns, looks):
            if isinstance(one, Change):
                self._note(one)
            elif isinstance(one, Turn):
                self._begin(one)
            else:
                self._look(one)
        for trade in self.history.trades:
            self._trade(trade)
        price_classes(cluster_id=self.book)

    def _note_prices(self) -> None:
        before, after = self.history.prices
        change = self.stretch.at(self.history.price_changes)
        Price.objects.filter(generation=self.people.a100).delete()
        for price, valid in ((before, (LONG_AGO, change)), (after, (change, None))):
            Price.objects.create(
                generation=self.people.a100, per_gpu_hour=price, valid=DateTimeTZRange(*valid),
                **self.history.class_prices,
            )  # fmt: skip

    def _it_is(self, at: float) -> None:
        self.really = self.stretch.at(at)
        self.clock.set(self.really + self.off)

    def _closed_until(self) -> datetime:
        return ClosedBook.objects.get(book=self.book).until

    def _note(self, change: Change) -> None:
        """Changes the node in the database, and appends (since, change) to `noted`.

        `since` is the time from which the change counts. It is never within closed hours.
        """
        self._it_is(change.at)
        Node.objects.filter(pk=self.nodes[change.node].pk).update(
            generation=self.generation(change.slow), gpus=change.gpus or GPUS, state=change.state,
            failed_gpus=change.failed, others_gpus=change.others, gone_at=None if change.gpus else self.clock.now,
        )  # fmt: skip
        before = [at for at, one in self.noted if one.node == change.node]
        self.noted.append((max([self.clock.now, self._closed_until(), *before]), change))

    def _look(self, look: Look) -> None:
        self.off = timedelta(seconds=look.off)
        self._it_is(look.at)
        if look.bills_first:
            self._bill()
        for _ in range(1 + look.twice):
            for held in self.held:
                if held.ends is None or look.twice:
                    self._tell(held, look)
        self._bill()
        close_hours(cluster_id=self.book)

    def _begin(self, turn: Turn) -> None:
        """Starts a gang on the GPUs of the planned attempt `turn`. Does nothing if these GPUs or the job are in use."""
        self._it_is(turn.begins)
        taken = [one.turn for one in self.held if one.ends is None]
        gpus = {gpu for one in taken for gpu in PLACES[one.place]}
        if (
            self.really >= self.stretch.ends
            or gpus & set(PLACES[turn.place])
            or turn.job in {one.job for one in taken}
        ):
            return
        lease = self._reserve(turn)
        assert hand_over(cluster_id=self.book) == 1
        begins = max([self.clock.now, self._closed_until(), *self._free_from(turn)])
        lease.refresh_from_db()
        assert lease.held_from == begins
        self.held.append(Held(turn, lease, self.really, begins, last_seen=begins))

    def _reserve(self, turn: Turn) -> Lease:
        job, place = self.jobs[turn.job], PLACES[turn.place]
        job.refresh_from_db()
        job.state, job.failed_starts, job.not_before, job.ended_at = Job.State.QUEUED, 0, None, None
        job.epoch += 1
        job.save()
        lease = Lease.objects.create(
            job=job, cluster=self.lab.cluster, epoch=job.epoch, gpus=len(place), decided_at=self.clock.now,
            generation=self.generation(turn.place in SLOW_PLACES), state=Lease.State.RESERVED,
        )  # fmt: skip
        HeldGpu.objects.bulk_create(
            HeldGpu(lease=lease, node=self.nodes[node], rank=0, gpu_index=index) for node, index in place
        )
        return lease

    def _free_from(self, turn: Turn) -> Iterator[datetime]:
        """Yields the end of each earlier attempt that held any GPU of the planned attempt `turn`.

        Such an end may be later than the present time of the clock, if the clock was ahead when the end was recorded.
        """
        for one in self.held:
            if one.ends and one.begins < one.ends and set(PLACES[one.turn.place]) & set(PLACES[turn.place]):
                yield one.ends

    def _tell(self, held: Held, look: Look) -> None:
        late = timedelta(seconds=0 if look.tells_all else held.turn.told_late)
        if self.really >= held.really_ends + late:
            self._tell_the_end(held)
        elif self.really < held.really_ends and look.sees:
            self._tell_that_it_is_there(held)
        if look.measures and held.running is not None and held.turn.idle and held.ends is None:
            self._tell_its_use(held, held.turn.idle)

    def _age(self, moment: datetime) -> float:
        return (self.really - moment).total_seconds()

    def _tell_the_end(self, held: Held) -> None:
        ran = held.really_runs < held.really_ends
        if held.ends is None:
            held.ends = held.not_billed(held.really_ends + self.off)
            if held.running is None and ran:
                held.running = min(held.not_billed(held.really_runs + self.off), held.ends)
            held.idle = [(begins, min(ends, held.ends)) for begins, ends in held.idle if begins < held.ends]
            if held.turn.stopped:
                Lease.objects.filter(pk=held.lease.pk).update(state=Lease.State.STOPPING)
                Job.objects.filter(pk=held.lease.job_id).update(state=Job.State.STOPPING)
        self.lab.see(
            held.lease,
            Phase.ENDED,
            end=End.STOPPED if held.turn.stopped else End.LOST,
            ended_age=self._age(held.really_ends),
            running_age=self._age(held.really_runs) if ran else None,
        )

    def _tell_that_it_is_there(self, held: Held) -> None:
        held.last_seen = max(held.last_seen, held.not_billed(self.clock.now))
        if self.really < held.really_runs:
            self.lab.see(held.lease, Phase.STARTING)
            return
        held.running = held.running or held.not_billed(held.really_runs + self.off)
        self.lab.see(held.lease, Phase.RUNNING, running_age=self._age(held.really_runs))

    def _tell_its_use(self, held: Held, idle: tuple[float, float]) -> None:
        since = held.really_begins + timedelta(seconds=idle[0])
        until = min(self.really, held.really_begins + timedelta(seconds=idle[1]))
        if since >= until:
            return
        use = Use(
            token=held.lease.token,
            unused_for=(until - since).total_seconds(),
            percent=0,
            by_gpus=True,
            age=self._age(until),
        )
        note_gpu_use(cluster_id=self.book, uses=[use], seen_at=self.clock.now)
        begins = max(held.not_billed(since + self.off), held.running or since)
        if begins < until + self.off:
            held.idle.append((begins, until + self.off))

    def _bill(self) -> None:
        """Bills the running gangs up to the start of the present hour. Does nothing in the first 100 s of an hour,
        because measurements of the hour before may still arrive."""
        hour = self.clock.now.replace(minute=0, second=0, microsecond=0)
        if self.clock.now < hour + 100 * SECOND:
            return
        bill_running(cluster_id=self.book)
        for held in self.held:
            if held.ends is None and held.begins < hour <= held.last_seen:
                held.billed = max(held.billed or hour, hour)

    def _trade(self, trade: Trade) -> None:
        hour = self.stretch.begins + trade.hour * HOUR
        people = self.people
        for _ in range(2):  # booking the same trade again changes nothing
            with transaction.atomic():
                book_trades(
                    [TradedTime(
                        book=self.book, key=f"trade:{trade.hour}", seller=people.astro, buyer=people.bio,
                        slow=people.v100, fast=people.a100, fast_gpu_seconds=trade.fast,
                        slow_gpu_seconds=trade.slow, begins=hour, ends=hour + HOUR, description="a trade",
                    )]
                )  # fmt: skip
        none = dict.fromkeys(("entitled", "received", "lent", "unused", "bought", "sold"), 0.0)
        for tenant in (people.astro, people.bio):
            ShareHour.objects.create(
                cluster=self.lab.cluster, tenant=tenant, generation=people.a100, hour=hour,
                borrowed=trade.borrowed, **none,
            )  # fmt: skip


class Count:
    """The expected GPU time by class. Each GPU is counted separately, in each interval between two changes of the
    history."""

    def __init__(self, observer: Observer) -> None:
        self.observer, self.stretch = observer, observer.stretch
        self.held = observer.held
        self.changes = sorted(observer.noted, key=lambda one: one[0])
        self.pieces: list[tuple[datetime, Counter[tuple[str, str]], Counter[str]]] = []
        moments = {self.stretch.begins + count * HOUR for count in range(self.stretch.hours + 1)}
        moments |= {at for at, _ in self.changes}
        moments |= {self.stretch.at(observer.history.price_changes)}
        moments |= {edge for held in self.held for edge in held.edges()}
        within = sorted(one for one in moments if self.stretch.begins <= one <= self.stretch.ends)
        for begins, ends in pairwise(within):
            self._count(begins, (ends - begins) // MICROSECOND)

    def _count(self, at: datetime, lasts: int) -> None:
        classes: Counter[tuple[str, str]] = Counter()
        capacity: Counter[str] = Counter()
        for node in range(len(self.observer.nodes)):
            gpus = list(self._gpus(node, at))
            for generation, name in gpus:
                classes[generation, name] += lasts
            for generation in {generation for generation, _ in gpus}:
                capacity[generation] += lasts * sum(one == generation for one, _ in gpus)
        self.pieces.append((at, classes, capacity))

    def _gpus(self, node: int, at: datetime) -> Iterator[tuple[str, str]]:
        """Yields (generation, class) for each GPU of the node at the moment `at`."""
        there = 0
        for held in self.held:
            if held.holds(at):
                for place, _ in PLACES[held.turn.place]:
                    if place == node:
                        there += 1
                        yield held.lease.generation.name, held.class_at(at)
        was = [one for since, one in self.changes if one.node == node and since <= at]
        if not was:
            return
        now = was[-1]
        rest = ["others"] * now.others + ["down"] * now.failed
        rest += ["free" if now.state == "ready" else "drained"] * now.gpus
        if now.state == "down":
            rest = ["down"] * now.gpus
        for name in rest[: max(0, now.gpus - there)]:
            yield ("V100" if now.slow else "A100"), name

    def classes(self, begins: datetime, ends: datetime) -> dict[tuple[str, str], Decimal]:
        """Returns the GPU-seconds between two full hours, by (generation, class)."""
        found: Counter[tuple[str, str]] = Counter()
        for at, classes, _ in self.pieces:
            if begins <= at < ends:
                found.update(classes)
        return seconds(found)

    def capacity(self, begins: datetime, ends: datetime) -> dict[str, Decimal]:
        found: Counter[str] = Counter()
        for at, _, capacity in self.pieces:
            if begins <= at < ends:
                found.update(capacity)
        return seconds(found)

    def usage(self, begins: datetime, ends: datetime) -> dict[tuple[int, str], Decimal]:
        """Returns the GPU-seconds that teams held between any two moments, by (tenant, generation)."""
        found: Counter[tuple[int, str]] = Counter()
        for held in self.held:
            start = max(begins, held.begins)
            end = min(ends, self.stretch.ends, held.ends or ends)
            if start < end:
                found[held.tenant, held.lease.generation.name] += (
                    held.lease.gpus * ((end - start) // MICROSECOND)
                )  # fmt: skip
        return seconds(found)


def seconds(microseconds: Counter[Any]) -> dict[Any, Decimal]:
    return {key: Decimal(count).scaleb(-6) for key, count in microseconds.items() if count}


def require_closed_books(observer: Observer) -> None:
    count, stretch, book = Count(observer), observer.stretch, observer.book
    # The last lease may be billed beyond the stretch, but only time within the stretch is compared.
    assert ClosedBook.objects.get(book=book).until >= stretch.ends
    require_hours(observer, count)
    require_days_and_months(observer, count)
    require_sums_of_rows(observer)
    for a, b in observer.history.intervals:
        begins, ends = stretch.at(min(a, b)), min(stretch.at(max(a, b)), stretch.ends)
        if begins < ends:
            require_interval(observer, count, begins, ends)
    require_ledger(observer)


def require_hours(observer: Observer, count: Count) -> None:
    """Checks each hour: the GPU-seconds in each class, for each generation and node.

    Also checks the value of the capacity, in money, for each interval in which the price is constant.
    """
    stretch, history = observer.stretch, observer.history
    change = stretch.at(history.price_changes)
    for number in range(stretch.hours):
        hour = stretch.begins + number * HOUR
        of_nodes: Counter[tuple[str, str]] = Counter()
        for node in NodeHour.objects.filter(hour=hour).select_related("generation"):
            of_nodes.update({(node.generation.name, name): getattr(node, name) for name in CLASSES})
        assert {key: one for key, one in of_nodes.items() if one} == count.classes(hour, hour + HOUR)
        told: Counter[tuple[str, str]] = Counter()
        for one in CapacitySegment.objects.filter(
            period__startswith__gte=hour, period__startswith__lt=hour + HOUR
        ).select_related("generation"):
            name, (begins, ends) = one.generation.name, (one.period.lower, one.period.upper)
            there = {key: getattr(one, key) for key in CLASSES if getattr(one, key)}
            wanted = count.classes(begins, ends)
            assert there == {key: some for (kind, key), some in wanted.items() if kind == name}
            assert sum(there.values()) == one.capacity == count.capacity(begins, ends)[name]
            fast = history.prices[begins >= change]
            price = fast if name == "A100" else Decimal("1.20")
            worth = (one.capacity * price / 3600).quantize(Decimal("0.000001"), ROUND_HALF_EVEN)
            assert (one.price_per_gpu_hour, one.value) == (price, worth)
            told.update({(name, key): some for key, some in there.items()})
        assert dict(told) == count.classes(hour, hour + HOUR)


def require_days_and_months(observer: Observer, count: Count) -> None:
    """Checks the reports for each day, each month and the whole period, in UTC and in Berlin's time zone."""
    stretch = observer.stretch
    for zone in (UTC, BERLIN):
        days = sorted({midnight(stretch.begins, zone, day) for day in range(-1, 4)})
        edges = [stretch.begins, *(one for one in days if stretch.begins < one < stretch.ends), stretch.ends]
        for begins, ends in pairwise(edges):
            require_interval(observer, count, begins, ends)
        months = [stretch.begins, next(one for one in days if one.astimezone(zone).day == 1), stretch.ends]
        for begins, ends in pairwise(months):
            require_interval(observer, count, begins, ends)
        name = "UTC" if zone is UTC else "Europe/Berlin"
        rows = usage_report(
            observer.people.olga, stretch.begins, stretch.ends, by=[By.DAY, By.TENANT, By.GENERATION], time_zone=name
        ).rows  # fmt: skip
        by_day = {(one.begins, one.tenant_id, one.generation): one.gpu_seconds for one in rows}
        wanted = {
            (max(one for one in days if one <= begins), *key): some
            for begins, ends in pairwise(edges)
            for key, some in count.usage(begins, ends).items()
        }
        assert by_day == wanted
    lengths = {
        (b - a) / HOUR for a, b in pairwise(sorted(midnight(stretch.begins, BERLIN, d) for d in (1, 2)))
    }
    assert lengths == {23 if stretch is SPRING else 25}
    require_interval(observer, count, stretch.begins, stretch.ends)


def midnight(moment: datetime, zone: Any, days: int) -> datetime:
    """Returns the beginning of a day in the time zone `zone`, converted to UTC. The day is `days` days after the day of
    `moment`."""
    day = moment.astimezone(zone).date() + timedelta(days=days)
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)


def require_interval(observer: Observer, count: Count, begins: datetime, ends: datetime) -> None:
    """Compares the capacity report and the usage report for an interval with `count`.

    The capacity report covers only the full hours of the interval. Also checks that the parts of the capacity's value
    add up to the whole in each currency.
    """
    report = capacity_report(begins, ends, book=observer.book)
    assert report.classes_close
    found = {
        (row.generation, name): some for row in report.rows for name, some in row.seconds.items() if some
    }
    assert found == count.classes(report.begins, report.ends)
    assert {row.generation: row.capacity for row in report.rows} == count.capacity(report.begins, report.ends)
    for identity in report.identities:
        assert identity.closes
        assert identity.value == sum(row.value for row in report.rows)
    rows = usage_report(observer.people.olga, begins, ends, by=[By.TENANT, By.GENERATION]).rows
    assert {(one.tenant_id, one.generation): one.gpu_seconds for one in rows} == count.usage(begins, ends)


def require_sums_of_rows(observer: Observer) -> None:
    """Checks that the rollups by hour and by day equal the sums of the usage segments."""
    stretch = observer.stretch
    names = ("gpu_seconds", "assembling", "idle", "cost", "segments")
    day = midnight(stretch.begins, UTC, 1)  # the only day in UTC that lies wholly within the stretch
    bills = list(UsageSegment.objects.uncorrected().with_charges().annotate(whole=F("full_cost")))
    for model, first, last, length in (
        (UsageHour, stretch.begins, stretch.ends, HOUR),
        (UsageDay, day, day + 24 * HOUR, 24 * HOUR),
    ):
        wanted: Counter[Any] = Counter()
        for bill in bills:
            if first <= bill.period.lower < last:
                begins = first + (bill.period.lower - first) // length * length
                key = (begins, bill.tenant_id, bill.user_id, bill.generation_id)
                values = (bill.gpu_seconds, bill.assembling, bill.idle, bill.whole, 1)
                wanted.update({(*key, name): some for name, some in zip(names, values, strict=True)})
        told: Counter[Any] = Counter()
        for row in model.objects.filter(hour__gte=first, hour__lt=last):
            key = (row.hour, row.tenant_id, row.user_id, row.generation_id)
            told.update({(*key, name): getattr(row, name) for name in names})
        assert {k: v for k, v in told.items() if v} == {k: v for k, v in wanted.items() if v}


def require_ledger(observer: Observer) -> None:
    """Checks the balances of trades and all deferred constraints, and that the verification of the ledger finds no
    fault."""
    trades: Counter[tuple[str, int | None]] = Counter()
    for entry in LedgerEntry.objects.filter(account__kind="trade").select_related("account"):
        trades[entry.account.unit, entry.account.tenant_id] += entry.amount
    for tenant, sign in ((observer.people.astro.pk, 1), (observer.people.bio.pk, -1)):
        for unit, amount in (
            ("GPU-s A100", -sum((one.fast for one in observer.history.trades), Decimal(0))),
            ("GPU-s V100", sum((one.slow for one in observer.history.trades), Decimal(0))),
        ):
            assert trades[unit, tenant] == sign * amount
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        assert first_found() is None
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")


hours_and_seconds = st.integers(0, LONGEST // 3600).map(lambda hours: 3600.0 * hours) | st.integers(
    0, LONGEST
).map(float)
moments = hours_and_seconds | st.integers(0, LONGEST * 10**6).map(lambda micros: micros / 10**6)
lengths = st.integers(0, 3 * 3600).map(float) | moments
changes = st.builds(
    Change,
    at=moments,
    node=st.integers(0, 3),
    state=st.sampled_from(["ready", "drained", "closed", "down"]),
    gpus=st.sampled_from([GPUS, GPUS, 2, 0, 6]),
    slow=st.booleans(),
    failed=st.sampled_from([0, 0, 1, 3]),
    others=st.sampled_from([0, 0, 2]),
)
turns = st.builds(
    Turn,
    job=st.integers(0, JOBS - 1),
    place=st.integers(0, len(PLACES) - 1),
    begins=moments,
    lasts=lengths,
    assembles=st.just(0.0) | st.integers(0, 2 * 3600).map(float),
    idle=st.none() | st.tuples(lengths, lengths).map(lambda both: (min(both), max(both))),
    told_late=st.just(0.0) | st.integers(0, 2 * 3600).map(float),
    stopped=st.booleans(),
)
looks = st.builds(
    Look,
    at=st.integers(0, LONGEST // 10).map(lambda tens: 10.0 * tens),
    off=st.just(0) | st.integers(-4 * 360, 4 * 360).map(lambda tens: 10 * tens),
    bills_first=st.booleans(),
    sees=st.sampled_from([True, True, False]),
    measures=st.booleans(),
    twice=st.booleans(),
)
amounts = st.decimals(0, 9, places=6)
trades = st.builds(
    Trade,
    hour=st.integers(0, 27),
    fast=st.decimals(1, 9999, places=6),
    slow=st.decimals(1, 9999, places=6),
    borrowed=st.integers(0, 9000),
)
histories = st.builds(
    History,
    stretch=st.sampled_from([SPRING, AUTUMN]),
    changes=st.lists(changes, min_size=2, max_size=8, unique_by=lambda one: (one.at, one.node)),
    turns=st.lists(turns, min_size=4, max_size=12),
    looks=st.lists(looks, min_size=2, max_size=10, unique_by=lambda one: one.at),
    trades=st.lists(trades, max_size=2, unique_by=lambda one: one.hour),
    prices=st.tuples(amounts, amounts),
    price_changes=hours_and_seconds.map(lambda at: min(at, 27.5 * 3600)),
    class_prices=st.fixed_dictionaries(dict.fromkeys(Price.CLASSES, st.none() | amounts)),
    intervals=st.lists(st.tuples(moments, moments), max_size=2),
)

# In hours since the begin: clocks change at 3 (spring) and 4 (autumn); a month ends in Berlin at 24 and 26, in UTC at
# 26 and 27.
HELD = Turn(job=0, place=0, begins=1800, lasts=26.5 * 3600, assembles=600.5, idle=(9000, 12000.25))
HOURLY = tuple(Look(3600.0 * hour + 300) for hour in range(30))
FAILURE = History(
    SPRING,
    changes=[
        Change(10 * 3600 + 1, FAST, "down"), Change(12 * 3600 + 0.5, FAST), Change(13 * 3600, ALSO_FAST, failed=1)
    ],
    turns=[HELD, Turn(1, 2, 3601, 6 * 3600 + 1, told_late=700), Turn(1, 2, 9 * 3600, 5 * 3600, idle=(0, 99999))],
    looks=HOURLY,
    intervals=[(10 * 3600 + 1, 12 * 3600 + 0.5)],
)  # fmt: skip
DRAIN = History(
    AUTUMN,
    changes=[
        Change(3 * 3600 + 7, FAST, "drained"), Change(26 * 3600 + 59, FAST), Change(4 * 3600, SLOW, "closed", slow=True)
    ],
    turns=[HELD],
    looks=HOURLY,
)  # fmt: skip
MIGRATION = History(
    SPRING,
    turns=[
        replace(HELD, lasts=2 * 3600 + 1800, stopped=True),
        replace(HELD, place=4, begins=3 * 3600 + 1200, lasts=21 * 3600, stopped=True),
        replace(HELD, place=3, begins=25 * 3600, lasts=9 * 3600),
    ],
    changes=[Change(5 * 3600 + 30, ALSO_FAST, slow=True)],
    looks=HOURLY,
)
TRADED = History(
    AUTUMN,
    turns=[HELD, replace(HELD, job=1, place=2)],
    looks=HOURLY,
    trades=[Trade(4, Decimal(1800), Decimal("4000.5"), 1800), Trade(26, Decimal(60), Decimal(100), 99)],
    class_prices={"borrowed": Decimal("0.5"), "idle": Decimal(7), "preemptible": None},
)
COMES_AND_GOES = History(
    AUTUMN,
    changes=[
        Change(3600, LATE, slow=True),
        Change(20 * 3600 + 3, LATE, gpus=0),
        Change(26 * 3600, FAST, gpus=0),
    ],
    turns=[Turn(3, 5, 7200, 99 * 3600), HELD],
    looks=[Look(9 * 3600 + 200, sees=False), Look(15 * 3600 + 130, bills_first=True, twice=True)],
)
# For two hours the clock is five hours ahead, for the next two hours it is two hours behind, then it is right again.
WRONG_CLOCK = History(
    SPRING,
    changes=[
        Change(6 * 3600 + 5, FAST, "drained"), Change(8 * 3600 + 5, FAST),
        Change(8 * 3600 + 6, SLOW, failed=1, slow=True),
        Change(11 * 3600, ALSO_FAST, "down"), Change(12 * 3600, LATE, slow=True),
    ],
    turns=[
        HELD, Turn(1, 2, 6 * 3600 + 600, 5400, idle=(600, 3600)), Turn(1, 2, 8 * 3600 + 900, 7200),
        Turn(3, 4, 8 * 3600 + 1200, 1200), Turn(3, 4, 10 * 3600 + 1800, 4 * 3600, assembles=1000, idle=(2000, 9000)),
    ],
    looks=[
        replace(one, off=5 * 3600 if 6 <= one.at // 3600 < 8 else -2 * 3600 if 8 <= one.at // 3600 < 10 else 0)
        for one in HOURLY
    ],
)  # fmt: skip


@settings(max_examples=12, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories)
@example(FAILURE)
@example(DRAIN)
@example(MIGRATION)
@example(TRADED)
@example(COMES_AND_GOES)
@example(WRONG_CLOCK)
def test_every_second_of_every_gpu_is_in_one_class_and_the_classes_sum_to_capacity(
    lab: World, clock: Clock, history: History
) -> None:
    with undone():
        observer = Observer(lab, clock, history)
        observer.watch()
        for one in what_happens(observer):
            event(one)
        require_closed_books(observer)


def what_happens(observer: Observer) -> Iterator[str]:
    """Yields the names of the kinds of events in a history, such as "a trade". With `--hypothesis-show-statistics`,
    Hypothesis shows how often each kind occurs."""
    history = observer.history
    yield "spring" if history.stretch is SPRING else "autumn"
    for name in sorted({one.state for one in history.changes}):
        yield f"a node becomes {name}"
    if history.trades:
        yield "a trade"
    if any(held.begins > held.really_begins and held.turn.begins for held in observer.held):
        yield "a gang begins when its hour is closed already, or by a clock that is ahead"
    places: dict[int, set[int]] = {}
    for held in observer.held:
        places.setdefault(held.turn.job, set()).add(held.turn.place)
        if held.idle:
            yield "something is idle"
    if any(len(some) > 1 for some in places.values()):
        yield "a job moves"
