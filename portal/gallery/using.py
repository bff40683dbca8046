"""The page that submits a job from a template: a short form of its parameters, with a preview."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from django.http import HttpResponse
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from accounting.core.errors import NotAllowed, Refused
from portal.forms.posting import show
from portal.gallery.forms import UseForm, whose
from portal.gallery.views import asked_version, cost_of, visible_template
from portal.submit.draft import Choices, Draft
from portal.submit.fields import Fields
from portal.unstorable import keeps_form
from portal.user_request import UserRequest
from scheduling.models import TemplateVersion
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.spec.templates import read_values
from scheduling.templates.actions import filled, submit_from_template


@keeps_form
@never_cache
@require_http_methods(["GET", "POST"])
def use(request: UserRequest, pk: int) -> HttpResponse:
    """Shows the parameters of a template. A POST submits the job; with `do=preview`, it shows the specification."""
    shown = visible_template(request, pk)
    if shown.withdrawn_at:
        return redirect("template", pk)
    version = asked_version(request, shown)
    if request.method == "GET":
        return _page(request, version, UseForm(request.user, version, request_key=uuid.uuid4().hex))
    form = UseForm(request.user, version, request)
    if not form.is_valid():
        return _page(request, version, form, posted=form)
    try:
        values = read_values(form.parameters, form.values)
        spec = filled(version, values)
        if request.POST.get("do") == "preview":
            return _page(request, version, form, preview=_previewed(request, form, spec))
        job = submit_from_template(
            actor=request.user,
            tenant=form.cleaned_data["team"],
            cluster=form.cleaned_data["cluster"],
            version=version,
            values=values,
            spec=spec,
            request_key=form.cleaned_data["request_key"][:80] or None,
            even_if_never=request.POST.get("even_if_never") == "on",
        )
    except SpecError as error:
        form.refuse_all(error)
    except NotAllowed as error:
        form.refuse(str(error))
    except Refused as error:
        form.refuse(error.message, {"tenant": "team"}.get(error.field or "", error.field))
        if error.field == "even_if_never":  # the preview has all reasons, and offers to submit the job anyway
            return _page(request, version, form, posted=form, preview=_previewed(request, form, spec))
    else:
        return redirect("job", job.pk)
    return _page(request, version, form, posted=form)


def _previewed(request: UserRequest, form: UseForm, spec: JobSpec) -> Draft:
    """Returns the full form of the job, with when it would start and what it costs."""
    cluster, team = form.cleaned_data["cluster"], form.cleaned_data["team"]
    choices = Choices.of(request.user, str(cluster.pk))
    draft = Draft.new(choices, fields=Fields.from_spec(spec), tenant=team)
    return replace(draft, tenant=team, cluster=cluster).use_form().checked_for(request.user)


def _page(
    request: UserRequest,
    version: TemplateVersion,
    form: UseForm,
    *,
    posted: UseForm | None = None,
    preview: Draft | None = None,
) -> HttpResponse:
    context: dict[str, Any] = {
        "template": version.template,
        "version": version,
        "whose": whose(version.template),
        "cost": cost_of(version.template),
        "form": form,
        "draft": preview,
    }
    return show(request, "gallery/use.html", context, posted=posted)
