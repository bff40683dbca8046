"""Grants users access to the hosts of sessions and services, which differ from the portal's host.

The portal gives a user a ticket, which is valid once and for one minute. The host exchanges the ticket for a cookie. At
each request, the host checks the login and the rights of the cookie's user.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.crypto import salted_hmac

from accounting.access import audit
from accounting.core.errors import NotAllowed
from accounting.models import Membership, Tenant, User
from portal.models import Scope, Visit
from portal.services.detail import members_of, sentences_of, troubles_of
from portal.sessions.absence import Absence
from portal.sessions.detail import details_of
from portal.tokens.actions import find_token
from scheduling.jobs.entering import may_enter
from scheduling.leases.interruptions import back_by, of_service, of_session
from scheduling.models import Cluster, Job, Lease, Service, Session
from scheduling.sessions.actions import base_url, note_use, token_of

TICKET_LASTS = timedelta(seconds=60)


class Barred(Enum):
    """The reasons why the sender of a request to a session or service is not admitted."""

    STRANGER = "stranger"  # no valid cookie, or the login that it belongs to has ended
    HIDDEN = "hidden"  # the session or service does not exist, or the user may not use it
    ELSEWHERE = "elsewhere"  # the local backend serves clients on its own machine only
    NOT_READY = "not ready"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Admitted:
    """The address and token of a program that the sender of a request may use now."""

    session_id: int
    address: str
    token: str
    base: str
    # VS Code serves at the root, so it gets paths without `base`, and wants its token in a cookie.
    is_vscode: bool = False


@transaction.atomic(durable=True)
def invite(*, actor: User, session: Session, login: str) -> str:
    """Returns a ticket with which `actor` can enter the session's host. The ticket is valid once and for one minute.

    `login` is the key of the actor's login session in the portal; the access ends when this login session ends. Raises
    NotAllowed if the actor may not work in the session.
    """
    if not may_enter(actor, session.job):
        raise NotAllowed(
            "Only the owner and managers of the team may open a session. If it uses secrets of its owner, only the"
            " owner may."
        )
    audit.record(actor=actor, verb="session.open", target=session.job, tenant=session.job.tenant)
    return _ticket(session=session, user=actor, login=login)


@transaction.atomic(durable=True)
def invite_to_service(*, actor: User, service: Service, login: str) -> str:
    """Returns a ticket with which `actor` can enter the service's host. The ticket is valid once and for one minute.

    `login` is the key of the actor's login session in the portal; the access ends when this login session ends. Raises
    NotAllowed if the actor may not use the service.
    """
    if not may_use(service.pk, actor):
        raise NotAllowed(
            f"Only operators and members of the team {service.tenant.name} may use this service."
        )
    audit.record(actor=actor, verb="service.open", target=service, tenant=service.tenant)
    return _ticket(service=service, user=actor, login=login)


def _ticket(**facts: Any) -> str:
    over = Q(session__job__state__in=Job.ENDED) | Q(service__removed_at__isnull=False)
    Visit.objects.filter(over | Q(entered_at=None, created_at__lt=Now() - TICKET_LASTS)).delete()
    ticket = secrets.token_urlsafe(32)
    Visit.objects.create(digest=_digest(ticket), **facts)
    return ticket


def enter(*, session_id: int, ticket: str) -> str | None:
    """Exchanges a session's ticket for the value of a cookie; the ticket cannot be used again. Returns None for an
    invalid ticket."""
    return _enter(ticket, session=session_id)


def enter_service(*, service_id: int, ticket: str) -> str | None:
    """Exchanges a service's ticket for the value of a cookie; the ticket cannot be used again. Returns None for an
    invalid ticket."""
    return _enter(ticket, service=service_id)


def _enter(ticket: str, **of: int) -> str | None:
    key = secrets.token_urlsafe(32)
    fresh = Visit.objects.filter(
        digest=_digest(ticket), entered_at=None, created_at__gt=Now() - TICKET_LASTS, **of
    )
    return key if fresh.update(digest=_digest(key), entered_at=Now()) else None


def admit(*, session_id: int, key: str, is_local: bool) -> Admitted | Barred:
    """Checks whether the sender of a request may use the session now.

    `key`: the sender's cookie for the session's host. `is_local`: whether the sender is on this machine. A session on a
    local cluster admits senders on other machines only if FAIRLOT_LOCAL_BEYOND_LOOPBACK is set.

    Returns the program's address and token, or the reason why the sender is not admitted.
    """
    visits = Visit.objects.select_related("user", "session__job__cluster")
    visit = visits.filter(session=session_id, digest=_digest(key), entered_at__isnull=False).first()
    if visit is None or visit.session is None or _signed_in(visit) != visit.user:
        return Barred.STRANGER
    job = visit.session.job
    if not may_enter(visit.user, job):
        return Barred.HIDDEN
    if job.has_ended:
        return Barred.ENDED
    if _serves_this_machine_only(job.cluster) and not is_local:
        return Barred.ELSEWHERE
    address = Lease.objects.ready().filter(job=job).values_list("address", flat=True).first()
    if not address:
        return Barred.NOT_READY
    is_vscode = visit.session.kind == Session.Kind.VSCODE
    return Admitted(session_id, address, token_of(job), base_url(job), is_vscode)


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request to a service: either a browser with its cookie, or a program with an API token."""

    key: str
    bearer: str
    writes: bool  # True for HTTP methods that may change something


def admit_to_service(
    *, service_id: int, caller: Caller, is_local: bool, address: str = ""
) -> Admitted | Barred:
    """Checks a sender in the same way as `admit`, and returns the address of a ready replica of the service.

    Returns the replica at `address` if that replica is ready, otherwise a random one. `is_local` says whether the
    sender is on this machine.
    """
    user = _caller(service_id, caller)
    if user is None:
        return Barred.STRANGER
    service = Service.objects.select_related("cluster").filter(pk=service_id).first()
    if service is None or not may_use(service_id, user):
        return Barred.HIDDEN
    if service.removed_at:
        return Barred.ENDED
    if _serves_this_machine_only(service.cluster) and not is_local:
        return Barred.ELSEWHERE
    ready = Lease.objects.ready().filter(job__service=service_id).exclude(address="")
    addresses = list(ready.values_list("address", flat=True))
    if not addresses:
        return Barred.NOT_READY
    return Admitted(service_id, address if address in addresses else secrets.choice(addresses), "", "/")


def _caller(service_id: int, caller: Caller) -> User | None:
    if caller.bearer:
        token = find_token(caller.bearer)
        return token.user if token and (Scope.WORK in token.scopes or not caller.writes) else None
    visits = Visit.objects.select_related("user")
    visit = visits.filter(service=service_id, digest=_digest(caller.key), entered_at__isnull=False).first()
    return visit.user if visit and _signed_in(visit) == visit.user else None


def may_use(service_id: int, user: User) -> bool:
    """Returns whether the user may use the service.

    Members of the service's team may use it. So may all users who may change it, such as operators.
    """
    service = Service.objects.filter(pk=service_id)
    tenants = Tenant.objects.visible_to(user, role=Membership.Role.MEMBER)
    return (
        service.filter(tenant__in=tenants).exists()
        or Service.objects.changeable_by(user).filter(pk=service_id).exists()
    )


def absence_of_service(*, service_id: int, caller: Caller) -> Absence | None:
    """Returns why the service is not responding. Call it only after `admit_to_service` has returned Barred.NOT_READY.

    The reason is shown to the sender of the request, `caller`. Returns None if the service does not exist, or if
    `caller` may not use it.
    """
    user = _caller(service_id, caller)
    related = Service.objects.with_counts().select_related("tenant", "owner", "cluster", "current", "good")
    service = related.filter(pk=service_id).first()
    if user is None or service is None or not may_use(service_id, user):
        return None
    members = members_of(service)
    present = [one for one in of_service(service) if one.ended is None]
    latest = max(present, key=lambda one: one.began, default=None)
    told = " ".join([*sentences_of(service, members, reader=user), *troubles_of(service, members)])
    return Absence(
        who=f"The service {service.name}",
        page=f"{settings.PUBLIC_URL}/services/{service_id}/",
        why=f"{latest.text.rstrip('.')}." if latest else told,
        since=latest.began if latest else None,
        back_by=back_by(member.job for member in members),
    )


def absence(*, session_id: int, key: str) -> Absence | None:
    """Returns why the session is not responding; None if `key` is not a cookie of the session.

    Call it only after `admit` has returned Barred.NOT_READY. This function does not check the user's login and rights
    again.
    """
    visit = Visit.objects.filter(session=session_id, digest=_digest(key)).select_related("user").first()
    sessions = Session.objects.select_related("job__tenant", "job__owner", "job__cluster")
    session = sessions.filter(pk=session_id).first()
    if visit is None or session is None:
        return None
    told = details_of([session], visit.user)[0]
    gone = next((one for one in of_session(session.job) if one.ended is None), None)
    return Absence(
        who=f"The session {session.job.name}",
        page=f"{settings.PUBLIC_URL}/sessions/{session_id}/",
        why=f"{gone.text.rstrip('.')}." if gone else told.sentence,
        since=gone.began if gone else None,
        back_by=back_by([session.job]),
    )


def used(session_id: int) -> None:
    note_use(session_id=session_id)


def _signed_in(visit: Visit) -> object:
    """Returns the user of the login session whose key is `visit.login`.

    Returns an AnonymousUser if the login session has ended.
    """
    login = HttpRequest()
    login.session = import_module(settings.SESSION_ENGINE).SessionStore(visit.login)
    # the same check as on the portal's pages
    return get_user(login)


def _serves_this_machine_only(cluster: Cluster) -> bool:
    return cluster.backend == Cluster.Backend.LOCAL and not settings.FAIRLOT_LOCAL_BEYOND_LOOPBACK


def _digest(text: str) -> str:
    return salted_hmac("fairlot.visit", text, algorithm="sha256").hexdigest()
