"""Which trades a team allows: a page for its managers, a row for each generation."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import partial

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_http_methods

from accounting.access.permissions import may, tenants_where
from accounting.core.errors import Refused
from accounting.core.prepared import Prepared
from accounting.models import Generation, Tenant, User
from accounting.models.tenants import TenantQuerySet
from portal.administration.forms import Refusal, decimal_or_none, part, perform, show
from scheduling.limits.actions import Allowance, set_trade_limits
from scheduling.models import TradeLimit

AS_OTHERS, YES, NO = "", "yes", "no"
ALL = "all"  # the row of generations that have none of their own


@dataclass(frozen=True)
class Row:
    """What the form shows of one generation; `key` ends the names of its fields."""

    key: str
    name: str
    choice: str
    gpus: str
    percent: str


def managed(user: User) -> TenantQuerySet:
    """The teams whose limits the user may set."""
    return tenants_where(user, "trade_limits.set").active()


def may_limit(user: User, tenant: Tenant) -> bool:
    """Whether `managed` has the tenant."""
    return may(user, "trade_limits.set", tenant) and tenant.archived_at is None


def limits_in_force(tenant: Tenant) -> list[TradeLimit]:
    """The team's own and those of teams above it, nearest first; all of them hold."""
    return sorted(_limits(tenant.lineage), key=lambda limit: -limit.tenant.path.count("/"))


_limits = Prepared(
    lambda tenants: TradeLimit.objects.filter(tenant__in=tenants).select_related("tenant", "generation")
)


@require_http_methods(["GET", "HEAD", "POST"])
def trade_limits(request: HttpRequest, slug: str) -> HttpResponse:
    tenant = get_object_or_404(managed(request.user), slug=slug)
    page = partial(_page, tenant=tenant)
    if request.method != "POST":
        return page(request)
    return perform(
        request,
        "limits",
        lambda post: set_trade_limits(actor=request.user, tenant=tenant, allowances=list(_read(post))),
        done=f"The limits of {tenant.name} hold from now on.",
        to=("trade_limits", slug),
        page=page,
    )


def _page(request: HttpRequest, *, tenant: Tenant, refusal: Refusal | None = None) -> HttpResponse:
    own = {limit.generation_id: limit for limit in tenant.trade_limits.all()}
    rows = [_row(str(one.pk), one.name, own.get(one.pk), AS_OTHERS) for one in Generation.objects.all()]
    context = {
        "tenant": tenant,
        "rows": [*rows, _row(ALL, "Other GPUs", own.get(None), YES)],
        "above": [limit for limit in limits_in_force(tenant) if limit.tenant_id != tenant.pk],
    }
    return show(request, "share/limits.html", context, refusal=refusal)


def _row(key: str, name: str, limit: TradeLimit | None, otherwise: str) -> Row:
    if limit is None:
        return Row(key, name, otherwise, "", "")
    part = None if limit.most_part is None else limit.most_part * 100
    return Row(key, name, YES if limit.trades else NO, _plain(limit.most_gpus), _plain(part))


def _plain(number: Decimal | None) -> str:
    return "" if number is None else f"{number.normalize():f}"


def _read(post: QueryDict) -> list[Allowance]:
    """Amounts beside “No” are of no use and left out; beside “As other GPUs” they are a mistake."""
    generations = [(ALL, None), *((str(one.pk), one) for one in Generation.objects.all())]
    said = []
    for key, generation in generations:
        choice = post.get(f"trades-{key}", AS_OTHERS)
        if choice == NO:
            said.append(Allowance(generation, trades=False))
            continue
        gpus, most = decimal_or_none(post, f"gpus-{key}"), _part_or_none(post, f"percent-{key}")
        if choice == AS_OTHERS and generation is not None:
            if gpus is not None or most is not None:
                field = f"gpus-{key}" if gpus is not None else f"percent-{key}"
                raise Refused(f"Choose “Yes” to limit what is given of {generation.name}.", field)
            continue
        said.append(Allowance(generation, True, gpus, most))
    return said


def _part_or_none(post: QueryDict, field: str) -> Decimal | None:
    return part(post, field, may_be_zero=True) if post.get(field, "").strip() else None
