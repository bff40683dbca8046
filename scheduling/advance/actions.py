"""Actions on advance reservations: operators make, change and cancel them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC

from django.db import transaction
from django.db.models.functions import Now

from accounting.access import audit
from accounting.access.permissions import require
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.models import User
from scheduling.advance.proposals import Proposal, Terms, propose
from scheduling.core import pubsub
from scheduling.core.locks import lock_schedule
from scheduling.models import AdvanceReservation, AdvanceWindow, Cluster, ReservedNode
from scheduling.models.versions import require_version

MOST_STANDING = 200  # reservations of a cluster with windows to come


@transaction.atomic(durable=True)
def reserve_in_advance(*, actor: User | None, cluster: Cluster, terms: Terms) -> AdvanceReservation:
    """Reserves GPUs of a cluster for a team, and returns the reservation.

    Raises Refused, naming the field, for terms that are not valid, and where others have reserved the GPUs.
    """
    require(actor, "advance.change")
    lock_schedule(cluster.pk)
    standing = AdvanceReservation.objects.filter(cluster=cluster, windows__ends__gt=Now()).distinct()
    if standing.count() >= MOST_STANDING:
        raise Refused(f"There are {MOST_STANDING} reservations already. Cancel one first.")
    made = propose(cluster, terms)
    held = AdvanceReservation(cluster=cluster, created_by=actor)
    _store(held, made)
    audit.record(
        actor=actor, verb="advance.create", target=held, tenant=terms.tenant, after=_audit_values(held, made)
    )
    pubsub.publish(f"cluster:{cluster.pk}")
    return held


@transaction.atomic(durable=True)
def change_advance_reservation(
    *,
    actor: User | None,
    reservation: AdvanceReservation,
    terms: Terms,
    seen: Collection[str] | None = None,
) -> AdvanceReservation:
    """Replaces the terms of a reservation from now on. Windows that are over stay as they were.

    `seen`: versions of which the reservation must have one; see accounting/models/versions.py.

    Raises Refused for invalid terms, and for a reservation that was cancelled or is over.
    """
    require(actor, "advance.change")
    lock_schedule(reservation.cluster_id)
    held = AdvanceReservation.objects.select_related("cluster", "tenant", "generation").get(pk=reservation.pk)
    require_version(held, seen)
    if held.state_at(now_from_database()) in {"cancelled", "ended"}:
        raise Refused("This reservation is over. Make a new one.")
    before, made = _stored_values(held), propose(held.cluster, terms, changed=held)
    _store(held, made)
    audit.record(
        actor=actor,
        verb="advance.change",
        target=held,
        tenant=terms.tenant,
        before=before,
        after=_audit_values(held, made),
    )
    pubsub.publish(f"cluster:{held.cluster_id}")
    return held


@transaction.atomic(durable=True)
def cancel_advance_reservation(
    *, actor: User | None, reservation: AdvanceReservation, seen: Collection[str] | None = None
) -> None:
    """Ends a reservation: an open window ends now, and later ones do not come. Cancelling again changes nothing.

    `seen`: as for `change_advance_reservation`.
    """
    require(actor, "advance.change")
    lock_schedule(reservation.cluster_id)
    held = AdvanceReservation.objects.select_related("tenant", "generation").get(pk=reservation.pk)
    now = now_from_database()
    if held.cancelled_at is not None:
        return
    require_version(held, seen)
    if held.state_at(now) == "ended":
        raise Refused("This reservation is over already.")
    before = _stored_values(held)
    held.windows.filter(begins__gte=now).delete()
    held.windows.filter(ends__gt=now).update(ends=now)
    AdvanceReservation.objects.filter(pk=held.pk).update(cancelled_at=now)
    audit.record(actor=actor, verb="advance.cancel", target=held, tenant=held.tenant, before=before)
    pubsub.publish(f"cluster:{held.cluster_id}")


def _store(held: AdvanceReservation, made: Proposal) -> None:
    """Stores the terms, the GPUs and the windows that are not over, in the caller's transaction."""
    terms = made.terms
    held.name, held.tenant, held.generation = terms.name, terms.tenant, terms.generation
    held.begins, held.ends, held.weekly_until = terms.begins, terms.ends, terms.weekly_until
    held.zone, held.lends = terms.zone, terms.lends
    held.save()
    held.nodes.all().delete()
    ReservedNode.objects.bulk_create(
        ReservedNode(reservation=held, node=node, gpus=gpus) for node, gpus in made.gpus_of.items()
    )
    held.windows.filter(ends__gt=now_from_database()).delete()
    AdvanceWindow.objects.bulk_create(
        AdvanceWindow(reservation=held, begins=one.begins, ends=one.ends) for one in made.windows
    )


def _stored_values(held: AdvanceReservation) -> dict[str, object]:
    return _values(held) | {
        "nodes": _in_words({one.node.name: one.gpus for one in held.nodes.select_related("node")}),
    }


def _audit_values(held: AdvanceReservation, made: Proposal) -> dict[str, object]:
    return _values(held) | {"nodes": _in_words({node.name: gpus for node, gpus in made.gpus_of.items()})}


def _in_words(nodes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({gpus})" for name, gpus in nodes.items())


def _values(held: AdvanceReservation) -> dict[str, object]:
    weekly = held.weekly_until
    return {
        "name": held.name,
        "team": held.tenant.name,
        "generation": held.generation.name,
        "begins": held.begins.astimezone(UTC).isoformat(),
        "ends": held.ends.astimezone(UTC).isoformat(),
        "weekly_until": weekly.astimezone(UTC).isoformat() if weekly else None,
        "lends": held.lends,
    }
