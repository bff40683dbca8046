"""Builds and runs SQL that sums the rows of several queries by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import DEFAULT_DB_ALIAS, connection
from django.db.models import Aggregate, QuerySet

from accounting.core.prepared import Sql

SUMS = ("gpu_seconds", "cost", "segments")


class AnyValue(Aggregate):
    """SQL aggregate ANY_VALUE, for a column that has the same value in all rows of a group."""

    function = "ANY_VALUE"
    name = "AnyValue"


@dataclass(frozen=True, slots=True)
class GroupSums:
    """Represents the sums of groups. Each row is a dictionary by column name.

    `count`: the number of all groups, including those not in `rows`. `most`: the GPU-seconds of the largest group.
    """

    rows: Sequence[dict[str, Any]]
    count: int
    most: Decimal


def sum_statement(
    parts: Sequence[QuerySet[Any]],
    names: Sequence[str],
    largest: slice | None = None,
    *,
    job_names: QuerySet[Any] | None = None,
    given: Sequence[str] = (),
) -> Sql | None:
    """Returns the SQL that sums the rows of `parts` by the columns `names`; None if there cannot be any rows.

    - `parts`: queries as returned by `grouped_rows`.
    - `largest`: a slice of the groups sorted by GPU-seconds in descending order; only these groups are returned.
    - `job_names`: a queryset of (job_id, name). The name becomes the column "label" of the job's rows. Jobs that are
      not in it get the label None.
    - `given`: columns in `names` that need not be in GROUP BY, because the other columns determine them. For example,
      the job id determines the job's name.

    Leaves out groups whose segments have all been reversed by corrections. Each result row also contains the number of
    all groups and the GPU-seconds of the largest group.
    """
    compiled = list(filter(None, map(_compiled, parts)))
    if not compiled:
        return None
    keys = ", ".join(f'"by_{name}"' for name in names if name not in given)
    shown = ", ".join(f'"by_{name}"' for name in names)
    page, bounds = "", []
    if largest is not None:
        page = f" ORDER BY gpu_seconds DESC, {keys} OFFSET %s LIMIT %s"
        bounds = [largest.start or 0, largest.stop - (largest.start or 0)]
    if len(compiled) == 1 and job_names is None:  # the rows of a single query are already summed
        ((sql, some),) = compiled
        statement = (
            f"SELECT {shown}, gpu_seconds_sum AS gpu_seconds, cost_sum, segments_sum::bigint, count(*) OVER (),"  # noqa: S608
            f" max(gpu_seconds_sum) OVER () FROM ({sql}) AS part WHERE segments_sum <> 0"
        )
        return statement + page, [*some, *bounds]
    columns = ", ".join(f'"by_{"job_id" if name == "label" else name}"' for name in names)
    every = " UNION ALL ".join(
        f"(SELECT {columns}, gpu_seconds_sum, cost_sum, segments_sum FROM ({sql}) AS part)"  # noqa: S608 - own names
        for sql, _ in compiled
    )
    values = [value for _, some in compiled for value in some]
    before, source = "", f"({every})"
    if job_names is not None:
        sql, some = job_names.query.get_compiler(DEFAULT_DB_ALIAS).as_sql()
        before, source = _labelled(every, sql)
        values += some
    shown = ", ".join(f'any_value("by_{name}")' if name in given else f'"by_{name}"' for name in names)
    statement = (
        f"{before}SELECT {shown}, sum(gpu_seconds_sum) AS gpu_seconds, sum(cost_sum), sum(segments_sum)::bigint,"  # noqa: S608
        " count(*) OVER (), max(sum(gpu_seconds_sum)) OVER ()"
        f" FROM {source} AS parts GROUP BY {keys} HAVING sum(segments_sum) <> 0"
    )
    return statement + page, [*values, *bounds]


def _labelled(every: str, names: str) -> tuple[str, str]:
    """Returns SQL that adds to each usage row the column by_label: a WITH clause, and a source for FROM.

    `every`: SQL for the usage rows, with the column by_job_id. `names`: SQL for rows of (job id, label).
    """
    # Labels are looked up only between the lowest and the highest job id: the jobs of a period have ids close together.
    before = (
        f"WITH parts AS MATERIALIZED ({every}),"  # noqa: S608 - own names
        ' numbers AS (SELECT min("by_job_id") AS least, max("by_job_id") AS most FROM parts),'
        f" named AS NOT MATERIALIZED (SELECT * FROM ({names}) AS every (job_id, name)"
        " WHERE job_id BETWEEN (SELECT least FROM numbers) AND (SELECT most FROM numbers)) "
    )
    return before, (
        '(SELECT parts.*, named.name AS "by_label"'
        ' FROM parts LEFT JOIN named ON named.job_id = parts."by_job_id")'
    )


def fetch(statement: Sql | None) -> list[tuple[Any, ...]]:
    """Runs a statement and returns its rows; returns no rows if the statement is None."""
    if statement is None:
        return []
    with connection.cursor() as cursor:
        cursor.execute(*statement)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def group_sums(rows: Sequence[tuple[Any, ...]], names: Sequence[str]) -> GroupSums:
    """Converts the result rows of a `sum_statement` to GroupSums. `names`: the group columns of the statement."""
    count, most = rows[0][-2:] if rows else (0, Decimal(0))
    fields = (*names, *SUMS)
    return GroupSums([dict(zip(fields, row[:-2], strict=True)) for row in rows], count, most)


def union_all(parts: Sequence[QuerySet[Any]], columns: Sequence[str]) -> Sql | None:
    """Returns the SQL and parameters of a UNION ALL of the queries `parts`; None if there cannot be rows."""
    compiled = list(filter(None, map(_compiled, parts)))
    if not compiled:
        return None
    named = ", ".join(f'"{name}"' for name in columns)
    every = " UNION ALL ".join(f"(SELECT {named} FROM ({sql}) AS part)" for sql, _ in compiled)  # noqa: S608 - own names
    return every, [value for _, some in compiled for value in some]


def _compiled(part: QuerySet[Any]) -> Sql | None:
    """Returns the SQL and parameters of a query; None if the query cannot return rows."""
    try:
        sql, values = part.query.get_compiler(DEFAULT_DB_ALIAS).as_sql()
    except EmptyResultSet:
        return None
    return sql, values
