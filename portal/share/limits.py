"""The page on which a team's managers set trade limits. It has a row for each GPU type."""

from __future__ import annotations

from decimal import Decimal
from functools import partial

from django.forms import BoundField
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_http_methods

from accounting.access.permissions import may, tenants_where
from accounting.core.prepared import Prepared
from accounting.models import Generation, Tenant, User
from accounting.models.tenants import TenantQuerySet
from portal.forms.fields import Choice, Exact, Percentage
from portal.forms.form import Form
from portal.forms.posting import perform, show
from portal.user_request import UserRequest
from scheduling.limits.actions import Allowance, set_trade_limits
from scheduling.models import TradeLimit

AS_OTHERS, YES, NO = "", "yes", "no"
ANSWERS = [(YES, "Yes"), (NO, "No: neither give nor receive GPUs in trades")]
KINDS = ("trades", "gpus", "percent")  # prefixes of the names of a row's fields
ALL, OTHERS = "all", "Other GPUs"  # the row for GPU types without their own limits


class TradeLimitsForm(Form):
    """The form for a team's trade limits. It has a row for each GPU type, and a last row "Other GPUs".

    A GPU type whose row has the choice AS_OTHERS gets the limits of the last row. Each row has three fields: whether to
    trade, the maximum number of GPUs to give, and the maximum part of the share to give.
    """

    def __init__(self, tenant: Tenant, request: UserRequest | None = None) -> None:
        super().__init__("limits", request)
        own = {limit.generation_id: limit for limit in tenant.trade_limits.all()}
        self.generations = [(str(one.pk), one) for one in Generation.objects.all()]
        for key, generation in self.generations:
            self._add(
                key,
                generation.name,
                own.get(generation.pk),
                [(AS_OTHERS, "Use the limits of the row ‘Other GPUs’"), *ANSWERS],
            )
        self._add(ALL, OTHERS, own.get(None), ANSWERS)

    def _add(self, key: str, name: str, limit: TradeLimit | None, choices: list[tuple[str, str]]) -> None:
        fields = (
            Choice(f"Trade {name}", choices),
            Exact(f"{name}: maximum number of GPUs given in trades", required=False),
            Percentage(f"{name}: maximum % of the team's share given in trades", required=False),
        )
        values: tuple[str, Decimal | None, Decimal | None] = (choices[0][0], None, None)
        if limit is not None:
            values = (YES if limit.trades else NO, limit.most_gpus, limit.most_part)
        for kind, field, value in zip(KINDS, fields, values, strict=True):
            field.initial = value
            field.widget.attrs["aria-label"] = field.label
            self.fields[f"{kind}-{key}"] = field

    @property
    def rows(self) -> list[tuple[str, list[BoundField]]]:
        """Returns the rows of the form, as pairs (name, fields of the row)."""
        named = [*((key, one.name) for key, one in self.generations), (ALL, OTHERS)]
        return [(name, [self[f"{kind}-{key}"] for kind in KINDS]) for key, name in named]

    def clean(self) -> None:
        """Checks the choice of each row:

        - AS_OTHERS (the limits of the last row apply): refuses the row if it also has an amount.
        - NO (no trades): ignores the row's amounts, even if they are invalid.
        """
        for key, generation in self.generations:
            choice, *amounts = (self.cleaned_data.get(f"{kind}-{key}") for kind in KINDS)
            for kind, amount in zip(KINDS[1:], amounts, strict=True):
                if choice == NO:
                    self.errors.pop(f"{kind}-{key}", None)
                elif choice == AS_OTHERS and amount is not None:
                    self.refuse(
                        f"Choose “Yes” to limit how many {generation.name} GPUs the team gives to other teams.",
                        f"{kind}-{key}",
                    )
                    break

    def allowances(self) -> list[Allowance]:
        """Returns the trade limits that the form sets.

        The limits from the last row of the form come first. They apply to each GPU type for which no separate limits
        follow.
        """
        said = []
        for key, generation in [(ALL, None), *self.generations]:
            choice, gpus, part = (self.cleaned_data.get(f"{kind}-{key}") for kind in KINDS)
            if choice == NO:
                said.append(Allowance(generation, trades=False))
            elif choice != AS_OTHERS or generation is None:
                said.append(Allowance(generation, True, gpus, part))
        return said


def managed(user: User) -> TenantQuerySet:
    """Returns the teams whose trade limits the user may set. Leaves out archived teams."""
    return tenants_where(user, "trade_limits.set").active()


def may_limit(user: User, tenant: Tenant) -> bool:
    """Returns whether the user may set the tenant's trade limits. Returns False for an archived tenant."""
    return may(user, "trade_limits.set", tenant) and tenant.archived_at is None


def limits_in_force(tenant: Tenant) -> list[TradeLimit]:
    """Returns the trade limits of the team and of the teams above it, those of the team first. All of them apply
    together."""
    return sorted(_limits(tenant.lineage), key=lambda limit: -limit.tenant.path.count("/"))


_limits = Prepared(
    lambda tenants: TradeLimit.objects.filter(tenant__in=tenants).select_related("tenant", "generation")
)


@require_http_methods(["GET", "HEAD", "POST"])
def trade_limits(request: UserRequest, slug: str) -> HttpResponse:
    tenant = get_object_or_404(managed(request.user), slug=slug)
    page = partial(_page, tenant=tenant)
    if request.method != "POST":
        return page(request)
    form = TradeLimitsForm(tenant, request)
    return perform(
        request,
        form,
        lambda _: set_trade_limits(actor=request.user, tenant=tenant, allowances=form.allowances()),
        done=f"The trade limits of the team {tenant.name} have been saved. They apply now.",
        to=("trade_limits", slug),
        page=page,
    )


def _page(request: UserRequest, *, tenant: Tenant, posted: Form | None = None) -> HttpResponse:
    context = {
        "tenant": tenant,
        "form": TradeLimitsForm(tenant).or_posted(posted),
        "above": [limit for limit in limits_in_force(tenant) if limit.tenant_id != tenant.pk],
    }
    return show(request, "share/limits.html", context, posted=posted)
