"""The forms for a limit. Admins set limits with it, and managers request limits, or set limits on their members."""

from __future__ import annotations

from decimal import Decimal

from django.http import HttpRequest

from accounting.actions.quotas import Which
from accounting.core.name_order import by_name
from accounting.models import Generation, Quota, Tenant, User
from portal.forms.fields import Choice, Exact, Row, Text, Whole
from portal.forms.form import Form

EACH = "each"
PERIODS = [("month", "month"), ("quarter", "quarter"), ("rolling", "last days")]


class LimitForm(Form):
    """The form for a team's limit: its kind, scope and amount."""

    kind = Choice("Limit of", Quota.Kind.choices)
    user = Row("Whose", User.objects.all(), required=False, others={"": "the team's", EACH: "each user's"})
    generation = Row("GPU", Generation.objects.all(), required=False, others={"": "all together"})
    period = Choice("Period for GPU-hours and money", PERIODS, initial="month")
    days = Whole("Last days", required=False)
    limit = Text("Limit", inputmode="decimal", autocomplete="off", css="input-number")
    at_limit = Choice("What happens at the limit", Quota.AtLimit.choices, initial=Quota.AtLimit.BLOCK)

    def __init__(self, tenant: Tenant, request: HttpRequest | None = None) -> None:
        super().__init__("quota", request)
        within = User.objects.filter(is_active=True, memberships__tenant__path__startswith=tenant.path)
        self.offer("user", within.order_by(*by_name("username")).distinct())

    def clean_limit(self) -> Decimal:
        """Returns the amount of the limit. Raises ValidationError if the limit counts GPUs or jobs and is not a whole
        number."""
        kind = Whole if self.cleaned_data.get("kind") in Quota.COUNTED else Exact
        return Decimal(kind("Limit").clean(self.cleaned_data["limit"]))

    def which(self) -> Which:
        """Returns which limit the form describes: its kind and scope, without the amount."""
        values = self.cleaned_data
        return Which(
            kind=values["kind"],
            generation=values["generation"],
            user=None if values["user"] == EACH else values["user"],
            each_user=values["user"] == EACH,
            period=values["period"],
            days=values["days"],
            at_limit=values["at_limit"] or Quota.AtLimit.BLOCK,
        )


class MemberLimitForm(LimitForm):
    """The form for a limit that managers set: on one member of the team, or on each member separately."""

    kind = Choice("Limit of", [(one.value, one.label) for one in Quota.Kind if one != Quota.Kind.BORROWED])
    user = Row("Whose", User.objects.all(), others={EACH: "each member's"}, initial=EACH)
