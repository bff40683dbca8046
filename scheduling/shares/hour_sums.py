"""Sums the share intervals of each hour, once no more intervals can be added to that hour."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Min

from accounting.core.calendar import HOUR, start_of_hour
from scheduling.core.locks import lock_schedule
from scheduling.models import Cluster, ShareBook, ShareInterval
from scheduling.shares.finish_times import KNOWN_WITHIN, ended_without_finish_time, write_finish_times
from scheduling.shares.share_hours import write_hour


def sum_share_hours(*, cluster_id: int, at_most: int = 200) -> int:
    """Sums the share intervals of at most `at_most` hours that are over, oldest first. Returns the number of summed
    hours.

    Each hour is summed in its own transaction.
    """
    summed = 0
    while summed < at_most and sum_next_share_hour(cluster_id=cluster_id):
        summed += 1
    return summed


@transaction.atomic(durable=True)
def sum_next_share_hour(*, cluster_id: int) -> bool:
    """Sums the share intervals of the first hour that is not summed yet. Returns True if it did so.

    Returns False, and sums nothing, if this hour cannot be summed yet. An hour can be summed once a round has run after
    its end, because this round ends the last intervals of the hour.
    """
    lock_schedule(cluster_id)
    last_round = Cluster.objects.values_list("last_round_at", flat=True).get(pk=cluster_id)
    begins = _next_hour(cluster_id)
    if begins is None or last_round is None or last_round < begins + HOUR:
        return False
    if last_round >= begins + 2 * HOUR:
        begins = _first_hour_with_shares(cluster_id, begins, start_of_hour(last_round) - HOUR)
    write_hour(cluster_id, begins)
    write_finish_times(cluster_id, begins)
    ShareBook.objects.filter(cluster=cluster_id).update(until=begins + HOUR)
    return True


def _first_hour_with_shares(cluster_id: int, hour: datetime, last: datetime) -> datetime:
    """Returns the first hour from `hour` to `last` that has share intervals, or in which a job ended that has no
    FinishTime row yet.

    Returns `last` if there is no such hour.
    """
    intervals = ShareInterval.objects.filter(cluster=cluster_id, ends__gt=hour)
    ended = ended_without_finish_time(cluster_id, since=hour - KNOWN_WITHIN)
    firsts = [
        intervals.aggregate(first=Min("begins"))["first"],
        ended.aggregate(first=Min("ended_at"))["first"],
    ]
    return max(hour, min([last, *(start_of_hour(first) for first in firsts if first)]))


def _next_hour(cluster_id: int) -> datetime | None:
    book = ShareBook.objects.filter(cluster=cluster_id).first()
    if book is None:
        first = ShareInterval.objects.filter(cluster=cluster_id).aggregate(first=Min("begins"))["first"]
        if first is None:
            return None
        hour = start_of_hour(first)
        book = ShareBook.objects.create(cluster_id=cluster_id, since=hour, until=hour)
    return book.until
