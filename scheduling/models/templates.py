"""Models of templates: job specifications with parameters, which managers and admins publish for others."""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models import Model
from django.db.models.functions import Now

from accounting.models import Tenant, User
from accounting.models.tenants import ids_with_role, sees_every_tenant, tenants_visible_to


class JobTemplateQuerySet(models.QuerySet["JobTemplate"]):
    def visible_to(self, user: User) -> Self:
        """Returns the templates of teams that `user` may see, and those for all teams; also withdrawn ones."""
        if user.is_anonymous or not user.is_active:
            return self.none()
        return self.filter(models.Q(tenant=None) | models.Q(tenant__in=tenants_visible_to(user)))

    def offered(self) -> Self:
        """Returns the templates that have not been withdrawn."""
        return self.filter(withdrawn_at=None)


class JobTemplate(models.Model):
    """A job specification with parameters that a team, or everybody, may use. It is withdrawn, and never deleted."""

    # None: for all teams
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, null=True, related_name="templates")
    name = models.CharField(max_length=80)
    description = models.CharField(max_length=1000)  # of the latest version, for the gallery and its search
    latest = models.PositiveIntegerField(default=1)  # number of the latest version
    gpus = models.PositiveIntegerField()  # of the latest version with the values that it suggests
    expected_hours = models.FloatField(null=True)
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    withdrawn_at = models.DateTimeField(null=True)

    objects = JobTemplateQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="one_offered_template_a_name",
                fields=["tenant", "name"],
                condition=models.Q(withdrawn_at=None),
                nulls_distinct=False,
            )
        ]

    def __str__(self) -> str:
        return self.name


class TemplateVersion(models.Model):
    """A version of a template. It never changes, so that a job's version says what was submitted."""

    template = models.ForeignKey(JobTemplate, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    description = models.CharField(max_length=1000)
    spec = models.JSONField(help_text="The data of a JobSpec, in which texts contain {name}.")
    parameters = models.JSONField(help_text="A list of parameters: scheduling/spec/templates.py.")
    # The code that the specification names. It is kept as long as the template is offered.
    upload = models.ForeignKey(
        "scheduling.CodeUpload", on_delete=models.SET_NULL, null=True, related_name="template_versions"
    )
    made_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, related_name="+")
    made_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(name="one_version_a_number", fields=["template", "number"])]

    def __str__(self) -> str:
        return f"{self.template}, version {self.number}"


class TemplateUse(models.Model):
    """Links a job to the version of the template from which it was submitted, with the values of the parameters."""

    job = models.OneToOneField(
        "scheduling.Job", on_delete=models.CASCADE, primary_key=True, related_name="template_use"
    )
    version = models.ForeignKey(TemplateVersion, on_delete=models.PROTECT, related_name="uses")
    values = models.JSONField(default=dict)

    def __str__(self) -> str:
        return f"{self.version} for job {self.job_id}"


def version_in_sight(user: User, job: Model) -> TemplateVersion | None:
    """Returns the version of the template from which a job was submitted, if `user` may see the template; otherwise
    None."""
    used: TemplateUse | None = getattr(job, "template_use", None)
    if used is None:
        return None
    tenant = used.version.template.tenant_id
    seen = tenant is None or sees_every_tenant(user) or tenant in ids_with_role(user)
    return used.version if seen else None
