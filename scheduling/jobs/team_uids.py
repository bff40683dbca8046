"""Allocates the UID of the system user that runs a team's local jobs on the portal's machine."""

from __future__ import annotations

from django.conf import settings
from django.db import transaction

from accounting.access import audit
from accounting.models import Tenant, User
from scheduling.backends.base import BackendError
from scheduling.core.locks import lock_team_uids
from scheduling.models import TeamUid


def uid_of(*, actor: User | None, tenant: Tenant) -> int:
    """Returns the UID that runs a team's local jobs. The first call for a team allocates a UID that no team has had
    before.

    Raises BackendError if FAIRLOT_LOCAL_UIDS has no unused UID left.
    """
    known = TeamUid.objects.filter(tenant=tenant).first()
    return known.uid if known is not None else _take(actor, tenant)


@transaction.atomic
def _take(actor: User | None, tenant: Tenant) -> int:
    lock_team_uids()
    known = TeamUid.objects.filter(tenant=tenant).first()
    if known is not None:
        return known.uid
    uids = settings.FAIRLOT_LOCAL_UIDS[:-1]
    newest = TeamUid.objects.filter(uid__range=(uids[0], uids[-1])).order_by("-uid").first()
    uid = newest.uid + 1 if newest is not None else uids[0]
    if uid not in uids:
        raise BackendError("FAIRLOT_LOCAL_UIDS has no UID left for another team; extend the range")
    TeamUid.objects.create(tenant=tenant, uid=uid)
    audit.record(actor=actor, verb="tenant.take_uid", target=tenant, tenant=tenant, after={"uid": uid})
    return uid
