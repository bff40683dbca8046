"""Forms with which managers make requests and operators answer them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

from django.forms import BoundField
from django.http import HttpRequest

from accounting.models import Request
from portal.forms.fields import Exact, Moment, Text, Whole
from portal.forms.form import Form
from portal.forms.limit import LimitForm

UNTIL = "End of the grant (leave empty for no end)"


class Why(Form):
    """The base form of all requests, with the fields for the end of the grant and for the reason.

    A request to extend a grant needs no other fields, so it uses this class directly.
    """

    field_order = ("name", "tickets", "until", "reason")

    until = Moment(UNTIL)
    reason = Text("Reason", rows=2, maxlength=2000)

    def wanted(self) -> dict[str, Any]:
        """Returns the requested values as `Request.wanted` stores them, without the end and the reason."""
        return {name: value for name, value in self.cleaned_data.items() if name not in Why.base_fields}


class TicketsRequest(Why):
    """The form that requests a different number of tickets for a team."""

    tickets = Whole("Tickets")


class TeamRequest(Why):
    """The form that requests a new team below an existing one."""

    name = Text("Name", maxlength=80)
    tickets = Whole("Tickets", initial=100)


class LimitRequest(LimitForm, Why):
    """The form that requests a new limit, or a different amount for an existing limit."""

    @property
    def about_limit(self) -> list[BoundField]:
        return [self[name] for name in LimitForm.base_fields]


class GrantEndField(Moment):
    """A field for the end of a grant. It starts with the requested end, without the seconds.

    If the operator leaves this text unchanged, the field's value is the requested end including its seconds.
    """

    asked: datetime | None = None

    def to_python(self, value: Any) -> datetime | None:
        return self.asked if value == self.prepare_value(self.asked) else super().to_python(value)


class ApproveForm(Form):
    """The form with which an operator grants a request, with the requested values or with changed values."""

    name = Text("Name", maxlength=80)
    tickets = Whole("Tickets")
    limit = Exact("Limit")
    until = GrantEndField(UNTIL)
    answer = Text("Answer", rows=2, maxlength=2000, required=False)

    def __init__(self, asked: Request, request: HttpRequest | None = None) -> None:
        self.asked = asked
        super().__init__("approve", request, initial=asked.wanted | {"until": asked.until})
        cast(GrantEndField, self.fields["until"]).asked = asked.until
        for name in {"name", "tickets", "limit"} - CHANGED[asked.kind]:
            del self.fields[name]

    def granted(self) -> dict[str, Any]:
        """Returns the granted values as `Request.granted` stores them."""
        values = {name: self.cleaned_data[name] for name in CHANGED[self.asked.kind]}
        wanted: dict[str, Any] = self.asked.wanted
        return wanted | values | ({"limit": str(values["limit"])} if "limit" in values else {})


# The values that an operator may change, by kind of request.
CHANGED: dict[str, set[str]] = {
    Request.Kind.TICKETS: {"tickets"},
    Request.Kind.TEAM: {"name", "tickets"},
    Request.Kind.LIMIT: {"limit"},
    Request.Kind.EXTENSION: set(),
}


class DeclineForm(Form):
    """The form that declines a request, with the reason."""

    answer = Text("Why", rows=2, maxlength=2000)
