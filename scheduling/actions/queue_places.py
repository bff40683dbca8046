"""How many jobs of a team or user may wait: places are taken one after the other."""

from __future__ import annotations

from accounting.clock import now_from_database
from accounting.errors import Refused
from accounting.models import Quota, Tenant, User
from accounting.quotas import Standing, a_limit_above, sight
from scheduling.models import Job
from scheduling.standings import standings


def take_queue_place(*, tenant: Tenant, user: User, reader: User | None, request_key: str | None) -> None:
    """Refuses a further job where as many wait as may; says of limits what `reader` may know.

    Inside the transaction that adds the job. Whoever takes a place of the same limits waits for its end. The
    same request again takes no second place.
    """
    quotas = Quota.objects.filter(kind=Quota.Kind.QUEUED_JOBS, at_limit=Quota.AtLimit.BLOCK)
    # By their keys, so that two who take places of the same limits never wait for each other.
    in_force = quotas.in_force_for(tenant, user.pk).order_by("pk")
    if not list(in_force.select_for_update(no_key=True, of=("self",))):
        return
    if request_key is not None and Job.objects.filter(owner=user, request_key=request_key).exists():
        return
    for standing in standings(quotas, tenant, user, now=now_from_database()):
        if not standing.is_exceeded(1):
            continue
        raise Refused(f"{_said(standing, reader)}. Submit it when one of them has started.", field="tenant")


def _said(standing: Standing, reader: User | None) -> str:
    if standing.quota.tenant_id in sight(standing.tenant, reader):
        return str(standing)
    return f"As many jobs wait as {a_limit_above(standing.tenant)} lets"
