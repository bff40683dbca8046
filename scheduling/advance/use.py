"""How much of the time that was reserved in advance the team has used."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from scheduling.models import AdvanceReservation


@dataclass(frozen=True, slots=True)
class Use:
    """The GPU-hours of a reservation's windows until now, and those in which jobs of the team held its GPUs."""

    reserved: float
    used: float


def use_of(reservation: AdvanceReservation, now: datetime) -> Use:
    """Returns the use of a reservation until `now`. Of each node and window no more than what was reserved counts."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH due AS (
                SELECT wanted.begins, least(wanted.ends, %(now)s) AS ends, reserved.node_id, reserved.gpus
                  FROM scheduling_advancewindow AS wanted
                  JOIN scheduling_reservednode AS reserved USING (reservation_id)
                 WHERE reservation_id = %(reservation)s AND wanted.begins < %(now)s
            ), held AS (
                SELECT due.begins, due.ends, due.node_id, due.gpus, sum(extract(epoch FROM
                           least(coalesce(upper(gpu.during), %(now)s), due.ends)
                           - greatest(lower(gpu.during), due.begins))) AS seconds
                  FROM due
                  LEFT JOIN (scheduling_heldgpu AS gpu
                             JOIN scheduling_lease AS lease ON lease.id = gpu.lease_id
                             JOIN scheduling_job AS job ON job.id = lease.job_id
                             JOIN accounting_tenant AS tenant ON tenant.id = job.tenant_id
                              AND starts_with(tenant.path, %(path)s))
                    ON gpu.node_id = due.node_id AND gpu.during && tstzrange(due.begins, due.ends)
                 GROUP BY due.begins, due.ends, due.node_id, due.gpus
            )
            SELECT coalesce(sum(gpus * extract(epoch FROM ends - begins)), 0) / 3600,
                   coalesce(sum(least(seconds, gpus * extract(epoch FROM ends - begins))), 0) / 3600
              FROM held
            """,
            {"now": now, "reservation": reservation.pk, "path": reservation.tenant.path},
        )
        reserved, used = cursor.fetchone()
    return Use(float(reserved), float(used))
