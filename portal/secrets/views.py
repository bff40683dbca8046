"""The pages on which users store secrets for their jobs. After a form is sent, no page shows the typed value again."""

from __future__ import annotations

from functools import partial

from django.db.models import Count, Q, QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from portal.access import posted_from
from portal.forms.form import Form
from portal.forms.posting import perform, show
from portal.secrets.forms import HIDDEN, NewSecret, SecretForm
from portal.sorting import Names, Sorting
from portal.user_request import UserRequest
from scheduling.jobs.secrets import create_secret, delete_secret, replace_secret
from scheduling.models import Job, Secret

SORTING = Sorting(
    {
        "team": (Names("tenant__name"), Names("name")), "name": (Names("name"),), "written": ("changed_at",),
        "jobs": ("job_count", Names("name")),
    },
    usual="team",
)  # fmt: skip


def _page(request: UserRequest, *, posted: Form | None = None) -> HttpResponse:
    context = {
        "secrets": SORTING.order(_found(request).select_related("owner", "tenant"), request.GET),
        "sort": SORTING.chosen(request.GET),
        "writable": set(Secret.objects.writable_by(request.user).values_list("pk", flat=True)),
        "create": NewSecret(request.user).or_posted(posted),
    }
    return show(request, "secrets/secrets.html", context, posted=posted)


def _found(request: UserRequest) -> QuerySet[Secret]:
    unfinished = ~Q(uses__job__state__in=Job.ENDED) & Q(uses__isnull=False)
    return Secret.objects.visible_to(request.user).annotate(job_count=Count("uses", filter=unfinished))


@never_cache
@sensitive_post_parameters(*HIDDEN)
@require_http_methods(["GET", "POST"])
def secrets(request: UserRequest) -> HttpResponse:
    """Lists the secrets that the user's jobs may use. A POST stores a new secret."""
    if request.method == "GET":
        return _page(request)
    form = NewSecret(request.user, request)
    return perform(
        request,
        form,
        lambda values: create_secret(
            actor=request.user, name=values["name"], values=form.texts(), tenant=values["team"]
        ),
        done=lambda values: f"The secret {values['name']} has been saved.",
        to=("secrets",),
        page=_page,
    )


def _one(request: UserRequest, pk: int, *, posted: Form | None = None) -> HttpResponse:
    found = get_object_or_404(Secret.objects.writable_by(request.user).select_related("tenant"), pk=pk)
    return show(
        request,
        "secrets/secret.html",
        {"secret": found, "replace": SecretForm("replace").or_posted(posted)},
        posted=posted,
    )


@never_cache
@sensitive_post_parameters(*HIDDEN)
@require_http_methods(["GET", "POST"])
def secret(request: UserRequest, pk: int) -> HttpResponse:
    """Shows the form that replaces the content of a secret. Only users who may replace it see the form."""
    if request.method == "GET":
        return _one(request, pk)
    found = get_object_or_404(Secret.objects.writable_by(request.user), pk=pk)
    form = SecretForm("replace", request)
    return perform(
        request,
        form,
        lambda _: replace_secret(actor=request.user, secret=found, values=form.texts()),
        done=f"The secret {found.name} has been replaced. Jobs get the new value with their next attempt.",
        to=("secrets",),
        page=partial(_one, pk=pk),
    )


@posted_from("secrets")
def delete(request: UserRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Secret.objects.writable_by(request.user), pk=pk)
    return perform(
        request,
        Form("delete", request),
        lambda _: delete_secret(actor=request.user, secret=found),
        done=f"The secret {found.name} has been deleted.",
        to=("secrets",),
        page=_page,
    )
