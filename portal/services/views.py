"""The page of a service, and its actions. The list is in portal/services/listing.py, the form in
portal/services/editing.py."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils.text import slugify
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed
from accounting.core.numbers import read_key
from accounting.core.wording import counted
from accounting.models import User
from portal import interruptions
from portal.access import posted_from
from portal.forms.posting import tell
from portal.fragments import render_page
from portal.jobs.failure import log_end_of
from portal.jobs.log_group import Line, Position
from portal.jobs.log_search import BadPattern
from portal.jobs.log_views import merged_bytes
from portal.live.streams import Rights, while_allowed
from portal.services import detail
from portal.services.failures import latest_failure, unready_replica
from portal.services.replica_logs import ReplicaLogs, plain, replica_logs, time_of
from portal.services.rules import Rules
from portal.services.traffic import traffic_context
from portal.sessions import hosts
from portal.sessions.visits import invite_to_service, may_use
from portal.user_request import UserRequest
from scheduling.advance.ahead import windows_over
from scheduling.backends.base import LogUnreadable
from scheduling.draining.drained_jobs import nodes_drained_under
from scheduling.leases.interruptions import of_service
from scheduling.models import Cluster, Service
from scheduling.services.actions import change_service, remove_service, roll_back_service
from scheduling.services.replicas import next_steps_of
from scheduling.spec.job_spec import SpecError

REPLICAS_PER_PAGE = 50
EVENTS_SHOWN = 30
LINES_SHOWN = 500  # of the joint log
MOST_FOUND = 200  # lines that a search of the joint log shows
MOST_CHARACTERS = 500  # of what is searched for
TONES = 6  # colours that tell replicas apart


@require_safe
def service(request: UserRequest, pk: int) -> HttpResponse:
    """Shows a service with its replicas, revisions, history and cost."""
    return _page(request, visible_service(request.user, pk))


def _page(request: UserRequest, shown: Service, rules: Rules | None = None) -> HttpResponse:
    """Renders the page of a service.

    `rules` has the posted texts if they were refused. The page then shows these texts again, and the status is 422.
    None means that nothing was refused: the page shows the service's stored values, and the status is 200.
    """
    pk = shown.pk
    members = detail.members_of(shown)
    failed = latest_failure(shown, members)
    unready = (
        unready_replica(shown, members) if not failed or failed.revision_id != shown.current_id else None
    )
    address = hosts.origin_of_service(pk)
    is_user = bool(address) and may_use(pk, request.user)
    changeable = Service.objects.changeable_by(request.user).filter(pk=pk)
    context = {
        "service": shown,
        "status": detail.status_of(shown),
        "sentences": detail.sentences_of(shown, members, reader=request.user),
        "drained": nodes_drained_under(member.lease for member in members),
        "reserved_ahead": windows_over((member.lease for member in members), request.user),
        "failed": failed,
        "failure": log_end_of(failed) if failed else None,
        "unready": unready,
        "unready_end": log_end_of(unready) if unready else None,
        "troubles": detail.troubles_of(shown, members),
        "next_steps": next_steps_of(shown, at=now_from_database()),
        "back_to": detail.good_to_go_back_to(shown),
        "is_stuck": detail.is_stuck(shown, members),
        "extra": detail.extra_of(shown, members),
        "page": Paginator(members, REPLICAS_PER_PAGE).get_page(request.GET.get("page")),
        "revisions": detail.revisions_of(shown),
        "interruptions": interruptions.shown(of_service(shown)),
        "claimable_from": min(detail.claimable_from(members), default=None),
        "on_notice": detail.on_notice(members),
        "events": shown.events.all()[:EVENTS_SHOWN],
        "cost": detail.costs_of([shown], request.user).get(shown.pk, []),
        "rules": rules or Rules.of(shown),
        "address": address,
        "is_user": is_user,
        "may_open": is_user and bool(shown.ready),  # type: ignore[attr-defined]  # annotated
        "is_local": shown.cluster.backend == Cluster.Backend.LOCAL,
        "may_change": not shown.removed_at and changeable.exists(),
    } | traffic_context(shown, request.GET.get("last", ""))
    return render_page(request, "services/service.html", context, status=422 if rules else 200)


@require_safe
def log(request: UserRequest, pk: int) -> HttpResponse:
    """Shows the latest lines of all replicas of a service, merged by time, or those before the position `?end=`.

    With `?q=`, shows the lines that contain this text or, with `&regex=1`, match it as a regular expression.
    """
    shown = visible_service(request.user, pk)
    logs = replica_logs(shown)
    asked, text = request.GET.get("end", ""), request.GET.get("q", "")[:MOST_CHARACTERS]
    is_pattern, problem, is_whole = request.GET.get("regex") == "1", "", True
    found, begin = list[Line](), logs.group.start
    if text:
        try:
            found, is_whole = logs.search(text, regex=is_pattern, most=MOST_FOUND)
        except BadPattern as bad:
            problem = f"This is not a valid regular expression: {bad}"
        except LogUnreadable as unreadable:
            problem = str(unreadable)
    else:
        found, begin = logs.before(logs.position_from(asked) if asked else None, LINES_SHOWN)
    names = logs.names
    tones = {job.pk: place % TONES for place, job in enumerate(logs.replicas)}
    lines = [
        {
            "job": line.rank,
            "offset": line.offset,
            "name": names[line.rank],
            "tone": tones[line.rank],
            "at": time_of(line),
            "text": plain(line.text),
        }
        for line in found
    ]
    context = {
        "service": shown,
        "replicas": [
            {"pk": job.pk, "name": job.name, "ended_at": job.ended_at, "tone": tones[job.pk] + 1}
            for job in logs.replicas
        ],
        "lines": lines,
        "earlier": logs.text_of(begin),
        "is_latest": not asked and not text,
        "searched": text,
        "is_pattern": is_pattern,
        "is_whole": is_whole,
        "problem": problem,
        "wraps": request.GET.get("wrap") != "0",
        "problems": [(names[job], why) for job, why in logs.problems.items()],
    }
    return render_page(request, "services/log.html", context)


async def log_raw(request: UserRequest, pk: int) -> StreamingHttpResponse:
    """Returns the logs of all replicas of a service as a download, merged by time. Each line begins with its time and
    the name of its replica."""
    user = request.user

    def prepare() -> tuple[ReplicaLogs, str, Position]:
        shown = visible_service(user, pk)
        logs = replica_logs(shown)
        return logs, f"{slugify(shown.name) or 'service'}-{pk}.log", logs.group.sizes()

    logs, name, sizes = await sync_to_async(prepare)()
    rights = Rights(request, user, lambda reader: Service.objects.visible_to(reader).filter(pk=pk).exists())
    return StreamingHttpResponse(
        while_allowed(merged_bytes(logs.group, sizes, logs.names), rights),
        content_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"},
    )


@login_not_required
@never_cache
@require_safe
def enter(request: HttpRequest, pk: int) -> HttpResponse:
    """Redirects the user to the service's host, with a ticket (a code that is valid once).

    The host exchanges the ticket for a cookie. Only users who may use the service get a ticket. `?path=` is the path on
    the service's host.
    """
    if not request.user.is_authenticated:
        # After the login, the user goes to the service's page and not back to this view: the portal's
        # Content-Security-Policy forbids that a form, such as the login form, leads to another host.
        return redirect_to_login(reverse("service", args=[pk]))
    opened = visible_service(request.user, pk)
    if not hosts.origin_of_service(pk) or opened.removed_at:
        return redirect("service", pk)
    try:
        ticket = invite_to_service(
            actor=request.user, service=opened, login=request.session.session_key or ""
        )
    except NotAllowed as refused:
        raise PermissionDenied(str(refused)) from None
    path = request.GET.get("path", "")
    return hosts.redirect_to_entry(
        hosts.entry_url_of_service(pk, ticket, path if path.startswith("/") else "/")
    )


@posted_from("service", "pk")
def scale(request: UserRequest, pk: int) -> HttpResponse:
    """Sets the number of replicas of a service."""
    shown = visible_service(request.user, pk)
    rules = Rules.of(shown).with_replicas(request.POST.get("replicas", ""))
    return _change(request, shown, rules, rules.read_replicas(), "has been scaled")


@posted_from("service", "pk")
def set_rollouts(request: UserRequest, pk: int) -> HttpResponse:
    """Sets how revisions of a service are rolled out."""
    shown = visible_service(request.user, pk)
    rules = Rules.of(shown).with_rollouts(Rules.from_post(request.POST))
    return _change(request, shown, rules, rules.read_rollouts(), "has been changed")


def _change(
    request: UserRequest, shown: Service, rules: Rules, changes: dict[str, Any], done: str
) -> HttpResponse:
    """Changes fields of a service. `rules` are the texts that the page shows again if the change is refused."""
    try:
        tell(
            request,
            lambda: change_service(actor=request.user, service=shown, **changes),
            f"The service {shown.name} {done}.",
        )
    except SpecError as error:
        return _page(request, visible_service(request.user, shown.pk), rules.with_problems(error))
    return redirect("service", pk=shown.pk)


@require_POST
def let_one_be_missing(request: UserRequest, pk: int) -> HttpResponse:
    """Allows rollouts of a service to leave one replica missing. Has no effect if more may be missing already."""
    shown = visible_service(request.user, pk)
    missing = max(1, shown.max_unavailable)
    then = f" {detail.ANSWERS_NOBODY}" if shown.replicas <= missing else ""
    tell(
        request,
        lambda: change_service(actor=request.user, service=shown, max_unavailable=missing),
        f"A rollout of {shown.name} may now leave {counted(missing, 'replica')} missing.{then}",
    )
    return redirect("service", pk=pk)


@require_POST
def stop(request: UserRequest, pk: int) -> HttpResponse:
    shown = visible_service(request.user, pk)
    tell(
        request,
        lambda: change_service(actor=request.user, service=shown, stopped=True),
        f"The service {shown.name} has been stopped.",
    )
    return redirect("service", pk=pk)


@require_POST
def start(request: UserRequest, pk: int) -> HttpResponse:
    shown = visible_service(request.user, pk)
    tell(
        request,
        lambda: change_service(actor=request.user, service=shown, stopped=False),
        f"The service {shown.name} has been started.",
    )
    return redirect("service", pk=pk)


@require_POST
def roll_back(request: UserRequest, pk: int) -> HttpResponse:
    asked = request.POST.get("revision", "")
    number = read_key(asked)
    shown = visible_service(request.user, pk)
    is_earlier = shown.current is None or number < shown.current.number
    tell(
        request,
        lambda: roll_back_service(actor=request.user, service=shown, number=number),
        f"The service {shown.name} {'is being rolled back' if is_earlier else 'changes'} to revision {number}.",
    )
    return redirect("service", pk=pk)


@require_POST
def remove(request: UserRequest, pk: int) -> HttpResponse:
    shown = visible_service(request.user, pk)
    if tell(
        request,
        lambda: remove_service(actor=request.user, service=shown),
        f"The service {shown.name} has been removed.",
    ):
        return redirect("services")
    return redirect("service", pk=pk)


def visible_service(user: User, pk: int) -> Service:
    """Returns the service with this key, with the numbers of its replicas from `with_counts()`.

    Raises Http404 if the user may not see the service.
    """
    seen = Service.objects.visible_to(user).with_counts()
    return get_object_or_404(seen.select_related("tenant", "owner", "cluster", "current", "good"), pk=pk)
