"""The expected number of database queries of reads, writes and pages.

A commit that changes a number here must say why, because the number is the cost of the operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection
from django.test.utils import CaptureQueriesContext


def up_to(most: int) -> range:
    """Returns the range of accepted counts from 0 to `most`, for operations that sometimes need fewer queries than
    `most`."""
    return range(most + 1)


QUERIES: dict[str, int | range] = {
    # accounting
    "prices a stretch in which nothing was billed": up_to(26),
    "a prepared read with its relations": 1,
    "a prepared read and a field that it left out": 2,
    "the roles of two users, each asked for twice": 2,
    "a statement that is run twice": 2,
    "books 100 usages": up_to(18),
    "books 100 usages again": up_to(5),
    "books 120 trades": up_to(14),
    "what no quotas leave": 0,
    # The first count is for how far books are closed and for the tree of teams. Open hours add the read of usage
    # segments; closed hours add the reads of rollups by hour, and of the segments around these hours.
    "what two quotas leave, without usage": 2,
    "what two quotas leave, with open hours": 3,
    "what two quotas leave, with closed hours": 5,
    "lines of an invoice": up_to(9),
    "a usage report by tenant and job": 3,
    "a usage report by day and user": 4,
    "a usage report by generation": 3,
    "a usage report by hour": 4,
    # One query each for teams, books, rows of jobs and names of jobs, and one for each of two reports.
    "all figures of a team's jobs": 6,
    # scheduling
    "submits jobs, one or many": up_to(15),
    # One query reads the clock, one the limits of teams, and one the jobs with a time limit of their own.
    "ends jobs at their time limit, without limits": 3,
    # Leases, streams (locked), the clock, and an insert and an update for all; new streams are inserted and read again.
    "stores a sample of each gang of a cluster": up_to(10),
    "stores a further sample of each gang of a cluster": up_to(8),
    "the waits of a period": 2,
    "the expansions of a period": 3,
    "the waste of a period": 11,
    # portal
    "the share of a team on a day": 3,
    "the export sacct.txt": up_to(7),
    "the export xdmod.txt": up_to(9),
    "a statement with its labels": range(30, 37),
    "the fairness report": up_to(17),
    # Of each job: itself, GPU types, booked cost and unbooked leases with prices. Two read the metrics of both.
    "the comparison of two jobs": up_to(19),
    "the list of secrets": 6,
    # Seven of these queries read session, user, side bar, announcements and clock; one reads the reports that the user
    # receives by mail.
    "the operations report use": up_to(13),
    "the operations report nodes": up_to(14),
    "the operations report waits": up_to(10),
    "the operations report waste": up_to(18),
    "the operations report prices": up_to(9),
    "the operations report chargeback": up_to(17),
}

# The queries of each page, by its URL name, when an admin opens the page for the second time. One of them reads the
# announcements to the reader.
PAGES: dict[str, range] = {
    # Eight of these read the cards: unread failures, drafts, idle GPUs with the clock, holders, nodes, requests and
    # anomalies.
    "home": up_to(21),
    "preferences": up_to(6),
    "tokens": up_to(5),
    "notifications": up_to(5),
    # One each for the rules, teams, channels and the teams that the user manages.
    "notification_settings": up_to(10),
    "secrets": up_to(6),
    # One each for the columns and views of the reader, and one for the order of the keys before the rows.
    "jobs": up_to(12),
    "storage": up_to(9),
    "submit": up_to(9),
    "drafts": up_to(6),
    "templates": up_to(8),
    # Of these lists, too, one each for the columns and the views of the reader.
    "sessions": up_to(8),
    "services": up_to(12),
    "schedules": up_to(11),
    "sweeps": up_to(11),
    "sweep_new": up_to(10),
    "pipelines": up_to(11),
    "pipeline_new": up_to(10),
    # Three of these read the holders, the last rounds and the sizes; one reads the teams of the filter.
    "cluster": up_to(13),
    "cluster_consumers": up_to(12),
    "share": up_to(12),
    "share_anomalies": up_to(12),
    "trades": up_to(24),
    "usage": up_to(13),
    "usage_statement": up_to(60),
    "usage_idle": up_to(12),
    "usage_fairness": up_to(17),
    "usage_capacity": up_to(13),
    "admin_tenants": up_to(8),
    "admin_users": up_to(9),
    "admin_locks": up_to(5),
    "admin_generations": up_to(7),
    "admin_clusters": up_to(5),
    "admin_nodes": up_to(7),
    "admin_settings": up_to(59),
    "admin_audit": up_to(9),
}


@contextmanager
def queries_of(what: str) -> Iterator[None]:
    """Fails unless the `with` block makes as many database queries as QUERIES allows for the key `what`."""
    with CaptureQueriesContext(connection) as asked:
        yield
    check(what, asked)


def check(what: str, asked: CaptureQueriesContext) -> None:
    """Fails unless the number of queries in `asked` is the one that QUERIES allows for the key `what`. The failure
    shows their SQL."""
    statements = "\n".join(query["sql"] for query in asked)
    assert fits(len(asked), QUERIES[what]), f"{what}: {len(asked)} queries, not {QUERIES[what]}\n{statements}"


def fits(count: int, expected: int | range) -> bool:
    return count in expected if isinstance(expected, range) else count == expected
