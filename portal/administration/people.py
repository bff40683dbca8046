"""Users: make, promote, shut out, give a new password, lift locks. A password is shown once, to whom made it."""

from __future__ import annotations

from functools import partial

from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from accounting import actions
from accounting.actions.users import Credentials
from accounting.core.errors import Refused
from accounting.core.name_order import by_name
from accounting.models import User
from portal.access import permitted, posted_from
from portal.account import lockout
from portal.administration import departures
from portal.administration.forms import Refusal, check_storable, perform, refusal, show
from portal.sorting import Names, Sorting
from portal.tokens import actions as tokens
from scheduling.departures.actions import Work, deactivate_user, settle_work

USERS_PER_PAGE = 50


SORTING = Sorting(
    {"name": (Names("username"),), "role": ("portal_role", Names("username")), "login": ("last_login",)},
    usual="name",
)


def _users(
    request: HttpRequest, *, refusal: Refusal | None = None, made: Credentials | None = None
) -> HttpResponse:
    wanted = request.GET.get("q", "").strip()
    found = User.objects.prefetch_related("memberships__tenant")
    if wanted:
        found = found.filter(
            Q(username__icontains=wanted)
            | Q(first_name__icontains=wanted)
            | Q(last_name__icontains=wanted)
            | Q(email__icontains=wanted)
        )
    context = {
        "tab": "users",
        "page": Paginator(SORTING.order(found, request.GET), USERS_PER_PAGE).get_page(
            request.GET.get("page")
        ),
        "q": wanted,
        "sort": SORTING.chosen(request.GET),
        "portal_roles": User.PortalRole.choices,
        "made": made,
    }
    return show(request, "administration/users.html", context, refusal=refusal)


@permitted("user.change")
@require_safe
def users(request: HttpRequest) -> HttpResponse:
    return _users(request)


@permitted("user.change")
@never_cache
@posted_from("admin_users")
def create(request: HttpRequest) -> HttpResponse:
    """Makes a user with a random password and shows it this one time."""
    post = request.POST
    try:
        check_storable(request)
        made = actions.create_user(
            actor=request.user,
            username=post.get("username", ""),
            portal_role=post.get("portal_role", ""),
            first_name=post.get("first_name", ""),
            last_name=post.get("last_name", ""),
            email=post.get("email", ""),
        )
    except Refused as error:
        return _users(request, refusal=refusal(request, "create", error.field, error.message))
    return _users(request, made=made)


def _user(
    request: HttpRequest, *, pk: int, refusal: Refusal | None = None, made: Credentials | None = None
) -> HttpResponse:
    person = get_object_or_404(User, pk=pk)
    context = {
        "tab": "users",
        "person": person,
        "memberships": person.memberships.select_related("tenant").order_by(*by_name("tenant__name")),
        "portal_roles": User.PortalRole.choices,
        "made": made,
        "fates": departures.FATES if person.is_active else departures.FATES[1:],
    } | departures.offered(Work(person), _heirs())
    return show(request, "administration/user.html", context, refusal=refusal)


def _heirs() -> QuerySet[User]:
    return User.objects.filter(is_active=True)


@permitted("user.change")
@require_safe
def user(request: HttpRequest, pk: int) -> HttpResponse:
    return _user(request, pk=pk)


@permitted("user.change")
@posted_from("admin_user", "pk")
def change(request: HttpRequest, pk: int, verb: str) -> HttpResponse:
    """Set the portal role, deactivate or reactivate, settle the work of one who is deactivated."""
    person = get_object_or_404(User, pk=pk)
    name = person.get_username()
    acts = {
        "role": (lambda post: actions.set_portal_role(
                    actor=request.user, user=person, portal_role=post.get("portal_role", "")),
                 f"The role of {name} is changed."),
        "deactivate": (lambda post: departures.tell(request, deactivate_user(
                           actor=request.user, user=person, **departures.decided(post, _heirs()))),
                       f"{name} can no longer sign in."),
        "settle": (lambda post: departures.tell(request, settle_work(
                       actor=request.user, user=person, **departures.decided(post, _heirs()))),
                   f"The work of {name} is settled."),
        "reactivate": (lambda post: actions.reactivate_user(actor=request.user, user=person),
                       f"{name} can sign in again."),
    }  # fmt: skip
    act, done = acts[verb]
    return perform(request, verb, act, done=done, to=("admin_user", pk), page=partial(_user, pk=pk))


@permitted("user.change")
@never_cache
@posted_from("admin_user", "pk")
def reset_password(request: HttpRequest, pk: int) -> HttpResponse:
    """Gives a random password and shows it this one time; the user's API tokens end with the old one."""
    person = get_object_or_404(User, pk=pk)
    return _user(request, pk=pk, made=tokens.reset_password(actor=request.user, user=person))


def _locks(request: HttpRequest, *, refusal: Refusal | None = None) -> HttpResponse:
    context = {"tab": "users", "locks": lockout.locks(), "most": lockout.MOST_LISTED}
    return show(request, "administration/locks.html", context, refusal=refusal)


@permitted("user.change")
@never_cache
@require_safe
def locks(request: HttpRequest) -> HttpResponse:
    """Lists logins that are locked after too many wrong passwords."""
    return _locks(request)


@permitted("user.change")
@posted_from("admin_locks")
def lift(request: HttpRequest, pk: int) -> HttpResponse:
    """Lifts one lock."""
    return perform(
        request,
        f"lift-{pk}",
        lambda post: lockout.lift(actor=request.user, pk=pk),
        done="The lock is lifted.",
        to=("admin_locks",),
        page=_locks,
    )
