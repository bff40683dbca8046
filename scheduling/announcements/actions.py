"""Actions on announcements: operators make, change and withdraw them, and users dismiss them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from django.db import transaction
from django.db.models.functions import Now

from accounting.access import audit
from accounting.access.permissions import require
from accounting.actions.checks import check_choice
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.core.texts import why_no_name
from accounting.models import Tenant, User
from scheduling.models import Announcement, AnnouncementDismissal, Cluster
from scheduling.models.announcements import LONGEST, shown_to
from scheduling.models.versions import require_version

MOST_STANDING = 50  # announcements that are shown or scheduled


@transaction.atomic(durable=True)
def announce(
    *,
    actor: User | None,
    text: str,
    severity: str = Announcement.Severity.INFO,
    begins_at: datetime | None = None,
    ends_at: datetime | None = None,
    dismissible: bool = True,
    roles: Sequence[str] = (),
    teams: Sequence[Tenant] = (),
    clusters: Sequence[Cluster] = (),
) -> Announcement:
    """Makes an announcement and returns it. Pages show it from `begins_at` (None: now) until `ends_at` (None: until it
    is withdrawn).

    `roles`, `teams` and `clusters` say whom it concerns; an empty list fits every user. Raises Refused, naming the
    field, for invalid values.
    """
    require(actor, "announcement.change")
    standing = Announcement.objects.filter(withdrawn_at=None).exclude(ends_at__lte=Now())
    if standing.count() >= MOST_STANDING:
        raise Refused(f"There are {MOST_STANDING} announcements already. Withdraw one first.")
    made = Announcement(
        text=text,
        severity=severity,
        begins_at=begins_at or now_from_database(),
        ends_at=ends_at,
        dismissible=dismissible,
        roles=list(roles),
        created_by=actor,
    )
    _check(made)
    made.save(force_insert=True)
    made.teams.set(teams)
    made.clusters.set(clusters)
    audit.record(actor=actor, verb="announcement.create", target=made, after=_audit_values(made))
    return made


@transaction.atomic(durable=True)
def change_announcement(
    *,
    actor: User | None,
    announcement: Announcement,
    text: str,
    severity: str,
    begins_at: datetime | None,
    ends_at: datetime | None,
    dismissible: bool,
    roles: Sequence[str],
    teams: Sequence[Tenant],
    clusters: Sequence[Cluster],
    seen: Collection[str] | None = None,
) -> Announcement:
    """Changes an announcement. If its text changes, also users who dismissed it see it again.

    `seen`: versions of which the announcement must have one; see accounting/models/versions.py. Raises Refused for
    invalid values, and for an announcement that was withdrawn.
    """
    require(actor, "announcement.change")
    held = _locked(announcement)
    require_version(held, seen)
    if held.withdrawn_at is not None:
        raise Refused("This announcement was withdrawn. Make a new one.")
    before, former = _audit_values(held), held.text
    held.text, held.severity, held.dismissible, held.roles = text, severity, dismissible, list(roles)
    held.begins_at, held.ends_at = begins_at or held.begins_at, ends_at
    _check(held)
    held.save()
    held.teams.set(teams)
    held.clusters.set(clusters)
    if held.text != former:
        held.dismissals.all().delete()
    audit.record(
        actor=actor, verb="announcement.change", target=held, before=before, after=_audit_values(held)
    )
    return held


@transaction.atomic(durable=True)
def withdraw_announcement(
    *, actor: User | None, announcement: Announcement, seen: Collection[str] | None = None
) -> None:
    """Withdraws an announcement, so that no page shows it any more. Does nothing if it was withdrawn already.

    `seen`: as for `change_announcement`.
    """
    require(actor, "announcement.change")
    held = _locked(announcement)
    if held.withdrawn_at is not None:
        return
    require_version(held, seen)
    Announcement.objects.filter(pk=held.pk).update(withdrawn_at=Now())
    audit.record(actor=actor, verb="announcement.withdraw", target=held)


@transaction.atomic(durable=True)
def dismiss_announcement(*, actor: User, announcement: Announcement) -> None:
    """Removes an announcement from the actor's own pages. Dismissing it again changes nothing.

    The audit trail does not record what a user has read. Raises Refused for an announcement that must stay.
    """
    if actor.is_anonymous or not actor.is_active:
        raise NotAllowed("Only a signed-in, active user can dismiss announcements.")
    if not announcement.dismissible:
        raise Refused("This announcement stays until it ends.")
    AnnouncementDismissal.objects.get_or_create(announcement=announcement, user=actor)


def is_shown(user: User, announcement_id: int) -> bool:
    """Returns whether the user's pages show this announcement now."""
    return any(one.pk == announcement_id for one in shown_to(user))


def _check(made: Announcement) -> None:
    """Tidies the text and the roles of an announcement, and raises Refused for a value that is not valid."""
    made.text = " ".join(made.text.split())
    if not made.text or len(made.text) > LONGEST:
        raise Refused(f"An announcement has 1 to {LONGEST} characters.", "text")
    if why := why_no_name(made.text):
        raise Refused(f"The text {why}.", "text")
    check_choice("severity", made.severity, Announcement.Severity.values, "severity")
    for role in made.roles:
        check_choice("role", role, Announcement.Role.values, "roles")
    made.roles = sorted(set(made.roles))
    if made.ends_at is not None and made.ends_at <= made.begins_at:
        raise Refused("The end must be after the beginning.", "ends_at")
    if made.ends_at is not None and made.ends_at <= now_from_database():
        raise Refused("The end must be in the future.", "ends_at")


def _locked(announcement: Announcement) -> Announcement:
    return Announcement.objects.select_for_update().get(pk=announcement.pk)


def _audit_values(one: Announcement) -> dict[str, object]:
    return {
        "text": one.text,
        "severity": one.severity,
        "begins_at": one.begins_at,
        "ends_at": one.ends_at,
        "dismissible": one.dismissible,
        "roles": one.roles,
        "teams": sorted(one.teams.values_list("name", flat=True)),
        "clusters": sorted(one.clusters.values_list("name", flat=True)),
    }
