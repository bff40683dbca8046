"""The gallery of templates, the page of a template, and its actions. Using one is in portal/gallery/using.py."""

from __future__ import annotations

from typing import Any

from django.core.paginator import Paginator
from django.db.models import Q
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from accounting.access.permissions import may, may_somewhere
from accounting.core.errors import NotAllowed, Refused
from accounting.core.name_order import by_name
from accounting.core.numbers import read_key, read_whole
from accounting.core.texts import one_line
from accounting.core.wording import counted, duration
from accounting.models import Tenant, User
from portal.forms.posting import show, tell
from portal.fragments import render_page
from portal.gallery.forms import EXAMPLE, MORE_ROWS, TemplateForm, bound_text, in_order, whose
from portal.submit.draft import Choices, Draft
from portal.unstorable import keeps_form
from portal.user_request import UserRequest
from scheduling.models import Job, JobTemplate, TemplateVersion
from scheduling.spec import yaml_core
from scheduling.spec.job_spec import SpecError, dump_stored
from scheduling.templates.actions import parameters_of, publish_template, publish_version, withdraw_template

PER_PAGE = 30
ALL_TEAMS = "all"  # the value of `?for=` for templates for all teams
FROM_FORM = "template"  # the value of `do` with which the submit form becomes a template


@require_safe
def templates(request: UserRequest) -> HttpResponse:
    """Shows the templates that the user may use; `?q=` searches, and `?for=` chooses those of a team."""
    found = JobTemplate.objects.visible_to(request.user).offered().select_related("tenant")
    text, team = one_line(request.GET.get("q", "")).strip(), request.GET.get("for", "")
    if text:
        found = found.filter(Q(name__icontains=text) | Q(description__icontains=text))
    teams = list(Tenant.objects.visible_to(request.user).active().order_by(*by_name("name")))
    if team == ALL_TEAMS:
        found = found.filter(tenant=None)
    elif team:
        found = found.filter(tenant__slug=team, tenant__in=teams)
    page = Paginator(found.order_by(*by_name("name"), "pk"), PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "page": page,
        "rows": [(one, whose(one), cost_of(one)) for one in page],
        "q": text,
        "team": team,
        "teams": teams,
        "filtered": bool(text or team),
        "may_publish": may_publish(request.user),
    }
    return render_page(request, "gallery/list.html", context)


@require_safe
def template(request: UserRequest, pk: int) -> HttpResponse:
    """Shows a template: what it does, its parameters and its specification; with `?version=`, those of a version."""
    shown = visible_template(request, pk)
    version = asked_version(request, shown)
    context = {
        "template": shown,
        "whose": whose(shown),
        "cost": cost_of(shown),
        "version": version,
        "versions": shown.versions.select_related("made_by").order_by("-number")[:200],
        "parameters": [(one, _type_of(one)) for one in parameters_of(version)],
        "yaml": yaml_core.write(in_order(version.spec)),
        "may_change": may_change(request.user, shown) and not shown.withdrawn_at,
    }
    return render_page(request, "gallery/template.html", context)


@keeps_form
@never_cache
@require_http_methods(["GET", "POST"])
def new(request: UserRequest) -> HttpResponse:
    """Shows the form for a new template, with `?job=` filled from a job. A POST publishes the template.

    A POST of the submit form with `do=template` shows the form, filled from the submit form.
    """
    if not may_publish(request.user):
        raise Http404
    if request.method == "POST" and request.POST.get("do") == FROM_FORM:
        draft = Draft.from_post(
            request.POST, Choices.of(request.user, request.POST.get("cluster", ""))
        ).settle()
        return _form(request, TemplateForm(request.user, name=draft.fields.name, yaml=draft.yaml))
    if request.method == "POST":
        return _posted(request, TemplateForm(request.user, request))
    initial: dict[str, Any] = {
        "parameters": EXAMPLE,
        "yaml": "name: train\ncommand: python train.py --lr {lr}\n",
    }
    if key := request.GET.get("job", ""):
        job = get_object_or_404(Job.objects.visible_to(request.user), pk=read_key(key))
        initial = {"name": job.name[:80], "yaml": dump_stored(job.spec), "team": str(job.tenant_id)}
    return _form(request, TemplateForm(request.user, **initial))


@keeps_form
@never_cache
@require_http_methods(["GET", "POST"])
def edit(request: UserRequest, pk: int) -> HttpResponse:
    """Shows the form for a new version of a template. A POST publishes the version."""
    shown = visible_template(request, pk)
    if not may_change(request.user, shown):
        raise Http404
    version = asked_version(request, shown)
    if request.method == "POST":
        return _posted(request, TemplateForm(request.user, request, of=version), shown)
    return _form(request, TemplateForm(request.user, of=version), shown)


@require_POST
def withdraw(request: UserRequest, pk: int) -> HttpResponse:
    shown = visible_template(request, pk)
    tell(
        request,
        lambda: withdraw_template(actor=request.user, template=shown),
        f"The template {shown.name} has been withdrawn. Jobs that were submitted from it are unchanged.",
    )
    return redirect("template", pk)


def visible_template(request: UserRequest, pk: int) -> JobTemplate:
    """Returns the template with this key. Raises Http404 if the user may not see it."""
    seen = JobTemplate.objects.visible_to(request.user).select_related("tenant", "created_by")
    return get_object_or_404(seen, pk=pk)


def asked_version(request: UserRequest, shown: JobTemplate) -> TemplateVersion:
    """Returns the version that the address asks for with `?version=`, or the latest. Raises Http404 if there is no such
    version."""
    asked = request.GET.get("version", "")
    number = read_whole(asked) if asked else shown.latest
    if number is None or not 0 < number < 2**31:
        raise Http404
    return get_object_or_404(
        TemplateVersion.objects.select_related("template"), template=shown, number=number
    )


def may_publish(user: User) -> bool:
    return may(user, "template.publish_for_all") or may_somewhere(user, "template.publish")


def may_change(user: User, shown: JobTemplate) -> bool:
    if shown.tenant is None:
        return may(user, "template.publish_for_all")
    return may(user, "template.publish", shown.tenant)


def cost_of(shown: JobTemplate) -> str:
    """Returns about how many GPUs a job of the template holds for how long, in words."""
    gpus = counted(shown.gpus, "GPU")
    return f"{gpus} for about {duration(shown.expected_hours * 3600)}" if shown.expected_hours else gpus


def _type_of(parameter: Any) -> str:
    """Returns what a parameter accepts, in words."""
    if parameter.type == "choice":
        return f"one of {', '.join(parameter.choices)}"
    if parameter.type == "generation":
        return "GPU type"
    if parameter.type != "number":
        return str(parameter.type)
    bounds = [f"from {bound_text(parameter.min)}"] if parameter.min is not None else []
    bounds += [f"to {bound_text(parameter.max)}"] if parameter.max is not None else []
    return " ".join(["whole number" if parameter.whole else "number", *bounds])


def _posted(request: UserRequest, form: TemplateForm, shown: JobTemplate | None = None) -> HttpResponse:
    if request.POST.get("do") == MORE_ROWS:
        return _form(request, form, shown)
    if form.is_valid():
        try:
            content = form.content
            if shown:
                made = publish_version(actor=request.user, template=shown, **content)
            else:
                name = form.cleaned_data["name"]
                made = publish_template(actor=request.user, tenant=form.tenant, name=name, **content)
        except SpecError as error:
            form.refuse_all(error)
        except Refused as error:
            form.refuse(error.message, {"tenant": "team"}.get(error.field or "", error.field))
        except NotAllowed as error:
            form.refuse(str(error))
        else:
            return redirect("template", made.template_id)
    return _form(request, form, shown, posted=form)


def _form(
    request: UserRequest,
    form: TemplateForm,
    shown: JobTemplate | None = None,
    *,
    posted: TemplateForm | None = None,
) -> HttpResponse:
    return show(request, "gallery/form.html", {"form": form, "template": shown}, posted=posted)
