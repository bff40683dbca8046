"""Saved views of lists: saves, shares, removes and opens them."""

from __future__ import annotations

from collections.abc import Collection

from django.core.exceptions import TooManyFieldsSent
from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import QueryDict
from django.urls import reverse

from accounting.access.audit import record
from accounting.actions.checks import check_name
from accounting.core.errors import NotAllowed, Refused
from accounting.core.prepared import Prepared
from accounting.core.texts import not_storable
from accounting.models import Membership, Tenant, User
from accounting.models.tenants import ids_with_role
from portal.models import ListChoice, SavedView

MOST_VIEWS = 100  # of one user and list
LONGEST_NAME = 60
ALL = "all"  # the view without filters, which nobody has to save


def save_view(
    *,
    actor: User,
    list_name: str,
    name: str,
    query: str,
    tenant: Tenant | None = None,
    is_default: bool = False,
) -> SavedView:
    """Saves a view of the actor, in place of the actor's view of the same name and list.

    `query` is what `kept` returns. `tenant` is the team with which the view is shared; None for nobody. With
    `is_default` the list opens with this view; without, it no longer does. Raises Refused, with the name of the field,
    for a name that is not accepted and for too many views. Raises NotAllowed if the actor does not manage the team.
    """
    name = name.strip()
    if not 0 < len(name) <= LONGEST_NAME or name.isdigit():
        raise Refused(f"A view needs a name of 1 to {LONGEST_NAME} characters that is not a number.", "name")
    check_name(name)
    if len(query) > 2000:
        raise Refused("This view has too many filters. Remove some of them.", "name")
    if not actor.is_active:
        raise NotAllowed("Only active users may save views.")
    if tenant is not None and tenant.pk not in ids_with_role(actor, Membership.Role.MANAGER):
        raise NotAllowed(f"Only managers of {tenant.name} may share a view with it.")
    with transaction.atomic(durable=True):
        # The lock on the user's row keeps concurrent calls from exceeding MOST_VIEWS together.
        User.objects.select_for_update(no_key=True).get(pk=actor.pk)
        own = SavedView.objects.filter(owner=actor, list_name=list_name)
        if own.exclude(name=name).count() >= MOST_VIEWS:
            raise Refused(f"You already have {MOST_VIEWS} views. Remove one first.")
        view, _ = own.update_or_create(
            name=name,
            defaults={"query": query, "tenant": tenant, "changed_at": Now()},
            create_defaults={"owner": actor, "list_name": list_name, "query": query, "tenant": tenant},
        )
        if is_default:
            _set_default(actor, list_name, view)
        else:
            ListChoice.objects.filter(user=actor, default_view=view).update(default_view=None)
        record(
            actor=actor,
            verb="list.save_view",
            target=view,
            tenant=tenant,
            after={"list": list_name, "name": name, "query": query, "is_default": is_default},
        )
    return view


def remove_view(*, actor: User, view: SavedView) -> None:
    """Removes a view. Has no effect on a view that is already removed.

    Raises NotAllowed unless the actor is its owner, or manages the team with which it is shared.
    """
    with transaction.atomic(durable=True):
        present = SavedView.objects.select_for_update().filter(pk=view.pk).first()
        if present is None:
            return
        if not SavedView.objects.changeable_by(actor).filter(pk=view.pk).exists():
            raise NotAllowed("Only the owner of a view and managers of its team may remove it.")
        record(
            actor=actor,
            verb="list.remove_view",
            target=present,
            tenant=present.tenant,
            before={"list": present.list_name, "name": present.name, "query": present.query},
        )
        present.delete()


def choose_default_view(*, actor: User, list_name: str, view: SavedView | None) -> None:
    """Sets the view with which a list opens for the actor; None for the list without filters.

    Raises NotAllowed for a view that the actor may not see.
    """
    with transaction.atomic(durable=True):
        seen = SavedView.objects.visible_to(actor).filter(list_name=list_name)
        if view is not None and not seen.filter(pk=view.pk).exists():
            raise NotAllowed("You cannot see this view.")
        _set_default(actor, list_name, view)


def _set_default(actor: User, list_name: str, view: SavedView | None) -> None:
    choice, _ = ListChoice.objects.update_or_create(
        user=actor, list_name=list_name, defaults={"default_view": view}
    )
    record(
        actor=actor,
        verb="list.choose_view",
        target=choice,
        after={"list": list_name, "view": view.name if view else None},
    )


def views_for(user: User, list_name: str) -> list[SavedView]:
    """Returns the views of a list that the user may open, by name: first the user's own ones."""
    found: list[SavedView] = _views(user.pk, ids_with_role(user), list_name)
    return sorted(found, key=lambda one: (one.owner_id != user.pk, one.name.casefold(), one.pk))


@Prepared
def _views(user: int, teams: list[int], list_name: str) -> QuerySet[SavedView]:
    seen = SavedView.objects.filter(list_name=list_name).select_related("tenant", "owner")
    return seen.filter(Q(owner=user) | Q(tenant__in=teams))


def find_view(views: Collection[SavedView], text: str) -> SavedView | None:
    """Returns the view with this id or this name; None if there is none. Own views come before those of others."""
    if text.isdigit():
        return next((one for one in views if str(one.pk) == text), None)
    return next((one for one in views if one.name.casefold() == text.strip().casefold()), None)


def kept(query: QueryDict, parameters: Collection[str]) -> str:
    """Returns what a view keeps of the query of a list's address: these parameters, if they have values.

    Leaves out values that no column can hold, which no list could be filtered by.
    """
    found = QueryDict(mutable=True)
    for name in parameters:
        values = [value for value in query.getlist(name) if value and not not_storable(value)]
        if values:
            found.setlist(name, values)
    return found.urlencode(safe=",:")


def kept_text(text: str, parameters: Collection[str]) -> str:
    """Returns what `kept` returns for the text of a query. Raises Refused if it has too many parameters."""
    try:
        return kept(QueryDict(text), parameters)
    except TooManyFieldsSent:
        raise Refused("This view has too many filters. Remove some of them.", "query") from None


def address_of(view: SavedView) -> str:
    """Returns the address of a list with everything that the view has, and the view's id."""
    return f"{reverse(view.list_name)}?{view.query}{'&' if view.query else ''}view={view.pk}"
