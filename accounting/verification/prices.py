"""Checks of prices: each bill must equal GPU-seconds times the price for its generation, class and time."""

from __future__ import annotations

from accounting.verification.found import WITH_VOUCHERS, Found, first_row

SINCE_PRICES_HAVE_CURRENCIES = """
    (SELECT applied FROM django_migrations WHERE app = 'accounting' AND name = '0023_what_prices_and_bills_keep')
"""


# Costs of usage from before this migration may be rounded to four decimals, even if they are posted or settled later.
SINCE_COSTS_HAVE_MILLIONTHS = """
    (SELECT applied FROM django_migrations WHERE app = 'accounting' AND name LIKE '%costs_in_millionths')
"""


def costs(amount: str, worth: str, period: str) -> str:
    """Returns an SQL condition: `amount` must equal `worth` / 3600, rounded in the same way as by `tariff.cost_of`.

    `amount`: SQL for the cost. `worth`: SQL for GPU-seconds times the price per GPU-hour. `period`: SQL for the time of
    the usage. Earlier releases rounded costs to four decimals instead of six. If the usage is from the time of these
    releases, the condition accepts both roundings.
    """
    return f"""(
        {_is_rounded(amount, worth, 6)}
        OR lower({period}) < {SINCE_COSTS_HAVE_MILLIONTHS} AND {_is_rounded(amount, worth, 4)}
    )"""


def _is_rounded(amount: str, worth: str, decimals: int) -> str:
    parts = f"({10**decimals} * ({worth}))"
    whole, rest = f"div({parts}, 3600)", f"({parts} % 3600)"
    return (
        f"{amount} * {10**decimals} = {whole} + ({rest} > 1800 OR ({rest} = 1800 AND {whole} % 2 = 1))::int"
    )


def _priced_otherwise(table: str) -> str:
    """Returns the FROM and WHERE clauses of an SQL query for the vouchers (detailed rows) that have a wrong price.

    The right price is the price of the generation that was valid during the voucher's whole time; 0 if no price was
    valid. `table`: the name of the vouchers' table, without the prefix "accounting_".
    """
    return f"""
        FROM accounting_{table} voucher
        LEFT JOIN accounting_price price ON price.generation_id = voucher.generation_id
            AND price.valid && voucher.period
        WHERE CASE WHEN price.id IS NULL THEN voucher.price_per_gpu_hour = 0
                   ELSE price.valid @> voucher.period AND voucher.price_per_gpu_hour = price.per_gpu_hour END
            IS NOT TRUE
    """


def a_segment_has_another_price() -> Found | None:
    return first_row(
        "a usage segment does not have the price that was valid at its time",
        f"""
        SELECT voucher.id, voucher.lease_id, voucher.period, voucher.price_per_gpu_hour
        {_priced_otherwise("usagesegment")} ORDER BY voucher.id LIMIT 1
        """,
    )


def a_segment_costs_otherwise() -> Found | None:
    return first_row(
        "the cost of a usage segment is not its GPU time multiplied by its price",
        f"""
        SELECT voucher.id, voucher.lease_id, voucher.cost
        FROM accounting_usagesegment voucher
        WHERE {costs("voucher.cost", "gpu_seconds * price_per_gpu_hour", "period")} IS NOT TRUE ORDER BY id LIMIT 1
        """,  # noqa: S608 - own names
    )


def a_closing_has_another_price() -> Found | None:
    return first_row(
        "a closed hour does not have the price that was valid in the hour",
        f"""
        SELECT voucher.book, voucher.period, voucher.generation_id, voucher.price_per_gpu_hour
        {_priced_otherwise("capacitysegment")} ORDER BY voucher.id LIMIT 1
        """,
    )


def a_bill_is_in_another_currency() -> Found | None:
    """Finds a bill or closing whose currency differs from that of the price valid at its time.

    Ignores rows from releases in which prices had no currency. Also ignores usage that was posted again after a
    correction, because it keeps its currency.
    """
    return first_row(
        "a bill or a closed hour is in another currency than its price",
        f"""
        SELECT voucher.name, voucher.id, voucher.period, voucher.currency
        FROM (
            SELECT 'usagesegment' AS name, id, transaction_id, month, generation_id, period, currency
            FROM accounting_usagesegment WHERE version = 0
            UNION ALL
            SELECT 'capacitysegment', id, transaction_id, month, generation_id, period, currency
            FROM accounting_capacitysegment
        ) voucher
        JOIN accounting_price price ON price.generation_id = voucher.generation_id
            AND price.valid @> voucher.period AND price.currency <> voucher.currency
        JOIN accounting_ledgertransaction booked
            ON booked.id = voucher.transaction_id AND booked.month = voucher.month
        WHERE booked.recorded_at >= coalesce({SINCE_PRICES_HAVE_CURRENCIES}, '-infinity')
        ORDER BY voucher.name DESC, voucher.id LIMIT 1
        """,  # noqa: S608 - own names
    )


def a_closing_is_worth_otherwise() -> Found | None:
    """Finds a closing whose values do not match its price or do not add up.

    Checks the total value and the value of each class of GPU time that no gang held.
    """
    worths = " AND ".join(
        costs(amount, f"{seconds} * price_per_gpu_hour", "period")
        for amount, seconds in [("value", "capacity")]
        + [(f"{name}_value", name) for name in ("free", "others", "drained", "down")]
    )
    return first_row(
        "the value of a closed hour is not its GPU time multiplied by its price",
        f"""
        SELECT book, period, generation_id, value
        FROM accounting_capacitysegment voucher
        WHERE (
            busy + idle + assembling + free + others + drained + down = capacity
            AND charged + free_value + others_value + drained_value + down_value + rounding = value AND {worths}
        ) IS NOT TRUE
        ORDER BY id LIMIT 1
        """,  # noqa: S608 - own names
    )


def a_charge_costs_otherwise() -> Found | None:
    """Finds a class charge whose prices, idle GPU-seconds or amount are wrong.

    A class charge is the amount that the price for idle, preemptible or borrowed time adds to a bill. This check cannot
    verify how much of the time was preemptible or borrowed, because the ledger does not contain this.
    """
    worth = (
        "charge.idle * charge.idle_price + charge.preemptible * charge.preemptible_price"
        " + charge.borrowed * charge.borrowed_price"
        " + (segment.gpu_seconds - charge.idle - charge.preemptible - charge.borrowed) * segment.price_per_gpu_hour"
    )
    return first_row(
        "a charge for idle, preemptible or borrowed GPU time does not match its GPU time and prices",
        f"""
        SELECT charge.segment_id, charge.amount
        FROM accounting_classcharge charge
        LEFT JOIN accounting_usagesegment segment
            ON segment.id = charge.segment_id AND segment.month = charge.month
        LEFT JOIN accounting_price price
            ON price.generation_id = segment.generation_id AND price.valid @> lower(segment.period)
        LEFT JOIN accounting_closedbook closed ON closed.book = segment.book
        WHERE (
            charge.idle = CASE WHEN price.idle IS NULL THEN 0 ELSE segment.idle END
            AND (charge.preemptible = 0 OR price.preemptible IS NOT NULL)
            AND (charge.borrowed = 0 OR price.borrowed IS NOT NULL)
            AND (charge.idle_price, charge.preemptible_price, charge.borrowed_price) = (
                coalesce(price.idle, price.per_gpu_hour), coalesce(price.preemptible, price.per_gpu_hour),
                coalesce(price.borrowed, price.per_gpu_hour))
            AND charge.idle + charge.preemptible + charge.borrowed <= segment.gpu_seconds
            AND lower(segment.period) >= closed.since AND lower(segment.period) < closed.priced_until
            AND {costs("(segment.cost + charge.amount)", worth, "segment.period")}
        ) IS NOT TRUE
        ORDER BY charge.segment_id LIMIT 1
        """,  # noqa: S608 - own names
    )


def a_charge_is_missing() -> Found | None:
    """Finds billed idle time that lacks its class charge (difference due to the price for idle time).

    Ignores generations where preemptible or borrowed time also has a price, because that price could cancel out the
    charge.
    """
    worth = "segment.idle * price.idle + (segment.gpu_seconds - segment.idle) * segment.price_per_gpu_hour"
    return first_row(
        "idle GPU time of a closed hour has no charge at the price for idle time",
        f"""
        SELECT segment.id, segment.lease_id, segment.idle
        FROM accounting_usagesegment segment
        JOIN accounting_closedbook closed ON closed.book = segment.book
        JOIN accounting_price price
            ON price.generation_id = segment.generation_id AND price.valid @> lower(segment.period)
        WHERE price.idle IS NOT NULL AND price.preemptible IS NULL AND price.borrowed IS NULL
          AND lower(segment.period) >= closed.since AND lower(segment.period) < closed.priced_until
          AND NOT {costs("segment.cost", worth, "segment.period")}
          AND NOT EXISTS (SELECT FROM accounting_classcharge charge
                          WHERE charge.segment_id = segment.id AND charge.month = segment.month)
          AND NOT EXISTS (SELECT FROM accounting_correctedsegment corrected
                          WHERE corrected.segment_id = segment.id AND corrected.month = segment.month)
        ORDER BY segment.id LIMIT 1
        """,  # noqa: S608 - own names
    )


def archived_usage_costs_otherwise() -> Found | None:
    """Finds archived usage that costs less than at the lowest price valid in its hour, or more than at the highest
    price.

    Considers the prices of all classes. Tolerates the errors of rounding each bill to the last decimal.
    """
    return first_row(
        "the cost in the rollups of an archived hour is lower or higher than the hour's prices allow",
        f"""
        WITH summed AS (
            SELECT book, hour, tenant_id, user_id, generation_id, currency, sum(gpu_seconds) AS gpu_seconds,
                   sum(cost) AS cost,
                   sum(segments) * CASE WHEN hour < {SINCE_COSTS_HAVE_MILLIONTHS} THEN 0.18 ELSE 0.0018 END AS off
            FROM accounting_usagehour WHERE NOT month = {WITH_VOUCHERS} GROUP BY 1, 2, 3, 4, 5, 6
        ), bounds AS (
            SELECT told.generation_id, told.hour,
                   CASE WHEN range_agg(valid) @> tstzrange(told.hour, told.hour + interval '1 hour')
                        THEN min(least(per_gpu_hour, idle, preemptible, borrowed)) ELSE 0 END AS lowest,
                   coalesce(max(greatest(per_gpu_hour, idle, preemptible, borrowed)), 0) AS highest
            FROM (SELECT DISTINCT generation_id, hour FROM summed) told
            LEFT JOIN accounting_price price ON price.generation_id = told.generation_id
                AND valid && tstzrange(told.hour, told.hour + interval '1 hour')
            GROUP BY 1, 2
        )
        SELECT book, hour, tenant_id, user_id, cost
        FROM summed JOIN bounds USING (generation_id, hour)
        WHERE cost * 3600 NOT BETWEEN gpu_seconds * lowest - off AND gpu_seconds * highest + off
        ORDER BY hour, book, tenant_id, user_id LIMIT 1
        """,  # noqa: S608 - own names
    )
