"""Adding up in the database what several queries say of the same groups."""

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
    """Of rows that all have the same value, that."""

    function = "ANY_VALUE"
    name = "AnyValue"


@dataclass(frozen=True, slots=True)
class Added:
    """Rows by name; `count` is of all groups that there are, `most` the largest one's GPU-seconds."""

    rows: Sequence[dict[str, Any]]
    count: int
    most: Decimal


def adding(
    parts: Sequence[QuerySet[Any]],
    names: Sequence[str],
    largest: slice | None = None,
    *,
    job_names: QuerySet[Any] | None = None,
    given: Sequence[str] = (),
) -> Sql | None:
    """Returns the statement that adds up; None where it is clear that there is nothing.

    It has one row for each group of all `parts`, which name the group by_NAME, and gpu_seconds_sum and so on its sums.
    Groups of which corrections have left no segment are left out. With `largest` some of them, in order of
    GPU-seconds; the first of it must be one that there is, else nothing is known. `job_names` has a name for each of
    some jobs (job_id, name); the group "label" is made of the parts' jobs by it, None being the other jobs. `given` are
    those names that are alike in all rows of a group.
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
    if len(compiled) == 1 and job_names is None:  # it is added up already
        ((sql, some),) = compiled
        statement = (
            f"SELECT {shown}, gpu_seconds_sum AS gpu_seconds, cost_sum, segments_sum::bigint, count(*) OVER (),"  # noqa: S608
            f" max(gpu_seconds_sum) OVER () FROM ({sql}) AS part WHERE segments_sum <> 0"
        )
        return statement + page, [*some, *bounds]
    told = ", ".join(f'"by_{"job_id" if name == "label" else name}"' for name in names)
    every = " UNION ALL ".join(
        f"(SELECT {told}, gpu_seconds_sum, cost_sum, segments_sum FROM ({sql}) AS part)"  # noqa: S608 - own names
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
    """The rows of `every` with by_label, the name of each one's job, as what stands before a SELECT and its source.

    Jobs are numbered as they come: those of a period are some in a row, and no others' names need be looked up.
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


def run(statement: Sql | None) -> list[tuple[Any, ...]]:
    """Executes a statement and returns its rows."""
    if statement is None:
        return []
    with connection.cursor() as cursor:
        cursor.execute(*statement)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def added(rows: Sequence[tuple[Any, ...]], names: Sequence[str]) -> Added:
    """Reads the rows of `adding`."""
    count, most = rows[0][-2:] if rows else (0, Decimal(0))
    fields = (*names, *SUMS)
    return Added([dict(zip(fields, row[:-2], strict=True)) for row in rows], count, most)


def union_all(parts: Sequence[QuerySet[Any]], columns: Sequence[str]) -> Sql | None:
    """A statement that has the rows of all `parts`, and its values; None where it is clear that there are none."""
    compiled = list(filter(None, map(_compiled, parts)))
    if not compiled:
        return None
    named = ", ".join(f'"{name}"' for name in columns)
    every = " UNION ALL ".join(f"(SELECT {named} FROM ({sql}) AS part)" for sql, _ in compiled)  # noqa: S608 - own names
    return every, [value for _, some in compiled for value in some]


def _compiled(part: QuerySet[Any]) -> Sql | None:
    """None where it is clear that there is nothing."""
    try:
        sql, values = part.query.get_compiler(DEFAULT_DB_ALIAS).as_sql()
    except EmptyResultSet:
        return None
    return sql, values
