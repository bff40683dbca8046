"""The pages where users keep secrets for their jobs: what is typed here is never shown again."""

from __future__ import annotations

from functools import partial

from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from accounting.core.errors import Refused
from accounting.core.name_order import by_name
from accounting.models import Membership, Tenant
from portal.access import posted_from
from portal.administration.forms import Refusal, perform, show
from portal.sorting import Names, Sorting
from portal.submit.lines import read_variables
from scheduling.jobs.secrets import create_secret, delete_secret, replace_secret
from scheduling.models import Job, Secret
from scheduling.models.secrets import ONLY_KEY
from scheduling.spec.job_spec import SpecError

HIDDEN = ("value", "lines")


SORTING = Sorting(
    {
        "team": (Names("tenant__name"), Names("name")), "name": (Names("name"),), "written": ("changed_at",),
        "jobs": ("job_count", Names("name")),
    },
    usual="team",
)  # fmt: skip


def _page(request: HttpRequest, *, refusal: Refusal | None = None) -> HttpResponse:
    context = {
        "secrets": SORTING.order(_found(request).select_related("owner", "tenant"), request.GET),
        "sort": SORTING.chosen(request.GET),
        "writable": set(Secret.objects.writable_by(request.user).values_list("pk", flat=True)),
        "teams": Tenant.objects.visible_to(request.user, role=Membership.Role.MANAGER)
        .active()
        .order_by(*by_name("name")),
    }
    return show(request, "secrets/secrets.html", context, refusal=_without_texts(refusal))


def _found(request: HttpRequest) -> QuerySet[Secret]:
    unfinished = ~Q(uses__job__state__in=Job.ENDED) & Q(uses__isnull=False)
    return Secret.objects.visible_to(request.user).annotate(job_count=Count("uses", filter=unfinished))


@never_cache
@sensitive_post_parameters(*HIDDEN)
@require_http_methods(["GET", "POST"])
def secrets(request: HttpRequest) -> HttpResponse:
    """All that the user's jobs may name; POST keeps a new one."""
    if request.method == "GET":
        return _page(request)
    name = request.POST.get("name", "").strip()
    return perform(
        request,
        "create",
        lambda post: create_secret(
            actor=request.user, name=name, values=_values(post), tenant=_team(request)
        ),
        done=f"The secret {name} is kept.",
        to=("secrets",),
        page=_page,
    )


def _one(request: HttpRequest, pk: int, *, refusal: Refusal | None = None) -> HttpResponse:
    found = get_object_or_404(Secret.objects.writable_by(request.user).select_related("tenant"), pk=pk)
    return show(request, "secrets/secret.html", {"secret": found}, refusal=_without_texts(refusal))


@never_cache
@sensitive_post_parameters(*HIDDEN)
@require_http_methods(["GET", "POST"])
def secret(request: HttpRequest, pk: int) -> HttpResponse:
    """Where one is replaced, by those who may write it."""
    if request.method == "GET":
        return _one(request, pk)
    found = get_object_or_404(Secret.objects.writable_by(request.user), pk=pk)
    return perform(
        request,
        "replace",
        lambda post: replace_secret(actor=request.user, secret=found, values=_values(post)),
        done=f"{found.name} is replaced; jobs get it with their next turn.",
        to=("secrets",),
        page=partial(_one, pk=pk),
    )


@posted_from("secrets")
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Secret.objects.writable_by(request.user), pk=pk)
    return perform(
        request,
        "delete",
        lambda post: delete_secret(actor=request.user, secret=found),
        done=f"{found.name} is deleted.",
        to=("secrets",),
        page=_page,
    )


def _values(post: QueryDict) -> dict[str, str]:
    """One text, or KEY=VALUE lines; line ends become those of a file."""
    text, lines = (post.get(field, "").replace("\r\n", "\n") for field in HIDDEN)
    if text and lines.strip():
        raise Refused("Give one text, or several with keys; not both.", "value")
    if not lines.strip():
        return {ONLY_KEY: text}
    try:
        return read_variables(lines, "lines", hidden=True)
    except SpecError as error:
        raise Refused(error.problems["lines"], "lines") from None


def _team(request: HttpRequest) -> Tenant | None:
    """Whose it is to be; nobody's but the user's own when nothing was chosen."""
    slug = request.POST.get("team", "")
    if not slug:
        return None
    managed = Tenant.objects.visible_to(request.user, role=Membership.Role.MANAGER).active()
    found = managed.filter(slug=slug).first()
    if found is None:
        raise Refused("Choose one of the list.", "team")
    return found


def _without_texts(refusal: Refusal | None) -> Refusal | None:
    """What is typed into other fields stands there again; of a secret nothing does."""
    if refusal is None:
        return None
    typed = refusal.typed.copy()
    for field in HIDDEN:
        typed.pop(field, None)
    return Refusal(refusal.form, refusal.field, refusal.message, typed)
