"""Reads the values of labels for a large number of jobs, to report usage by label."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from django.db import connection

from accounting.core.packed import Ints, as_array, ints, packed_ints
from accounting.reports.team_usage import Names

# Reads only the index `one_label_a_key_of_a_job` unless tenants are given.
VALUES = """
    SELECT key, value, {packed}
      FROM scheduling_joblabel
     WHERE key = ANY(%(keys)s) AND job_id = ANY(%(jobs)s::bigint[]){of_tenants}
     GROUP BY key, value ORDER BY key, value
"""
OF_TENANTS = " AND job_id IN (SELECT id FROM scheduling_job WHERE tenant_id = ANY(%(tenants)s::bigint[]))"


def values_of(keys: Sequence[str], jobs: Ints, tenants: Collection[int] | None) -> dict[str, Names]:
    """Returns, for each label key in `keys`, the value that each job has for this key. Makes one query.

    Leaves out jobs that have no label with the key. `jobs` are the ids of the jobs to include. `tenants` are the ids of
    the teams whose jobs are included; None means all teams. A job belongs to the team that submitted it, even if a
    corrected bill charges another team.
    """
    asked: dict[str, Any] = {"keys": list(keys), "jobs": as_array(jobs)}
    of_tenants = ""
    if tenants is not None:
        asked["tenants"], of_tenants = list(tenants), OF_TENANTS
    with connection.cursor() as cursor:
        cursor.execute(VALUES.format(packed=packed_ints("job_id"), of_tenants=of_tenants), asked)
        found = cursor.fetchall()
    of_key = {key: [row[1:] for row in rows] for key, rows in groupby(found, key=lambda row: row[0])}
    return {key: _names(of_key.get(key, [])) for key in keys}


def _names(values: Sequence[tuple[str, bytes]]) -> Names:
    packed = [bytes(data) for _, data in values]
    jobs = ints(b"".join(packed))
    which = np.repeat(np.arange(len(values)), [len(data) // 8 for data in packed])
    order = np.argsort(jobs)
    return Names([value for value, _ in values], jobs[order], which[order])
