"""Sums the rows of several queries by group, in the database."""

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
    """Aggregate for a value that all rows of a group have in common."""

    function = "ANY_VALUE"
    name = "AnyValue"


@dataclass(frozen=True, slots=True)
class GroupSums:
    """The sums of groups, as dictionaries by column name.

    `count` is the number of all groups, including those not in `rows`; `most` is the GPU-seconds of the largest
    group.
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
    """Returns the SQL that sums the rows of `parts` (see `grouped_rows`) by the columns `names`; None if there can be
    no rows.

    Leaves out groups of which corrections have reversed all segments. `largest` selects a slice of the groups,
    ordered by GPU-seconds, the largest first; if the slice is empty, `count` and `most` are unknown. `job_names` is
    a query of (job_id, name) for some jobs: the name becomes the column "label" of the job's rows, and is None for
    other jobs. `given` are columns with one value in each group.
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
    """Returns a WITH clause and the source of a FROM clause: the rows of `every` with the column by_label, their job's
    name.

    Names are looked up only between the lowest and the highest job id, because the jobs of a period have ids close
    together.
    """
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
    """Runs a statement and returns its rows; for None returns no rows."""
    if statement is None:
        return []
    with connection.cursor() as cursor:
        cursor.execute(*statement)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def group_sums(rows: Sequence[tuple[Any, ...]], names: Sequence[str]) -> GroupSums:
    """Returns the GroupSums of the rows of a `sum_statement`."""
    count, most = rows[0][-2:] if rows else (0, Decimal(0))
    fields = (*names, *SUMS)
    return GroupSums([dict(zip(fields, row[:-2], strict=True)) for row in rows], count, most)


def union_all(parts: Sequence[QuerySet[Any]], columns: Sequence[str]) -> Sql | None:
    """Returns the SQL of a UNION ALL of the queries `parts`, with its parameters; None if there can be no rows."""
    compiled = list(filter(None, map(_compiled, parts)))
    if not compiled:
        return None
    named = ", ".join(f'"{name}"' for name in columns)
    every = " UNION ALL ".join(f"(SELECT {named} FROM ({sql}) AS part)" for sql, _ in compiled)  # noqa: S608 - own names
    return every, [value for _, some in compiled for value in some]


def _compiled(part: QuerySet[Any]) -> Sql | None:
    """Returns the SQL of a query, with its parameters; None if the query cannot have rows."""
    try:
        sql, values = part.query.get_compiler(DEFAULT_DB_ALIAS).as_sql()
    except EmptyResultSet:
        return None
    return sql, values
