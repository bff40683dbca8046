"""Tells accounting which GPU time of closed hours was borrowed, preemptible or idle, so that this time gets its class
price.

A class price is a separate price for borrowed, preemptible or idle time. Accounting books the difference between the
class price and the normal price.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal

from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from accounting.closing.class_prices import Stretch, TimeByClass, next_hour_to_price, price_hour
from accounting.core.calendar import HOUR
from accounting.core.numbers import MICRO
from scheduling.core.locks import lock_schedule
from scheduling.leases.gpu_use import unused_of
from scheduling.models import Cluster, Lease, PreemptibleTime, ShareBook, ShareHour, ShareInterval


def price_classes(*, cluster_id: int, at_most: int = 200) -> int:
    """Books the class prices of up to `at_most` closed hours, oldest first. Returns the number of booked hours.

    Each hour is booked in its own transaction.
    """
    priced = 0
    while priced < at_most and price_next_hour(cluster_id=cluster_id):
        priced += 1
    return priced


@transaction.atomic(durable=True)
def price_next_hour(*, cluster_id: int) -> bool:
    """Books the class prices of the next closed hour that has bills to which a class price applies.

    Returns False if there is no such hour, or if the fair shares of that hour are not known yet.
    """
    lock_schedule(cluster_id)
    hour = next_hour_to_price(book=cluster_id)
    if hour is None or not _shares_are_known(cluster_id, hour):
        return False
    preemptible = _preemptible(cluster_id, hour)
    how = TimeByClass(_borrowed(cluster_id, hour), preemptible, _idle(list(preemptible), hour))
    price_hour(book=cluster_id, hour=hour, how=how)
    return True


def _shares_are_known(cluster_id: int, hour: datetime) -> bool:
    """Returns whether the tenants' fair shares in the hour are known. The class prices of the hour depend on them.

    They are known when the share intervals of the hour have been summed (see ShareBook). They also count as known if
    they will never be summed:

    - The cluster is detached and had no round after the hour.
    - The cluster had a round after the hour, but has no share intervals at all.
    """
    summed = ShareBook.objects.filter(cluster=cluster_id).first()
    if summed is not None and summed.until >= hour + HOUR:
        return True
    cluster = Cluster.objects.only("detached_at", "last_round_at").get(pk=cluster_id)
    round_after = cluster.last_round_at is not None and cluster.last_round_at >= hour + HOUR
    if not round_after:
        return cluster.detached_at is not None  # no more rounds, so the hour is never summed
    return not ShareInterval.objects.filter(cluster=cluster_id).exists()


def _borrowed(cluster_id: int, hour: datetime) -> Mapping[tuple[int, int], Decimal]:
    rows = ShareHour.objects.filter(cluster=cluster_id, hour=hour, borrowed__gt=0)
    found = rows.values_list("tenant_id", "generation_id", "borrowed")
    return {(tenant, kind): Decimal(borrowed).quantize(MICRO) for tenant, kind, borrowed in found}


def _preemptible(cluster_id: int, hour: datetime) -> Mapping[int, Sequence[Stretch]]:
    rows = PreemptibleTime.objects.filter(
        lease__cluster=cluster_id, during__overlap=DateTimeTZRange(hour, hour + HOUR)
    )
    found: dict[int, list[Stretch]] = defaultdict(list)
    for lease, during in rows.order_by("lease", "during").values_list("lease_id", "during"):
        found[lease].append((during.lower, during.upper or hour + HOUR))
    return found


def _idle(leases: Sequence[int], hour: datetime) -> Mapping[int, Sequence[Stretch]]:
    """Returns, by lease id, the intervals in the hour during which the lease's GPUs were idle. The time until all
    workers run does not count as idle."""
    ran = dict(Lease.objects.filter(pk__in=leases).values_list("pk", "running_from"))
    found: dict[int, list[Stretch]] = defaultdict(list)
    for lease, stretches in unused_of(leases, hour, hour + HOUR).items():
        if running_from := ran[lease]:
            found[lease] = [(max(begins, running_from), ends) for begins, ends in stretches]
    return found
