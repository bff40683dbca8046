"""The page with a terminal in a running job."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.staticfiles import finders
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from portal.forms.posting import tell
from portal.fragments import render_page
from portal.jobs.views import frame, visible_job
from portal.terminals.shells import Shell, shells_of
from portal.user_request import UserRequest
from scheduling.backends.base import BackendError, TerminalElsewhere
from scheduling.clusters.backend_factory import backend_for
from scheduling.jobs.entering import may_enter
from scheduling.models import Cluster, Job, Terminal
from scheduling.terminals.actions import LOST_AFTER, end_terminal

XTERM = "xterm/xterm.js"


@never_cache
@require_safe
def terminal(request: UserRequest, pk: int) -> HttpResponse:
    """Shows a terminal beside the worker `?worker=` of a running job, or says why there can be none."""
    job = visible_job(request, pk)
    names = job.worker_names
    asked = request.GET.get("worker", "0")
    worker = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 6 else 0
    nonce = secrets.token_urlsafe(16)
    shells = shells_of(job, request.user)
    own, wants = _own(request, shells, worker), request.GET.get("shell", "")
    context: dict[str, Any] = frame(request, job, "terminal") | {
        "may_enter": may_enter(request.user, job),
        "is_running": job.state == Job.State.RUNNING,
        "is_local": job.cluster.backend == Cluster.Backend.LOCAL,
        "worker": worker if worker < len(names) else 0,
        "names": names,
        "has_xterm": finders.find(XTERM) is not None,
        "shells": shells,
        # The user's shell that the page attaches to, unless the browser tab has one.
        "own": own,
        "wants": wants if wants == "new" or (own and wants == str(own.terminal.pk)) else "",
        "ended": request.GET.get("ended", ""),
        "waits_minutes": LOST_AFTER // timedelta(minutes=1) - 1,
        "idle_minutes": settings.FAIRLOT_TERMINAL_IDLE_MINUTES,
        "nonce": nonce,
    }
    if context["may_enter"] and context["is_running"] and not context["is_local"]:
        context["problem"] = _why_elsewhere(job, context["worker"])
    response = render_page(request, "jobs/terminal.html", context)
    response.headers["Content-Security-Policy"] = policy(nonce)
    return response


def _own(request: UserRequest, shells: list[Shell], worker: int) -> Shell | None:
    """Returns the user's shell beside the worker that `?shell=` names, or else one that waits, or else one that is
    open elsewhere."""
    own = [one for one in shells if one.is_own and one.terminal.worker == worker]
    wanted = [one for one in own if str(one.terminal.pk) == request.GET.get("shell")]
    waiting = [one for one in own if not one.is_attached]
    return next(iter([*wanted, *waiting, *own]), None)


@require_POST
def end(request: UserRequest, pk: int, key: UUID) -> HttpResponse:
    """Ends a terminal in the job, with its shell."""
    job = visible_job(request, pk)
    terminal = get_object_or_404(Terminal.objects.visible_to(request.user).filter(job=job), pk=key)
    tell(
        request,
        lambda: end_terminal(actor=request.user, job=job, key=key),
        f"The shell beside worker {terminal.worker} has ended.",
    )
    return redirect(reverse("job_terminal", args=[pk]) + f"?worker={terminal.worker}&ended={key}")


def policy(nonce: str) -> str:
    """Returns the Content-Security-Policy of pages, which also lets xterm.js set its colours: it makes style elements,
    to which our script gives the nonce, and style attributes. Scripts are restricted as on every page."""
    own = "style-src 'self'"
    if own not in settings.CONTENT_SECURITY_POLICY:
        raise ValueError("The policy of pages says nothing about styles.")
    styles = f"style-src-elem 'self' 'nonce-{nonce}'; style-src-attr 'unsafe-inline'"
    return settings.CONTENT_SECURITY_POLICY.replace(own, styles)


def _why_elsewhere(job: Job, worker: int) -> BackendError | None:
    """Returns the error that says how the cluster's own tools open a terminal beside the worker."""
    try:
        backend_for(job.cluster).open_terminal(
            job_id=job.pk, key="", rows=24, columns=80, rank=worker
        ).close()
    except TerminalElsewhere as elsewhere:
        return elsewhere
    except BackendError as error:
        return error
    return None
