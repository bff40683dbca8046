"""Removes members from teams and deactivates users, after asking what should happen to their unfinished work."""

from __future__ import annotations

from functools import partial

from django.contrib import messages
from django.db.models import QuerySet
from django.forms import RadioSelect
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from accounting.actions.memberships import why_kept
from accounting.core.name_order import by_name
from accounting.models import Membership, Tenant, User
from portal.administration.members import team_or_home
from portal.administration.place import MEMBERS, Place, of_team, posted_to
from portal.forms.fields import Choice, Row
from portal.forms.form import Form
from portal.forms.posting import perform, show
from portal.user_request import UserRequest
from scheduling.departures.actions import Fate, HandedOver, heirs, remove_member, work_of_member

FATES = [
    (Fate.WAITS.value, "Let the work wait: it continues if the user may run jobs again"),
    (
        Fate.CANCEL.value,
        "Cancel the work: jobs, sweeps, pipelines and sessions end, services stop, schedules pause",
    ),
    (Fate.HAND_OVER.value, "Hand the work over to another member"),
]


class WorkForm(Form):
    """The form that asks what should happen to the unfinished work of a user who leaves.

    If the user has no unfinished work, no form is shown.
    """

    fate = Choice("What to do with the unfinished work", FATES, widget=RadioSelect)

    def __init__(
        self,
        key: str,
        user: User,
        among: QuerySet[User],
        request: UserRequest | None = None,
        *,
        has_left: bool = False,
    ) -> None:
        """Creates the form for the unfinished work of `user`.

        - `key`: identifies the form on its page.
        - `among`: the users who can become the new owner of the work.
        - `request`: the POST request with the form's data; None if the form was not posted.
        - `has_left`: whether the user is already deactivated. If so, the form lacks the choice to keep the work until
          the user returns.
        """
        super().__init__(key, request, initial={} if has_left else {"fate": Fate.WAITS})
        if has_left:
            self.offer("fate", FATES[1:])
        others = {"": "Choose a member"}
        self.fields["to"] = Row("New owner, if you hand the work over", among, required=False, others=others)
        self.offer("to", among.exclude(pk=user.pk).order_by(*by_name("username")))

    def clean_fate(self) -> str:
        return self.cleaned_data["fate"] or Fate.WAITS.value


def tell(request: UserRequest, done: object) -> None:
    """Shows a warning that lists the work that was not handed over to the new owner because it uses secrets.

    `done` is the return value of the action that removed or deactivated the user. If it lists no such work, no warning
    is shown.
    """
    if isinstance(done, HandedOver) and done.kept:
        text = f"Work that uses secrets was not handed over: {', '.join(done.kept[:10])}"
        messages.warning(request, f"{text}{' and more' if len(done.kept) > 10 else ''}.")


def _leaving(
    request: UserRequest, *, place: Place, tenant: Tenant, pk: int, posted: Form | None = None
) -> HttpResponse:
    membership = _membership(tenant, pk)
    context = {
        "tab": "tenants",
        "base": f"administration/{'base' if place.is_admin else 'team_base'}.html",
        "membership": membership,
        "leave": _work_form(request, membership).or_posted(posted),
        "work": work_of_member(membership).counts(),
        "back": place.url(MEMBERS, tenant),
        "remove": place.url("member_remove", tenant, pk),
        "why_not": why_kept(request.user, membership),
    }
    return show(request, "administration/leaving.html", context, posted=posted)


@require_safe
@of_team
def leaving(request: UserRequest, place: Place, tenant: Tenant, pk: int) -> HttpResponse:
    """Shows the form that asks what should happen to a member's work when the member is removed."""
    return _leaving(request, place=place, tenant=tenant, pk=pk)


@posted_to("member_leaving", "pk")
def remove(request: UserRequest, place: Place, tenant: Tenant, pk: int) -> HttpResponse:
    """Removes a member from a team, with the posted choice of what happens to the member's work."""
    membership = _membership(tenant, pk)
    return perform(
        request,
        _work_form(request, membership),
        lambda values: tell(request, remove_member(actor=request.user, membership=membership, **values)),
        done=f"The user {membership.user.get_username()} is no longer a member of the team.",
        to=partial(team_or_home, request, place, tenant),
        page=partial(_leaving, place=place, tenant=tenant, pk=pk),
    )


def _work_form(request: UserRequest, membership: Membership) -> WorkForm:
    among = heirs(membership.tenant, request.user)
    return WorkForm("leave", membership.user, among, request if request.method == "POST" else None)


def _membership(tenant: Tenant, pk: int) -> Membership:
    return get_object_or_404(tenant.memberships.select_related("user", "tenant"), pk=pk)
