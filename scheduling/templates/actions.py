"""Actions on templates: publish them and new versions of them, withdraw them, and submit jobs from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from django.db import transaction

from accounting.access import audit
from accounting.access.permissions import require
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.core.texts import why_no_name
from accounting.core.wording import fixed
from accounting.models import Tenant, User
from scheduling.jobs.code import keep_upload
from scheduling.jobs.code_from_git import fetches_code
from scheduling.jobs.drafts import forget_draft
from scheduling.jobs.submitting import submit_within
from scheduling.models import Cluster, CodeUpload, Job, JobTemplate, TemplateUse, TemplateVersion
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.spec.templates import Parameter, Values, check_template, fill, read_parameters

MOST = 100  # templates that a team offers, and that are offered to all teams
MOST_VERSIONS = 200
LONGEST_DESCRIPTION = 1000


@transaction.atomic(durable=True)
def publish_template(
    *,
    actor: User | None,
    tenant: Tenant | None,
    name: str,
    description: str,
    spec: Mapping[str, Any],
    parameters: Any,
) -> TemplateVersion:
    """Publishes a template for the members of `tenant`, or for all teams if it is None. Returns its first version.

    Raises NotAllowed unless the actor manages the tenant or is an admin, SpecError for an invalid specification or
    parameter, and Refused for an invalid name or description, a name that is taken, or too many templates.
    """
    _require(actor, tenant)
    if tenant is not None and tenant.archived_at:
        raise Refused(f"{tenant.name} is archived.", "tenant")
    name = name.strip()
    if not name or len(name) > 80:
        raise Refused("A template has a name of 1 to 80 characters.", "name")
    if why := why_no_name(name):
        raise Refused(f"The name {why}.", "name")
    content = _Content.checked(description, spec, parameters)
    _lock_gallery(tenant)
    offered = JobTemplate.objects.offered().filter(tenant=tenant)
    if offered.filter(name=name).exists():
        raise Refused(f"There is a template {name} already. Publish a new version of it.", "name")
    if offered.count() >= MOST:
        raise Refused(f"There are {MOST} templates already, and there can be no more. Withdraw one first.")
    template = JobTemplate(tenant=tenant, name=name, created_by=actor, latest=0, gpus=content.plain.gpus)
    template.save(force_insert=True)
    return _add_version(actor, template, content)


@transaction.atomic(durable=True)
def publish_version(
    *, actor: User | None, template: JobTemplate, description: str, spec: Mapping[str, Any], parameters: Any
) -> TemplateVersion:
    """Publishes a new version of a template, and returns it. Earlier versions stay as they were.

    Raises like `publish_template`, and Refused if the template was withdrawn.
    """
    _require(actor, template.tenant)
    content = _Content.checked(description, spec, parameters)
    held = _locked(template)
    if held.withdrawn_at:
        raise Refused("This template was withdrawn. Publish a new one.")
    if held.latest >= MOST_VERSIONS:
        raise Refused(f"A template has at most {MOST_VERSIONS} versions. Publish a new one.")
    return _add_version(actor, held, content)


@transaction.atomic(durable=True)
def withdraw_template(*, actor: User | None, template: JobTemplate) -> None:
    """Withdraws a template, so that nobody can use it any more. It stays readable. Does nothing if it was withdrawn
    already."""
    _require(actor, template.tenant)
    held = _locked(template)
    if held.withdrawn_at is None:
        JobTemplate.objects.filter(pk=held.pk).update(withdrawn_at=now_from_database())
        audit.record(actor=actor, verb="template.withdraw", target=held, tenant=held.tenant)


@fetches_code
@transaction.atomic(durable=True)
def submit_from_template(
    *,
    actor: User,
    tenant: Tenant,
    cluster: Cluster,
    version: TemplateVersion,
    values: Values,
    spec: JobSpec,
    request_key: str | None = None,
    even_if_never: bool = True,
) -> Job:
    """Queues the job that `filled` made of a template's version and values. Returns the job, which records both.

    The arguments and errors are those of `submit_job`. Also raises Refused if the template was withdrawn.
    """
    if JobTemplate.objects.filter(pk=version.template_id).exclude(withdrawn_at=None).exists():
        raise Refused("This template was withdrawn.")
    forget_draft(actor, request_key)
    job = submit_within(
        actor=actor,
        tenant=tenant,
        cluster=cluster,
        spec=spec,
        request_key=request_key,
        even_if_never=even_if_never,
        reader=actor,
    )
    TemplateUse.objects.get_or_create(job=job, defaults={"version": version, "values": dict(values)})
    return job


def parameters_of(version: TemplateVersion) -> tuple[Parameter, ...]:
    """Returns the parameters of a version, which were valid when it was published."""
    return read_parameters(version.parameters)


def filled(version: TemplateVersion, values: Values) -> JobSpec:
    """Returns the specification of a version with values. Raises SpecError, by field, if they do not fit together."""
    return JobSpec.parse(fill(version.spec, values))


def _require(actor: User | None, tenant: Tenant | None) -> None:
    if tenant is None:
        require(actor, "template.publish_for_all")
    else:
        require(actor, "template.publish", tenant)


@dataclass(frozen=True)
class _Content:
    """What a version of a template consists of, and the specification with the values that it suggests."""

    description: str
    spec: Mapping[str, Any]
    parameters: tuple[Parameter, ...]
    plain: JobSpec

    @classmethod
    def checked(cls, description: str, spec: Mapping[str, Any], parameters: Any) -> Self:
        """Raises Refused for an invalid description, and SpecError for an invalid specification or parameter."""
        description = " ".join(description.split())
        if not description or len(description) > LONGEST_DESCRIPTION:
            raise Refused(f"A description has 1 to {fixed(LONGEST_DESCRIPTION)} characters.", "description")
        if why := why_no_name(description):
            raise Refused(f"The description {why}.", "description")
        found = read_parameters(parameters)
        return cls(description, spec, found, check_template(spec, found))


def _lock_gallery(tenant: Tenant | None) -> None:
    """Lets one template be added after another, so that their number stays within its bound."""
    if tenant is not None:
        Tenant.objects.select_for_update(no_key=True).only("pk").get(pk=tenant.pk)
    else:
        list(Tenant.objects.select_for_update(no_key=True).only("pk").order_by("pk")[:1])


def _add_version(actor: User | None, template: JobTemplate, content: _Content) -> TemplateVersion:
    template.latest, template.description = template.latest + 1, content.description
    template.gpus, template.expected_hours = content.plain.gpus, content.plain.expected_hours
    template.save(update_fields=["latest", "description", "gpus", "expected_hours"])
    made = TemplateVersion.objects.create(
        template=template,
        number=template.latest,
        description=content.description,
        spec=dict(content.spec),
        parameters=[one.model_dump(mode="json", exclude_defaults=True) for one in content.parameters],
        upload=_upload(actor, template.tenant, content.plain),
        made_by=actor,
    )
    after = {"version": made.number, "parameters": [one.name for one in content.parameters]}
    audit.record(actor=actor, verb="template.publish", target=template, tenant=template.tenant, after=after)
    return made


def _upload(actor: User | None, tenant: Tenant | None, plain: JobSpec) -> CodeUpload | None:
    """Returns the team's copy of the upload that the specification names; None if it names none."""
    if plain.code is None or not plain.code.upload:
        return None
    if tenant is None or actor is None:
        why = "uploaded code belongs to one team, so a template for all teams cannot have it; use a Git repository"
        raise SpecError({"code": why})
    return keep_upload(actor=actor, tenant=tenant, digest=plain.code.upload)


def _locked(template: JobTemplate) -> JobTemplate:
    return JobTemplate.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=template.pk)
