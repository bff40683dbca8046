"""Pages for GPU types and their hourly prices. Each price has a time from which it applies."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db.models import Count, Prefetch
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_safe

from accounting import actions
from accounting.core.clock import now_from_database
from accounting.core.wording import to_the_minute
from accounting.models import Generation, Price
from portal.access import permitted, posted_from
from portal.forms.fields import Exact, Moment, Text, Whole
from portal.forms.form import Form
from portal.forms.posting import perform, show
from portal.user_request import UserRequest


class GenerationForm(Form):
    """The form that adds a GPU type."""

    name = Text("Name", maxlength=40)
    memory_gib = Whole("Memory of one GPU, GiB", initial=0)
    description = Text("Description", maxlength=200, required=False)


class PriceForm(Form):
    """The form that sets the price of a GPU type, and the time from which the price applies."""

    per_gpu_hour = Exact("New price")
    idle = Exact("Separate price of idle time (optional)", required=False)
    preemptible = Exact("Separate price of preemptible time (optional)", required=False)
    borrowed = Exact("Separate price of borrowed time (optional)", required=False)
    since = Moment("Valid from (now if left empty)")

    def __init__(self, generation: Generation, request: UserRequest | None = None) -> None:
        super().__init__(f"price-{generation.pk}", request)
        self.fields["per_gpu_hour"].label = f"New price, {settings.FAIRLOT_CURRENCY} per GPU-hour"


def _generations(request: UserRequest, *, posted: Form | None = None) -> HttpResponse:
    prices = Price.objects.order_by("-valid")
    found = Generation.objects.annotate(node_count=Count("nodes")).prefetch_related(
        Prefetch("prices", queryset=prices)
    )
    now = now_from_database()
    context = {
        "tab": "generations",
        "generations": [
            (one, [(price, price.state(now)) for price in one.prices.all()], PriceForm(one).or_posted(posted))
            for one in found
        ],
        "create": GenerationForm("create").or_posted(posted),
    }
    return show(request, "administration/generations.html", context, posted=posted)


@permitted("price.set")
@require_safe
def generations(request: UserRequest) -> HttpResponse:
    return _generations(request)


@permitted("price.set")
@posted_from("admin_generations")
def create_generation(request: UserRequest) -> HttpResponse:
    return perform(
        request,
        GenerationForm("create", request),
        lambda values: actions.create_generation(actor=request.user, **values),
        done=lambda values: f"The GPU type {values['name']} has been added.",
        to=("admin_generations",),
        page=_generations,
    )


@permitted("price.set")
@posted_from("admin_generations")
def set_price(request: UserRequest, pk: int) -> HttpResponse:
    generation = get_object_or_404(Generation, pk=pk)
    return perform(
        request,
        PriceForm(generation, request),
        lambda values: actions.set_price(actor=request.user, generation=generation, **values),
        done=lambda values: _price_saved(generation, values["since"]),
        to=("admin_generations",),
        page=_generations,
    )


def _price_saved(generation: Generation, since: datetime | None) -> str:
    if since is None or since <= now_from_database():
        return f"The price of the GPU type {generation.name} has been saved."
    return (
        f"The price of the GPU type {generation.name} is planned from {to_the_minute(timezone.localtime(since))}. "
        "Until then, Remove in its row takes it back."
    )


@permitted("price.set")
@posted_from("admin_generations")
def remove_price(request: UserRequest, pk: int) -> HttpResponse:
    """Removes a planned price."""
    price = get_object_or_404(Price.objects.select_related("generation"), pk=pk)
    return perform(
        request,
        Form(f"remove-price-{pk}", request),
        lambda _: actions.remove_price(actor=request.user, price=price),
        done=f"The planned price of the GPU type {price.generation.name} has been removed.",
        to=("admin_generations",),
        page=_generations,
    )


@permitted("price.set")
@posted_from("admin_generations")
def delete_generation(request: UserRequest, pk: int) -> HttpResponse:
    generation = get_object_or_404(Generation, pk=pk)
    return perform(
        request,
        Form(f"delete-{pk}", request),
        lambda _: actions.delete_generation(actor=request.user, generation=generation),
        done=f"The GPU type {generation.name} has been deleted.",
        to=("admin_generations",),
        page=_generations,
    )
