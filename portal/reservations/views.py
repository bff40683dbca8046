"""Pages of advance reservations: everybody sees those of their teams; operators make, change and cancel them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from django.conf import settings
from django.core.paginator import Paginator
from django.db.models import Prefetch, QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from accounting.access.permissions import may
from accounting.core.clock import now_from_database
from accounting.models import AuditEvent
from portal.access import permitted, posted_from
from portal.administration.trail import entries
from portal.forms.form import Form
from portal.forms.posting import act_on, perform, show
from portal.reservations.forms import ReservationForm, terms_of
from portal.reservations.timeline import DAYS, days_from
from portal.unstorable import keeps_form
from portal.user_request import UserRequest
from scheduling.advance import actions
from scheduling.advance.proposals import Proposal, effect_of, propose
from scheduling.advance.use import use_of
from scheduling.models import AdvanceReservation, AdvanceWindow

PER_PAGE = 25
LATEST_EVENTS = 20


def _seen(request: UserRequest) -> QuerySet[AdvanceReservation]:
    found = AdvanceReservation.objects.visible_to(request.user)
    return found.select_related("cluster", "tenant", "generation", "created_by").prefetch_related(
        "nodes__node", Prefetch("windows", AdvanceWindow.objects.order_by("begins"))
    )


@require_safe
def reservations(request: UserRequest) -> HttpResponse:
    """Lists the reservations that the user may see, with those of the next days on a time line."""
    now = now_from_database()
    page = Paginator(_seen(request), PER_PAGE).get_page(request.GET.get("page"))
    soon = _seen(request).filter(windows__ends__gt=now, windows__begins__lt=now + timedelta(days=DAYS))
    context = {
        "page": page,
        "rows": [(one, one.state_at(now)) for one in page],
        "days": days_from(now, timezone.get_current_timezone(), soon.distinct()),
        "may_change": may(request.user, "advance.change"),
    }
    return show(request, "reservations/list.html", context, posted=None)


def _new(request: UserRequest, *, posted: Form | None = None, made: Proposal | None = None) -> HttpResponse:
    context = {
        "form": ReservationForm().or_posted(posted),
        "proposal": made,
        "effect": effect_of(made, request.user) if made else None,
        "currency": settings.FAIRLOT_CURRENCY,
    }
    return show(request, "reservations/new.html", context, posted=posted)


@permitted("advance.change")
@keeps_form
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: UserRequest) -> HttpResponse:
    """Shows the form for a reservation. A POST shows whom it hits; confirmed, it makes the reservation."""
    if request.method != "POST":
        return _new(request)
    form = ReservationForm(request)
    if request.POST.get("confirmed"):
        return perform(
            request,
            form,
            lambda values: actions.reserve_in_advance(
                actor=request.user, cluster=values["cluster"], terms=terms_of(values)
            ),
            done="The GPUs are reserved.",
            to=("reservations",),
            page=_new,
        )
    proposals: list[Proposal] = []
    act_on(form, lambda values: proposals.append(propose(values["cluster"], terms_of(values))))
    return _new(request, posted=form, made=proposals[0] if proposals else None)


def _page(
    request: UserRequest, *, pk: int, posted: Form | None = None, made: Proposal | None = None
) -> HttpResponse:
    found = get_object_or_404(_seen(request), pk=pk)
    now, changes = now_from_database(), may(request.user, "advance.change")
    state = found.state_at(now)
    events = AuditEvent.objects.visible_to(request.user).filter(
        target_type="advancereservation", target_id=str(found.pk)
    )[:LATEST_EVENTS]
    context = {
        "reservation": found,
        "state": state,
        "windows": [one for one in found.windows.all() if one.ends > now][:10],
        "use": use_of(found, now),
        "past": sum(one.ends <= now for one in found.windows.all()),
        "may_change": changes and state in {"open", "coming"},
        "form": ReservationForm(of=found).or_posted(posted) if changes else None,
        "proposal": made,
        "effect": effect_of(made, request.user) if made else None,
        "currency": settings.FAIRLOT_CURRENCY,
        "entries": entries(events, request.user),
    }
    return show(request, "reservations/reservation.html", context, posted=posted)


@require_safe
def reservation(request: UserRequest, pk: int) -> HttpResponse:
    return _page(request, pk=pk)


@permitted("advance.change")
@posted_from("reservation", "pk")
def change(request: UserRequest, pk: int) -> HttpResponse:
    """Shows whom other terms would hit; confirmed, it changes the reservation."""
    found = get_object_or_404(_seen(request), pk=pk)
    form = ReservationForm(request, of=found)
    if request.POST.get("confirmed"):
        return perform(
            request,
            form,
            lambda values: actions.change_advance_reservation(
                actor=request.user, reservation=found, terms=terms_of(values)
            ),
            done="The reservation has been changed.",
            to=("reservation", pk),
            page=partial(_page, pk=pk),
        )
    proposals: list[Proposal] = []
    act_on(form, lambda values: proposals.append(propose(found.cluster, terms_of(values), changed=found)))
    return _page(request, pk=pk, posted=form, made=proposals[0] if proposals else None)


@permitted("advance.change")
@posted_from("reservation", "pk")
def cancel(request: UserRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(_seen(request), pk=pk)
    return perform(
        request,
        Form("cancel", request),
        lambda _: actions.cancel_advance_reservation(actor=request.user, reservation=found),
        done="The reservation has been cancelled. Its GPUs are for everybody again.",
        to=("reservations",),
        page=partial(_page, pk=pk),
    )
