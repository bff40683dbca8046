"""Hard limits of tenants: only admins set them."""

from __future__ import annotations

from decimal import Decimal

from django.db import transaction

from accounting import audit
from accounting.actions.checks import check_fields
from accounting.errors import Refused
from accounting.models import Generation, Quota, Tenant, User
from accounting.permissions import require_admin


@transaction.atomic(durable=True)
def set_quota(
    *,
    actor: User | None,
    tenant: Tenant,
    kind: str,
    limit: Decimal | int,
    generation: Generation | None = None,
) -> Quota:
    """Limits `tenant` with all below it, for one generation or, without, for all together."""
    require_admin(actor)
    if kind not in Quota.Kind.values:
        raise Refused(f"A quota is one of {', '.join(Quota.Kind.values)}.", "kind")
    limit = Decimal(limit)
    if not limit.is_finite() or limit < 0:
        raise Refused("A limit is zero or more.", "limit")
    if kind == Quota.Kind.GPUS and limit != limit.to_integral_value():
        raise Refused("GPUs at once are a whole number.", "limit")
    Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)  # one at a time
    quota = Quota.objects.filter(tenant=tenant, kind=kind, generation=generation).first()
    before = _told(quota) if quota else {}
    quota = quota or Quota(tenant=tenant, kind=kind, generation=generation)
    quota.limit = limit
    check_fields(quota, "limit")
    quota.save()
    audit.record(
        actor=actor, verb="quota.set", target=tenant, tenant=tenant, before=before, after=_told(quota)
    )
    return quota


@transaction.atomic(durable=True)
def remove_quota(*, actor: User | None, quota: Quota) -> None:
    require_admin(actor)
    found = Quota.objects.select_for_update(of=("self",)).select_related("tenant", "generation")
    held = found.filter(pk=quota.pk).first()
    if held is None:
        raise Refused("This quota does not exist any more.")
    audit.record(actor=actor, verb="quota.remove", target=held.tenant, tenant=held.tenant, before=_told(held))
    held.delete()


def _told(quota: Quota) -> dict[str, object]:
    generation = quota.generation.name if quota.generation else None
    return {"kind": quota.kind, "generation": generation, "limit": quota.limit}
