"""Forms in which managers ask for more, and operators answer."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

from django.forms import BoundField
from django.http import HttpRequest

from accounting.models import Request
from portal.forms.fields import Exact, Moment, Text, Whole
from portal.forms.form import Form
from portal.forms.limit import LimitForm

UNTIL = "Until (empty: no end)"


class Why(Form):
    """The end and the reason of a request. Alone, it asks for an extension of a grant."""

    field_order = ("name", "tickets", "until", "reason")

    until = Moment(UNTIL)
    reason = Text("Reason", rows=2, maxlength=2000)

    def wanted(self) -> dict[str, Any]:
        """Returns what is asked for, as `Request.wanted` keeps it."""
        return {name: value for name, value in self.cleaned_data.items() if name not in Why.base_fields}


class TicketsRequest(Why):
    """A request for other tickets of a team."""

    tickets = Whole("Tickets")


class TeamRequest(Why):
    """A request for a new subteam."""

    name = Text("Name", maxlength=80)
    tickets = Whole("Tickets", initial=100)


class LimitRequest(LimitForm, Why):
    """A request for a new limit, or for another value of one."""

    @property
    def about_limit(self) -> list[BoundField]:
        return [self[name] for name in LimitForm.base_fields]


class AskedUntil(Moment):
    """The end of a grant. If the field is unchanged, its value is the requested moment, to the second."""

    asked: datetime | None = None

    def to_python(self, value: Any) -> datetime | None:
        return self.asked if value == self.prepare_value(self.asked) else super().to_python(value)


class ApproveForm(Form):
    """The grant of a request: as requested, or changed by the operator."""

    name = Text("Name", maxlength=80)
    tickets = Whole("Tickets")
    limit = Exact("Limit")
    until = AskedUntil(UNTIL)
    answer = Text("Answer", rows=2, maxlength=2000, required=False)

    def __init__(self, asked: Request, request: HttpRequest | None = None) -> None:
        self.asked = asked
        super().__init__("approve", request, initial=asked.wanted | {"until": asked.until})
        cast(AskedUntil, self.fields["until"]).asked = asked.until
        for name in {"name", "tickets", "limit"} - CHANGED[asked.kind]:
            del self.fields[name]

    def granted(self) -> dict[str, Any]:
        """Returns what is granted, as `Request.granted` keeps it."""
        values = {name: self.cleaned_data[name] for name in CHANGED[self.asked.kind]}
        wanted: dict[str, Any] = self.asked.wanted
        return wanted | values | ({"limit": str(values["limit"])} if "limit" in values else {})


# The fields that an operator may change, by kind of request.
CHANGED: dict[str, set[str]] = {
    Request.Kind.TICKETS: {"tickets"},
    Request.Kind.TEAM: {"name", "tickets"},
    Request.Kind.LIMIT: {"limit"},
    Request.Kind.EXTENSION: set(),
}


class DeclineForm(Form):
    """The reason why a request is declined."""

    answer = Text("Why", rows=2, maxlength=2000)
