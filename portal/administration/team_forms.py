"""Forms for teams: create a team, change its tickets, name or parent, and add members."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from accounting.core.name_order import by_name
from accounting.models import Tenant, User
from portal.forms.fields import Row, Text, Whole
from portal.forms.form import Form
from portal.forms.membership import NewMember

TOP = "top"


class Parent(Row):
    """A form field for a team's parent. Its value is a team, or None for the top level."""

    def __init__(self, help_text: str) -> None:
        errors = {"required": "Choose a parent team, or the top level."}
        named = {TOP: "– the top level –"}
        teams = Tenant.objects.all()
        super().__init__("Parent team", teams, others=named, error_messages=errors, help_text=help_text)

    def clean(self, value: Any) -> Tenant | None:
        parent = super().clean(value)
        return None if parent == TOP else parent


class NewTeam(Form):
    """The form that creates a team."""

    name = Text("Name", maxlength=80, autocomplete="off")
    parent = Parent("A new team at the top level reduces the shares of all other teams, as shown below.")
    tickets = Whole(
        "Tickets", initial=100, help_text="Weight of the team among the teams with the same parent."
    )

    def __init__(self, request: HttpRequest | None = None) -> None:
        super().__init__("create", request)
        self.offer("parent", Tenant.objects.active().order_by(*by_name("name")))


class TicketsForm(Form):
    """The form for a team's tickets, shown in the team's table row. The page previews the effect while the user
    types."""

    tickets = Whole("Tickets")

    def __init__(self, tenant: Tenant, request: HttpRequest | None = None) -> None:
        super().__init__(f"tickets-{tenant.pk}", request, initial={"tickets": tenant.tickets})
        self.fields["tickets"].widget.attrs |= {
            "aria-label": f"Tickets of the team {tenant.name}",
            "hx-post": reverse("admin_tenant_effect", args=[tenant.slug, "tickets"]),
            "hx-trigger": "input delay:350ms",
            "hx-swap": "none",
        }


class RenameForm(Form):
    """The form that renames a team."""

    name = Text("Name", maxlength=80, help_text="URLs and past bills keep the old name.")


class MoveForm(Form):
    """The form that moves a team to another parent."""

    parent = Parent("The subteams move together with the team.")

    def __init__(self, tenant: Tenant, request: HttpRequest | None = None) -> None:
        super().__init__("move", request, initial={"parent": tenant.parent_id or TOP})
        above = Tenant.objects.active().exclude(path__startswith=tenant.path)
        self.offer("parent", above.order_by(*by_name("name")))
        self.fields["parent"].widget.attrs |= {
            "hx-post": reverse("admin_tenant_effect", args=[tenant.slug, "move"]),
            "hx-trigger": "change",
            "hx-swap": "none",
        }


class Candidate(Row):
    """A form field that selects a user. Its choices show username, full name and email address."""

    def label_from_instance(self, obj: User) -> str:
        full = obj.get_full_name()
        return f"{obj.get_username()} ({full})" if full else obj.get_username()


class NewMemberFromList(NewMember):
    """The form, for admins, that adds a member chosen from a list of all users."""

    user = Candidate("User", User.objects.all(), others={"": "Choose…"})

    def __init__(self, tenant: Tenant, request: HttpRequest | None = None) -> None:
        super().__init__("add", request)
        candidates = User.objects.filter(is_active=True).exclude(memberships__tenant=tenant)
        self.offer("user", candidates.order_by(*by_name("username")))
