"""The budget form, which the pages of admins and of team managers share."""

from __future__ import annotations

import re
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.forms import HiddenInput
from django.http import HttpRequest

from accounting.actions.budgets import USUAL_PERCENTAGES
from accounting.models import Budget
from portal.forms.fields import Exact, Switch, Text
from portal.forms.form import Form

NUMBERS = re.compile(r"\s*\d{1,3}\s*(,\s*\d{1,3}\s*)*", re.ASCII)


class Percentages(Text):
    """A field for whole numbers separated by commas. Its value is a list of ints."""

    def to_python(self, value: Any) -> Any:
        if not NUMBERS.fullmatch(value or ""):
            raise ValidationError("Enter whole numbers of percent, separated by commas, such as 80, 100.")
        return [int(one) for one in (value or "").split(",")]


class BudgetForm(Form):
    """The form for a team's budget for one kind of period, month or quarter."""

    budget_period = Text("Period", widget=HiddenInput)
    amount = Exact("Amount")
    percentages = Percentages("Warn at these percentages of the budget", css="input-number")
    webhook_url = Text("Webhook", required=False, type="url", maxlength=500)
    by_forecast = Switch("Also warn if the forecast exceeds the budget")

    def __init__(
        self, period: str, request: HttpRequest | None = None, *, budget: Budget | None = None
    ) -> None:
        self.period = period
        self.budget = budget
        shown = budget or Budget(percentages=list(USUAL_PERCENTAGES))
        initial = {name: getattr(shown, name) for name in ("amount", "webhook_url", "by_forecast")}
        initial |= {"budget_period": period, "percentages": ", ".join(map(str, shown.percentages))}
        super().__init__(f"budget-{period}", request, initial=initial)
        self.fields["amount"].label = f"Amount, {settings.FAIRLOT_CURRENCY} per {period}"
