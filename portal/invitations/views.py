"""Pages of invitations: managers and admins create and revoke those of a team, and invited people accept them."""

from __future__ import annotations

from functools import partial

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from accounting import actions
from accounting.actions.invitations import find_invitation, join_with_new_account
from accounting.actions.users import Credentials
from accounting.models import Invitation, Tenant, User
from portal.account import lockout
from portal.account.sign_ins import sign_in
from portal.administration.place import INVITATIONS, Place, of_team, posted_to, show_part
from portal.forms.form import Form
from portal.forms.membership import InvitationForm
from portal.forms.posting import act_on, perform, show
from portal.invitations.forms import NewAccount, accounts_by_invitation
from portal.unstorable import keeps_form
from portal.user_request import UserRequest


def invitations_page(
    request: UserRequest,
    *,
    place: Place,
    tenant: Tenant,
    posted: Form | None = None,
    made: Invitation | None = None,
) -> HttpResponse:
    """Shows the open invitations to a team. `made`: the invitation that was just created."""
    context = {
        "invitations": tenant.invitations.usable().select_related("invited_by"),
        "invite": InvitationForm().or_posted(posted),
        "made": made,
    }
    return show_part(
        request, "invitations", context, place=place, tenant=tenant, part=INVITATIONS, posted=posted
    )


@require_safe
@of_team
def invitations(request: UserRequest, place: Place, tenant: Tenant) -> HttpResponse:
    return invitations_page(request, place=place, tenant=tenant)


@never_cache
@posted_to(INVITATIONS)
def create(request: UserRequest, place: Place, tenant: Tenant) -> HttpResponse:
    """Creates an invitation. Shows its link, which the manager passes on, unless Fairlot mails it."""
    form, made = InvitationForm(request), []
    if not act_on(
        form, lambda values: made.append(actions.invite(actor=request.user, tenant=tenant, **values))
    ):
        return invitations_page(request, place=place, tenant=tenant, posted=form)
    if not made[0].email:
        return invitations_page(request, place=place, tenant=tenant, made=made[0])
    messages.success(request, f"The invitation will be sent to {made[0].email}.")
    return redirect(place.name(INVITATIONS), tenant.slug)


@posted_to(INVITATIONS)
def revoke(request: UserRequest, place: Place, tenant: Tenant, pk: int) -> HttpResponse:
    found = get_object_or_404(tenant.invitations.select_related("tenant"), pk=pk)
    return perform(
        request,
        Form(f"invitation-{pk}", request),
        lambda _: actions.revoke_invitation(actor=request.user, invitation=found),
        done="The invitation has been revoked. Its link no longer works.",
        to=(place.name(INVITATIONS), tenant.slug),
        page=partial(invitations_page, place=place, tenant=tenant),
    )


@login_not_required
@never_cache
@keeps_form
@require_http_methods(["GET", "HEAD", "POST"])
def invitation(request: HttpRequest, token: str) -> HttpResponse:
    """Shows an invitation. A POST accepts it: as the signed-in user, or with a new account.

    Opening the link changes nothing, so that programs that check the links in mails use no invitation up.
    """
    found = find_invitation(token)
    if found is None:
        return render(request, "invitations/ended.html", status=404)
    if request.method != "POST":
        return _page(request, found)
    person = request.user
    if person.is_authenticated:
        return perform(
            request,
            Form("accept", request),
            lambda _: actions.accept_invitation(actor=person, token=token),
            done=f"You are a member of the team {found.tenant.name}.",
            to=("home",),
            page=lambda request, posted: _page(request, found, posted),
        )
    return _join(request, found, token)


def _join(request: HttpRequest, found: Invitation, token: str) -> HttpResponse:
    form = NewAccount(request)
    made: list[Credentials] = []

    def act(values: dict[str, str]) -> None:
        given = {name: value for name, value in values.items() if name != "again"}
        made.append(join_with_new_account(token=token, **given))

    if not act_on(form, act):
        return _page(request, found, form)
    person: User = made[0].user
    sign_in(request=request, user=person)
    messages.success(
        request, f"Your account {person.get_username()} is a member of the team {found.tenant.name}."
    )
    answer = redirect("home")
    lockout.remember_browser(request, answer, person.get_username())
    return answer


def _page(request: HttpRequest, found: Invitation, posted: Form | None = None) -> HttpResponse:
    reader = request.user
    context = {
        "invitation": found,
        "accept": Form("accept").or_posted(posted),
        "join": NewAccount().or_posted(posted)
        if accounts_by_invitation() and not reader.is_authenticated
        else None,
        "is_member": reader.is_authenticated and found.tenant.memberships.filter(user=reader).exists(),
    }
    return show(request, "invitations/invitation.html", context, posted=posted)
