"""The page of a service, and its actions. The list is in portal/services/listing.py, the form in
portal/services/editing.py."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from accounting.core.errors import NotAllowed
from accounting.core.numbers import read_key
from accounting.models import User
from portal import interruptions
from portal.access import posted_from
from portal.forms.posting import tell
from portal.fragments import render_page
from portal.jobs.failure import failure_of
from portal.services import detail
from portal.services.rules import Rules
from portal.sessions import hosts
from portal.sessions.visits import invite_to_service, may_use
from portal.user_request import UserRequest
from scheduling.draining.drained_jobs import nodes_drained_under
from scheduling.leases.interruptions import of_service
from scheduling.models import Cluster, Service
from scheduling.services.actions import change_service, remove_service, roll_back_service
from scheduling.spec.job_spec import SpecError

REPLICAS_PER_PAGE = 50
EVENTS_SHOWN = 30


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
    failed = detail.latest_failure(shown, members)
    changeable = Service.objects.changeable_by(request.user).filter(pk=pk)
    context = {
        "service": shown,
        "status": detail.status_of(shown),
        "sentences": detail.sentences_of(shown, members, reader=request.user),
        "drained": nodes_drained_under(member.lease for member in members),
        "failed": failed,
        "failure": failure_of(failed) if failed else None,
        "troubles": detail.troubles_of(shown, members),
        "extra": detail.extra_of(shown, members),
        "page": Paginator(members, REPLICAS_PER_PAGE).get_page(request.GET.get("page")),
        "revisions": detail.revisions_of(shown),
        "interruptions": interruptions.shown(of_service(shown)),
        "claimable_from": min(detail.claimable_from(members), default=None),
        "on_notice": detail.on_notice(members),
        "events": shown.events.all()[:EVENTS_SHOWN],
        "cost": detail.costs_of([shown], request.user).get(shown.pk, []),
        "rules": rules or Rules.of(shown),
        "address": hosts.origin_of_service(pk),
        "may_open": bool(shown.ready and hosts.origin_of_service(pk)) and may_use(pk, request.user),  # type: ignore[attr-defined]  # annotated
        "is_local": shown.cluster.backend == Cluster.Backend.LOCAL,
        "may_change": not shown.removed_at and changeable.exists(),
    }
    return render_page(request, "services/service.html", context, status=422 if rules else 200)


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
    """Sets the number of replicas of a service, and its rules for rollouts."""
    rules = Rules.from_post(request.POST)
    shown = visible_service(request.user, pk)
    try:
        tell(
            request,
            lambda: change_service(actor=request.user, service=shown, **rules.read()),
            f"The service {shown.name} has been changed.",
        )
    except SpecError as error:
        return _page(request, visible_service(request.user, pk), rules.with_problems(error))
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
    tell(
        request,
        lambda: roll_back_service(actor=request.user, service=shown, number=number),
        f"The service {shown.name} is being rolled back to revision {number}.",
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
