"""`make bench`: the time of one round at several cluster sizes, split into reading, deciding, committing.

Works in a database of its own, which is dropped at the end. The first round fills an empty cluster and
tells all others why they wait. The busy ones are those of a full cluster at the end of a quantum, as they go
on for ever after. The quiet ones only give away what ten gangs have left that ended.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection

from accounting.bulk import insert_rows
from accounting.models import Generation, Membership, Tenant, User
from scheduling.actions import run_round
from scheduling.models import Cluster, Job, Node, Round
from scheduling.spec import JobSpec

GPUS_PER_NODE = 8
ENDS_BEFORE_A_QUIET_ROUND = 10
GENERATIONS = ("V100", "A100", "H100")
# Gang sizes and how often they come: most jobs of the published traces are small.
SIZES = ((1, 1, 0.70), (1, 2, 0.10), (1, 4, 0.15), (1, 8, 0.04), (2, 8, 0.01))  # workers, GPUs each, part


class Command(BaseCommand):
    help = "Times one scheduling round: reading, deciding, committing."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--gpus", type=int, nargs="+", default=[100, 1_000, 10_000])
        parser.add_argument("--jobs-per-gpu", type=int, default=10)
        parser.add_argument("--rounds", type=int, default=5, help="Rounds of each kind; medians are printed.")

    def handle(self, *args: Any, gpus: list[int], jobs_per_gpu: int, rounds: int, **options: Any) -> None:
        name = connection.settings_dict["NAME"]
        connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
        try:
            self.stdout.write(
                f"{'GPUs':>7} {'jobs':>8} {'round':>6} {'read':>9} {'decide':>9} {'commit':>9} {'total':>9}"
                f" {'started':>8} {'stopped':>8}"
            )
            for count in gpus:
                self._size(count, count * jobs_per_gpu, rounds)
        finally:
            connection.creation.destroy_test_db(name, verbosity=0)

    def _size(self, gpus: int, jobs: int, rounds: int) -> None:
        cluster = make_cluster(gpus, jobs, seed=gpus)
        self._row(gpus, jobs, "first", [timed_round(cluster)])
        laps = []
        for _ in range(rounds):
            carry_out(cluster)
            laps.append(timed_round(cluster))
        self._row(gpus, jobs, "busy", laps)
        laps = []
        for _ in range(rounds):
            carry_out(cluster, ends=ENDS_BEFORE_A_QUIET_ROUND)
            laps.append(timed_round(cluster, Round.Kind.FILL))
        self._row(gpus, jobs, "quiet", laps)

    def _row(self, gpus: int, jobs: int, kind: str, laps: list[tuple[Round, float]]) -> None:
        read = statistics.median(round_.read_ms for round_, _ in laps)
        decide = statistics.median(round_.decide_ms for round_, _ in laps)
        total = statistics.median(total for _, total in laps)
        commit = statistics.median(total - round_.read_ms - round_.decide_ms for round_, total in laps)
        started = statistics.median(round_.started for round_, _ in laps)
        stopped = statistics.median(round_.stopped for round_, _ in laps)
        self.stdout.write(
            f"{gpus:>7,} {jobs:>8,} {kind:>6} {read:>6.0f} ms {decide:>6.0f} ms {commit:>6.0f} ms"
            f" {total:>6.0f} ms {started:>8.0f} {stopped:>8.0f}"
        )
        self.stdout.flush()


def timed_round(cluster: Cluster, kind: Round.Kind = Round.Kind.QUANTUM) -> tuple[Round, float]:
    """One round with its commit, and the milliseconds it took."""
    begun = time.perf_counter()
    round_ = run_round(cluster_id=cluster.pk, force=kind)
    elapsed = (time.perf_counter() - begun) * 1000.0
    if round_ is None:
        raise RuntimeError("somebody else works in the benchmark's database")
    return round_, elapsed


def carry_out(cluster: Cluster, *, ends: int = 0) -> None:
    """Everything that was ordered has happened, a quantum has passed, and `ends` gangs have succeeded."""
    quantum = cluster.quantum_seconds
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE scheduling_lease SET state = 'closed', held_until = greatest(held_from, now()),
                   billed_until = now() WHERE cluster_id = %(c)s AND state = 'stopping';
            UPDATE scheduling_heldgpu gpu SET during = tstzrange(lower(during), upper_of.held_until)
              FROM scheduling_lease upper_of WHERE upper_of.id = gpu.lease_id
               AND upper_of.cluster_id = %(c)s AND upper_of.state = 'closed' AND upper_inf(gpu.during);
            UPDATE scheduling_job SET state = 'suspended' WHERE cluster_id = %(c)s AND state = 'stopping';
            UPDATE scheduling_heldgpu gpu SET during = tstzrange(now(), NULL)
              FROM scheduling_lease lease WHERE lease.id = gpu.lease_id
               AND lease.cluster_id = %(c)s AND lease.state = 'promised';
            UPDATE scheduling_job job SET state = 'running' FROM scheduling_lease lease
             WHERE lease.job_id = job.id AND lease.cluster_id = %(c)s
               AND lease.state IN ('promised', 'starting');
            UPDATE scheduling_lease SET state = 'running', held_from = coalesce(held_from, now())
             WHERE cluster_id = %(c)s AND state IN ('promised', 'starting');
            UPDATE scheduling_lease SET held_from = held_from - %(q)s * interval '1 second'
             WHERE cluster_id = %(c)s AND state = 'running';
            UPDATE scheduling_round SET at = at - %(q)s * interval '1 second' WHERE cluster_id = %(c)s;
            UPDATE scheduling_cluster SET last_round_at = last_round_at - %(q)s * interval '1 second'
             WHERE id = %(c)s;
            WITH over AS (
                UPDATE scheduling_lease SET state = 'closed', held_until = now(), billed_until = now()
                 WHERE id IN (SELECT id FROM scheduling_lease WHERE cluster_id = %(c)s AND state = 'running'
                              ORDER BY id LIMIT %(ends)s)
                RETURNING id, job_id, held_from, held_until),
            freed AS (
                UPDATE scheduling_heldgpu gpu SET during = tstzrange(lower(during), over.held_until)
                  FROM over WHERE gpu.lease_id = over.id)
            UPDATE scheduling_job job SET state = 'succeeded', ended_at = now() FROM over
             WHERE job.id = over.job_id;
            """,
            {"c": cluster.pk, "q": quantum, "ends": ends},
        )


def make_cluster(gpus: int, jobs: int, *, seed: int) -> Cluster:
    """A cluster of three generations and `jobs` queued jobs of 90 teams in 9 departments."""
    random = np.random.default_rng(seed)
    cluster = Cluster.objects.create(name=f"bench-{gpus}")
    generations = [Generation.objects.get_or_create(name=name)[0] for name in GENERATIONS]
    nodes = -(-gpus // GPUS_PER_NODE)
    Node.objects.bulk_create(
        Node(
            cluster=cluster,
            name=f"node-{n}",
            generation=generations[n % len(generations)],
            gpus=min(GPUS_PER_NODE, gpus - n * GPUS_PER_NODE),
        )
        for n in range(nodes)
    )
    members = _make_teams(str(gpus), random)
    spec = JobSpec(name="bench", command="true").to_dict()
    shapes = random.choice(len(SIZES), size=jobs, p=[part for *_, part in SIZES])
    owners = random.integers(len(members), size=jobs)
    kinds = random.integers(4, size=jobs)  # three accept one generation each, the fourth any
    insert_rows(
        (
            Job(
                cluster_id=cluster.pk,
                tenant_id=members[owner][0].pk,
                owner_id=members[owner][1].pk,
                name="bench",
                spec=spec,
                workers=SIZES[shape][0],
                gpus_per_worker=SIZES[shape][1],
                generation_ids=[] if kind == 3 else [generations[kind].pk],
            )
            for shape, owner, kind in zip(shapes, owners, kinds, strict=True)
        )
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return cluster


def _make_teams(label: str, random: np.random.Generator) -> list[tuple[Tenant, User]]:
    members = []
    for d in range(9):
        department = _tenant(f"department-{label}-{d}", None, int(random.integers(50, 400)))
        for t in range(10):
            team = _tenant(f"team-{label}-{d}-{t}", department, int(random.integers(50, 400)))
            for u in range(3):
                user = User.objects.create(username=f"user-{label}-{d}-{t}-{u}")
                Membership.objects.create(user=user, tenant=team)
                members.append((team, user))
    return members


def _tenant(name: str, parent: Tenant | None, tickets: int) -> Tenant:
    tenant = Tenant.objects.create(name=name, slug=name, parent=parent, tickets=tickets, path=f"new {name}")
    tenant.path = f"{parent.path if parent else ''}{tenant.pk}/"
    tenant.save(update_fields=["path"])
    return tenant
