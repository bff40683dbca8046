"""Creates large clusters for `make bench` with bulk inserts, and simulates what happens between two rounds."""

from __future__ import annotations

import numpy as np
from django.db import connection
from django.db.models import Max

from accounting.core.bulk import array, insert_values, update_rows
from accounting.models import Generation, Membership, Tenant, User
from scheduling.models import Cluster, Job, Node
from scheduling.spec.job_spec import JobSpec

GPUS_PER_NODE = 8
GENERATIONS = ("V100", "A100", "H100")
# By generation: least and greatest speed of a job relative to the first generation.
FASTER = ((1.0, 1.0), (1.0, 3.0), (1.0, 6.0))
# (workers, GPUs per worker, fraction of the jobs): gangs are mostly small, as in the published traces.
SIZES = (
    (1, 1, 0.70),
    (1, 2, 0.10),
    (1, 4, 0.15),
    (1, 8, 0.04),
    (2, 8, 0.01),
)
GPUS_PER_TEAM = 10
TEAMS_PER_DEPARTMENT = 10
USERS_PER_TEAM = 3
MEASURED = 40  # percentage of jobs whose speeds are measured
AT_ONCE = 10_000  # jobs created in one batch; few enough that the peak of memory is that of rounds

Member = tuple[Tenant, User]


class BenchCluster:
    """A cluster for benchmarks, with three generations and the jobs of many teams. Many jobs have measured speeds."""

    def __init__(self, gpus: int, jobs: int) -> None:
        self.random = np.random.default_rng(gpus)
        self.generations = [Generation.objects.get_or_create(name=name)[0] for name in GENERATIONS]
        self.cluster = Cluster.objects.create(name=f"bench-{gpus}")
        self._make_nodes(gpus)
        self.members = _make_members(str(gpus), -(-gpus // GPUS_PER_TEAM), self.random)
        low, high = np.array(FASTER).T
        self.speeds = self.random.uniform(low, high, size=(len(self.members), len(GENERATIONS)))
        for first in range(0, jobs, AT_ONCE):
            self.submit(min(AT_ONCE, jobs - first))
        self.analyse()

    def analyse(self) -> None:
        """Runs ANALYZE on all tables, which PostgreSQL's autovacuum would otherwise do within about a minute."""
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")

    def submit(self, count: int) -> None:
        """Queues `count` jobs of random users."""
        random, generations = self.random, self.generations
        usual = Job(name="bench", spec=JobSpec(name="bench", command="true").to_dict())
        constant = ["name", "spec", "priority", "state", "epoch", "reason", "frozen", "failed_starts"]
        constant += ["end_reason", "end_message"]
        rest = [getattr(usual, name) for name in constant]
        shapes = random.choice(len(SIZES), size=count, p=[part for *_, part in SIZES]).tolist()
        owners = random.integers(len(self.members), size=count).tolist()
        # A quarter of the jobs accepts only the first generation, a quarter only the second, a quarter only the third,
        # and the last quarter any generation.
        choices = [[generation.pk] for generation in generations] + [[]]
        kinds = random.integers(len(choices), size=count).tolist()
        people = [(self.cluster.pk, team.pk, user.pk) for team, user in self.members]
        newest = Job.objects.aggregate(pk=Max("pk"))["pk"] or 0
        insert_values(
            Job,
            ["cluster", "tenant", "owner", "workers", "gpus_per_worker", "generation_ids", *constant],
            (
                (*people[owner], *SIZES[shape][:2], choices[kind], *rest)
                for shape, owner, kind in zip(shapes, owners, kinds, strict=True)
            ),
        )
        places = [(user.pk, one.pk) for _, user in self.members for one in generations]
        with connection.cursor() as cursor:
            cursor.execute(
                MEASURE,
                [
                    *map(array, zip(*places, strict=True)),
                    array(self.speeds.ravel().tolist()),
                    newest,
                    MEASURED,
                ],
            )

    def pass_quantum(self, *, ends: int) -> None:
        """Simulates one quantum: all orders have been carried out, and `ends` gangs have ended successfully."""
        with connection.cursor() as cursor:
            cursor.execute(
                QUANTUM_PASSES, {"c": self.cluster.pk, "q": self.cluster.quantum_seconds, "ends": ends}
            )

    def _make_nodes(self, gpus: int) -> None:
        Node.objects.bulk_create(
            Node(
                cluster=self.cluster,
                name=f"node-{n}",
                generation=self.generations[n % len(GENERATIONS)],
                gpus=min(GPUS_PER_NODE, gpus - n * GPUS_PER_NODE),
            )
            for n in range(-(-gpus // GPUS_PER_NODE))
        )


def _make_members(label: str, teams: int, random: np.random.Generator) -> list[Member]:
    """Creates `teams` teams in departments, and users of these teams. Returns a (team, user) pair for each user."""
    departments = _make_tenants(
        [f"{label}-department-{d}" for d in range(-(-teams // TEAMS_PER_DEPARTMENT))], None, random
    )
    found = _make_tenants(
        [f"{label}-team-{t}" for t in range(teams)],
        [departments[t // TEAMS_PER_DEPARTMENT] for t in range(teams)],
        random,
    )
    users = User.objects.bulk_create(
        User(username=f"{team.slug}-user-{u}") for team in found for u in range(USERS_PER_TEAM)
    )
    members = [(found[i // USERS_PER_TEAM], user) for i, user in enumerate(users)]
    Membership.objects.bulk_create(Membership(user=user, tenant=team) for team, user in members)
    return members


def _make_tenants(
    names: list[str], parents: list[Tenant] | None, random: np.random.Generator
) -> list[Tenant]:
    made = Tenant.objects.bulk_create(
        Tenant(
            name=name,
            slug=name,
            parent=parents[i] if parents else None,
            tickets=int(random.integers(50, 400)),
            path=f"new {name}",
        )
        for i, name in enumerate(names)
    )
    for i, tenant in enumerate(made):
        tenant.path = f"{parents[i].path if parents else ''}{tenant.pk}/"
    update_rows(made, ["path"])
    return made


MEASURE = """
    INSERT INTO scheduling_jobspeed (job_id, generation_id, steps, seconds)
    SELECT job.id, known.generation, known.speed * 100, 100
      FROM unnest(%s::bigint[], %s::bigint[], %s::float8[]) AS known (person, generation, speed)
      JOIN scheduling_job AS job ON job.owner_id = known.person
       AND (job.generation_ids = '{}' OR known.generation = ANY(job.generation_ids))
     WHERE job.id > %s AND job.id %% 100 < %s
"""
QUANTUM_PASSES = """
    UPDATE scheduling_lease SET state = 'closed', held_until = greatest(held_from, now()),
           billed_until = now() WHERE cluster_id = %(c)s AND state = 'stopping';
    UPDATE scheduling_heldgpu gpu SET during = tstzrange(lower(during), upper_of.held_until)
      FROM scheduling_lease upper_of WHERE upper_of.id = gpu.lease_id
       AND upper_of.cluster_id = %(c)s AND upper_of.state = 'closed' AND upper_inf(gpu.during);
    UPDATE scheduling_job SET state = 'suspended' WHERE cluster_id = %(c)s AND state = 'stopping';
    UPDATE scheduling_heldgpu gpu SET during = tstzrange(now(), NULL)
      FROM scheduling_lease lease WHERE lease.id = gpu.lease_id
       AND lease.cluster_id = %(c)s AND lease.state = 'reserved';
    UPDATE scheduling_job job SET state = 'running' FROM scheduling_lease lease
     WHERE lease.job_id = job.id AND lease.cluster_id = %(c)s
       AND lease.state IN ('reserved', 'starting');
    UPDATE scheduling_lease SET state = 'running', held_from = coalesce(held_from, now())
     WHERE cluster_id = %(c)s AND state IN ('reserved', 'starting');
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
"""
