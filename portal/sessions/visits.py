"""Ways into sessions: a ticket that works once and for a minute, the cookie that it buys, and who may still come in."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from importlib import import_module

from django.conf import settings
from django.contrib.auth import get_user
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.crypto import salted_hmac

from accounting import audit
from accounting.errors import NotAllowed
from accounting.models import User
from portal.models import Visit
from scheduling.actions.sessions import base_url, note_use, token_of
from scheduling.models import Cluster, Job, Lease, Session

TICKET_LASTS = timedelta(seconds=60)


class Barred(Enum):
    """Why somebody does not come in."""

    STRANGER = "stranger"  # no visit, or its login has ended
    HIDDEN = "hidden"  # there is no such session for this user
    ELSEWHERE = "elsewhere"  # the local backend serves this machine only
    NOT_READY = "not ready"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Admitted:
    """Somebody who may come in now, and where the program answers: as its backend has observed of this lease."""

    session_id: int
    address: str
    token: str
    base: str


@transaction.atomic(durable=True)
def invite(*, actor: User, session: Session, login: str) -> str:
    """A ticket into the session for who is signed in as `login`; NotAllowed for who may only look."""
    if not Session.objects.changeable_by(actor).filter(pk=session.pk).exists():
        raise NotAllowed("Only the owner, a manager of the team or an operator may open a session.")
    void = Q(entered_at=None, created_at__lt=Now() - TICKET_LASTS) | Q(session__job__state__in=Job.ENDED)
    Visit.objects.filter(void).delete()
    ticket = secrets.token_urlsafe(32)
    Visit.objects.create(session=session, user=actor, login=login, digest=_digest(ticket))
    audit.record(actor=actor, verb="session.open", target=session.job, tenant=session.job.tenant)
    return ticket


def enter(*, session_id: int, ticket: str) -> str | None:
    """The cookie's text for a ticket, which is void from now on; None for one that does not work."""
    key = secrets.token_urlsafe(32)
    fresh = Visit.objects.filter(
        digest=_digest(ticket), session=session_id, entered_at=None, created_at__gt=Now() - TICKET_LASTS
    )
    return key if fresh.update(digest=_digest(key), entered_at=Now()) else None


def admit(*, session_id: int, key: str, is_local: bool) -> Admitted | Barred:
    """Who this is, whether the login still lasts, whether the rights do, and where the program is: all anew."""
    visits = Visit.objects.select_related("user", "session__job__cluster")
    visit = visits.filter(session=session_id, digest=_digest(key), entered_at__isnull=False).first()
    if visit is None or _signed_in(visit) != visit.user:
        return Barred.STRANGER
    if not Session.objects.changeable_by(visit.user).filter(pk=session_id).exists():
        return Barred.HIDDEN
    job = visit.session.job
    if job.has_ended:
        return Barred.ENDED
    if _serves_this_machine_only(job.cluster) and not is_local:
        return Barred.ELSEWHERE
    address = Lease.objects.ready().filter(job=job).values_list("address", flat=True).first()
    if not address:
        return Barred.NOT_READY
    return Admitted(session_id, address, token_of(job), base_url(job))


def used(session_id: int) -> None:
    note_use(session_id=session_id)


def _signed_in(visit: Visit) -> object:
    """Who is signed in there now, judged as for each page of the portal."""
    login = HttpRequest()
    login.session = import_module(settings.SESSION_ENGINE).SessionStore(visit.login)
    return get_user(login)


def _serves_this_machine_only(cluster: Cluster) -> bool:
    return cluster.backend == Cluster.Backend.LOCAL and not settings.FAIRLOT_LOCAL_BEYOND_LOOPBACK


def _digest(text: str) -> str:
    return salted_hmac("fairlot.visit", text, algorithm="sha256").hexdigest()
