"""The cards of the home page: what waits for the user, as a member, as a manager and as an operator.

A card has a number, its first rows, and a link to the page that handles the subject. Subjects of which there is nothing
share one line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlencode

from django.conf import settings
from django.db.models import QuerySet
from django.urls import reverse

from accounting.core.name_order import by_name
from accounting.core.wording import counted, percent
from accounting.models import Invitation, Membership, Notification, Request, User
from accounting.models.notifications import EventKind
from accounting.models.tenants import ids_with_role
from portal import wording
from portal.reports.idle import idle_now
from portal.submit.keeping import address_of
from scheduling.idle.steps import STALE
from scheduling.limits.budget_status import outlooks
from scheduling.models import Cluster, Draft, Node, SharingAnalysis, SharingAnomaly
from scheduling.reports.holders import Holder, Narrow, top_holders

ROWS = 3


@dataclass(frozen=True)
class Row:
    """One row of a card. `opens` is the key of the notification that the row opens and marks as read; otherwise `href`
    is the address of the row."""

    text: str
    note: str = ""
    href: str = ""
    opens: int | None = None


@dataclass(frozen=True)
class Card:
    """A subject that waits for the user. `number` counts all of it, of which `rows` are the first."""

    title: str
    icon: str
    number: int
    rows: Sequence[Row]
    href: str
    link: str
    nothing: str  # said if the number is 0, after "No"


@dataclass(frozen=True)
class Group:
    """The cards for one role of the user."""

    title: str
    cards: list[Card] = field(default_factory=list)

    @property
    def filled(self) -> list[Card]:
        return [card for card in self.cards if card.number]

    @property
    def empty(self) -> str:
        """Returns one line that names the subjects of which there is nothing; "" if there is something of each."""
        nothing = [card.nothing for card in self.cards if not card.number]
        if not nothing:
            return ""
        return f"No {', no '.join(nothing)}."


def groups_for(user: User, clusters: Sequence[Cluster]) -> list[Group]:
    """Returns the groups of cards for the roles of `user`: member, manager, operator. `clusters` are those attached."""
    found = [Group("For you", list(_of_member(user)))]
    if managed := ids_with_role(user, Membership.Role.MANAGER):
        found.append(Group("Your teams", list(_of_manager(user, managed))))
    if user.is_operator:
        found.append(Group("Operations", list(_of_operator(user, clusters))))
    return found


def _of_member(user: User) -> Iterator[Card]:
    failed = Notification.objects.visible_to(user).unread().filter(event__kind=EventKind.JOB_FAILED)
    first = list(failed.select_related("event").order_by("-id")[: ROWS + 1])
    yield Card(
        "Failed since you last looked",
        "x-circle",
        len(first) if len(first) <= ROWS else failed.count(),
        [Row(one.event.title, f"{one.event.text}", opens=one.pk) for one in first[:ROWS]],
        f"{reverse('notifications')}?show=unread",
        "Unread notifications",
        "new failures",
    )
    drafts = Draft.objects.visible_to(user).defer("content").order_by("-saved_at", "-pk")
    kept = list(drafts[: ROWS + 1])
    yield Card(
        "Drafts",
        "file",
        len(kept) if len(kept) <= ROWS else drafts.count(),
        [Row(str(one), one.get_kind_display(), address_of(one)) for one in kept[:ROWS]],
        reverse("drafts"),
        "All drafts",
        "drafts",
    )
    invited = list(_invitations(user))
    yield Card(
        "Invitations to answer",
        "people",
        len(invited),
        [Row(one.tenant.name, f"as {one.get_role_display().lower()}", one.link()) for one in invited[:ROWS]],
        invited[0].link() if invited else "",
        "Answer the first",
        "invitations",
    )


def _invitations(user: User) -> QuerySet[Invitation]:
    """Returns the usable invitations that were sent to the user's address, which only admins set."""
    if not user.email:
        return Invitation.objects.none()
    found = Invitation.objects.usable().filter(email__iexact=user.email).exclude(barred__contains=[user.pk])
    return found.exclude(tenant__in=ids_with_role(user)).select_related("tenant").order_by("pk")


def _of_manager(user: User, managed: Sequence[int]) -> Iterator[Card]:
    own = {"tenant__memberships__user": user, "tenant__memberships__role": Membership.Role.MANAGER}
    budgets = sorted(outlooks(**own), key=lambda one: -one.part)
    yield Card(
        "Budgets",
        "usage",
        len(budgets),
        [
            Row(
                one.budget.tenant.name,
                f"{percent(one.part)} of {wording.money(one.amount, settings.FAIRLOT_CURRENCY)} spent",
                reverse("team_budgets", args=[one.budget.tenant.slug]),
            )
            for one in budgets[:ROWS]
        ],
        reverse("usage_statement"),
        "Statement",
        "budgets",
    )
    narrow = Narrow(tenants=managed)
    people = top_holders(user, narrow, by_user=True, measured_within=STALE)
    yield Card(
        "People with GPUs now",
        "people",
        len(people),
        [Row(str(one.user), f"{_held(one)}, {one.tenant}", _jobs(one)) for one in people[:ROWS]],
        f"{reverse('cluster_consumers')}?by=user",
        "All users",
        "people with GPUs now",
    )
    if not user.is_operator:
        yield _requests(Request.objects.filter(tenant__in=managed), "Open requests of your teams")


def _held(one: Holder) -> str:
    idle = f", {one.idle} idle" if one.idle else ""
    return f"{counted(one.gpus, 'GPU')}{idle}"


def _jobs(one: Holder) -> str:
    chosen = {"team": one.slug, "owner": one.user, "kind": "all", "state": "running"}
    return f"{reverse('jobs')}?{urlencode({name: value for name, value in chosen.items() if value})}"


def _requests(requests: QuerySet[Request], title: str) -> Card:
    waiting = requests.filter(state=Request.State.OPEN)
    first = list(waiting.select_related("tenant", "asked_by").order_by("asked_at", "pk")[: ROWS + 1])
    return Card(
        title,
        "edit",
        len(first) if len(first) <= ROWS else waiting.count(),
        [
            Row(
                f"{one.get_kind_display()} for {one.tenant.name}",
                f"asked by {one.asked_by.get_username()}",
                reverse("request", args=[one.pk]),
            )
            for one in first[:ROWS]
        ],
        reverse("requests"),
        "All requests",
        "open requests",
    )


def _of_operator(user: User, clusters: Sequence[Cluster]) -> Iterator[Card]:
    idle = list(idle_now(user).values_list("job", "job__name", "job__tenant__name", "lease__gpus"))
    yield Card(
        "Idle GPUs",
        "clock",
        sum(gpus for *_, gpus in idle),
        [
            Row(name, f"{counted(gpus, 'GPU')}, {team}", reverse("job", args=[pk]))
            for pk, name, team, gpus in idle[:ROWS]
        ],
        reverse("usage_idle"),
        "Idle GPUs",
        "idle GPUs",
    )
    holders = top_holders(user, Narrow(), by_user=False, measured_within=STALE)
    yield Card(
        "Teams with GPUs now",
        "usage",
        len(holders),
        [Row(str(one.tenant), _held(one), _jobs(one)) for one in holders[:ROWS]],
        reverse("cluster_consumers"),
        "Top consumers",
        "teams with GPUs now",
    )
    yield _troubled(clusters)
    yield _requests(Request.objects.all(), "Open requests")
    yield _anomalies()


def _troubled(clusters: Sequence[Cluster]) -> Card:
    """Returns the card of nodes that are down or closed. A drained node is no trouble: an operator drained it."""
    nodes = Node.objects.present().filter(
        cluster__in=clusters, state__in=[Node.State.DOWN, Node.State.CLOSED]
    )
    first = list(nodes.order_by("state", *by_name("name"))[: ROWS + 1])
    return Card(
        "Nodes in trouble",
        "alert",
        len(first) if len(first) <= ROWS else nodes.count(),
        [
            Row(
                one.name,
                " · ".join(filter(None, (one.get_state_display(), one.state_reason))),
                f"{reverse('cluster')}#node-{one.pk}",
            )
            for one in first[:ROWS]
        ],
        reverse("admin_nodes"),
        "All nodes",
        "nodes in trouble",
    )


def _anomalies() -> Card:
    """Returns the card of the anomalies in the last finished analysis of each cluster."""
    finished = SharingAnalysis.objects.exclude(finished_at=None)
    last = finished.order_by("cluster_id", "-ends", "-pk").distinct("cluster_id").values("pk")
    found = SharingAnomaly.objects.filter(part__analysis__in=last)
    first = list(found.select_related("job").only("cause", "late_seconds", "job__name")[: ROWS + 1])
    return Card(
        "Anomalies in the last analysis",
        "trades",
        len(first) if len(first) <= ROWS else found.count(),
        [
            Row(one.job.name, one.get_cause_display(), reverse("job", args=[one.job_id]))
            for one in first[:ROWS]
        ],
        reverse("share_anomalies"),
        "Anomalies",
        "anomalies in the last analysis",
    )
