"""The page of a session, and its actions. The list is in portal/sessions/listing.py, the form in
portal/sessions/editing.py."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from accounting.core.errors import NotAllowed
from accounting.models import User
from portal import interruptions
from portal.forms.posting import tell
from portal.fragments import render_page
from portal.jobs.failure import failure_of, log_end_of
from portal.jobs.files import deleted_at
from portal.sessions import detail, hosts
from portal.sessions.visits import invite
from portal.user_request import UserRequest
from scheduling.advance.ahead import windows_over
from scheduling.draining.drained_jobs import nodes_drained_under
from scheduling.jobs.entering import may_enter
from scheduling.leases.interruptions import back_by, of_session
from scheduling.models import Session
from scheduling.sessions.actions import base_url, keep_session, stop_session
from scheduling.sessions.files import files_sentence, why_no_copy

EVENTS_SHOWN = 30


@require_safe
def session(request: UserRequest, pk: int) -> HttpResponse:
    """Shows a session's state, time limits and links."""
    shown = visible_session(request.user, pk)
    changeable = Session.objects.changeable_by(request.user).filter(pk=pk)
    told = detail.details_of([shown], request.user)[0]
    files_say = "" if shown.job.has_ended else files_sentence(shown.job)
    context = {
        "told": told,
        "drained": nodes_drained_under([told.lease]),
        "reserved_ahead": windows_over([told.lease], request.user, ends=told.ends),
        "back_by": back_by([shown.job]),
        "interruptions": interruptions.shown(of_session(shown.job)),
        "events": shown.job.events.order_by("-id")[:EVENTS_SHOWN],
        "files_say": files_say,
        "stop_text": f"All programs in the session will end permanently after a short grace period. {files_say}",
        "files_until": deleted_at(shown.job),
        "why_no_copy": why_no_copy(shown) if shown.job.has_ended else "",
        "failure": failure_of(shown.job),
        "log_end": log_end_of(shown.job) if told.is_unready else None,
        "has_host": bool(hosts.origin_of(pk)),
        "may_open": told.is_ready and may_enter(request.user, shown.job),
        "may_change": not shown.job.has_ended and changeable.exists(),
    }
    return render_page(request, "sessions/session.html", context)


@login_not_required
@never_cache
@require_safe
def enter(request: HttpRequest, pk: int) -> HttpResponse:
    """Redirects the user to the session's host, with a ticket (a code that is valid once).

    There the ticket is exchanged for a cookie, and the browser is redirected to `?path=`, a path of the program.

    If the session has ended, redirects to the session's page instead. Raises PermissionDenied for a user who may see
    the session but may not work in it.
    """
    if not request.user.is_authenticated:
        # After the login, the user sees the session's page and not this view: the portal's CSP forbids forms, such as
        # the login form, to redirect to other hosts.
        return redirect_to_login(reverse("session", args=[pk]))
    shown = visible_session(request.user, pk)
    if not hosts.origin_of(pk) or shown.job.has_ended:
        return redirect("session", pk)
    try:
        ticket = invite(actor=request.user, session=shown, login=request.session.session_key or "")
    except NotAllowed as refused:
        raise PermissionDenied(str(refused)) from None
    path = request.GET.get("path", "")
    base = base_url(shown.job)
    return hosts.redirect_to_entry(hosts.entry_url(pk, ticket, path if path.startswith(base) else base))


@require_POST
def keep(request: UserRequest, pk: int) -> HttpResponse:
    """Restarts the session's idle timeout."""
    shown = visible_session(request.user, pk)
    tell(
        request,
        lambda: keep_session(actor=request.user, session=shown),
        f"The session {shown} continues. Its idle timeout starts again.",
    )
    return redirect("session", pk=pk)


@require_POST
def stop(request: UserRequest, pk: int) -> HttpResponse:
    shown = visible_session(request.user, pk)
    tell(
        request,
        lambda: stop_session(actor=request.user, session=shown),
        f"The session {shown} is being stopped.",
    )
    return redirect("session", pk=pk)


def visible_session(user: User, pk: int) -> Session:
    """Returns the session with its job. Raises Http404 if the user may not see the session."""
    seen = Session.objects.visible_to(user)
    related = seen.select_related("job__tenant", "job__owner", "job__cluster", "files_from")
    return get_object_or_404(related, pk=pk)
