"""The pages of requests. Managers see the requests of their teams. Operators see and answer all requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django.core.paginator import Paginator
from django.db.models import Case, QuerySet, Value, When
from django.db.models.functions import Coalesce
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from accounting.actions.grants import quota_of
from accounting.actions.quotas import find
from accounting.actions.requests import decline_request, withdraw_request
from accounting.actions.tenants import check_tickets
from accounting.core.errors import Refused
from accounting.core.wording import number
from accounting.models import Request
from accounting.notifications.request_words import Words
from portal.access import managed, posted_from
from portal.forms.form import Form
from portal.forms.posting import act_on, perform, show
from portal.requests.forms import ApproveForm, DeclineForm, Why
from portal.sorting import Names, Sorting
from portal.user_request import UserRequest
from scheduling.grants import approve_request
from scheduling.shares.preview import preview
from scheduling.shares.snapshot import Change

A_PAGE = 50
IS_OPEN = Case(When(state=Request.State.OPEN, then=Value(1)), default=Value(0))
SORTING = Sorting(
    {
        "open": (IS_OPEN,), "number": ("pk",), "state": ("state",), "team": (Names("tenant__name"),),
        "asked": ("asked_at",), "until": (Coalesce("ends_at", "until"),),
    },
    usual="-open",
)  # fmt: skip
PREVIEWED = frozenset({Request.Kind.TICKETS, Request.Kind.LIMIT})


def seen_by(request: UserRequest) -> QuerySet[Request]:
    """Returns the requests that the user may see. Raises Http404 unless the user manages a team or is an operator."""
    user = request.user
    if not user.is_operator and not managed(request).exists():
        raise Http404
    return Request.objects.visible_to(user).select_related("tenant", "asked_by", "decided_by")


@require_safe
def requests(request: UserRequest) -> HttpResponse:
    """Lists the requests that the user may see. By default, open requests come first."""
    page = Paginator(SORTING.order(seen_by(request), request.GET), A_PAGE).get_page(request.GET.get("page"))
    words = Words.of(page.object_list)
    rows = [
        (one, words.say(one, one.granted) if one.granted else words.asks(one)) for one in page.object_list
    ]
    sort = SORTING.chosen(request.GET)
    context = {"page": page, "rows": rows, "teams": managed(request), "sort": sort}
    return render(request, "requests/list.html", context)


def one_page(
    request: UserRequest,
    *,
    pk: int,
    posted: Form | None = None,
    changed: Mapping[str, Any] | None = None,
) -> HttpResponse:
    """Renders the page of a request.

    If the request is open, the page also previews how the shares would change: operators see those of all teams,
    managers those of their team. `changed` has the values to preview; None means the requested values. `posted` is a
    refused form, which is shown again with its problems; None if no form was refused.
    """
    one = get_object_or_404(seen_by(request), pk=pk)
    words = Words.of([one])
    is_open = one.state == Request.State.OPEN
    may_answer = is_open and request.user.is_operator
    manages = managed(request).filter(pk=one.tenant_id).exists()
    context: dict[str, Any] = {
        "one": one,
        "wanted": words.asks(one),
        "granted": words.say(one, one.granted) if one.granted is not None else "",
        "may_answer": may_answer,
        "may_withdraw": is_open and manages,
        "may_extend": manages and one.is_in_force and one.ends_at is not None and one.overtaken_at is None,
        "shows_preview": (may_answer or (is_open and manages)) and one.kind in PREVIEWED,
        "approve": ApproveForm(one).or_posted(posted),
        "decline": DeclineForm("decline").or_posted(posted),
        "extend": Why("extend").or_posted(posted),
    }
    if is_open and one.kind == Request.Kind.LIMIT:
        context["limit_now"] = _limit_now(one)
    if context["shows_preview"]:
        context["previewed"] = words.say(one, changed or one.wanted)
        try:
            context["rows"] = preview(change_of(one, changed or one.wanted), own=not may_answer)
        except Refused:  # the request's user or generation does not exist any more; approving reports that
            context["rows"] = []
    return show(request, "requests/request.html", context, posted=posted)


def _limit_now(one: Request) -> str:
    """Returns the value of the limit that the request would replace."""
    try:
        held = find(quota_of(one.tenant, one.wanted))
    except Refused:  # its user or generation does not exist any more
        held = None
    return f"{number(float(held.limit))} {held.what()}" if held else "no such limit"


def change_of(one: Request, values: Mapping[str, Any]) -> Change:
    """Returns the change that would be made if the request was granted with `values`. Raises Refused if the values are
    invalid."""
    if one.kind == Request.Kind.TICKETS:
        check_tickets(values["tickets"])
        return Change(one.tenant, tickets=values["tickets"])
    quota = quota_of(one.tenant, values)
    return Change(one.tenant, quota=quota, removed=find(quota))


@posted_from("request", "pk")
def preview_answer(request: UserRequest, pk: int) -> HttpResponse:
    """Shows the request's page with a preview of the values in the operator's form. Nothing is saved."""
    one = get_object_or_404(seen_by(request), pk=pk)
    if not request.user.is_operator:
        raise Http404
    form = ApproveForm(one, request)
    is_right = act_on(form, lambda _: one.kind in PREVIEWED and change_of(one, form.granted()))
    return one_page(request, pk=pk, posted=form, changed=form.granted() if is_right else None)


@require_safe
def request_page(request: UserRequest, pk: int) -> HttpResponse:
    return one_page(request, pk=pk)


@posted_from("request", "pk")
def approve(request: UserRequest, pk: int) -> HttpResponse:
    """Grants a request, with the values that the operator entered in the form."""
    one = get_object_or_404(seen_by(request), pk=pk)
    if not request.user.is_operator:
        raise Http404
    form = ApproveForm(one, request)
    return perform(
        request,
        form,
        lambda values: approve_request(
            actor=request.user,
            request=one,
            answer=values["answer"],
            granted=form.granted(),
            until=values["until"],
        ),
        done="The request has been granted and takes effect now.",
        to=("request", pk),
        page=partial(one_page, pk=pk),
    )


@posted_from("request", "pk")
def close(request: UserRequest, pk: int, verb: str) -> HttpResponse:
    """Closes a request: an operator declines it, or a manager of the team withdraws it."""
    one = get_object_or_404(seen_by(request), pk=pk)
    if verb == "decline" and not request.user.is_operator:
        raise Http404
    acts: dict[str, tuple[type[Form], Callable[..., object], str]] = {
        "decline": (DeclineForm, decline_request, "The request has been declined."),
        "withdraw": (Form, withdraw_request, "The request has been withdrawn."),
    }
    form, act, done = acts[verb]
    return perform(
        request,
        form(verb, request),
        lambda values: act(actor=request.user, request=one, **values),
        done=done,
        to=("request", pk),
        page=partial(one_page, pk=pk),
    )
