"""Sets budgets, and sends a warning when a team's spending reaches a threshold (once per threshold and period)."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction
from django.db.models.functions import Now

from accounting.access import audit
from accounting.access.permissions import may, require
from accounting.actions.checks import check_choice, check_fields
from accounting.core.calendar import MICROSECOND
from accounting.core.clock import now_from_database
from accounting.core.errors import Refusals, Refused
from accounting.core.wording import fixed
from accounting.limits.forecast import forecast
from accounting.limits.past_budgets import amount_at
from accounting.limits.periods import period_of
from accounting.limits.spending import UnbookedUsage, money_spent
from accounting.models import Budget, BudgetChange, BudgetWarning, Membership, Tenant, User, WebhookCall
from accounting.models.budgets import new_nonce
from accounting.models.notifications import Audience, EventKind
from accounting.models.versions import require_version
from accounting.notifications.events import announce
from accounting.notifications.safe_http import NotReachable, check_url

MOST_PERCENTAGES = 6
USUAL_PERCENTAGES = (80, 100)
# A budget's previous period is checked for this long after its end, because its last usage may be posted late.
LOOKED_BACK = timedelta(days=1)


@transaction.atomic(durable=True)
def set_budget(
    *,
    actor: User | None,
    tenant: Tenant,
    amount: Decimal,
    period: str = Budget.Period.MONTH,
    percentages: Sequence[int] | None = None,
    by_forecast: bool | None = None,
    webhook_url: str | None = None,
    seen: Collection[str] | None = None,
) -> Budget:
    """Sets the budget of a tenant: how much money the tenant plans to spend in each `period`. Returns the budget.

    `percentages`: the percentages of the budget at which a warning is sent. `by_forecast`: whether a warning is also
    sent when the forecast reaches the budget. `webhook_url`: the address that receives the warnings, in addition to
    mail. If one of these three is None, its present value stays, and a new budget gets the default.

    `seen`: versions of which the present budget must have one; see accounting/models/versions.py.

    A manager's `amount` must not exceed the smallest budget that the tenants above have for the same period.
    """
    require(actor, "budget.set", tenant)
    check_choice("period", period, Budget.Period.values, "period")
    refusals = Refusals()
    with refusals.kept():
        if not Decimal(amount).is_finite() or amount <= 0:
            raise Refused("A budget must be greater than 0.", "amount")
        if actor is not None and not may(actor, "budget.set"):
            _check_above(actor, tenant, period, Decimal(amount))
    Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)  # other changes wait
    budget = Budget.objects.select_for_update().filter(tenant=tenant, period=period).first()
    require_version(budget if budget and budget.removed_at is None else None, seen)
    before = _audit_values(budget) if budget and budget.removed_at is None else {}
    budget = budget or Budget(tenant=tenant, period=period)
    if not before:
        budget.removed_at, budget.nonce, budget.by_forecast = None, new_nonce(), True
        budget.percentages, budget.webhook_url, budget.webhook_set_by = list(USUAL_PERCENTAGES), "", actor
    budget.amount = Decimal(amount)
    if by_forecast is not None:
        budget.by_forecast = by_forecast
    if percentages is not None:
        with refusals.kept():
            budget.percentages = _checked(percentages)
    if webhook_url is not None:
        with refusals.kept():
            _set_webhook(actor, budget, webhook_url.strip())
    refusals.raise_any()
    check_fields(budget, "amount", "webhook_url")
    budget.save()
    after = _audit_values(budget)
    audit.record(actor=actor, verb="budget.set", target=tenant, tenant=tenant, before=before, after=after)
    return budget


def _checked(percentages: Sequence[int]) -> list[int]:
    if not 1 <= len(percentages) <= MOST_PERCENTAGES or not all(1 <= one <= 999 for one in percentages):
        raise Refused(
            f"Enter 1 to {MOST_PERCENTAGES} warning thresholds, each a whole percentage from 1 to 999.",
            "percentages",
        )
    return sorted(set(percentages))


def _set_webhook(actor: User | None, budget: Budget, url: str) -> None:
    """Sets the webhook address of a budget; raises Refused if Fairlot may not call the address.

    If another user set the previous address, the budget gets a new signing key, because that user may know the old key.
    """
    if url == budget.webhook_url:
        return
    if url:
        if settings.FAIRLOT_WEBHOOKS_TO_PRIVATE and actor is not None and not may(actor, "budget.set"):
            raise Refused(
                "Only admins may set the webhook of a budget, because this portal lets webhooks call private networks.",
                "webhook_url",
            )
        try:
            check_url(url)
        except NotReachable as error:
            raise Refused(str(error), "webhook_url") from None
    if budget.webhook_set_by_id != (actor and actor.pk):
        budget.nonce = new_nonce()
    budget.webhook_url, budget.webhook_set_by = url, actor


def signing_key_for(reader: User, budget: Budget) -> str | None:
    """Returns the key that signs the budget's webhook calls; None if `reader` may not see it or there is no webhook.

    Only admins and the manager who set the webhook address may see the key.
    """
    is_own = budget.webhook_set_by_id is not None and budget.webhook_set_by_id == reader.pk
    return budget.signing_key() if budget.webhook_url and (is_own or may(reader, "budget.set")) else None


def _check_above(actor: User, tenant: Tenant, period: str, amount: Decimal) -> None:
    """Raises Refused if `amount` is larger than a budget that one of the tenant's ancestors has for the same period.

    The error message shows the ancestor's amount only if the actor may read the budgets of that ancestor.
    """
    above = Budget.objects.in_force().filter(tenant__in=tenant.lineage, period=period).exclude(tenant=tenant)
    least = above.select_related("tenant").order_by("amount", "pk").first()
    if least is None or amount <= least.amount:
        return
    if may(actor, "team.read", least.tenant):
        most = f"{least.amount.normalize():f}, the {period}ly budget of team {least.tenant}"
    else:
        most = f"the {period}ly budget of a team above this team"
    raise Refused(f"The {period}ly budget must not be larger than {most}.", "amount")


@transaction.atomic(durable=True)
def remove_budget(*, actor: User | None, budget: Budget, seen: Collection[str] | None = None) -> None:
    """Removes a budget. `seen`: as for `set_budget`. Warnings that are already stored in the outbox are still sent.

    The records of past warnings stay. If the budget is set again, Fairlot does not repeat these warnings.
    """
    require(actor, "budget.set", budget.tenant)
    in_force = Budget.objects.in_force().select_for_update(of=("self",)).select_related("tenant")
    held = in_force.filter(pk=budget.pk).first()
    if held is None:
        raise Refused("This budget no longer exists.")
    require_version(held, seen)
    audit.record(
        actor=actor, verb="budget.remove", target=held.tenant, tenant=held.tenant, before=_audit_values(held)
    )
    held.removed_at = now_from_database()
    held.save(update_fields=["removed_at"])


@dataclass(frozen=True, slots=True)
class Outlook:
    """Represents the state of a budget in one period: the money spent, and the forecast for the end of the period.

    `set_then`: for a past period, the budget's amount at the end of that period; None for the present period.
    """

    budget: Budget
    begins: datetime
    ends: datetime
    spent: Decimal
    forecast: Decimal | None
    set_then: Decimal | None = None

    @property
    def amount(self) -> Decimal:
        return self.budget.amount if self.set_then is None else self.set_then

    @property
    def part(self) -> float:
        return float(self.spent / self.amount)

    @property
    def reached(self) -> list[str]:
        """Returns the thresholds that the budget has reached in this period.

        A percentage such as "80" is reached when the spending is at least that percentage of the amount. The threshold
        FORECAST is reached when the forecast is at least the amount. It is considered only if the team has asked for
        warnings by forecast.
        """
        percentages = [str(one) for one in self.budget.percentages]
        watched = [*percentages, BudgetWarning.FORECAST] if self.budget.by_forecast else percentages
        return [one for one in watched if _is_reached(one, self.amount, self.spent, self.forecast)]

    def is_covered_by(self, warning: BudgetWarning) -> bool:
        """Returns whether the past `warning` makes a new warning for the same threshold unnecessary.

        This is so if the spending or forecast that caused the warning also reaches the threshold for the present
        amount. For example, a warning at 80 % of 100 euros was sent at 85 euros. If the amount is now 200 euros, the
        threshold is 160 euros, so a new warning is necessary.
        """
        return _is_reached(warning.threshold, self.amount, warning.spent, warning.forecast)


def _is_reached(threshold: str, amount: Decimal, spent: Decimal, forecast: Decimal | None) -> bool:
    if threshold == BudgetWarning.FORECAST:
        return forecast is not None and forecast >= amount
    return spent * 100 >= amount * int(threshold)


def outlook(budget: Budget, *, now: datetime, held: Iterable[UnbookedUsage]) -> Outlook:
    begins, ends = period_of(budget.period, None, now)
    assert ends is not None  # noqa: S101 - a calendar period has one
    used = money_spent(begins, now, held, _below(budget))
    return Outlook(budget, begins, ends, used, forecast(used, begins=begins, now=now, ends=ends))


def outlook_back(budget: Budget, *, now: datetime, held: Iterable[UnbookedUsage]) -> Outlook | None:
    """Returns the budget's state at the end of the previous period. The `forecast` in the result is the final spending.

    `held`: usage that is not in the ledger yet. Returns None if the previous period ended more than LOOKED_BACK (a day)
    ago, or if this budget did not exist at that time.
    """
    ends, _ = period_of(budget.period, None, now)
    if now - ends > LOOKED_BACK:
        return None
    changes = BudgetChange.objects.filter(tenant_id=budget.tenant_id, period=budget.period)
    amount = amount_at(changes, budget.period, ends)
    if amount is None:
        return None
    begins, _ = period_of(budget.period, None, ends - MICROSECOND)
    used = money_spent(begins, now, held, _below(budget), ends=ends)
    return Outlook(budget, begins, ends, used, used, set_then=amount)


def _below(budget: Budget) -> list[int]:
    return list(Tenant.objects.within(budget.tenant).values_list("pk", flat=True))


@transaction.atomic(durable=True)
def warn_of_budget(*, stands: Outlook) -> list[BudgetWarning]:
    """Stores a warning for each threshold that has been reached, and calls the budget's webhook with each. If several
    come at once, announces the one that says most. Returns the new warnings.

    Normally, a threshold causes only one warning in each budget period. If the budget's amount is raised after the
    warning, reaching the new threshold causes another warning. No warning is sent twice if several workers call this
    function concurrently.

    `stands`: the state of the budget in one period. If this is the present period, the budget's amount is read from the
    database again.
    """
    locked = Budget.objects.in_force().select_for_update(of=("self",)).select_related("tenant")
    budget = locked.filter(pk=stands.budget.pk).first()
    if budget is None:
        return []
    stands = replace(stands, budget=budget)
    told = budget.warnings.filter(begins=stands.begins)
    known = {warning.threshold for warning in told if stands.is_covered_by(warning)}
    untold = [threshold for threshold in stands.reached if threshold not in known]
    told.filter(threshold__in=untold, lifted_at=None).update(lifted_at=Now())
    new = [
        BudgetWarning.objects.create(
            budget=budget, begins=stands.begins, threshold=threshold, amount=stands.amount,
            spent=stands.spent, forecast=stands.forecast,
        )
        for threshold in untold
    ]  # fmt: skip
    if new:
        _tell(max(new, key=_weight), stands)
    if budget.webhook_url:
        for warning in new:
            url, nonce = budget.webhook_url, budget.nonce
            WebhookCall.objects.create(budget=budget, url=url, nonce=nonce, body=_body(warning, stands))
    return new


def _weight(warning: BudgetWarning) -> float:
    """Returns a number that is greatest for the warning that says most among several that come at once: what is spent,
    if this is the whole budget, else the forecast, else the highest percentage."""
    return 99.5 if warning.threshold == BudgetWarning.FORECAST else float(warning.threshold)


def _tell(warning: BudgetWarning, stands: Outlook) -> None:
    tenant = warning.budget.tenant
    is_over = stands.set_then is not None
    managers = User.objects.filter(
        memberships__tenant__in=tenant.lineage, memberships__role=Membership.Role.MANAGER
    )
    period = f"{stands.begins:%-d %B %Y} to {stands.ends:%-d %B %Y} (UTC)"
    announce(
        EventKind.BUDGET,
        f"budget:{warning.pk}",
        audience=Audience.MANAGERS,
        tenant=tenant,
        concerns=sorted(set(managers.values_list("pk", flat=True))),
        title=f"Budget of {tenant.name}: {_what(warning, is_over)}",
        text=_in_words(warning, is_over),
        facts=[["Budget period", period]],
        path=f"/team/{tenant.slug}/budgets/",
    )


def _in_words(warning: BudgetWarning, is_over: bool) -> str:
    name, currency = warning.budget.tenant.name, settings.FAIRLOT_CURRENCY
    spent_so_far = f"{name} has spent {fixed(warning.spent, 2)} of {fixed(warning.amount, 2)} {currency}"
    if warning.threshold == BudgetWarning.FORECAST:
        if is_over:
            return f"{spent_so_far}. The budget period has ended."
        return (
            f"{spent_so_far}. At this rate, the team will have spent {fixed(warning.forecast or 0, 2)} {currency}"
            " by the end of the budget period."
        )
    return f"{spent_so_far}, which is at least {warning.threshold} % of the budget."


def _what(warning: BudgetWarning, is_over: bool) -> str:
    if warning.threshold != BudgetWarning.FORECAST:
        return f"spending reached {warning.threshold} % of the budget"
    return "spending exceeded the budget" if is_over else "spending is forecast to exceed the budget"


def _body(warning: BudgetWarning, stands: Outlook) -> str:
    told = {
        "event": "budget.warning",
        "team": warning.budget.tenant.slug,
        "threshold": warning.threshold,
        "amount": warning.amount,
        "spent": warning.spent,
        "forecast": warning.forecast,
        "currency": settings.FAIRLOT_CURRENCY,
        "begins": stands.begins,
        "ends": stands.ends,
    }
    return json.dumps(told, cls=DjangoJSONEncoder)


def _audit_values(budget: Budget) -> dict[str, object]:
    names = ("period", "amount", "percentages", "by_forecast", "webhook_url")
    return {name: getattr(budget, name) for name in names}
