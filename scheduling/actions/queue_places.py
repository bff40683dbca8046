"""How many jobs of a team or user may wait: places are taken one after the other."""

from __future__ import annotations

from accounting.errors import Refused
from accounting.models import Quota, Tenant, User
from scheduling.models import Job


def take_queue_place(*, tenant: Tenant, user: User, request_key: str | None) -> list[str]:
    """Refuses a further job where as many wait as may; what only warns is returned in words.

    Inside the transaction that adds the job. Whoever takes a place of the same limits waits for its end. The
    same request again takes no second place.
    """
    quotas = Quota.objects.in_force_for(tenant, user.pk).filter(kind=Quota.Kind.QUEUED_JOBS)
    # By their keys, so that two who take places of the same limits never wait for each other.
    of_self = quotas.order_by("pk").select_for_update(no_key=True, of=("self",))
    locked = list(of_self.select_related("tenant", "user"))
    if request_key is not None and Job.objects.filter(owner=user, request_key=request_key).exists():
        return []
    warnings = []
    for quota in locked:
        waiting = _waiting(quota, tenant, user)
        if waiting < quota.limit:
            continue
        whose = quota.whose() if not quota.each_user else f"{user.get_username()} in {tenant.name}"
        said = f"{whose} has {waiting} jobs waiting, and {int(quota.limit)} may"
        if quota.at_limit == Quota.AtLimit.BLOCK:
            raise Refused(f"{said}. Submit it when one of them has started.", field="tenant")
        warnings.append(said)
    return warnings


def _waiting(quota: Quota, tenant: Tenant, user: User) -> int:
    jobs = Job.objects.waiting().exclude(kind=Job.Kind.REPLICA)
    if quota.user_id is not None or quota.each_user:
        return jobs.filter(tenant=tenant, owner=user).count()
    return jobs.filter(tenant__path__startswith=quota.tenant.path).count()
