"""Actions on GPU generations, their weights and their prices."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal

from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import Max, Min

from accounting.access import audit
from accounting.access.permissions import require
from accounting.actions.checks import check_fields, refused_if_referenced, refused_if_taken
from accounting.core.calendar import HOUR, first_of_month
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.models import CapacitySegment, Generation, Price, UsageSegment, User

NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9 ._+()]*")


@transaction.atomic(durable=True)
def create_generation(
    *, actor: User | None, name: str, description: str = "", memory_gib: int = 0
) -> Generation:
    require(actor, "price.set")
    generation = Generation(name=name, description=description, memory_gib=memory_gib)
    return create_generation_within(actor=actor, generation=generation)


def create_generation_within(*, actor: User | None, generation: Generation) -> Generation:
    """Stores a new generation in the caller's transaction. The caller must have checked the permission."""
    generation.name, generation.description = generation.name.strip(), generation.description.strip()
    check_fields(generation, "name", "description", "memory_gib")
    if not NAME.fullmatch(generation.name):
        raise Refused(
            "A name may only contain letters (a–z, A–Z), digits, spaces and - . _ + ( ). It must begin with a letter"
            " or a digit.",
            "name",
        )
    with refused_if_taken("A GPU type with this name already exists.", "name"):
        generation.save(force_insert=True)
    names = ("name", "description", "memory_gib")
    after = {name: getattr(generation, name) for name in names}
    audit.record(actor=actor, verb="generation.create", target=generation, after=after)
    return generation


@transaction.atomic(durable=True)
def delete_generation(*, actor: User | None, generation: Generation) -> None:
    """Deletes a generation and its prices; raises Refused if a node, job, limit or ledger entry refers to the
    generation."""
    require(actor, "price.set")
    generation = _locked(generation)
    before = {"name": generation.name, "prices": generation.prices.count()}
    audit.record(actor=actor, verb="generation.delete", target=generation, before=before)
    generation.prices.all().delete()
    with refused_if_referenced(generation.name):
        generation.delete()


@transaction.atomic(durable=True)
def set_weight(*, actor: User | None, generation: Generation, weight: Decimal) -> Generation:
    """Sets the weight of a generation: how much one GPU-hour counts when reports compare tenants. Returns the
    generation.

    Reports then use the new weight for past usage too.
    """
    require(actor, "weight.set")
    generation = _locked(generation)
    before, generation.weight = generation.weight, weight
    check_fields(generation, "weight")
    if generation.weight <= 0:
        raise Refused("A weight must be greater than 0.", "weight")
    generation.save(update_fields=["weight"])
    audit.record(
        actor=actor,
        verb="generation.set_weight",
        target=generation,
        before={"weight": before},
        after={"weight": generation.weight},
    )
    return generation


@transaction.atomic(durable=True)
def set_price(
    *,
    actor: User | None,
    generation: Generation,
    per_gpu_hour: Decimal,
    since: datetime | None = None,
    idle: Decimal | None = None,
    preemptible: Decimal | None = None,
    borrowed: Decimal | None = None,
) -> Price:
    """Sets the price of a GPU-hour from `since` (default: now). Returns the new price.

    The price is valid until the next later price that is already set. It replaces a price that began exactly at
    `since`. It keeps Fairlot's present currency if the setting changes later. Raises Refused if usage or capacity after
    `since` is already posted.

    `idle`, `preemptible`, `borrowed`: separate prices for GPU time of these classes; None means that `per_gpu_hour`
    applies. See accounting/closing/class_prices.py.
    """
    require(actor, "price.set")
    generation = _locked(generation)  # new postings wait until the commit
    now = now_from_database()
    since = since or now
    if since.tzinfo is None:
        raise Refused("The time from which the price is valid needs a time zone.", "since")
    _require_unbilled(generation, since)
    running = Price.objects.filter(generation=generation, valid__contains=since).first()
    if running is None:
        later = Price.objects.filter(generation=generation, valid__startswith__gt=since)
        ends: datetime | None = later.aggregate(first=Min("valid__startswith"))["first"]
    else:
        ends = running.valid.upper
    price = Price(
        generation=generation,
        per_gpu_hour=per_gpu_hour,
        idle=idle,
        preemptible=preemptible,
        borrowed=borrowed,
        valid=DateTimeTZRange(since, ends),
        set_by=actor,
        set_at=now,
    )
    for name in ("per_gpu_hour", *Price.CLASSES):
        check_fields(price, name)
        if (getattr(price, name) or 0) < 0:
            raise Refused("A price must be 0 or more.", name)
    if running is not None and running.valid.lower == since:
        running.delete()
    elif running is not None:
        Price.objects.filter(pk=running.pk).update(valid=DateTimeTZRange(running.valid.lower, since))
    price.save(force_insert=True)
    audit.record(
        actor=actor,
        verb="price.set",
        target=generation,
        before=_audit_values(running) if running else {"per_gpu_hour": None},
        after=_audit_values(price) | {"since": since},
    )
    return price


@transaction.atomic(durable=True)
def remove_price(*, actor: User | None, price: Price) -> None:
    """Removes a planned price. The price before it, if it lasted until then, stays valid until the next later price.

    Raises Refused if the price has begun, or no longer exists.
    """
    require(actor, "price.set")
    generation = _locked(price.generation)  # new postings wait until the commit
    planned = Price.objects.filter(pk=price.pk).first()
    if planned is None:
        raise Refused("This price no longer exists.")
    since, until = planned.valid.lower, planned.valid.upper
    if since <= now_from_database():
        raise Refused("This price has begun, so it stays in the price list. Set a new price instead.")
    _require_unbilled(generation, since)
    planned.delete()
    before = Price.objects.filter(generation=generation, valid__endswith=since).first()
    if before is not None:
        Price.objects.filter(pk=before.pk).update(valid=DateTimeTZRange(before.valid.lower, until))
    audit.record(
        actor=actor,
        verb="price.remove",
        target=generation,
        before=_audit_values(planned) | {"since": since},
        after=_audit_values(before) if before else {"per_gpu_hour": None},
    )


def _audit_values(price: Price) -> dict[str, object]:
    of_classes = {name: getattr(price, name) for name in Price.CLASSES if getattr(price, name) is not None}
    return {"per_gpu_hour": price.per_gpu_hour} | of_classes | {"currency": price.currency}


def _require_unbilled(generation: Generation, since: datetime) -> None:
    of_it = {
        "generation": generation,
        "period__endswith__gt": since,
        "month__gte": first_of_month(since - HOUR),
    }
    booked = [
        model.objects.filter(**of_it).aggregate(until=Max("period__endswith"))["until"]
        for model in (UsageSegment, CapacitySegment)
    ]
    until = max(filter(None, booked), default=None)
    if until is not None:
        raise Refused(
            f"Usage of GPU type {generation} has already been billed until {until:%Y-%m-%d %H:%M:%S} UTC. The new price"
            " must begin then or later.",
            "since",
        )


def _locked(generation: Generation) -> Generation:
    try:
        return Generation.objects.select_for_update(no_key=True).get(pk=generation.pk)
    except Generation.DoesNotExist:
        raise Refused(f"GPU type {generation} no longer exists.") from None
