"""The values of labels of very many jobs, for what a team used by them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from django.db import connection

from accounting.packed import Ints, as_array, ints, packed_ints
from accounting.team_usage import Names

# Index only on `one_label_a_key_of_a_job`.
VALUES = f"""
    SELECT key, value, {packed_ints("job_id")}
      FROM scheduling_joblabel
     WHERE key = ANY(%(keys)s) AND job_id = ANY(%(jobs)s::bigint[])
     GROUP BY key, value ORDER BY key, value
"""  # noqa: S608 - of constants


def values_of(keys: Sequence[str], jobs: Ints) -> dict[str, Names]:
    """By key what the labels of these jobs say. One query."""
    asked: dict[str, Any] = {"keys": list(keys), "jobs": as_array(jobs)}
    with connection.cursor() as cursor:
        cursor.execute(VALUES, asked)
        found = cursor.fetchall()
    of_key = {key: [row[1:] for row in rows] for key, rows in groupby(found, key=lambda row: row[0])}
    return {key: _names(of_key.get(key, [])) for key in keys}


def _names(values: Sequence[tuple[str, bytes]]) -> Names:
    packed = [bytes(data) for _, data in values]
    jobs = ints(b"".join(packed))
    which = np.repeat(np.arange(len(values)), [len(data) // 8 for data in packed])
    order = np.argsort(jobs)
    return Names([value for value, _ in values], jobs[order], which[order])
