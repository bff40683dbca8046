"""What the time was that GPUs were held: busy, idle or assembling, by generation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db.models import F, Sum

from accounting.clipping import LOWER, UPPER, gpu_seconds_between, part_between
from accounting.models import Tenant, User
from accounting.sources import Row, Scope, Sources
from accounting.usage_rows import clipped


@dataclass(frozen=True, slots=True)
class Held:
    """GPU-seconds of one generation; `idle` and `assembling` are parts of `held`."""

    generation: str
    held: Decimal
    idle: Decimal
    assembling: Decimal

    @property
    def busy(self) -> Decimal:
        return self.held - self.idle - self.assembling


def held_by_generation(
    viewer: User, begins: datetime, ends: datetime, *, tenant: Tenant | None = None
) -> list[Held]:
    """What `viewer` may see in [begins, ends), of `tenant` with all below it; in order of names. Five queries.

    Nobody knows when in a segment it was idle: what a period's edge cuts has as much of it as if it were even.
    """
    scope = Scope(viewer, begins, ends, tenant=tenant)
    sources, start, end = Sources(scope, Row(None, "UTC"), by_job=False), F("part_start"), F("part_end")
    sums = [
        some.values_list("generation__name").annotate(Sum("gpu_seconds"), Sum("idle"), Sum("assembling"))
        for some in sources.sums()
    ]
    segments = [
        clipped(some, LOWER, UPPER, scope)
        .values_list("generation__name")
        .annotate(
            held_part=gpu_seconds_between(start, end),
            idle_part=part_between("idle", start, end),
            assembling_part=part_between("assembling", start, end),
        )
        for some in sources.segments()
    ]
    found: dict[str, list[Decimal]] = {}
    for rows in (*sums, *segments):
        for generation, *amounts in rows:
            known = found.setdefault(generation, [Decimal(0)] * 3)
            found[generation] = [one + more for one, more in zip(known, amounts, strict=True)]
    return [Held(name, *amounts) for name, amounts in sorted(found.items()) if any(amounts)]
