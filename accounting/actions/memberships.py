"""Actions on the members of a tenant. Admins may use them, and managers of the tenant or of a tenant above it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django.db import transaction
from django.db.models import F, Func, Value

from accounting.access import audit
from accounting.access.permissions import require
from accounting.actions.checks import check_choice, refused_if_taken
from accounting.actions.notifications import forget_unseen
from accounting.actions.tenants import check_tickets
from accounting.core.errors import Refused
from accounting.models import Invitation, Membership, Tenant, User
from accounting.models.notifications import Audience, EventKind
from accounting.models.versions import require_version
from accounting.notifications.events import announce
from accounting.notifications.unread import lock_readers


@transaction.atomic(durable=True)
def add_member(
    *,
    actor: User | None,
    tenant: Tenant,
    user: User,
    role: str = Membership.Role.MEMBER,
    tickets: int = 100,
) -> Membership:
    require(actor, "member.change", tenant)
    membership = Membership(user=user, tenant=tenant, role=role, tickets=tickets)
    add_within(actor=actor, membership=membership)
    _announce(actor, membership, "added", f"You are now a {role} of {tenant}", "added you to the team")
    return membership


def find_user(name: str) -> User:
    """Returns the active user with exactly this user name or e-mail address; raises Refused unless exactly one user
    matches.

    Accepts only exact matches, so that a manager who adds members cannot find out which other users exist.
    """
    name = name.strip()
    active = User.objects.filter(is_active=True)
    found = list(active.filter(username=name)) or list(active.filter(email__iexact=name)[:2] if name else [])
    if not found:
        raise Refused("No user has exactly this user name or e-mail address.", "user")
    if len(found) > 1:
        raise Refused("Several users have this e-mail address. Enter the user name instead.", "user")
    return found[0]


def add_within(
    *, actor: User | None, membership: Membership, how: Mapping[str, Any] = audit.NOTHING
) -> Membership:
    """Stores a new membership in the caller's transaction. The caller must have checked the permission.

    `how`: what the audit trail says besides about the way in, such as the invitation.
    """
    user = membership.user
    tenant = Tenant.objects.select_for_update(no_key=True).get(pk=membership.tenant_id)
    if tenant.archived_at:
        raise Refused(f"Team {tenant} is archived and accepts no new members.", "tenant")
    if not user.is_active:
        raise Refused(f"The account of {user} is deactivated.", "user")
    membership.tenant = tenant
    _check(membership)
    with refused_if_taken(f"{user} is already a member of {tenant}.", "user"):
        membership.save(force_insert=True)
    after = {**_audit_values(membership), **how}
    audit.record(actor=actor, verb="member.add", target=user, tenant=tenant, after=after)
    return membership


@transaction.atomic(durable=True)
def change_membership(
    *,
    actor: User | None,
    membership: Membership,
    role: str | None = None,
    tickets: int | None = None,
    seen: Collection[str] | None = None,
) -> Membership:
    """Changes the role and the tickets of a membership. An argument of None leaves the value unchanged.

    `seen`: versions of which the membership must have one; see accounting/models/versions.py.
    """
    require(actor, "member.change", membership.tenant)
    membership = lock_membership(membership)
    require_version(membership, seen)
    before, former = _audit_values(membership), membership.role
    if role not in (None, Membership.Role.MANAGER):
        _keep_a_manager(actor, membership, "role")
    membership.role = role if role is not None else membership.role
    membership.tickets = tickets if tickets is not None else membership.tickets
    _check(membership)
    membership.save(update_fields=["role", "tickets"])
    forget_unseen(membership.user)
    event = audit.record(
        actor=actor,
        verb="member.change",
        target=membership.user,
        tenant=membership.tenant,
        before=before,
        after=_audit_values(membership),
    )
    if membership.role != former:
        title = f"You are now a {membership.role} of {membership.tenant}"
        _announce(actor, membership, str(event.pk), title, f"changed your role, which was {former}")
    return membership


@transaction.atomic(durable=True)
def remove_member(*, actor: User | None, membership: Membership, seen: Collection[str] | None = None) -> None:
    """Removes a member from a tenant. Records of what the member did in the tenant stay. `seen`: as for
    `change_membership`."""
    remove_within(actor=actor, membership=membership, seen=seen)


def remove_within(*, actor: User | None, membership: Membership, seen: Collection[str] | None = None) -> None:
    """Removes a member like `remove_member`, but in the caller's transaction."""
    require(actor, "member.change", membership.tenant)
    membership = lock_membership(membership)
    require_version(membership, seen)
    _keep_a_manager(actor, membership)
    audit.record(
        actor=actor,
        verb="member.remove",
        target=membership.user,
        tenant=membership.tenant,
        before=_audit_values(membership),
    )
    title = f"You are no longer a member of {membership.tenant}"
    _announce(actor, membership, "removed", title, "removed you from the team", path="/")
    membership.delete()
    # The open links of the team do not undo the removal.
    barred = Func(F("barred"), Value(membership.user_id), function="array_append")
    Invitation.objects.usable().filter(tenant=membership.tenant).update(barred=barred)
    forget_unseen(membership.user)


def _announce(
    actor: User | None, membership: Membership, key: str, title: str, did: str, *, path: str = "/share/"
) -> None:
    """Announces a change of a membership to its user. `key` names the change among those of the membership."""
    by = actor.get_username() if actor else "Fairlot"
    announce(
        EventKind.TEAM_MEMBER,
        f"membership:{membership.pk}:{key}",
        audience=Audience.PERSON,
        concerns=[membership.user_id],
        actor_name=by,
        title=title,
        text=f"{by} {did}.",
        path=path,
    )


def lock_membership(membership: Membership) -> Membership:
    """Locks the membership until the transaction ends, and returns it; raises Refused if the membership no longer
    exists.

    Locks the user first, as everybody does who changes users, because it may have less to read afterwards.
    """
    lock_readers([membership.user_id])
    try:
        rows = Membership.objects.select_for_update(of=("self",)).select_related("user", "tenant")
        return rows.get(pk=membership.pk)
    except Membership.DoesNotExist:
        raise Refused("This membership no longer exists.") from None


def why_kept(actor: User | None, membership: Membership) -> str:
    """Returns why the actor may neither remove this manager nor take the role away; "" if nothing prevents it.

    Without the membership the team must have a manager, because its managers could not undo that. A manager of a team
    above is also one of the team. Admins may leave a team without a manager.
    """
    if actor is None or actor.is_admin or membership.role != Membership.Role.MANAGER:
        return ""
    others = Membership.objects.filter(
        tenant__in=membership.tenant.lineage, role=Membership.Role.MANAGER, user__is_active=True
    )
    if others.exclude(pk=membership.pk).exists():
        return ""
    return f"{membership.tenant} would then have no manager. Make another member a manager first, or ask an admin."


def _keep_a_manager(actor: User | None, membership: Membership, field: str | None = None) -> None:
    """Raises Refused for the reason of `why_kept`."""
    if actor is not None and not actor.is_admin and membership.role == Membership.Role.MANAGER:
        # With the locks, two managers cannot leave at the same time.
        lineage = Tenant.objects.select_for_update(no_key=True).filter(pk__in=membership.tenant.lineage)
        list(lineage.order_by("pk").values_list("pk"))
    if why := why_kept(actor, membership):
        raise Refused(why, field)


def _check(membership: Membership) -> None:
    check_choice("role", membership.role, Membership.Role.values, "role")
    check_tickets(membership.tickets)


def _audit_values(membership: Membership) -> dict[str, Any]:
    return {"tenant": membership.tenant.name, "role": membership.role, "tickets": membership.tickets}
