"""Actions on user accounts."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from zoneinfo import available_timezones

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction

from accounting.access import audit
from accounting.access.permissions import require
from accounting.actions.checks import check_choice, check_fields, check_name, refused_if_taken
from accounting.actions.memberships import add_within
from accounting.actions.notifications import forget_unseen
from accounting.core.errors import NotAllowed, Refused
from accounting.models import Membership, Tenant, User


@dataclass(frozen=True, slots=True)
class Credentials:
    """Represents a user and the user's new password in clear text, so that somebody can hand it over to the user.

    Fairlot stores only a hash of the password.
    """

    user: User
    password: str
    ended: Mapping[str, int] = field(default_factory=dict)  # the number of revoked credentials by kind


def _nothing_else(user: User) -> Mapping[str, int]:
    return audit.NOTHING


@transaction.atomic(durable=True)
def create_user(
    *,
    actor: User | None,
    username: str,
    password: str | None = None,
    portal_role: str = User.PortalRole.USER,
    first_name: str = "",
    last_name: str = "",
    email: str = "",
    tenant: Tenant | None = None,
    role: str = Membership.Role.MEMBER,
) -> Credentials:
    """Creates a user and returns the user with the password. The password is random unless `password` is given.

    A user whom an admin creates must choose another password at the first sign-in.

    `tenant`: also makes the user a member of this team, with the role `role`.
    """
    require(actor, "user.change")
    user = User(
        username=username,
        portal_role=portal_role,
        first_name=first_name.strip(),
        last_name=last_name.strip(),
        email=email.strip(),
        must_change_password=actor is not None,
    )
    made = create_user_within(actor=actor, user=user, password=password)
    if tenant is not None:
        require(actor, "member.change", tenant)
        add_within(actor=actor, membership=Membership(user=user, tenant=tenant, role=role))
    return made


def create_user_within(*, actor: User | None, user: User, password: str | None = None) -> Credentials:
    """Stores a new `user` in the caller's transaction. The caller must have checked the permission."""
    user.username = User.normalize_username(user.username.strip())
    check_fields(user, "username", "portal_role", "first_name", "last_name", "email")
    check_name(user.username, "username")
    _check_full_name(user)
    if not user.username[0].isalnum():
        raise Refused("A user name must begin with a letter or a digit.", "username")
    if User.objects.filter(username__iexact=user.username).exists():
        raise Refused("This user name is taken.", "username")
    password = _give_password(user, password)
    with refused_if_taken("This user name is taken.", "username"):
        user.save(force_insert=True)
    after = {"username": user.username, "portal_role": user.portal_role, "email": user.email}
    audit.record(actor=actor, verb="user.create", target=user, after=after)
    return Credentials(user, password)


def _check_full_name(user: User) -> None:
    for name in ("first_name", "last_name"):
        if getattr(user, name):
            check_name(getattr(user, name), name)


@transaction.atomic(durable=True)
def describe_user(*, actor: User | None, user: User, first_name: str, last_name: str, email: str) -> User:
    """Sets a user's full name and e-mail address. The name with which a user signs in never changes."""
    require(actor, "user.change")
    user = User.objects.select_for_update(no_key=True).get(pk=user.pk)
    given = {"first_name": first_name.strip(), "last_name": last_name.strip(), "email": email.strip()}
    before = {name: getattr(user, name) for name in given}
    for name, value in given.items():
        setattr(user, name, value)
    check_fields(user, *given)
    _check_full_name(user)
    user.save(update_fields=list(given))
    audit.record(actor=actor, verb="user.describe", target=user, before=before, after=given)
    return user


@transaction.atomic(durable=True)
def set_portal_role(*, actor: User | None, user: User, portal_role: str) -> User:
    require(actor, "user.change")
    check_choice("portal role", portal_role, User.PortalRole.values, "portal_role")
    user = lock_with_admins(user)
    if portal_role != User.PortalRole.ADMIN:
        _require_another_admin(user)
    before, user.portal_role = user.portal_role, portal_role
    user.save(update_fields=["portal_role"])
    forget_unseen(user)
    audit.record(
        actor=actor,
        verb="user.set_portal_role",
        target=user,
        before={"portal_role": before},
        after={"portal_role": portal_role},
    )
    return user


@transaction.atomic(durable=True)
def deactivate_user(*, actor: User | None, user: User) -> User:
    """Deactivates a user immediately. The user's waiting jobs no longer start. The history of the user stays."""
    return deactivate_within(actor=actor, user=user)


def deactivate_within(*, actor: User | None, user: User) -> User:
    """Deactivates a user like `deactivate_user`, but in the caller's transaction."""
    require(actor, "user.change")
    user = lock_with_admins(user)
    if not user.is_active:
        raise Refused(f"{user} is already deactivated.")
    _require_another_admin(user)
    user.is_active = False
    user.save(update_fields=["is_active"])
    audit.record(actor=actor, verb="user.deactivate", target=user)
    return user


@transaction.atomic(durable=True)
def reactivate_user(*, actor: User | None, user: User) -> User:
    require(actor, "user.change")
    user = lock_with_admins(user)
    if user.is_active:
        raise Refused(f"{user} is already active.")
    user.is_active = True
    user.save(update_fields=["is_active"])
    audit.record(actor=actor, verb="user.reactivate", target=user)
    return user


@transaction.atomic(durable=True)
def reset_password(
    *,
    actor: User | None,
    user: User,
    password: str | None = None,
    shut_out: Callable[[User], Mapping[str, int]] = _nothing_else,
) -> Credentials:
    """Sets a new password, which ends the user's sessions. The password is random unless `password` is given. If an
    admin sets it, the user must choose another one after signing in.

    `shut_out`: a function that revokes the user's other credentials in the same transaction. It returns how many
    credentials of each kind it revoked, for the audit trail.
    """
    require(actor, "user.change")
    user = User.objects.select_for_update(no_key=True).get(pk=user.pk)
    password = _give_password(user, password)
    user.must_change_password = actor is not None
    user.save(update_fields=["password", "must_change_password"])
    ended = shut_out(user)
    audit.record(actor=actor, verb="user.reset_password", target=user, after=ended)
    return Credentials(user, password, ended)


@transaction.atomic(durable=True)
def set_preferences(
    *, actor: User, theme: str | None = None, time_zone: str | None = None, job_order: str | None = None
) -> User:
    """Changes the actor's preferences. An argument of None leaves the value unchanged."""
    if actor.is_anonymous or not actor.is_active:
        raise NotAllowed("Only a signed-in, active user can change preferences.")
    user = User.objects.select_for_update(no_key=True).get(pk=actor.pk)
    before = {"theme": user.theme, "time_zone": user.time_zone}
    if theme is not None:
        check_choice("theme", theme, User.Theme.values, "theme")
        user.theme = theme
    if time_zone is not None:
        if time_zone not in available_timezones():
            raise Refused("Unknown time zone. Use a name such as UTC or Europe/Berlin.", "time_zone")
        user.time_zone = time_zone
    order = user.job_order
    if job_order is not None:
        check_choice("job order", job_order, User.JobOrder.values, "job_order")
        user.job_order = job_order
    user.save(update_fields=["theme", "time_zone", "job_order"])
    if user.job_order != order:  # scheduling rounds read no other preference
        audit.record(
            actor=actor,
            verb="user.set_job_order",
            target=user,
            before={"job_order": order},
            after={"job_order": user.job_order},
        )
    audit.record(
        actor=actor,
        verb="user.set_preferences",
        target=user,
        before=before,
        after={"theme": user.theme, "time_zone": user.time_zone},
    )
    return user


def _give_password(user: User, password: str | None) -> str:
    if password is None:
        password = secrets.token_urlsafe(15)
    else:
        try:
            validate_password(password, user)
        except ValidationError as error:
            raise Refused(" ".join(error.messages), "password") from None
    user.set_password(password)
    return password


def lock_with_admins(user: User) -> User:
    """Locks the rows of `user` and of all admins until the transaction ends, and returns `user`.

    Without the lock, two admins could demote each other concurrently, and no admin would remain.
    """
    admins = User.objects.filter(portal_role=User.PortalRole.ADMIN) | User.objects.filter(pk=user.pk)
    held = {found.pk: found for found in admins.select_for_update(no_key=True).order_by("pk")}
    return held[user.pk]


def why_needed(user: User) -> str:
    """Returns why the user must stay an active admin; "" if nothing prevents another role or a deactivation."""
    others = User.objects.filter(portal_role=User.PortalRole.ADMIN, is_active=True).exclude(pk=user.pk)
    if user.is_admin and not others.exists():
        return f"{user} is the last active admin. Make another user an admin first."
    return ""


def _require_another_admin(user: User) -> None:
    if why := why_needed(user):
        raise Refused(why)
