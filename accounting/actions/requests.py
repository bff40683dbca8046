"""Actions on requests of managers for tickets, limits or teams. A grant is an approved request.

scheduling/grants.py calls the functions that approve requests and end grants, and then starts scheduling rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, QuerySet

from accounting.access import audit
from accounting.access.permissions import require
from accounting.actions import grants
from accounting.actions.checks import check_choice
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.core.wording import exact
from accounting.models import Membership, Quota, Request, Tenant, User
from accounting.models.notifications import Audience, EventKind
from accounting.notifications.events import announce
from accounting.notifications.request_facts import facts_of
from accounting.notifications.request_words import Words

NOTHING: Mapping[str, Any] = {}
LONGEST_TEXT = 2000
LATEST_YEAR = 2200
NOTICE = timedelta(days=1)  # how long before the end of a grant people are notified


@transaction.atomic(durable=True)
def ask(
    *,
    actor: User,
    tenant: Tenant,
    kind: str,
    reason: str,
    wanted: Mapping[str, Any] = NOTHING,
    until: datetime | None = None,
    extends: Request | None = None,
) -> Request:
    """Stores a manager's request and mails the operators. Raises Refused if the request is invalid.

    `kind`: a request for tickets, a limit, a new team, or an extension of a grant. `reason`: the manager's reason, for
    the operators. `wanted`: the requested values, which depend on `kind`. `until`: the requested end of the grant; None
    means no end. `extends`: the grant to extend, if `kind` is an extension.
    """
    require(actor, "request.ask", tenant)
    if tenant.archived_at:
        raise Refused(f"{tenant} is archived and accepts no requests.")
    check_choice("kind of request", kind, Request.Kind.values, "kind")
    _check_text(reason, "reason", "Enter a reason for the request.")
    _check_user(actor, tenant, wanted)
    now = now_from_database()
    _check_until(until, now)
    if kind == Request.Kind.EXTENSION:
        _check_extension(tenant, extends, until)
    request = Request(
        tenant=tenant,
        kind=kind,
        asked_by=actor,
        asked_at=now,
        reason=reason.strip(),
        wanted=grants.checked(kind, tenant, wanted),
        until=until,
        extends=extends if kind == Request.Kind.EXTENSION else None,
    )
    request.save(force_insert=True)
    after = grants.audit_values(request, request.wanted) | {"until": until, "reason": request.reason}
    audit.record(actor=actor, verb="request.ask", target=request, tenant=tenant, after=after)
    operators = User.objects.exclude(portal_role=User.PortalRole.USER).exclude(pk=actor.pk)
    said = f"{actor.get_username()} has made a request, which an operator can grant or decline."
    _announce(
        EventKind.REQUEST_OPEN, request, "requested", said, people=operators.values_list("pk", flat=True)
    )
    return request


@transaction.atomic(durable=True)
def withdraw_request(*, actor: User, request: Request) -> Request:
    """Withdraws an open request; raises Refused if somebody has already answered or withdrawn the request."""
    require(actor, "request.ask", request.tenant)
    held = _open(request)
    held.state, held.decided_by, held.decided_at = Request.State.WITHDRAWN, actor, now_from_database()
    held.save(update_fields=["state", "decided_by", "decided_at"])
    audit.record(actor=actor, verb="request.withdraw", target=held, tenant=held.tenant)
    return held


@transaction.atomic(durable=True)
def decline_request(*, actor: User | None, request: Request, answer: str) -> Request:
    """Declines an open request, and mails the answer to the requester and the managers of the team."""
    require(actor, "request.answer")
    _check_text(answer, "answer", "Enter the reason why the request is declined.")
    held = _open(request)
    _decide(held, actor, Request.State.DECLINED, answer)
    held.save(update_fields=["state", "decided_by", "decided_at", "answer"])
    audit.record(
        actor=actor, verb="request.decline", target=held, tenant=held.tenant, after={"answer": held.answer}
    )
    _tell(held, "declined", f"{_name(actor)} has declined the request.")
    return held


def approve_within(
    *, actor: User | None, request: Request, answer: str, granted: Mapping[str, Any], until: datetime | None
) -> Request:
    """Approves a request in the caller's transaction, and sets the values in `granted`.

    The granted values may differ from the values that the manager asked for. The grant ends at `until`; None means no
    end.
    """
    require(actor, "request.answer")
    if len(answer) > LONGEST_TEXT:
        raise Refused(f"Enter at most {LONGEST_TEXT} characters.", "answer")
    # The tenant's row is locked before the request's row, the order in which ending a grant locks them.
    tenant = Tenant.objects.select_for_update(no_key=True).get(pk=request.tenant_id)
    held = _open(request)
    if tenant.archived_at:
        raise Refused(f"{tenant} is archived and accepts no requests.")
    _check_until(until, now_from_database())
    _decide(held, actor, Request.State.APPROVED, answer)
    held.tenant = tenant
    held.granted = grants.checked(held.kind, tenant, granted)
    grants.grant(actor, held, until)
    held.save()
    before = grants.audit_values(held, held.wanted)
    after = grants.audit_values(held, held.granted) | {"until": until, "answer": held.answer}
    audit.record(actor=actor, verb="request.approve", target=held, tenant=tenant, before=before, after=after)
    if held.granted == held.wanted and until == held.until:
        _tell(held, "approved", f"{_name(actor)} has approved the request.")
    else:
        _tell(held, "approved with changes", _changed_grant(held, _name(actor)))
    return held


def end_within(*, request: Request) -> Request | None:
    """Ends the grant of `request` in the caller's transaction. Returns the updated request.

    Restores the former value unless somebody has changed the value since. Returns None in two cases:
    - The grant has already ended, or its end time has not come.
    - The grant cannot end yet, for example because the granted team still has teams below it. Fairlot tries again
      later. Only the first failure is recorded and mailed.
    """
    # The tenants' rows are locked before the request's row, the order of changes by hand.
    tenants = Tenant.objects.select_for_update(no_key=True).filter(pk__in=grants.teams_of(request))
    tenant = {one.pk: one for one in tenants.order_by("pk")}[request.tenant_id]
    held = Request.objects.select_for_update().get(pk=request.pk)
    if not held.is_in_force or held.ends_at is None or held.ends_at > now_from_database():
        return None
    held.tenant = tenant
    try:
        held.ending = grants.end(held)
    except grants.NotYet as hindrance:
        _note_hindrance(held, str(hindrance))
        return None
    held.ended_at = now_from_database()
    held.save(update_fields=["ending", "ended_at"])
    more = Request.objects.in_force().filter(extends=held)
    more.update(
        ended_at=held.ended_at, ending=f"this extension ended, because the grant of request {held.pk} ended"
    )
    audit.record(
        actor=None, verb="request.end", target=held, tenant=tenant,
        before=grants.audit_values(held, held.granted or {}),
        after={"ending": held.ending},
    )  # fmt: skip
    _tell(held, "ended", "The grant has ended.")
    return held


def _note_hindrance(held: Request, hindrance: str) -> None:
    if held.ending == hindrance:
        return
    is_first, held.ending = not held.ending, hindrance
    held.save(update_fields=["ending"])
    if is_first:
        after = {"ending": hindrance}
        audit.record(actor=None, verb="request.overdue", target=held, tenant=held.tenant, after=after)
        _tell(
            held,
            "Fairlot cannot end the grant yet",
            "The end of the grant has passed, but Fairlot cannot end the grant yet.",
        )


def requests_to_end() -> QuerySet[Request]:
    return Request.objects.in_force().filter(ends_at__lte=now_from_database())


def requests_soon_to_end() -> QuerySet[Request]:
    """Returns a queryset of the grants that end within a day and need a mail about their end.

    Leaves out grants that were approved less than a day before their end. Also leaves out grants for which the mail
    about the present end time was already sent.
    """
    now = now_from_database()
    found = Request.objects.in_force().filter(overtaken_at=None, ends_at__gt=now, ends_at__lte=now + NOTICE)
    return found.filter(ends_at__gt=F("decided_at") + NOTICE).exclude(told_of_end=F("ends_at"))


@transaction.atomic(durable=True)
def notify_of_end(*, request_id: int) -> bool:
    """Mails the managers and the requester that a grant ends soon. Returns whether mail was written.

    Returns False if another worker has already written the mail, or if the grant does not end soon.
    """
    soon = requests_soon_to_end().select_for_update(of=("self",))
    held = soon.select_related("tenant", "asked_by", "decided_by").filter(pk=request_id).first()
    if held is None:
        return False
    held.told_of_end = held.ends_at
    held.save(update_fields=["told_of_end"])
    _tell(
        held,
        "ends soon",
        "The grant ends soon. Until then, you can request more time on the page of the grant.",
    )
    return True


def _open(request: Request) -> Request:
    held = (
        Request.objects.select_for_update(of=("self",))
        .select_related("tenant", "asked_by", "decided_by")
        .get(pk=request.pk)
    )
    if held.state != Request.State.OPEN:
        by = f" by {held.decided_by.get_username()}" if held.decided_by else ""
        raise Refused(f"This request was already {held.get_state_display().lower()}{by}.")
    return held


def _decide(request: Request, actor: User | None, state: str, answer: str) -> None:
    request.state, request.answer = state, answer.strip()
    request.decided_by, request.decided_at = actor, now_from_database()


def _check_text(text: str, field: str, empty: str) -> None:
    if not text.strip():
        raise Refused(empty, field)
    if len(text) > LONGEST_TEXT:
        raise Refused(f"Enter at most {LONGEST_TEXT} characters.", field)


def _check_user(actor: User, tenant: Tenant, wanted: Mapping[str, Any]) -> None:
    """Raises Refused if `wanted` contains a limit of a user for whom `actor` must not ask for limits.

    Managers may ask for limits of members of `tenant` or of a team below it, and of users who already have a limit in
    `tenant`. Operators may ask for limits of any user.
    """
    user = wanted.get("user_id")
    if not user or actor.is_operator:
        return
    members = Membership.objects.filter(user=user, tenant__path__startswith=tenant.path)
    if not members.exists() and not Quota.objects.filter(user=user, tenant=tenant).exists():
        # The same message for users who do not exist, so that it does not reveal who exists.
        raise Refused("The user is not in this team.", "user")


def _check_until(until: datetime | None, now: datetime) -> None:
    if until is not None and until.year > LATEST_YEAR:
        raise Refused(
            f"The end of the requested grant must be in the year {LATEST_YEAR} or earlier.", "until"
        )
    if until is not None and until <= now:
        raise Refused("The end of the requested grant must be in the future.", "until")


def _check_extension(tenant: Tenant, extends: Request | None, until: datetime | None) -> None:
    if extends is None or extends.tenant_id != tenant.pk:
        raise NotAllowed("You can only extend grants of your team.")
    extends = Request.objects.get(pk=extends.pk)  # read again, because the grant may have changed
    if not extends.is_in_force or extends.ends_at is None:
        raise Refused(
            "You can extend a grant only before it ends. A grant without an end cannot be extended."
        )
    grants.check_longer(extends, until)


def _changed_grant(request: Request, name: str) -> str:
    """Returns a sentence that says what was granted, and what was asked for where that differs."""
    words = Words.of([request])
    granted, wanted = words.say(request, request.granted), words.say(request, request.wanted)
    asked = f" instead of {wanted}" if granted != wanted else ""
    ends = request.ends_at or (request.extends.ends_at if request.extends else None)
    until = f" until {exact(ends.astimezone(UTC))}" if ends else " without an end"
    return f"{name} has granted {granted}{asked},{until}."


def _name(actor: User | None) -> str:
    return actor.get_username() if actor else "Fairlot"


def _tell(request: Request, what: str, said: str) -> None:
    """Announces an answer to the managers of the team and to the requester, but only while the requester may see the
    request.

    `what`: the last words of the title, such as "declined". `said`: a sentence for the text.
    """
    managers = User.objects.filter(
        memberships__tenant=request.tenant_id, memberships__role=Membership.Role.MANAGER
    )
    people = {*managers.values_list("pk", flat=True), request.asked_by_id}
    _announce(EventKind.REQUEST_ANSWERED, request, what, said, people=people)


def _announce(kind: EventKind, request: Request, what: str, said: str, *, people: Iterable[int]) -> None:
    announce(
        kind,
        f"request:{request.pk}:{what}:{request.told_of_end or ''}",
        audience=Audience.MANAGERS,
        tenant=request.tenant,
        concerns=sorted(people),
        title=f"{request.get_kind_display()} for {request.tenant.name}: {what}",
        text=said,
        facts=facts_of(request),
        path=f"/requests/{request.pk}/",
    )
