"""Reports on the health of nodes: time down and drained, failures, changes of state, and how long each GPU was held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db import connection

from accounting.core.calendar import first_of_month
from accounting.core.clock import now_from_database
from scheduling.models import Cluster, Node

# Finds all nodes that ever existed, and each node's changes from the last one before the period on. Steps through the
# index `changes_of_node`, so that its cost does not depend on how long nodes have been observed.
CHANGES = """
    RECURSIVE nodes AS (
        (SELECT cluster_id, node_id FROM scheduling_nodechange ORDER BY cluster_id, node_id LIMIT 1)
        UNION ALL
        SELECT following.* FROM nodes CROSS JOIN LATERAL (
            SELECT cluster_id, node_id FROM scheduling_nodechange other
             WHERE (other.cluster_id, other.node_id) > (nodes.cluster_id, nodes.node_id)
             ORDER BY cluster_id, node_id LIMIT 1) following
    ), changes AS (
        SELECT change.*, lag(state) OVER past AS before, lag(gpus) OVER past AS gpus_before,
               lag(failed_gpus) OVER past AS failed_before, lead(at, 1, %(ends)s) OVER past AS until
          FROM nodes CROSS JOIN LATERAL (
               SELECT coalesce(max(at), '-infinity') AS since FROM scheduling_nodechange earlier
                WHERE earlier.cluster_id = nodes.cluster_id AND earlier.node_id = nodes.node_id
                  AND at < %(begins)s) last
          CROSS JOIN LATERAL (
               SELECT * FROM scheduling_nodechange own
                WHERE own.cluster_id = nodes.cluster_id AND own.node_id = nodes.node_id
                  AND at >= since AND at < %(ends)s) change
        WINDOW past AS (PARTITION BY change.cluster_id, change.node_id ORDER BY at, id)
    )
"""
# Counts as a failure when a node goes down or more of its GPUs fail. A node that leaves the cluster is down too, but
# has 0 GPUs: its removal is not a failure.
HEALTH = f"""
    WITH {CHANGES}, hours AS (
        SELECT node_id, busy + idle + assembling AS held, drained, down,
               busy + idle + assembling + free + others + drained + down AS capacity
          FROM (
            SELECT node_id, sum(busy) AS busy, sum(idle) AS idle, sum(assembling) AS assembling, sum(free) AS free,
                   sum(others) AS others, sum(drained) AS drained, sum(down) AS down
              FROM accounting_nodehour
             WHERE month >= %(first)s AND month <= %(last)s AND hour >= %(begins)s AND hour < %(ends)s
             GROUP BY node_id
          ) sums
    ), failures AS (
        SELECT node_id, max(changes.gpus) AS most,
               count(*) FILTER (WHERE at >= %(begins)s AND state = 'down' AND gpus > 0
                                  AND before IS DISTINCT FROM 'down') AS downs,
               coalesce(sum(failed_gpus - coalesce(failed_before, 0))
                        FILTER (WHERE at >= %(begins)s AND failed_gpus > coalesce(failed_before, 0)), 0) AS gpus,
               sum(extract(epoch FROM until - greatest(at, %(begins)s)))
                   FILTER (WHERE state = 'down' AND gpus > 0 AND until > %(begins)s) AS down_for,
               sum(extract(epoch FROM until - greatest(at, %(begins)s)))
                   FILTER (WHERE state <> 'down' AND gpus > 0 AND until > %(begins)s) AS up_for
          FROM changes GROUP BY node_id
    )
    SELECT node.id, node.name, cluster.name, generation.name, coalesce(nullif(node.gpus, 0), failures.most, 0),
           node.state, node.state_reason, node.failed_gpus, node.gone_at IS NOT NULL, coalesce(held, 0),
           coalesce(drained, 0), coalesce(down, 0), coalesce(capacity, 0), coalesce(downs, 0),
           coalesce(failures.gpus, 0)::int, coalesce(down_for, 0)::float8, coalesce(up_for, 0)::float8
      FROM scheduling_node node JOIN scheduling_cluster cluster ON cluster.id = cluster_id
      JOIN accounting_generation generation ON generation.id = generation_id
      LEFT JOIN hours ON hours.node_id = node.id LEFT JOIN failures ON failures.node_id = node.id
     WHERE (%(cluster)s::bigint IS NULL OR cluster_id = %(cluster)s)
       AND (node.gone_at IS NULL OR node.gone_at > %(begins)s)
     ORDER BY cluster.name, node.name
"""  # noqa: S608 - own names
HISTORY = f"""
    WITH {CHANGES}, found AS MATERIALIZED (
        SELECT * FROM changes
         WHERE at >= %(begins)s AND (%(cluster)s::bigint IS NULL OR cluster_id = %(cluster)s)
           AND (before, gpus_before, failed_before) IS DISTINCT FROM (state, gpus, failed_gpus)
    )
    SELECT at, name, before, state, gpus_before, gpus, failed_before, failed_gpus, (SELECT count(*) FROM found)
      FROM found ORDER BY at DESC, id DESC LIMIT %(most)s
"""  # noqa: S608 - own names
# Uses the index of the exclusion constraint on (node, GPU, time).
HELD_GPUS = """
    SELECT node_id, gpu_index,
           sum(extract(epoch FROM least(coalesce(upper(during), %(until)s), %(until)s)
                                  - greatest(lower(during), %(begins)s)))::float8
      FROM scheduling_heldgpu
     WHERE node_id = ANY(%(nodes)s) AND during && tstzrange(%(begins)s, %(until)s)
     GROUP BY node_id, gpu_index
"""


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """The health of one node in a period.

    GPU-seconds (held, drained, down, capacity) come from closed hours. Seconds up and down come from the node's
    recorded changes.
    """

    node_id: int
    node: str
    cluster: str
    generation: str
    gpus: int
    state: str  # present state
    reason: str
    failed_gpus: int  # present number
    is_gone: bool
    held: Decimal
    drained: Decimal
    down: Decimal
    capacity: Decimal
    times_down: int
    gpu_failures: int
    seconds_down: float
    seconds_up: float

    @property
    def failures(self) -> int:
        return self.times_down + self.gpu_failures

    @property
    def seconds_between_failures(self) -> float | None:
        """Returns the mean time between failures: the time up divided by the number of failures; None without
        failures."""
        return self.seconds_up / self.failures if self.failures else None

    @property
    def seconds_to_repair(self) -> float | None:
        """Returns the mean time to repair: the time down divided by how often the node went down; None if it never went
        down."""
        return self.seconds_down / self.times_down if self.times_down else None


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A change of a node. The values before the change are None if the node was new."""

    at: datetime
    node: str
    state_before: str | None
    state: str
    gpus_before: int | None
    gpus: int
    failed_before: int | None
    failed: int


def node_health(begins: datetime, ends: datetime, *, cluster: Cluster | None = None) -> list[NodeHealth]:
    """Returns the health of each node that existed in the period, ordered by cluster and node name. Makes two
    queries."""
    until = min(ends, now_from_database())
    return [NodeHealth(*row) for row in _rows(HEALTH, begins, until, cluster)]


def node_events(
    begins: datetime, ends: datetime, *, cluster: Cluster | None = None, most: int | None = None
) -> tuple[list[NodeEvent], int]:
    """Returns the latest `most` changes of nodes in the period (None: all), latest first, and the number of all
    changes.

    Leaves out changes that only affect how many GPUs pods outside Fairlot hold.
    """
    rows = _rows(HISTORY, begins, ends, cluster, most=most)
    return [NodeEvent(*row[:-1]) for row in rows], rows[0][-1] if rows else 0


def held_gpus(
    nodes: Sequence[int], begins: datetime, ends: datetime
) -> tuple[Mapping[tuple[int, int], float], timedelta]:
    """Returns the seconds for which each GPU was held, by (node id, GPU index), and the length of the period.

    If the period is not over, both values count only the time up to now. Leaves out GPUs that were never held in the
    period.
    """
    # Converted to UTC, because Python subtracts times of one time zone as local times, which jump when clocks change.
    begins, until = begins.astimezone(UTC), min(ends, now_from_database()).astimezone(UTC)
    if until <= begins or not nodes:
        return {}, timedelta()
    with connection.cursor() as cursor:
        cursor.execute(HELD_GPUS, {"nodes": list(nodes), "begins": begins, "until": until})
        return {(node, gpu): seconds for node, gpu, seconds in cursor.fetchall()}, until - begins


def _rows(
    statement: str, begins: datetime, ends: datetime, cluster: Cluster | None, **more: Any
) -> list[tuple[Any, ...]]:
    values = {
        "begins": begins,
        "ends": ends,
        "first": first_of_month(begins),
        "last": first_of_month(ends),
        "cluster": cluster.pk if cluster else None,
    }
    with connection.cursor() as cursor:
        cursor.execute(statement, values | more)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def counts_of_gpus(nodes: Sequence[NodeHealth], held: Mapping[tuple[int, int], float]) -> list[int]:
    """Returns how many GPUs the page must show for each node.

    This is the present number of GPUs, or more if `held` contains a higher GPU index of the node. A GPU that was held
    in the period may be missing from the node now.
    """
    most = {node.node_id: node.gpus for node in nodes}
    for node_id, gpu in held:
        most[node_id] = max(most[node_id], gpu + 1)
    return [most[node.node_id] for node in nodes]


STATES = dict(Node.State.choices)
