"""Pages for users: create and deactivate users, set roles, reset passwords, revoke API tokens, and lift locks after
too many wrong passwords.

A new password is shown once, to the admin who created it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from accounting import actions
from accounting.actions.users import Credentials, why_needed
from accounting.core.name_order import by_name
from accounting.models import Membership, Tenant, User
from portal.access import permitted, posted_from
from portal.account import lockout
from portal.administration import departures
from portal.administration.departures import WorkForm
from portal.forms.fields import Choice, Row, Text
from portal.forms.form import Form
from portal.forms.membership import NewMember
from portal.forms.posting import act_on, perform, show
from portal.models import ApiToken
from portal.sorting import Names, Sorting
from portal.tokens import actions as tokens
from portal.tokens.views import SORTING as TOKENS_SORTING
from portal.user_request import UserRequest
from scheduling.departures.actions import Work, deactivate_user, settle_work

USERS_PER_PAGE = 50


SORTING = Sorting(
    {"name": (Names("username"),), "role": ("portal_role", Names("username")), "login": ("last_login",)},
    usual="name",
)


class RoleForm(Form):
    """The form for a user's role in the portal."""

    portal_role = Choice(
        "Role in the portal",
        User.PortalRole.choices,
        help_text="Operators see all teams and may drain nodes. Admins may change everything.",
    )


class DetailsForm(Form):
    """The form for who a user is."""

    first_name = Text("First name", required=False)
    last_name = Text("Last name", required=False)
    email = Text("E-mail", required=False, type="email")


class NewUser(RoleForm, DetailsForm):
    """The form that creates a user."""

    field_order = ("username", "first_name", "last_name", "email", "portal_role")

    username = Text("User name", maxlength=150, autocapitalize="off")
    tenant = Row("Team", Tenant.objects.all(), required=False, others={"": "none yet"})
    role = Choice("Role in the team", Membership.Role.choices, initial=Membership.Role.MEMBER)

    def __init__(self, request: UserRequest | None = None) -> None:
        super().__init__("create", request)
        self.offer("tenant", Tenant.objects.active().order_by(*by_name("name")))

    def clean_role(self) -> str:
        return self.cleaned_data["role"] or Membership.Role.MEMBER


class JoinForm(NewMember):
    """The form that adds a user to a team, on the user's page."""

    field_order = ("tenant",)

    tenant = Row("Team", Tenant.objects.all(), others={"": "Choose…"})

    def __init__(self, person: User, request: UserRequest | None = None) -> None:
        super().__init__("join", request)
        others = Tenant.objects.active().exclude(memberships__user=person)
        self.offer("tenant", others.order_by(*by_name("name")))


def _users(
    request: UserRequest, *, posted: Form | None = None, made: Credentials | None = None
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
        "create": NewUser().or_posted(posted),
        "made": made,
    }
    return show(request, "administration/users.html", context, posted=posted)


@permitted("user.change")
@require_safe
def users(request: UserRequest) -> HttpResponse:
    return _users(request)


@permitted("user.change")
@never_cache
@posted_from("admin_users")
def create(request: UserRequest) -> HttpResponse:
    """Creates a user with a random password, and shows the password once to the admin."""
    form, made = NewUser(request), []
    if not act_on(form, lambda values: made.append(actions.create_user(actor=request.user, **values))):
        return _users(request, posted=form)
    return _users(request, made=made[0])


def _user(
    request: UserRequest, *, pk: int, posted: Form | None = None, made: Credentials | None = None
) -> HttpResponse:
    person = get_object_or_404(User, pk=pk)
    context = {
        "tab": "users",
        "person": person,
        "memberships": person.memberships.select_related("tenant").order_by(*by_name("tenant__name")),
        "role": RoleForm("role", initial={"portal_role": person.portal_role}).or_posted(posted),
        "details": DetailsForm("details", initial=_details_of(person)).or_posted(posted),
        "join": JoinForm(person).or_posted(posted),
        "made": made,
        "tokens": TOKENS_SORTING.order(ApiToken.objects.of(person), request.GET),
        "sort": TOKENS_SORTING.chosen(request.GET),
        "why_not": why_needed(person),
        "work": Work(person).counts(),
        "leave": _work_form(person, None).or_posted(posted),
    }
    return show(request, "administration/user.html", context, posted=posted)


def _details_of(person: User) -> dict[str, str]:
    return {name: getattr(person, name) for name in ("first_name", "last_name", "email")}


def _work_form(person: User, request: UserRequest | None) -> WorkForm:
    """Returns the form for the unfinished work of `person`, who is deactivated or about to be deactivated.

    `request` is the POST request with the form's data; None if the form was not posted.
    """
    heirs = User.objects.filter(is_active=True)
    if person.is_active:
        return WorkForm("deactivate", person, heirs, request)
    return WorkForm("settle", person, heirs, request, has_left=True)


@permitted("user.change")
@require_safe
def user(request: UserRequest, pk: int) -> HttpResponse:
    return _user(request, pk=pk)


@permitted("user.change")
@posted_from("admin_user", "pk")
def change(request: UserRequest, pk: int, verb: str) -> HttpResponse:
    """Changes a user. `verb` says how: set the portal role or the details, deactivate, reactivate, or decide on a
    deactivated user's unfinished work."""
    person = get_object_or_404(User, pk=pk)
    name = person.get_username()
    acts: dict[str, tuple[Form, Callable[..., object], str]] = {
        "role": (
            RoleForm("role", request),
            actions.set_portal_role,
            f"The role of the user {name} has been changed.",
        ),
        "details": (
            DetailsForm("details", request),
            actions.describe_user,
            f"The details of the user {name} have been changed.",
        ),
        "deactivate": (
            _work_form(person, request),
            deactivate_user,
            f"The user {name} can no longer sign in.",
        ),
        "settle": (
            _work_form(person, request),
            settle_work,
            f"Your choice for the unfinished work of the user {name} has been applied.",
        ),
        "reactivate": (
            Form("reactivate", request),
            actions.reactivate_user,
            f"The user {name} can sign in again.",
        ),
    }
    form, act, done = acts[verb]
    return perform(
        request,
        form,
        lambda values: departures.tell(request, act(actor=request.user, user=person, **values)),
        done=done,
        to=("admin_user", pk),
        page=partial(_user, pk=pk),
    )


@permitted("member.change")
@posted_from("admin_user", "pk")
def join(request: UserRequest, pk: int) -> HttpResponse:
    """Adds the user to a team."""
    person = get_object_or_404(User, pk=pk)
    return perform(
        request,
        JoinForm(person, request),
        lambda values: actions.add_member(actor=request.user, user=person, **values),
        done=lambda values: (
            f"The user {person.get_username()} has been added to the team {values['tenant']}."
        ),
        to=("admin_user", pk),
        page=partial(_user, pk=pk),
    )


@permitted("user.change")
@never_cache
@posted_from("admin_user", "pk")
def reset_password(request: UserRequest, pk: int) -> HttpResponse:
    """Sets a random password for a user, and shows it once to the admin. Revokes the user's API tokens."""
    person = get_object_or_404(User, pk=pk)
    return _user(request, pk=pk, made=tokens.reset_password(actor=request.user, user=person))


@permitted("user.change")
@posted_from("admin_user", "pk")
def revoke_token(request: UserRequest, pk: int, token_id: int) -> HttpResponse:
    """Revokes an API token of a user, who is notified."""
    token = get_object_or_404(ApiToken.objects.select_related("user"), pk=token_id, user=pk)
    return perform(
        request,
        Form(f"revoke-{token_id}", request),
        lambda _: tokens.revoke_token(actor=request.user, token=token),
        done=f"The token {token.name} of the user {token.user.get_username()} has been revoked.",
        to=("admin_user", pk),
        page=partial(_user, pk=pk),
    )


def _locks(request: UserRequest, *, posted: Form | None = None) -> HttpResponse:
    context = {"tab": "users", "locks": lockout.locks(), "most": lockout.MOST_LISTED}
    return show(request, "administration/locks.html", context, posted=posted)


@permitted("user.change")
@never_cache
@require_safe
def locks(request: UserRequest) -> HttpResponse:
    """Lists the users and networks whose passwords are not accepted now, because of too many wrong passwords."""
    return _locks(request)


@permitted("user.change")
@posted_from("admin_locks")
def lift(request: UserRequest, pk: int) -> HttpResponse:
    """Lifts a lock of a user or network, so that passwords are accepted again without waiting for the end of the
    lock."""
    return perform(
        request,
        Form(f"lift-{pk}", request),
        lambda _: lockout.lift(actor=request.user, pk=pk),
        done="The sign-in lock has been lifted.",
        to=("admin_locks",),
        page=_locks,
    )
