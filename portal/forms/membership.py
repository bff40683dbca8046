"""Forms for a team's members."""

from __future__ import annotations

from django.http import HttpRequest

from accounting.models import Membership
from accounting.notifications.mail import why_mail_is_off
from portal.forms.fields import Choice, Text, Whole
from portal.forms.form import Form


class MemberForm(Form):
    """The form for a member's role and tickets, shown in the member's table row."""

    role = Choice("Role", Membership.Role.choices)
    tickets = Whole("Tickets")

    def __init__(self, membership: Membership, request: HttpRequest | None = None) -> None:
        initial = {"role": membership.role, "tickets": membership.tickets}
        super().__init__(f"member-{membership.pk}", request, initial=initial)
        for field in self.fields.values():
            field.widget.attrs["aria-label"] = f"{field.label} of {membership.user.get_username()}"


class NewMember(Form):
    """The form that adds a member to a team."""

    field_order = ("user",)

    role = Choice("Role", Membership.Role.choices, initial=Membership.Role.MEMBER)
    tickets = Whole("Tickets", initial=100)


class NewMemberByName(NewMember):
    """The form with which a manager adds a member to a team. The manager types the username."""

    user = Text("User name or e-mail", maxlength=254, is_code=True)


class InvitationForm(Form):
    """The form that creates an invitation. It offers a mail only if a mail server is configured."""

    email = Text(
        "Send the link to",
        required=False,
        type="email",
        autocomplete="off",
        help_text="E-mail address. Without an address, you get a link to pass on.",
    )
    role = Choice("Role", Membership.Role.choices, initial=Membership.Role.MEMBER)
    tickets = Whole("Tickets", initial=100)
    most_uses = Whole("Number of people", initial=1)
    days = Whole("Valid for days", initial=7)

    def __init__(self, request: HttpRequest | None = None) -> None:
        super().__init__("invite", request)
        if why_mail_is_off():
            del self.fields["email"]
