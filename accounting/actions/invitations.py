"""Actions on invitations: managers invite people to their team by a link, and the invited people join the team.

An invitation acts with the right of the person who made it: it lets nobody in once this person may no longer add
members.
"""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from accounting.access import audit
from accounting.access.permissions import may, require
from accounting.actions.checks import check_choice
from accounting.actions.memberships import add_within
from accounting.actions.tenants import check_tickets
from accounting.actions.users import Credentials, create_user_within
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.core.wording import counted
from accounting.models import Invitation, Mail, Membership, Tenant, User
from accounting.notifications.mail import why_mail_is_off, write_link

LONGEST_DAYS = 90
MOST_USES = 100
MOST_OPEN = 50  # invitations of a team
ENDED = "This invitation is no longer valid. Ask the person who invited you for a new one."


@transaction.atomic(durable=True)
def invite(
    *,
    actor: User | None,
    tenant: Tenant,
    role: str = Membership.Role.MEMBER,
    tickets: int = 100,
    email: str = "",
    most_uses: int = 1,
    days: int = 7,
) -> Invitation:
    """Creates an invitation to a team, and returns it. `Invitation.link` is what the invited person opens.

    `email`: also sends the link to this address; such an invitation can be accepted once. `most_uses`: how many people
    can accept the invitation. `days`: how long it is valid. Raises Refused, naming the field, for invalid values, if no
    mail server is configured for the mail, and if the team has too many open invitations.
    """
    require(actor, "member.change", tenant)
    check_choice("role", role, Membership.Role.values, "role")
    check_tickets(tickets)
    email = email.strip()
    if email:
        _check_address(email)
        if most_uses != 1:
            raise Refused("An invitation by mail is for one person.", "most_uses")
    if not 1 <= most_uses <= MOST_USES:
        raise Refused(f"An invitation is for 1 to {MOST_USES} people.", "most_uses")
    if not 1 <= days <= LONGEST_DAYS:
        raise Refused(f"An invitation is valid for 1 to {LONGEST_DAYS} days.", "days")
    # The lock keeps concurrent calls from exceeding MOST_OPEN together.
    tenant = Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    if tenant.archived_at:
        raise Refused(f"Team {tenant} is archived and accepts no new members.", "tenant")
    if tenant.invitations.usable().count() >= MOST_OPEN:
        raise Refused(f"The team already has {MOST_OPEN} open invitations. Revoke one first.")
    made = Invitation.objects.create(
        tenant=tenant,
        role=role,
        tickets=tickets,
        email=email,
        most_uses=most_uses,
        invited_by=actor,
        expires_at=now_from_database() + timedelta(days=days),
    )
    audit.record(
        actor=actor,
        verb="invitation.create",
        target=made,
        tenant=tenant,
        after={"role": role, "tickets": tickets, "most_uses": most_uses, "expires_at": made.expires_at}
        | ({"email": email} if email else {}),
    )
    if email:
        _send(made)
    return made


@transaction.atomic(durable=True)
def revoke_invitation(*, actor: User | None, invitation: Invitation) -> None:
    """Ends an invitation: nobody can accept it any more, and a mail with its link that was not sent yet is deleted.

    Members who accepted it before stay. An invitation that has ended stays unchanged.
    """
    require(actor, "member.change", invitation.tenant)
    held = Invitation.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=invitation.pk)
    if held.revoked_at is not None:
        return
    Invitation.objects.filter(pk=held.pk).update(revoked_at=Now())
    Mail.objects.filter(invitation=held, sent_at=None).delete()
    audit.record(
        actor=actor, verb="invitation.revoke", target=held, tenant=held.tenant, before={"uses": held.uses}
    )


@transaction.atomic(durable=True)
def accept_invitation(*, actor: User, token: str) -> Membership:
    """Makes the actor a member of the team to which the token invites. Returns the membership.

    A member who accepts keeps the present role, and uses nothing up; so accepting twice is the same as accepting once.
    Raises Refused if the invitation is not valid, and if the actor was removed from the team after it was made: a link
    for several people must not undo a removal.
    """
    if actor.is_anonymous or not actor.is_active:
        raise NotAllowed("Only a signed-in, active user can accept an invitation.")
    held = _locked(token)
    present = Membership.objects.filter(user=actor, tenant=held.tenant).select_related("tenant").first()
    if present is None and actor.pk in held.barred:
        raise Refused(
            "You were removed from this team after the invitation was made. Ask for a new invitation."
        )
    return present or _join(held, actor)


@transaction.atomic(durable=True)
def join_with_new_account(
    *, token: str, username: str, password: str, first_name: str = "", last_name: str = ""
) -> Credentials:
    """Creates an account for a person who has an invitation, and makes it a member of the team.

    The account has the mail address to which the invitation was sent, and no other that the person may claim: managers
    of all teams add users by their addresses, and Fairlot sends mail there.

    Raises Refused if the portal lets only admins create accounts (FAIRLOT_ACCOUNTS_BY_INVITATION), if the invitation is
    not valid, and for values that `create_user` refuses.
    """
    if not settings.FAIRLOT_ACCOUNTS_BY_INVITATION:
        raise Refused("Only admins create accounts in this portal. Ask one for an account.")
    held = _locked(token)
    person = User(
        username=username,
        first_name=first_name.strip(),
        last_name=last_name.strip(),
        email=held.email,
    )
    made = create_user_within(actor=None, user=person, password=password)
    _join(held, made.user)
    return made


def find_invitation(token: str) -> Invitation | None:
    """Returns the invitation with this token; None if nobody can accept it."""
    found = Invitation.objects.usable().with_token(token).select_related("tenant", "invited_by").first()
    return found if found is not None and _may_invite(found) else None


def _locked(token: str) -> Invitation:
    """Returns the invitation with this token. Locks it until the transaction ends, so that uses are counted right."""
    rows = Invitation.objects.select_for_update(of=("self",)).select_related("tenant", "invited_by")
    held = rows.usable().with_token(token).first()
    if held is None or not _may_invite(held):
        raise Refused(ENDED)
    return held


def _may_invite(invitation: Invitation) -> bool:
    who = invitation.invited_by
    return who is None or may(who, "member.change", invitation.tenant)


def _join(held: Invitation, user: User) -> Membership:
    Invitation.objects.filter(pk=held.pk).update(uses=F("uses") + 1)
    membership = Membership(user=user, tenant=held.tenant, role=held.role, tickets=held.tickets)
    by = held.invited_by.get_username() if held.invited_by else "Fairlot"
    return add_within(actor=user, membership=membership, how={"invitation": held.pk, "invited_by": by})


def _check_address(email: str) -> None:
    if why := why_mail_is_off():
        raise Refused(f"{why} Create a link instead, and send it yourself.", "email")
    try:
        validate_email(email)
    except ValidationError as error:
        raise Refused(" ".join(error.messages), "email") from None


def _send(made: Invitation) -> None:
    who = made.invited_by
    by = (who.get_full_name() or who.get_username()) if who else "Fairlot"
    until = made.expires_at - now_from_database()
    write_link(
        made,
        subject=f"Invitation to the team {made.tenant.name}",
        text=(
            f"{by} invites you to the team {made.tenant.name} of the GPU portal {settings.PUBLIC_URL}.\n\n"
            f"The link below is valid for {counted(max(round(until / timedelta(days=1)), 1), 'day')}, for one "
            "person. If you did not expect this mail, do nothing. Open the link to join the team:\n"
        ),
    )
