"""Endpoints for templates: list, publish, read, preview, withdraw, and submit jobs from them."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.http import Http404
from django.shortcuts import get_object_or_404
from ninja import Query, Router
from ninja.responses import Status

from accounting.access.permissions import changeable_where
from accounting.core.errors import NotAllowed
from portal.api.fields import AskedKey, IdempotencyKey, PageSize
from portal.api.jobs import schemas as job_schemas
from portal.api.jobs.endpoints import place_of, show_job
from portal.api.seen import seen_or_404
from portal.api.templates import schemas
from portal.user_request import ApiRequest
from scheduling.models import JobTemplate, TemplateVersion
from scheduling.spec import yaml_core
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.spec.templates import Value, read_template, read_values
from scheduling.templates.actions import (
    filled,
    parameters_of,
    publish_template,
    publish_version,
    submit_from_template,
    withdraw_template,
)

router = Router(tags=["Templates"])


def visible_template(request: ApiRequest, template_id: int) -> JobTemplate:
    """Returns the template with this id. Raises NotSeen if there is none or the caller may not see it."""
    return seen_or_404(
        JobTemplate.objects.visible_to(request.auth).select_related("tenant"), "template", template_id
    )


@router.get("/templates", response=schemas.TemplatePage, url_name="templates")
def list_templates(
    request: ApiRequest,
    filters: Query[schemas.TemplateFilters],
    before: AskedKey | None = None,
    limit: PageSize = 50,
) -> dict[str, Any]:
    """Returns one page of the templates that the caller may use, newest first."""
    seen = JobTemplate.objects.visible_to(request.auth).offered().select_related("tenant")
    if filters.team:
        seen = seen.filter(tenant__slug=filters.team)
    if filters.q:
        seen = seen.filter(Q(name__icontains=filters.q) | Q(description__icontains=filters.q))
    if before:
        seen = seen.filter(pk__lt=before)
    found = list(seen.order_by("-pk")[: limit + 1])
    return {
        "items": [show(one) for one in found[:limit]],
        "next": found[limit - 1].pk if len(found) > limit else None,
    }


@router.post("/templates", response={201: schemas.TemplateVersion}, url_name="templates")
def publish(request: ApiRequest, new: schemas.NewTemplate) -> Any:
    """Publishes a template for a team, or for all teams. For managers of the team and admins."""
    tenant = None
    if not new.for_all:
        tenant = changeable_where(request.auth, "template.publish").active().filter(slug=new.team).first()
        if tenant is None:
            raise NotAllowed(f'You may not publish templates for a team "{new.team}".')
    elif new.team:
        raise SpecError({"team": "must be empty for a template for all teams"})
    made = publish_template(actor=request.auth, tenant=tenant, name=new.name, **_content(new))
    return Status(201, show_version(made))


@router.get("/templates/{int:template_id}", response=schemas.TemplateVersion, url_name="template")
def get_template(request: ApiRequest, template_id: int, version: AskedKey | None = None) -> dict[str, Any]:
    """Returns a version of a template, by default the latest. Withdrawn templates stay readable."""
    return show_version(_version(visible_template(request, template_id), version))


@router.post(
    "/templates/{int:template_id}/versions",
    response={201: schemas.TemplateVersion},
    url_name="template_versions",
)
def publish_next(request: ApiRequest, template_id: int, new: schemas.TemplateContent) -> Any:
    """Publishes a new version of a template. Earlier versions stay as they were."""
    template = visible_template(request, template_id)
    return Status(201, show_version(publish_version(actor=request.auth, template=template, **_content(new))))


@router.post("/templates/{int:template_id}/withdraw", response={204: None}, url_name="template_withdraw")
def withdraw(request: ApiRequest, template_id: int) -> Any:
    """Withdraws a template, so that nobody can use it any more. Withdrawing it again has no effect."""
    withdraw_template(actor=request.auth, template=visible_template(request, template_id))
    return Status(204, None)


@router.post(
    "/templates/{int:template_id}/preview", response=schemas.FilledTemplate, url_name="template_preview"
)
def preview(request: ApiRequest, template_id: int, given: schemas.TemplateValues) -> dict[str, Any]:
    """Returns the job specification that a template gives with these values. Submits nothing."""
    _, _, spec = _filled(request, template_id, given)
    return {"spec": spec.to_dict(), "yaml": spec.to_yaml()}


@router.post(
    "/templates/{int:template_id}/submit", response={201: job_schemas.JobInFull}, url_name="template_submit"
)
def submit(
    request: ApiRequest,
    template_id: int,
    given: schemas.TemplateJob,
    idempotency_key: IdempotencyKey = "",
) -> Any:
    """Submits a job from a template. A call that repeats an Idempotency-Key returns the job of the first call."""
    version, values, spec = _filled(request, template_id, given)
    tenant, cluster = place_of(request.auth, given)
    job = submit_from_template(
        actor=request.auth,
        tenant=tenant,
        cluster=cluster,
        version=version,
        values=values,
        spec=spec,
        request_key=idempotency_key or None,
        even_if_never=given.even_if_never,
    )
    return Status(201, show_job(job, request.auth))


def show(template: JobTemplate) -> dict[str, Any]:
    same = ("id", "name", "description", "gpus", "expected_hours", "created_at", "withdrawn_at")
    team = template.tenant.slug if template.tenant else None
    return {name: getattr(template, name) for name in same} | {"team": team, "version": template.latest}


def show_version(version: TemplateVersion) -> dict[str, Any]:
    template = version.template
    same = ("description", "spec", "parameters", "made_at")
    return {name: getattr(version, name) for name in same} | {
        "id": template.pk,
        "name": template.name,
        "team": template.tenant.slug if template.tenant else None,
        "version": version.number,
        "latest": template.latest,
        "yaml": yaml_core.write(version.spec),
        "made_by": version.made_by.get_username() if version.made_by else None,
        "withdrawn_at": template.withdrawn_at,
    }


def _content(new: schemas.TemplateContent) -> dict[str, Any]:
    spec = read_template(new.spec) if isinstance(new.spec, str) else new.spec
    return {"description": new.description, "spec": spec, "parameters": new.parameters}


def _version(template: JobTemplate, number: int | None) -> TemplateVersion:
    if number is not None and number >= 2**31:
        raise Http404
    versions = TemplateVersion.objects.select_related("template__tenant", "made_by")
    return get_object_or_404(
        versions, template=template, number=template.latest if number is None else number
    )


def _filled(
    request: ApiRequest, template_id: int, given: schemas.TemplateValues
) -> tuple[TemplateVersion, dict[str, Value], JobSpec]:
    version = _version(visible_template(request, template_id), given.version)
    try:
        values = read_values(parameters_of(version), given.values)
    except SpecError as error:
        raise SpecError({f"values.{name}": text for name, text in error.problems.items()}) from None
    try:
        return version, values, filled(version, values)
    except SpecError as error:
        raise SpecError({f"spec.{name}": text for name, text in error.problems.items()}) from None
