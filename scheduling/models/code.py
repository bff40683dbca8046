"""Models of code uploads: the files in whose folder a job's command starts, and the jobs that use them."""

from __future__ import annotations

from typing import Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.fields.json import KT
from django.db.models.functions import Now

from accounting.models import Membership, Tenant, User
from scheduling.models.drafts import Draft
from scheduling.models.jobs import Job
from scheduling.models.pipelines import PipelineStep
from scheduling.models.schedules import Schedule
from scheduling.models.services import ServiceRevision
from scheduling.models.sweeps import Sweep
from scheduling.models.templates import TemplateVersion


class CodeUploadQuerySet(models.QuerySet["CodeUpload"]):
    def visible_to(self, user: User) -> Self:
        """Returns the uploads of teams in which the user may submit jobs. A digest says nothing about other teams'
        uploads."""
        return self.filter(tenant__in=Tenant.objects.visible_to(user, role=Membership.Role.MEMBER))

    def unused(self) -> Self:
        """Returns the uploads that no job with files, no schedule, no service, no sweep, no pipeline, no draft
        and no template needs."""
        jobs = JobCode.objects.filter(upload=models.OuterRef("pk"), job__files_removed_at=None)
        tenant, named = models.OuterRef("tenant"), KT("spec__code__upload")
        schedules = Schedule.objects.kept().filter(tenant=tenant)
        revisions = ServiceRevision.objects.filter(service__tenant=tenant, service__removed_at=None)
        digest = models.OuterRef("digest")
        in_schedule = models.Exists(schedules.alias(named=named).filter(named=digest))
        in_service = models.Exists(revisions.alias(named=named).filter(named=digest))
        sweeps = Sweep.objects.unfinished().filter(tenant=tenant)
        in_sweep = models.Exists(sweeps.alias(named=named).filter(named=digest))
        steps = PipelineStep.objects.filter(pipeline__tenant=tenant, pipeline__ended_at=None)
        in_pipeline = models.Exists(steps.alias(named=named).filter(named=digest))
        versions = TemplateVersion.objects.filter(upload=models.OuterRef("pk"), template__withdrawn_at=None)
        in_template = models.Exists(versions)
        # A pipeline's draft names several uploads.
        names = Draft.objects.alias(uploads=KT("content__uploads")).filter(uploads__contains=digest)
        in_draft = models.Exists(Draft.objects.filter(upload=models.OuterRef("pk"))) | models.Exists(names)
        return self.filter(
            ~models.Exists(jobs), ~in_schedule, ~in_service, ~in_sweep, ~in_pipeline, ~in_draft, ~in_template
        )


class CodeUpload(models.Model):
    """The files that a team uploaded for its jobs, as one canonical archive (scheduling/core/code_archives.py).

    A team has equal contents once. Each team has its own copy, so that a digest gives access to nothing.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="code_uploads")
    digest = models.CharField(max_length=71)  # sha256: and 64 digits
    content = models.BinaryField()  # tar.gz; only read to start a job
    size = models.PositiveIntegerField(help_text="Bytes of `content`.")
    unpacked = models.PositiveIntegerField(help_text="Bytes of all files together.")
    files = models.PositiveIntegerField(help_text="Number of files.")
    paths = ArrayField(models.TextField(), help_text="The first paths in order, to show them.")
    uploaded_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    # The last time that somebody uploaded this content; the retention counts from here.
    uploaded_at = models.DateTimeField(db_default=Now())

    objects = CodeUploadQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(name="one_code_upload_a_digest", fields=["tenant", "digest"])]
        indexes = [models.Index(fields=["uploaded_at"], name="code_upload_by_age")]

    def __str__(self) -> str:
        return self.digest


class JobCode(models.Model):
    """Links a job to the upload that its spec names, so that the upload stays as long as the job may need it."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="code")
    upload = models.ForeignKey(CodeUpload, on_delete=models.CASCADE, related_name="uses")

    def __str__(self) -> str:
        return f"{self.upload_id} of job {self.job_id}"
