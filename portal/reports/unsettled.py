"""Finds usage whose cost may still change, because its class prices are not final yet.

A class price is the price of idle, preemptible or borrowed time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo

from accounting.closing.class_prices import unsettled
from accounting.core.wording import to_the_minute
from portal.reports.formats import STATE
from scheduling.models import Cluster

PROVISIONAL = "Provisional: figures of this period may still change."


@dataclass(frozen=True)
class Unsettled:
    """The clusters that have unsettled usage, which is usage whose cost may still change because class prices are not
    final.

    `since` maps a cluster's name to the time from which its usage is unsettled. If all usage is settled, `since` is
    empty and the object is false in a condition.
    """

    since: Mapping[str, datetime]

    def __bool__(self) -> bool:
        return bool(self.since)

    def in_words(self, zone: tzinfo) -> str:
        """Returns a note on the unsettled usage, for the header of a report; "" if all usage is settled."""
        if not self.since:
            return ""
        return " ".join(
            "The separate prices of idle, preemptible and borrowed time are not applied yet to usage on the cluster "
            f"{name} from {to_the_minute(at.astimezone(zone))} on."
            for name, at in self.since.items()
        )


NOTHING = Unsettled({})


def state_of(waiting: Unsettled, zone: tzinfo, *, is_over: bool) -> list[tuple[str, str]]:
    """Returns the header lines, as pairs (label, text), that say that figures are provisional, and which costs are not
    final.

    `waiting` has the clusters with unsettled usage, and `is_over` says whether the period is over. The list is empty if
    the period is over and all its usage is settled.
    """
    facts = [] if is_over and not waiting else [(STATE, PROVISIONAL)]
    return facts + [("Costs not final yet", waiting.in_words(zone))] * bool(waiting)


def unsettled_of(
    tenants: Sequence[int] | None, begins: datetime, ends: datetime, *, book: int | None = None
) -> Unsettled:
    """Returns which clusters have unsettled usage from `begins` to `ends` (excluded), and since when.

    `tenants` are the ids of the tenants whose usage counts; None means all tenants. `book` is a cluster's id, which is
    also the id of its ledger; None means all clusters.
    """
    found = unsettled(begins, ends, tenants=tenants, book=book)
    names = dict(Cluster.objects.filter(pk__in=found).values_list("pk", "name")) if found else {}
    return Unsettled({names.get(pk, f"cluster {pk}"): at for pk, at in sorted(found.items())})
