"""The list of services."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

from django.db.models import Case, F, Q, QuerySet, Value, When
from django.urls import reverse

from accounting.models import User
from portal import wording
from portal.lists.cells import Label, Link
from portal.lists.columns import Column, Columns
from portal.lists.work import WorkList
from portal.services.detail import costs_of, status_of
from portal.sorting import Names, Since
from scheduling.models import Service

# The states of `status_of`, as an expression. Its conditions are in the same order.
_IS_NOT_GOOD = Q(good=None) | ~Q(good=F("current"))
STATE = Case(
    When(stopped_at__isnull=False, then=Value("stopped")),
    When(~Q(trouble="") | Q(current__failed_at__isnull=False) & _IS_NOT_GOOD, then=Value("trouble")),
    When(replicas=0, then=Value("zero")),
    When(_IS_NOT_GOOD & Q(crashes=True), then=Value("trouble")),
    When(_IS_NOT_GOOD & (Q(ready__gt=0) | Q(good=None)), then=Value("rolling")),
    When(ready__gte=F("replicas"), then=Value("up")),
    When(ready__gt=0, then=Value("partly")),
    default=Value("down"),
)
STATES = {
    "up": "Up", "partly": "Partly up", "down": "Down", "rolling": "Rolling out", "trouble": "In trouble",
    "zero": "Scaled to 0", "stopped": "Stopped",
}  # fmt: skip


class Row(NamedTuple):
    """A service, and what it has cost until now, as pairs (currency, amount)."""

    service: Service
    costs: Sequence[tuple[str, Decimal]]


def _state(row: Row) -> Label:
    return status_of(row.service)


def _cost(row: Row) -> str | None:
    return ", ".join(wording.money(amount, currency) for currency, amount in row.costs) or None


def _seen(user: User) -> QuerySet[Service]:
    found = Service.objects.visible_to(user).kept().with_counts()
    return found.select_related("tenant", "owner", "cluster", "current", "good")


def _rows(found: Sequence[Service], reader: User) -> list[Row]:
    costs = costs_of(found, reader)
    return [Row(one, costs.get(one.pk, [])) for one in found]


SERVICES = WorkList(
    name="services",
    one="service",
    seen=_seen,
    rows=_rows,
    columns=Columns(
        {
            "name": Column(
                "Service",
                (Names("name"),),
                is_fixed=True,
                cell=lambda row: Link(row.service.name, reverse("service", args=[row.service.pk])),
            ),
            "state": Column("State", (Since("stopped_at"), "ready"), cell=_state),
            "ready": Column(
                "Ready", ("ready",), "number", cell=lambda row: f"{row.service.ready} / {row.service.wanted}"
            ),
            "revision": Column(
                "Revision", ("current__number",), "number", cell=lambda row: row.service.current.number
            ),
            "cost": Column("Cost so far", (), "number", cell=_cost),
            "team": Column(
                "Team", (Names("tenant__name"), Names("name")), cell=lambda row: row.service.tenant.name
            ),
            "owner": Column(
                "Owner",
                (Names("owner__username"), Names("name")),
                cell=lambda row: row.service.owner.get_username(),
            ),
            "cluster": Column(
                "Cluster",
                (Names("cluster__name"),),
                is_usual=False,
                cell=lambda row: row.service.cluster.name,
            ),
            "created": Column(
                "Created", ("created_at",), is_usual=False, cell=lambda row: row.service.created_at
            ),
        },
        usual_sort="name",
    ),
    state=STATE,
    states=STATES,
    about="Services are long-running programs that answer requests. The same tickets and limits apply to services as "
    "to jobs.",
    icon="link",
    purpose="A service keeps replicas of a program running, replaces replicas that end, and rolls out new revisions "
    "without downtime.",
    create="Create a service",
)
