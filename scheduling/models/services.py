"""Models of services: replicas of one program that listens on a port, and the revisions of the replicas' spec."""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models.functions import Coalesce, Now

from accounting.core.name_order import by_name
from accounting.models import Tenant, User
from accounting.models.tenants import tenants_visible_to
from scheduling.models.clusters import Cluster
from scheduling.models.jobs import Job
from scheduling.models.leases import Lease
from scheduling.models.ownership import changeable


class ServiceQuerySet(models.QuerySet["Service"]):
    def visible_to(self, user: User) -> Self:
        """Returns the services of tenants that `user` may see. Includes removed services, which are kept for their
        history."""
        return self.filter(tenant__in=tenants_visible_to(user))

    def changeable_by(self, user: User) -> Self:
        """Returns the services that `user` may change, by the rule of `changeable` (scheduling/models/ownership.py)."""
        return self.filter(changeable(user))

    def with_counts(self) -> Self:
        """Annotates each service with counts of its replicas: `ready`, `holding` (with GPUs) and `living` (not
        ended), and with `crashes`: whether a replica of its current revision ended by itself since the rollout last
        made progress."""

        def count(jobs: models.QuerySet[Job]) -> Coalesce:
            mine = jobs.filter(service=models.OuterRef("pk")).order_by().values("service")
            number = mine.annotate(number=models.Count("pk")).values("number")
            return Coalesce(models.Subquery(number), 0)

        ready = Lease.objects.ready().filter(job=models.OuterRef("pk"))
        crashed = Job.objects.filter(
            service=models.OuterRef("pk"),
            revision=models.OuterRef("current"),
            state__in=Job.BY_ITSELF,
            ended_at__gte=models.OuterRef("progress_at"),
        )
        return self.annotate(
            ready=count(Job.objects.filter(models.Exists(ready))),
            holding=count(Job.objects.filter(state__in=Job.HOLDING)),
            living=count(Job.objects.unfinished()),
            crashes=models.Exists(crashed),
        )

    def kept(self) -> Self:
        """Returns the services that have not been removed."""
        return self.filter(removed_at=None)


class Service(models.Model):
    """A service: a set of replicas of one program, as its owner wants it.

    Each replica is a job. scheduling/services/rollout.py decides which replicas to create and to end.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="services")
    owner = models.ForeignKey(User, on_delete=models.PROTECT, related_name="services")
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="services")
    name = models.CharField(max_length=40)  # also the name of its Service in a Kubernetes cluster
    replicas = models.PositiveIntegerField()
    # During a rollout: how many replicas may exist beyond `replicas`, and how many of `replicas` may be unready.
    max_surge = models.PositiveIntegerField(default=1)
    max_unavailable = models.PositiveIntegerField(default=0)
    # A revision fails after this time without progress. Time in which replicas wait for GPUs does not count.
    progress_deadline_seconds = models.PositiveIntegerField(default=600)
    auto_rollback = models.BooleanField(default=True)
    stopped_at = models.DateTimeField(
        null=True
    )  # set by a user: the service has no replicas until somebody starts it again
    removed_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    current = models.ForeignKey("ServiceRevision", on_delete=models.PROTECT, null=True, related_name="+")
    # The last revision of which all replicas were ready.
    good = models.ForeignKey("ServiceRevision", on_delete=models.PROTECT, null=True, related_name="+")
    # The current rollout: how many replicas have been ready, and since when this number has not grown.
    progress = models.PositiveIntegerField(default=0)
    progress_at = models.DateTimeField(db_default=Now())
    trouble = models.TextField(blank=True, default="")  # why replicas cannot be created, in words for people
    announced = models.BooleanField(default=False)  # its DNS name resolves in its Kubernetes cluster
    why_unknown = models.TextField(blank=True, default="", db_default="")  # why the DNS name does not resolve

    objects = ServiceQuerySet.as_manager()

    class Meta:
        ordering = [*by_name("name"), "id"]
        constraints = [
            models.UniqueConstraint(
                name="one_service_a_name_and_tenant",
                fields=["tenant", "name"],
                condition=models.Q(removed_at=None),
            ),
            models.CheckConstraint(
                name="a_roll_out_can_move",
                condition=models.Q(max_surge__gt=0) | models.Q(max_unavailable__gt=0),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def wanted(self) -> int:
        """Returns the desired number of replicas; 0 if the service is stopped or removed."""
        return 0 if self.stopped_at or self.removed_at else self.replicas


class ServiceRevision(models.Model):
    """One version of the spec of a service's replicas. After its creation, only the fields that record its outcome
    change."""

    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="revisions")
    number = models.PositiveIntegerField()
    spec = models.JSONField(help_text="The canonical JobSpec of the replicas.")
    author = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(db_default=Now())
    proved_at = models.DateTimeField(null=True)  # when all replicas were ready for the first time
    failed_at = models.DateTimeField(null=True)  # when its rollout was last given up
    why_failed = models.TextField(blank=True, default="")

    class Meta:
        ordering = ["-number"]
        constraints = [
            models.UniqueConstraint(name="one_revision_a_number", fields=["service", "number"]),
        ]

    def __str__(self) -> str:
        return f"revision {self.number}"


class ServiceEvent(models.Model):
    """An entry in a service's history: a kind with parameters, or a text from an earlier release.

    scheduling/core/service_texts.py makes a sentence of the kind and the parameters.
    """

    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(db_default=Now())
    kind = models.CharField(max_length=40)
    detail = models.JSONField(default=dict, db_default={})
    text = models.TextField(blank=True, default="", db_default="")

    class Meta:
        ordering = ["-id"]
