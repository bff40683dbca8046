"""Checks of the closings of hours: compares the GPU time in each class with the bills and with the node hours.

The closing of an hour is a ledger transaction that records the GPU time of the whole hour by generation, price and
class.
"""

from __future__ import annotations

from accounting.verification.found import WITH_VOUCHERS, Found, first_row


def a_closing_differs_from_what_was_billed() -> Found | None:
    """Finds a closed hour whose closing is missing, or differs from the bills in GPU time or charges.

    Compares the time at each price separately, because the price may change within the hour. Does not compare
    currencies; `a_bill_is_in_another_currency` does.
    """
    # Without a valid price, currencies may differ: Fairlot's may have changed between the bill and the closing.
    return first_row(
        "the GPU time or cost of a closed hour differs from the bills of the hour",
        f"""
        SELECT book, hour, generation_id
        FROM (
            SELECT book, date_trunc('hour', lower(period), 'UTC') AS hour, generation_id, price_per_gpu_hour,
                   busy + idle + assembling AS held, assembling, idle, charged
            FROM accounting_capacitysegment WHERE month = {WITH_VOUCHERS}
            UNION ALL
            SELECT segment.book, date_trunc('hour', lower(period), 'UTC'), generation_id, price_per_gpu_hour,
                   -gpu_seconds, -assembling, -idle, -cost
            FROM accounting_usagesegment segment JOIN accounting_closedbook closed ON closed.book = segment.book
            WHERE version = 0 AND lower(period) >= since AND lower(period) < until
        ) both_sides
        GROUP BY book, hour, generation_id, price_per_gpu_hour
        HAVING (sum(held), sum(assembling), sum(idle), sum(charged)) <> (0, 0, 0, 0)
        ORDER BY hour, book, generation_id LIMIT 1
        """,  # noqa: S608 - own names
    )


def a_closing_is_of_an_open_hour() -> Found | None:
    return first_row(
        "an hour has a closing transaction but is not marked as closed",
        """
        SELECT closing.book, closing.period
        FROM accounting_capacitysegment closing LEFT JOIN accounting_closedbook closed ON closed.book = closing.book
        WHERE (lower(closing.period) >= since AND upper(closing.period) <= until) IS NOT TRUE
        ORDER BY lower(closing.period), closing.id LIMIT 1
        """,
    )


def nodes_differ_from_their_closing() -> Found | None:
    return first_row(
        "in a closed hour, the nodes' GPU time differs from the GPU time in the transaction that closed the hour",
        """
        SELECT book, hour, generation_id
        FROM (
            SELECT book, hour, generation_id, busy, idle, assembling, free, others, drained, down
            FROM accounting_nodehour
            UNION ALL
            SELECT book, date_trunc('hour', lower(period), 'UTC'), generation_id, -busy, -idle, -assembling, -free,
                   -others, -drained, -down
            FROM accounting_capacitysegment
        ) both_sides
        GROUP BY book, hour, generation_id
        HAVING (sum(busy), sum(idle), sum(assembling), sum(free), sum(others), sum(drained), sum(down))
            <> (0, 0, 0, 0, 0, 0, 0)
        ORDER BY hour, book, generation_id LIMIT 1
        """,
    )


def more_is_summed_than_was_held() -> Found | None:
    """Finds an hour for which the rollups contain more GPU time than the hour's closing.

    Corrections cannot cause this: they only reduce the time in rollups or move it to another payer.
    """
    return first_row(
        "the rollups of a closed hour contain more GPU time than the transaction that closed the hour",
        """
        SELECT book, hour, generation_id
        FROM (
            SELECT book, hour, generation_id, gpu_seconds, assembling, idle FROM accounting_usagehour
            UNION ALL
            SELECT book, date_trunc('hour', lower(period), 'UTC'), generation_id, -busy - idle - assembling,
                   -assembling, -idle
            FROM accounting_capacitysegment
        ) both_sides
        GROUP BY book, hour, generation_id
        HAVING sum(gpu_seconds) > 0 OR sum(assembling) > 0 OR sum(idle) > 0
        ORDER BY hour, book, generation_id LIMIT 1
        """,
    )
