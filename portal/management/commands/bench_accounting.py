"""`make bench-accounting`: measures the response times of the report pages, for a year with a million jobs.

SQL inserts the data of the year directly, while the database's triggers are disabled. Then the portal's own functions
compute the hourly and daily rollups from this data. With `--trace`, the command instead imports a published trace, and
compares the reports with the trace's file. Both use a temporary database.
"""

from __future__ import annotations

import random
import statistics
import time
from argparse import BooleanOptionalAction
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection
from django.test import Client

from accounting.actions import add_member, create_tenant
from accounting.core.calendar import DAY, HOUR, first_of_month, months_after, start_of_day, start_of_hour
from accounting.core.clock import now_from_database
from accounting.ledger.partitions import add_months
from accounting.ledger.rollups import write_days, write_usage_hours
from accounting.models import ClosedBook, Generation, Membership, Tenant, User
from portal.management.traced import bench_trace
from portal.warm_up import load_pages
from scheduling.models import Cluster, Node

GENERATIONS = (("V100", 1), ("A100", 2), ("H100", 4))  # each with the price of a GPU-hour
DEPARTMENTS, TEAMS, USERS = 10, 10, 5
TRACES_LAST = timedelta(days=3650)  # an upper bound on the length of a trace
NODES = 300

# Some jobs fail, some are cancelled. Jobs wait for twenty minutes on average, a few for hours. As in real data, ids
# follow the time of submission.
JOBS = """
INSERT INTO scheduling_job (
    cluster_id, tenant_id, owner_id, name, spec, workers, gpus_per_worker, generation_ids, priority, state, epoch,
    reason, frozen, failed_starts, created_at, state_since, first_started_at, ended_at, files_removed_at, end_reason,
    end_message, first_generation_id, held_for)
SELECT %(cluster)s, member.tenant_id, member.user_id, 'train ' || number, '{"version": 1}', 1,
       (ARRAY[1, 1, 1, 2, 4, 8])[1 + floor(random() * 6)], '{}', 0,
       CASE WHEN fate < 0.12 THEN 'failed' WHEN fate < 0.2 THEN 'cancelled' ELSE 'succeeded' END, 1, 0, false, 0,
       starts + before, ends, starts, ends, ends, 'succeeded', '',
       (%(generations)s::bigint[])[1 + number %% %(count)s], ends - starts
  FROM (
    SELECT number, 1 + floor(random() * %(members)s) AS place, random() AS fate,
           %(begins)s::timestamptz + random() * (%(ends)s::timestamptz - %(begins)s - %(lasts)s) AS starts,
           ln(1 - random()) * interval '20 minutes' AS before
      FROM generate_series(1, %(jobs)s) AS number
  ) drawn
  CROSS JOIN LATERAL (SELECT starts + %(lasts)s * (0.5 + random() / 2) AS ends) length
  JOIN (SELECT row_number() OVER (ORDER BY id) AS place, * FROM accounting_membership) member USING (place)
 ORDER BY starts + before
"""
# In every 25th lease, the work of the second half was lost.
LEASES = """
INSERT INTO scheduling_lease (
    job_id, cluster_id, epoch, token, generation_id, gpus, state, decided_at, held_from, running_from, held_until,
    billed_until, last_seen_at, end_reason, lost_from)
SELECT id, cluster_id, 1, gen_random_uuid(), first_generation_id, gpus_per_worker,
       'closed', first_started_at, first_started_at, first_started_at, ended_at, ended_at, ended_at, 'succeeded',
       CASE WHEN id %% 25 = 0 THEN first_started_at + held_for / 2 END
  FROM scheduling_job
"""
# Every second job has two labels: one key has 40 values, the other key has a different value for each job.
LABELS = """
INSERT INTO scheduling_joblabel (job_id, key, value)
SELECT id, key, value
  FROM scheduling_job
  CROSS JOIN LATERAL (VALUES ('project', 'project-' || id %% 40), ('run', 'run-' || id)) label (key, value)
 WHERE id %% 2 = 0
"""
LABEL_KEYS = """
INSERT INTO scheduling_labelkey (tenant_id, key)
SELECT DISTINCT tenant_id, key FROM scheduling_job JOIN scheduling_joblabel label ON label.job_id = scheduling_job.id
"""
# Every third job was idle for an eighth of its time.
SEGMENTS = """
INSERT INTO accounting_usagesegment (
    transaction_id, book, month, lease_id, version, job_id, job_name, tenant_id, tenant_name, user_id, user_name,
    generation_id, gpus, period, gpu_seconds, assembling, idle, price_per_gpu_hour, cost, currency)
SELECT 0, lease.cluster_id, date_trunc('month', hour AT TIME ZONE 'UTC')::date, lease.id, 0, job.id, job.name,
       tenant.id, tenant.name, person.id, person.username, lease.generation_id, lease.gpus, tstzrange(first, last),
       seconds, 0, CASE WHEN job.id %% 3 = 0 THEN round(seconds / 8, 6) ELSE 0 END, price,
       round(seconds * price / 3600, 6), %(currency)s
  FROM scheduling_lease lease
  JOIN scheduling_job job ON job.id = lease.job_id
  JOIN accounting_tenant tenant ON tenant.id = job.tenant_id
  JOIN accounting_user person ON person.id = job.owner_id
  JOIN unnest(%(generations)s::bigint[], %(prices)s::numeric[]) AS tariff (generation_id, price)
       ON tariff.generation_id = lease.generation_id
  CROSS JOIN LATERAL generate_series(
       date_trunc('hour', held_from), held_until - interval '1 microsecond', interval '1 hour') AS hour
  CROSS JOIN LATERAL (
       SELECT greatest(held_from, hour) AS first, least(held_until, hour + interval '1 hour') AS last) part
  CROSS JOIN LATERAL (
       SELECT lease.gpus * (extract(epoch FROM last) - extract(epoch FROM first)) AS seconds) counted
 WHERE job.id BETWEEN %(from)s AND %(to)s
"""
CAPACITY = """
INSERT INTO accounting_capacitysegment (
    transaction_id, book, month, generation_id, period, busy, idle, assembling, free, others, drained, down, capacity,
    price_per_gpu_hour, currency, charged, free_value, others_value, drained_value, down_value, rounding, value)
SELECT 0, book, month, generation_id, tstzrange(hour, hour + interval '1 hour'), held - idle, idle, 0, most - held,
       0, 0, 0, most, price, currency, charged, round((most - held) * price / 3600, 6), 0, 0, 0,
       round(most * price / 3600, 6) - charged - round((most - held) * price / 3600, 6), round(most * price / 3600, 6)
  FROM (
    SELECT *, max(held) OVER (PARTITION BY generation_id) AS most
      FROM (
        SELECT book, month, hour, generation_id, currency, sum(gpu_seconds) AS held, sum(idle) AS idle,
               sum(cost) AS charged
          FROM accounting_usagehour GROUP BY 1, 2, 3, 4, 5
      ) hours
  ) known
  JOIN unnest(%(generations)s::bigint[], %(prices)s::numeric[]) AS tariff (generation_id, price) USING (generation_id)
"""
NODE_HOURS = """
INSERT INTO accounting_nodehour (
    book, month, hour, node_id, node_name, generation_id, busy, idle, assembling, free, others, drained, down)
SELECT capacity.book, month, lower(period), node.id, node.name, capacity.generation_id, capacity.busy / nodes,
       capacity.idle / nodes, 0, capacity.free / nodes, 0, 0, 0
  FROM accounting_capacitysegment capacity
  JOIN (SELECT *, count(*) OVER (PARTITION BY generation_id) AS nodes FROM scheduling_node) node
       ON node.generation_id = capacity.generation_id
"""


class Command(BaseCommand):
    help = "Measures how long report pages take to answer with a year of usage of 100 teams."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--jobs", type=int, default=1_000_000)
        parser.add_argument(
            "--hours",
            type=float,
            default=12.5,
            help="Run time of the longest job in the generated year, in hours.",
        )
        parser.add_argument("--requests", type=int, default=40, help="Number of requests for each page.")
        parser.add_argument(
            "--trace",
            type=Path,
            help="Path of a trace in the format of `import_trace`. The command imports this trace "
            "instead of generating a year of data.",
        )
        parser.add_argument(
            "--keep", action=BooleanOptionalAction, help="Keep the temporary database after the measurement."
        )

    def handle(
        self,
        *args: Any,
        jobs: int,
        hours: float,
        requests: int,
        trace: Path | None,
        keep: bool,
        **options: Any,
    ) -> None:
        call_command(
            "collectstatic", interactive=False, verbosity=0
        )  # pages need the hashed names of style sheets
        name = connection.settings_dict["NAME"]
        connection.creation.create_test_db(
            verbosity=0, autoclobber=not keep, serialize=False, keepdb=bool(keep)
        )
        try:
            if trace is not None:
                User.objects.create_user(username="operator", portal_role=User.PortalRole.OPERATOR)
                bench_trace(trace, self._tell, since=now_from_database() - TRACES_LAST)
                return
            if not Cluster.objects.exists():
                year = _Year(jobs, timedelta(hours=hours), tell=self._tell)
                year.write()
            self._measure(requests)
        finally:
            connection.creation.destroy_test_db(name, verbosity=0, keepdb=bool(keep))

    def _tell(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()

    def _measure(self, requests: int) -> None:
        load_pages()  # loads all pages before the measurement, as servers do at their start
        dice = random.Random(1)  # noqa: S311 - what is asked for, no secret
        self._tell(f"{'page':<42} {'who':<9} {'median':>8} {'95th percentile':>16} {'slowest':>9}")
        worst = 0.0
        for who, username in (("member", "user-3-3-2"), ("manager", "user-3-3-0"), ("operator", "operator")):
            client = Client(SERVER_NAME=settings.ALLOWED_HOSTS[0])
            client.force_login(User.objects.get(username=username))
            for page, path in _pages(User.objects.get(username=username), dice):
                laps = sorted(_lap(client, path()) for _ in range(requests))
                p95 = laps[min(len(laps) - 1, int(0.95 * len(laps)))]
                worst = max(worst, p95)
                self._tell(
                    f"{page:<42} {who:<9} {statistics.median(laps):>5.0f} ms {p95:>13.0f} ms {laps[-1]:>6.0f} ms"
                )
        self._tell(f"The slowest page has a 95th percentile of {worst:.0f} ms.")


def _lap(client: Client, path: str) -> float:
    begun = time.perf_counter()
    answer = client.get(path)
    elapsed = (time.perf_counter() - begun) * 1000
    if answer.status_code != 200:
        raise CommandError(f"The page {path} answers with HTTP status {answer.status_code} instead of 200.")
    return elapsed


def _pages(user: User, dice: random.Random) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yields a pair (name of a page, function that returns the page's path) for each page.

    Each call of the function chooses a random month, team or job, so that pages are measured with different data.
    """
    now = now_from_database()
    jobs = list(Tenant.objects.visible_to(user).values_list("jobs", flat=True).exclude(jobs=None)[:500])

    def month() -> str:
        first = months_after(first_of_month(now), -dice.randrange(1, 11))
        return _dates(first, months_after(first, 1) - timedelta(days=1))

    def quarter() -> str:
        first = months_after(first_of_month(now), -dice.randrange(3, 10))
        return _dates(first, months_after(first, 3) - timedelta(days=1))

    groups = ["user", "job", "generation", "day", *(["tenant"] if user.is_operator else [])]
    for by in groups:
        yield f"usage by {by} in a past month", lambda by=by: f"/usage/?by={by}&{month()}"  # type: ignore[misc]
        yield f"usage by {by} in this month", lambda by=by: f"/usage/?by={by}"  # type: ignore[misc]
        yield f"usage by {by} in a past quarter", lambda by=by: f"/usage/?by={by}&{quarter()}"  # type: ignore[misc]
    team = "&team=team-3-3" if user.is_operator else ""
    yield "usage by label in a past month", lambda: f"/usage/?by=label&label=project&{month()}"
    yield "usage statement of a team in a past month", lambda: f"/usage/statement/?{month()}{team}"
    yield "usage statement of a team in this month", lambda: f"/usage/statement/?{team}"
    if user.is_operator:
        yield (
            "usage statement of ten teams in a past month",
            lambda: f"/usage/statement/?{month()}&team=department-3",
        )
    yield "bill of a job", lambda: f"/jobs/{dice.choice(jobs)}/bill/"
    if user.is_operator:
        yield "capacity report of a past month", lambda: f"/usage/capacity/?{month()}"
        yield "capacity report of a past quarter", lambda: f"/usage/capacity/?{quarter()}"
        for subject in ("use", "nodes", "waits", "waste", "chargeback"):
            yield (
                f"report on {subject} in a past month",
                lambda subject=subject: f"/usage/operations/{subject}/?{month()}",  # type: ignore[misc]
            )


def _dates(first: date, last: date) -> str:
    return f"period=dates&from={first}&to={last}"


class _Year:
    """The generated data of one year: a hundred teams on one cluster, up to the current hour."""

    def __init__(self, jobs: int, lasts: timedelta, *, tell: Callable[[str], None]) -> None:
        self.jobs, self.lasts, self.tell = jobs, lasts, tell
        self.ends = start_of_hour(now_from_database())
        self.begins = start_of_day(self.ends) - timedelta(days=365)

    def write(self) -> None:
        members = self._people()
        generations = [Generation.objects.create(name=name) for name, _ in GENERATIONS]
        self.cluster = Cluster.objects.create(name="bench")
        Node.objects.bulk_create(
            Node(cluster=self.cluster, name=f"node-{n}", generation=generations[n % len(generations)], gpus=8)
            for n in range(NODES)
        )
        add_months(
            months_after(first_of_month(self.begins), count)
            for count in range((self.ends - self.begins).days // 28 + 1)
        )
        values = {
            "cluster": self.cluster.pk, "members": members, "begins": self.begins, "ends": self.ends,
            "lasts": self.lasts, "jobs": self.jobs, "generations": [one.pk for one in generations],
            "count": len(generations), "prices": [price for _, price in GENERATIONS],
            "currency": settings.FAIRLOT_CURRENCY,
        }  # fmt: skip
        with connection.cursor() as cursor:
            for table in _guarded(cursor):
                cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            # skips foreign key checks, since the generated references are valid
            cursor.execute("SET session_replication_role = replica")
            cursor.execute("SELECT setseed(0.5)")
            self._do(cursor, "jobs", JOBS, values)
            self._do(cursor, "leases", LEASES, values)
            self._do(cursor, "labels", LABELS, values)
            self._do(cursor, "label keys", LABEL_KEYS, values)
            cursor.execute("SELECT min(id), max(id) FROM scheduling_job")
            first, last = cursor.fetchone()
            for start in range(first, last + 1, 100_000):
                self._do(cursor, "segments", SEGMENTS, values | {"from": start, "to": start + 99_999})
            cursor.execute("ANALYZE")
            self._sum()
            self._do(cursor, "capacity segments", CAPACITY, values)
            self._do(cursor, "rows with the hourly GPU time of nodes", NODE_HOURS, values)
            cursor.execute("SET session_replication_role = DEFAULT")
            cursor.execute("VACUUM ANALYZE")

    def _people(self) -> int:
        count = 0
        User.objects.create_user(username="operator", portal_role=User.PortalRole.OPERATOR)
        for d in range(DEPARTMENTS):
            department = create_tenant(actor=None, name=f"Department {d}", parent=None)
            for t in range(TEAMS):
                team = create_tenant(actor=None, name=f"Team {d}-{t}", parent=department)
                for u in range(USERS):
                    user = User.objects.create_user(username=f"user-{d}-{t}-{u}")
                    role = Membership.Role.MANAGER if u == 0 else Membership.Role.MEMBER
                    add_member(actor=None, tenant=team, user=user, role=role)
                    count += 1
        return count

    def _do(self, cursor: Any, what: str, statement: str, values: Any) -> None:
        begun = time.perf_counter()
        cursor.execute(statement, values)
        self.tell(f"wrote {cursor.rowcount:>12,} {what} in {time.perf_counter() - begun:.0f} s")

    def _sum(self) -> None:
        begun, book = time.perf_counter(), self.cluster.pk
        hour = self.begins
        while hour < self.ends:
            write_usage_hours(transaction_id=0, book=book, hour=hour)
            hour += HOUR
            if hour == start_of_day(hour):
                write_days(transaction_id=0, book=book, day=hour - DAY)
        ClosedBook.objects.create(book=book, since=self.begins, until=self.ends, priced_until=self.ends)
        self.tell(f"computed the rollups in {time.perf_counter() - begun:.0f} s")


def _guarded(cursor: Any) -> list[str]:
    cursor.execute(
        "SELECT c.oid::regclass::text FROM pg_class c WHERE relkind IN ('r', 'p') AND relname LIKE %s",
        [r"accounting\_%"],
    )
    return [name for (name,) in cursor.fetchall()]
