"""Checks of rollups by hour, day and job: each rollup must equal the sum of its segments or hours."""

from __future__ import annotations

from accounting.verification.found import WITH_VOUCHERS, Found, first_row

# Segments that no correction reversed, as rollups count them, joined with their closed book.
SEGMENTS = """
    FROM accounting_usagesegment segment JOIN accounting_closedbook closed ON closed.book = segment.book
    LEFT JOIN accounting_classcharge charge ON charge.segment_id = segment.id AND charge.month = segment.month
    WHERE NOT EXISTS (SELECT FROM accounting_correctedsegment corrected
                      WHERE corrected.segment_id = segment.id AND corrected.month = segment.month)
"""
TAKEN = "-gpu_seconds, -assembling, -segment.idle, -cost - coalesce(charge.amount, 0), -1"
DIFFER = "(sum(gpu_seconds), sum(assembling), sum(idle), sum(cost), sum(segments)) <> (0, 0, 0, 0, 0)"


def an_hour_differs_from_its_segments() -> Found | None:
    return first_row(
        "the rollups of an hour differ from the sums of its usage segments",
        f"""
        SELECT book, hour, tenant_id, user_id
        FROM (
            SELECT book, hour, tenant_id, user_id, generation_id, currency, gpu_seconds, assembling, idle, cost,
                   segments
            FROM accounting_usagehour WHERE month = {WITH_VOUCHERS}
            UNION ALL
            SELECT segment.book, date_trunc('hour', lower(period), 'UTC'), tenant_id, user_id, generation_id, currency,
                   {TAKEN}
            {SEGMENTS} AND lower(period) >= since AND lower(period) < until
        ) both_sides
        GROUP BY book, hour, tenant_id, user_id, generation_id, currency HAVING {DIFFER}
        ORDER BY hour, book, tenant_id, user_id LIMIT 1
        """,  # noqa: S608 - own names
    )


def a_day_differs_from_its_hours() -> Found | None:
    return _days("the rollups of a day differ from the sums of its hourly rollups", "usageday")


def days_of_jobs_differ_from_their_hours() -> Found | None:
    return _days("the daily rollups of jobs differ from the sums of the hourly rollups", "jobday")


def _days(what: str, table: str) -> Found | None:
    return first_row(
        what,
        f"""
        SELECT book, day, tenant_id, user_id
        FROM (
            SELECT book, hour AS day, tenant_id, user_id, generation_id, currency, gpu_seconds, assembling, idle, cost,
                   segments
            FROM accounting_{table}
            UNION ALL
            SELECT usage.book, date_trunc('day', hour, 'UTC'), tenant_id, user_id, generation_id, currency,
                   -gpu_seconds, -assembling, -idle, -cost, -segments
            FROM accounting_usagehour usage JOIN accounting_closedbook closed ON closed.book = usage.book
            WHERE date_trunc('day', hour, 'UTC') >= since
              AND date_trunc('day', hour, 'UTC') + interval '1 day' <= until
        ) both_sides
        GROUP BY book, day, tenant_id, user_id, generation_id, currency HAVING {DIFFER}
        ORDER BY day, book, tenant_id, user_id LIMIT 1
        """,  # noqa: S608 - own names
    )


def a_jobs_day_differs_from_its_segments() -> Found | None:
    return first_row(
        "the daily rollups of a job differ from the sums of its usage segments",
        f"""
        SELECT book, day, job_id
        FROM (
            SELECT book, hour AS day, job_id, tenant_id, user_id, generation_id, currency, gpu_seconds, assembling,
                   idle, cost, segments
            FROM accounting_jobday WHERE month = {WITH_VOUCHERS}
            UNION ALL
            SELECT segment.book, date_trunc('day', lower(period), 'UTC'), job_id, tenant_id, user_id, generation_id,
                   currency, {TAKEN}
            {SEGMENTS} AND date_trunc('day', lower(period), 'UTC') >= since
              AND date_trunc('day', lower(period), 'UTC') + interval '1 day' <= until
        ) both_sides
        GROUP BY book, day, job_id, tenant_id, user_id, generation_id, currency HAVING {DIFFER}
        ORDER BY day, book, job_id LIMIT 1
        """,  # noqa: S608 - own names
    )


def a_jobs_day_has_another_name() -> Found | None:
    return first_row(
        "a daily rollup of a job has a name that the job never had",
        f"""
        SELECT book, hour, job_id, job_name
        FROM accounting_jobday day
        WHERE month = {WITH_VOUCHERS}
          AND NOT EXISTS (
            SELECT FROM accounting_usagesegment segment
            WHERE segment.month = day.month AND segment.book = day.book AND segment.job_id = day.job_id
              AND segment.job_name = day.job_name
        )
        ORDER BY hour, id LIMIT 1
        """,  # noqa: S608 - own names
    )


def a_sum_is_of_no_transaction() -> Found | None:
    """Finds a rollup that refers to a ledger transaction that does not exist.

    A rollup refers to the closing of an hour, or to a correction. A daily rollup may have the transaction id 0: if the
    cluster had no GPUs in the last hour of the day, no transaction closed this hour.
    """
    queries = " UNION ALL ".join(
        f"""
        SELECT '{name}' AS name, told.id, told.book, told.hour
        FROM accounting_{name} told
        LEFT JOIN accounting_ledgertransaction booked
            ON booked.id = told.transaction_id AND booked.month = told.month AND booked.book = told.book
            AND booked.kind <> 'trade' AND booked.corrects_id IS NULL
        WHERE booked.id IS NULL AND {"true" if name == "usagehour" else "told.transaction_id <> 0"}
        """  # noqa: S608 - own names
        for name in ("usagehour", "usageday", "jobday")
    )
    return first_row(
        "a rollup refers to a transaction that does not exist",
        f"SELECT * FROM ({queries}) found ORDER BY hour, name, id LIMIT 1",  # noqa: S608 - own names
    )
