"""Forms of a team's members."""

from __future__ import annotations

from django.http import HttpRequest

from accounting.models import Membership
from portal.forms.fields import Choice, Text, Whole
from portal.forms.form import Form


class MemberForm(Form):
    """The role and the tickets of a member, as fields in the member's row."""

    role = Choice("Role", Membership.Role.choices)
    tickets = Whole("Tickets")

    def __init__(self, membership: Membership, request: HttpRequest | None = None) -> None:
        initial = {"role": membership.role, "tickets": membership.tickets}
        super().__init__(f"member-{membership.pk}", request, initial=initial)
        for field in self.fields.values():
            field.widget.attrs["aria-label"] = f"{field.label} of {membership.user.get_username()}"


class NewMember(Form):
    """The form that adds a member."""

    field_order = ("user",)

    role = Choice("Role", Membership.Role.choices, initial=Membership.Role.MEMBER)
    tickets = Whole("Tickets", initial=100)


class NewMemberByName(NewMember):
    """The form that adds a member, for managers, who type the username."""

    user = Text("User name or e-mail", maxlength=254, is_code=True)
