"""No limit is ever exceeded, across several clusters, whatever jobs are submitted, started, ended or cancelled."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from accounting.limits.spending import Spending
from accounting.models import Quota, Tenant, User
from scheduling.backends.base import End, Phase
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.submitting import submit_job
from scheduling.limits.caps import unbooked
from scheduling.models import Cluster, Job, Lease, Round
from scheduling.rounds.actions import run_round
from scheduling.spec.job_spec import JobSpec
from tests.accounting.ledger.test_at_once import at_once
from tests.clock import real_now, set_clock
from tests.make import Cast, cast, membership
from tests.scheduling.world import World, world

QUANTUM = 60


class Walk:
    """A random sequence of actions on two clusters. Time passes only in `pass_time`."""

    def __init__(self, people: Cast, chance: random.Random) -> None:
        self.people, self.chance = people, chance
        self.places = [
            World(people, Cluster.objects.create(name=f"{name} {chance.random()}")) for name in "ab"
        ]
        for place in self.places:
            place.node(place.cluster.name, people.v100, gpus=8)
        self.began, self.passed, self.since_quantum = real_now(), 0, 0
        self.done: list[str] = []
        self.quotas = [self.limit(tenant, **terms) for tenant, terms in self.terms()]

    def now(self) -> datetime:
        return self.began + timedelta(seconds=self.passed)

    def terms(self) -> list[tuple[Tenant, dict[str, object]]]:
        hours = {"kind": Quota.Kind.GPU_HOURS, "period": "rolling", "days": 300}
        most = self.chance.randint
        return [
            (self.people.uni, {"kind": Quota.Kind.GPUS, "limit": most(3, 6)}),
            (self.people.astro, {"kind": Quota.Kind.GPUS, "limit": most(2, 4)}),
            (self.people.uni, {"kind": Quota.Kind.GPUS, "limit": most(1, 3), "each_user": True}),
            (self.people.uni, hours | {"limit": Decimal(most(400, 900)) / 1000}),
            (self.people.astro, hours | {"limit": Decimal(most(100, 500)) / 1000}),
            (self.people.astro, hours | {"limit": Decimal(most(80, 300)) / 1000, "user": self.people.bob}),
        ]

    def limit(self, tenant: Tenant, **terms: object) -> Quota:
        return Quota.objects.create(tenant=tenant, **terms)

    def step(self) -> None:
        weighted = {
            self.submit: 5,
            self.fill: 4,
            self.see: 8,
            self.cancel: 4,
            self.pass_time: 3,
        }
        act: Callable[[], None] = self.chance.choices([*weighted], [*weighted.values()])[0]
        self.done.append(act.__name__)
        act()
        self.check()

    # --- what may happen -------------------------------------------------------------------------

    def submit(self) -> None:
        cast = self.people
        owner, tenant = self.chance.choice(
            [(cast.bob, cast.astro), (cast.alice, cast.astro), (cast.bob, cast.bio), (cast.charlie, cast.bio)]
        )
        spec = JobSpec(
            name="any",
            command="true",
            gpus_per_worker=self.chance.randint(1, 2),
            workers=self.chance.choice([1, 1, 2]),
            preemptible=self.chance.random() < 0.2,
        )
        submit_job(actor=owner, tenant=tenant, cluster=self.place().cluster, spec=spec)

    def fill(self) -> None:
        run_round(cluster_id=self.place().cluster.pk, force=Round.Kind.FILL)

    def see(self) -> None:
        """Reports to Fairlot what happens next to a random gang: a starting gang runs, a stopping gang has ended, a
        running gang may end."""
        place = self.place()
        leases = place.holding(*Lease.HOLDING)
        if leases:
            self.goes_on(place, self.chance.choice(sorted(leases, key=lambda lease: lease.pk)))

    def cancel(self) -> None:
        """Cancels a random job, usually one that holds GPUs. The job holds its GPUs until `see` reports its end."""
        states = Job.HOLDING if self.chance.random() < 0.8 else Job.WAITING
        jobs = list(Job.objects.filter(state__in=states).order_by("pk"))
        if jobs:
            cancel_job(actor=self.people.olga, job=self.chance.choice(jobs))

    def pass_time(self) -> None:
        """Lets part of a quantum pass. At the end of the quantum, runs a round on both clusters.

        Before, ends all stopping gangs, because limits do not bound the GPU time that a gang uses while it stops.
        """
        for place in self.places:
            for lease in place.holding(Lease.State.STOPPING):
                self.goes_on(place, lease)
        seconds = min(self.chance.choice([7, 25, QUANTUM]), QUANTUM - self.since_quantum)
        self.passed += seconds
        self.since_quantum += seconds
        if self.since_quantum == QUANTUM:
            self.since_quantum = 0
            for place in self.chance.sample(self.places, 2):
                run_round(cluster_id=place.cluster.pk, force=Round.Kind.QUANTUM)
                self.check()

    # --- what must hold --------------------------------------------------------------------------

    def check(self) -> None:
        spending = Spending(self.quotas, self.now(), unbooked())
        for quota in self.quotas:
            if quota.kind == Quota.Kind.GPUS:
                assert max(self.held(quota).values(), default=0) <= quota.limit, (quota, self.done)
                continue
            for account in spending.accounts(quota):
                used = spending.used(quota, account)
                assert used <= quota.limit + Decimal("1e-6"), (quota, account, used, self.done)

    def held(self, quota: Quota) -> dict[tuple[int, ...], int]:
        """Returns how many GPUs the limit's team and the teams below it hold, including GPUs of gangs that are being
        stopped.

        For a limit on each user, the keys are (team id, user id). Otherwise the only key is the empty tuple, with the
        total.
        """
        found: dict[tuple[int, ...], int] = {}
        below = Lease.objects.filter(state__in=Lease.HOLDING, job__tenant__path__startswith=quota.tenant.path)
        for lease in below.select_related("job"):
            key = (lease.job.tenant_id, lease.job.owner_id) if quota.each_user else ()
            found[key] = found.get(key, 0) + lease.gpus
        return found

    # --- how ---------------------------------------------------------------------------------------

    def place(self) -> World:
        return self.chance.choice(self.places)

    def goes_on(self, place: World, lease: Lease) -> None:
        if lease.state == Lease.State.STARTING:
            place.tried(lease)
            place.see(lease, Phase.RUNNING, running_age=0.0)
        elif lease.state == Lease.State.STOPPING:
            place.see(lease, Phase.ENDED, end=End.STOPPED, ended_age=0.0)
        elif self.chance.random() < 0.3:
            place.see(lease, Phase.ENDED, end=End.SUCCEEDED, exit_code=0, ended_age=0.0)


@pytest.fixture
def people(db: None) -> Cast:
    made = cast()
    membership(made.bob, made.bio)
    return made


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_held_or_spent_beyond_a_limit_whatever_the_order(
    people: Cast, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    walk = Walk(people, random.Random(seed))
    set_clock(monkeypatch, walk.now)
    for _ in range(60):
        walk.step()


@pytest.mark.django_db(transaction=True)
class TestTheLastHour:
    """Two users want a GPU, and a limit leaves only one until the next round.

    They submit at the same time, on separate database connections, while rounds run.
    """

    @pytest.mark.parametrize(
        "terms",
        [
            {"kind": Quota.Kind.GPU_HOURS, "limit": Decimal("0.017"), "period": "month"},
            {"kind": Quota.Kind.MONEY, "limit": Decimal("0.021"), "period": "month"},
            {"kind": Quota.Kind.GPUS, "limit": Decimal(1)},
        ],
    )
    def test_only_one_of_two_takes_it(self, terms: dict[str, object]) -> None:
        lab = world(v100=4)
        Quota.objects.create(tenant=lab.people.uni, **terms)
        users: list[tuple[User, Tenant]] = [
            (lab.people.bob, lab.people.astro),
            (lab.people.charlie, lab.people.bio),
        ]

        def goes(user: User, tenant: Tenant) -> None:
            lab.submit(user, tenant)
            lab.fill()

        assert at_once(*[lambda who=who: goes(*who) for who in users]) == [None, None]
        lab.fill()  # of two simultaneous rounds one may do nothing
        assert Job.objects.count() == 2
        assert sum(lease.gpus for lease in Lease.objects.filter(state__in=Lease.OPEN)) == 1
