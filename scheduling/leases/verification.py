"""Two checks that `register` adds to the verification of the ledger:

- A check that leases agree with their bills.
- A check of the recorded changes of nodes (NodeChange rows): a hash chain shows if somebody altered these rows.
"""

from __future__ import annotations

from accounting import verification
from accounting.ledger import journals
from accounting.verification.found import Found, first_row

CHANGES_OF_NODES = journals.Journal(
    -9,
    "scheduling_nodechange",
    "node change",
    "cluster_id, node_id, name, generation_id, gpus, state, failed_gpus, others_gpus, "
    + journals.micros("at"),
)


def first_lease_unlike_its_bill() -> Found | None:
    """Returns the first lease that does not agree with its usage segments in the ledger; None if all leases agree.

    Does not compare archived segments. Unbilled time is an error only in closed hours.
    """
    return first_row(
        "the times or GPUs of a lease differ from its bill",
        """
        WITH billed AS (
            SELECT lease_id, min(lower(period)) AS begins, max(upper(period)) AS ends,
                   array_agg(DISTINCT ARRAY[book, job_id, generation_id, gpus]) AS what
            FROM accounting_usagesegment WHERE version = 0 GROUP BY lease_id
        )
        SELECT coalesce(lease.id, billed.lease_id), billed.begins, billed.ends, lease.held_from, lease.held_until
        FROM billed FULL JOIN scheduling_lease lease ON lease.id = billed.lease_id
        LEFT JOIN accounting_closedbook closed ON closed.book = lease.cluster_id
        WHERE CASE
            WHEN lease.id IS NULL
                THEN EXISTS (SELECT FROM scheduling_cluster WHERE id = billed.what[1][1])
            WHEN billed.lease_id IS NULL
                THEN lease.billed_until > greatest(lease.held_from, closed.details_since)
            ELSE billed.what <> ARRAY[ARRAY[lease.cluster_id, lease.job_id, lease.generation_id, lease.gpus]]
                OR billed.ends IS DISTINCT FROM lease.billed_until
                OR billed.begins <> greatest(lease.held_from, closed.details_since)
                OR lease.held_until < lease.billed_until
                OR (lease.held_until > lease.billed_until AND lease.billed_until < closed.until)
            END
        ORDER BY 1 LIMIT 1
        """,
    )


def register() -> None:
    journals.register(CHANGES_OF_NODES)
    if first_lease_unlike_its_bill not in verification.CHECKS:
        verification.CHECKS.append(first_lease_unlike_its_bill)
