"""Job states, leases, held GPUs and bills stay consistent whatever users do and backends report, in any order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from django.db import connection, transaction
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.models import UsageSegment
from scheduling.backends.base import End, Phase
from scheduling.draining.actions import drain_node, return_node
from scheduling.execution.reconcile import _repeat_orders
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.submitting import submit_job
from scheduling.leases import actions as leases
from scheduling.leases.actions import apply_observations, bill_running
from scheduling.models import Cluster, HeldGpu, Job, Lease, Node, Operation, Round
from scheduling.rounds.actions import run_round
from scheduling.spec.job_spec import JobSpec
from scheduling.spec.retries import Retries
from tests.clock import real_now, set_clock
from tests.make import Cast, cast
from tests.scheduling.world import seen

pytestmark = pytest.mark.django_db

HOLDING_STATE = {
    Job.State.STARTING: Lease.State.STARTING,
    Job.State.RUNNING: Lease.State.RUNNING,
    Job.State.STOPPING: Lease.State.STOPPING,
    Job.State.CANCELLING: Lease.State.STOPPING,
}


class Walk:
    """A cluster, and a random sequence of user actions and observations on it."""

    def __init__(self, people: Cast, chance: random.Random, slicing: str) -> None:
        self.people, self.chance = people, chance
        self.cluster = Cluster.objects.create(name=f"walk {chance.random()}", slicing=slicing)
        for name, generation, gpus in (("v", people.v100, 3), ("a", people.a100, 2)):
            Node.objects.create(
                cluster=self.cluster, name=name, generation=generation, gpus=gpus, virtual_speed=1.0
            )
        self.offset = timedelta(0)
        self.done: list[str] = []

    def now(self) -> datetime:
        return real_now() + self.offset

    def step(self) -> None:
        weighted = {
            self.submit: 3,
            self.round: 5,
            self.see: 8,
            self.see_what_is_usual: 8,
            self.claim: 4,
            self.cancel: 1,
            self.close_never_started: 1,
            self.reconcile: 1,
            self.drain_or_return: 1,
            self.bill: 1,
            self.pass_time: 3,
        }
        act: Callable[[], None] = self.chance.choices([*weighted], [*weighted.values()])[0]
        self.done.append(act.__name__)
        act()
        self.check()

    # --- what may happen -------------------------------------------------------------------------

    def submit(self) -> None:
        if Job.objects.filter(cluster=self.cluster).unfinished().count() > 5:
            return
        owner, tenant = self.chance.choice(
            [(self.people.bob, self.people.astro), (self.people.charlie, self.people.bio)]
        )
        spec = JobSpec(
            name="any",
            command="true",
            gpus_per_worker=self.chance.randint(1, 2),
            workers=self.chance.randint(1, 2),
            retries=Retries(times=self.chance.choice([0, 2])),
        )
        submit_job(actor=owner, tenant=tenant, cluster=self.cluster, spec=spec)

    def round(self) -> None:
        run_round(cluster_id=self.cluster.pk, force=self.chance.choice([None, *Round.Kind]))

    def see(self) -> None:
        """Reports a random phase, with random facts, for a random lease."""
        lease = self._any_lease()
        if lease is None:
            return
        phase = self.chance.choice(list(Phase))
        facts = {
            "running_age": self.chance.choice([None, 0.0, 40.0, -5.0, 1e6]),
            "frozen_age": self.chance.choice([None, 0.0, 1e5]),
            "seen_age": self.chance.choice([0.0, 3.0, 1e5]),
            "steps": self.chance.choice([None, 5.0, 100.0, float("nan"), -1.0]),
            "steps_age": self.chance.choice([None, 0.0, 10.0]),
        }
        if phase is Phase.ENDED:
            facts |= {
                "ended_age": self.chance.choice([None, 0.0, 30.0, 1e5]),
                "end": self.chance.choice([None, *End]),
                "exit_code": self.chance.choice([None, 0, 1, 137]),
            }
        self._apply(lease, phase, **facts)

    def see_what_is_usual(self) -> None:
        lease = self._any_lease(*Lease.HOLDING)
        if lease is None:
            return
        if lease.state == Lease.State.STOPPING:
            frozen = lease.operations.filter(verb=Operation.Verb.FREEZE).exists()
            phase, facts = (Phase.FROZEN, {}) if frozen else (Phase.ENDED, {"end": End.STOPPED})
        else:
            phase, facts = Phase.RUNNING, {}
        self._apply(lease, phase, **facts)

    def claim(self) -> None:
        """Records that a worker has begun to carry out a random order to start or resume a gang."""
        order = self._any(Operation.objects.filter(cluster=self.cluster, verb__in=leases.BEGIN))
        if order is not None:
            done = self.chance.choice([None, self.now() - timedelta(seconds=60)])
            Operation.objects.filter(pk=order.pk).update(attempts=self.chance.randint(1, 5), done_at=done)

    def cancel(self) -> None:
        job = self._any(Job.objects.filter(cluster=self.cluster))
        if job is not None:
            cancel_job(actor=self.people.olga, job=job)

    def close_never_started(self) -> None:
        lease = self._any_lease()
        if lease is not None:
            leases.close_never_started(cluster_id=self.cluster.pk, lease_ids=[lease.pk])

    def reconcile(self) -> None:
        Lease.objects.filter(cluster=self.cluster, state__in=Lease.HOLDING).update(
            last_seen_at=self.now() - timedelta(seconds=30)
        )
        never, lost = _repeat_orders(self.cluster, {}, self.now())
        leases.close_never_started(cluster_id=self.cluster.pk, lease_ids=never)
        apply_observations(cluster_id=self.cluster.pk, observations=lost)
        leases.hand_over(cluster_id=self.cluster.pk)

    def drain_or_return(self) -> None:
        node = self._any(Node.objects.filter(cluster=self.cluster))
        if node.state == Node.State.READY:
            mode = self.chance.choice(["finish", "now"])
            drain_node(actor=self.people.olga, node=node, reason="", mode=mode)
        else:
            return_node(actor=self.people.olga, node=node)

    def bill(self) -> None:
        bill_running(cluster_id=self.cluster.pk)

    def pass_time(self) -> None:
        """Moves the clock, usually forward and sometimes back."""
        seconds = self.chance.choice([1, 5, 60, 4000, -30, -5000])
        self.offset += timedelta(seconds=seconds)

    # --- what must hold --------------------------------------------------------------------------

    def check(self) -> None:
        for job in Job.objects.filter(cluster=self.cluster).prefetch_related("leases"):
            states = [lease.state for lease in job.leases.all() if lease.state != Lease.State.CLOSED]
            if job.state in Job.WAITING:
                assert states in ([], [Lease.State.RESERVED]), self.done
            elif job.has_ended:
                assert states == [], self.done
                assert not job.frozen, self.done
            elif job.state == Job.State.STOPPING:  # the job may already have a reserved lease to continue on
                assert sorted(states) in (["stopping"], ["reserved", "stopping"]), self.done
            else:
                assert states == [HOLDING_STATE[job.state]], self.done
            if job.frozen:
                assert job.state in Job.WAITING, self.done
                assert Lease.objects.filter(job=job).of_frozen_processes().count() == 1
        billed = dict(
            UsageSegment.objects.filter(lease_id__in=Lease.objects.filter(cluster=self.cluster).values("pk"))
            .values_list("lease_id")
            .annotate(Sum("gpu_seconds"))
        )
        for lease in Lease.objects.filter(cluster=self.cluster).prefetch_related("held_gpus", "operations"):
            self._check_lease(lease, billed.get(lease.pk, Decimal(0)))

    def _check_lease(self, lease: Lease, billed: Decimal) -> None:
        held = [gpu.during for gpu in lease.held_gpus.all()]
        verbs = {operation.verb for operation in lease.operations.all()}
        if lease.state == Lease.State.RESERVED:
            assert held == [None] * lease.gpus, self.done
        elif lease.state in Lease.HOLDING:
            assert [(r.lower, r.upper) for r in held] == [(lease.held_from, None)] * lease.gpus, self.done
            assert verbs & set(leases.BEGIN), self.done
            if lease.state == Lease.State.STOPPING:
                assert verbs & {Operation.Verb.STOP, Operation.Verb.FREEZE}, self.done
        elif lease.held_from is None:
            assert held == [], self.done
        else:
            seconds = (lease.held_until - lease.held_from) / timedelta(microseconds=1)
            assert billed == lease.gpus * Decimal(int(seconds)).scaleb(-6), self.done
            assert len(held) == lease.gpus
            if seconds:
                assert {(r.lower, r.upper) for r in held} == {(lease.held_from, lease.held_until)}

    # --- how ---------------------------------------------------------------------------------------

    def _apply(self, lease: Lease, phase: Phase, **facts: object) -> None:
        """Applies the observation in one batch with another one: that another gang has started to run.

        Checks that this other gang counts as running, whatever the observation of `lease` says.
        """
        batch = [seen(lease, phase, **facts)]
        other = self._any_lease(Lease.State.STARTING)
        if other is not None and other.pk != lease.pk:
            batch.insert(self.chance.randint(0, 1), seen(other, Phase.RUNNING, running_age=0.0))
        apply_observations(cluster_id=self.cluster.pk, observations=batch)
        if other is not None and other.pk != lease.pk:
            other.refresh_from_db()
            assert other.state == Lease.State.RUNNING, self.done

    def _any_lease(self, *states: str) -> Lease | None:
        found = Lease.objects.filter(cluster=self.cluster).exclude(state=Lease.State.RESERVED)
        return self._any(found.filter(state__in=states) if states else found)

    def _any(self, found):
        rows = list(found.order_by("pk"))
        return self.chance.choice(rows) if rows else None

    def end_all(self) -> None:
        """Cancels all jobs, and checks that they end and that no GPU is held any more."""
        for job in Job.objects.filter(cluster=self.cluster).unfinished():
            cancel_job(actor=self.people.olga, job=job)
        for lease in Lease.objects.filter(cluster=self.cluster, state__in=Lease.HOLDING):
            apply_observations(
                cluster_id=self.cluster.pk,
                observations=[seen(lease, Phase.ENDED, end=End.STOPPED, ended_age=0.0)],
            )
        self.check()
        assert not Job.objects.filter(cluster=self.cluster).unfinished().exists()
        assert not HeldGpu.objects.filter(
            lease__cluster=self.cluster, during__endswith=None, during__isempty=False
        ).exists()


@contextmanager
def undone() -> Iterator[None]:
    """Rolls back all writes of the block at its end."""
    # An outer atomic block would forbid durable transactions inside it.
    before = transaction.savepoint()
    try:
        yield
    finally:
        connection.needs_rollback = False
        transaction.savepoint_rollback(before)


@pytest.fixture
def people() -> Cast:
    return cast()


@given(seed=st.integers(0, 2**32), slicing=st.sampled_from(Cluster.Slicing.values))
@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_order_keeps_states_leases_gpus_and_bills_together(
    people: Cast, caplog: pytest.LogCaptureFixture, seed: int, slicing: str
) -> None:
    caplog.clear()
    with undone(), pytest.MonkeyPatch.context() as patch:
        walk = Walk(people, random.Random(seed), slicing)
        set_clock(patch, walk.now)
        for _ in range(40):
            walk.step()
        walk.end_all()
    refused = [record.getMessage() for record in caplog.records if "cannot be written" in record.getMessage()]
    assert not refused, walk.done
