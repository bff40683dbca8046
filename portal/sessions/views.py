"""The list of sessions, a session's page, and what is done with one. Its form is in portal/sessions/editing.py."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from accounting.errors import NotAllowed
from portal.sessions import hosts
from portal.sessions.visits import invite
from scheduling.actions.sessions import base_url
from scheduling.models import Session


@never_cache
@require_safe
def enter(request: HttpRequest, pk: int) -> HttpResponse:
    """Leads to the session's own host, with a ticket for who may work in it; `path` is where to."""
    shown = visible_session(request, pk)
    if not hosts.origin_of(pk) or shown.job.has_ended:
        return redirect("job", pk)
    try:
        ticket = invite(actor=request.user, session=shown, login=request.session.session_key)
    except NotAllowed as refused:
        raise PermissionDenied(str(refused)) from None
    path = request.GET.get("path", "")
    base = base_url(shown.job)
    answer = HttpResponse(status=302)
    answer["Location"] = hosts.door_of(pk, ticket, path if path.startswith(base) else base)
    answer["Referrer-Policy"] = "no-referrer"
    return answer


def visible_session(request: HttpRequest, pk: int) -> Session:
    """The session with its job, or 404 for who may not see it."""
    seen = Session.objects.visible_to(request.user)
    related = seen.select_related("job__tenant", "job__owner", "job__cluster")
    return get_object_or_404(related, pk=pk)
