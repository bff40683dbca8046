"""GPU generations and what an hour of each costs, over time."""

from __future__ import annotations

from django.conf import settings
from django.db.models import Count, Prefetch
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from accounting import actions
from accounting.core.clock import now_from_database
from accounting.models import Generation, Price
from portal.access import permitted, posted_from
from portal.administration.forms import Refusal, decimal, decimal_or_none, moment, perform, show, whole


def _generations(request: HttpRequest, *, refusal: Refusal | None = None) -> HttpResponse:
    prices = Price.objects.order_by("-valid")
    found = Generation.objects.annotate(node_count=Count("nodes")).prefetch_related(
        Prefetch("prices", queryset=prices)
    )
    context = {
        "tab": "generations",
        "generations": found,
        "now": now_from_database(),
        "currency": settings.FAIRLOT_CURRENCY,
    }
    return show(request, "administration/generations.html", context, refusal=refusal)


@permitted("price.set")
@require_safe
def generations(request: HttpRequest) -> HttpResponse:
    return _generations(request)


@permitted("price.set")
@posted_from("admin_generations")
def create_generation(request: HttpRequest) -> HttpResponse:
    return perform(
        request,
        "create",
        lambda post: actions.create_generation(
            actor=request.user,
            name=post.get("name", ""),
            description=post.get("description", ""),
            memory_gib=whole(post, "memory_gib"),
        ),
        done=f"The generation {request.POST.get('name', '').strip()} exists now.",
        to=("admin_generations",),
        page=_generations,
    )


@permitted("price.set")
@posted_from("admin_generations")
def set_price(request: HttpRequest, pk: int) -> HttpResponse:
    generation = get_object_or_404(Generation, pk=pk)
    return perform(
        request,
        f"price-{pk}",
        lambda post: actions.set_price(
            actor=request.user,
            generation=generation,
            per_gpu_hour=decimal(post, "per_gpu_hour"),
            since=moment(post, "since"),
            **{name: decimal_or_none(post, name) for name in Price.CLASSES},
        ),
        done=f"The price of {generation.name} is set.",
        to=("admin_generations",),
        page=_generations,
    )


@permitted("price.set")
@posted_from("admin_generations")
def delete_generation(request: HttpRequest, pk: int) -> HttpResponse:
    generation = get_object_or_404(Generation, pk=pk)
    return perform(
        request,
        f"delete-{pk}",
        lambda post: actions.delete_generation(actor=request.user, generation=generation),
        done=f"{generation.name} is deleted.",
        to=("admin_generations",),
        page=_generations,
    )
