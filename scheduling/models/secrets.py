"""Models of secrets for jobs: encrypted texts of a user or a team, and the jobs that use them."""

from __future__ import annotations

from typing import Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from accounting.core.name_order import by_name
from accounting.models import Membership, Tenant, User
from scheduling.models.jobs import Job

# The key of a secret that is a single text.
ONLY_KEY = "value"


class SecretQuerySet(models.QuerySet["Secret"]):
    def visible_to(self, user: User) -> Self:
        """Returns the secrets of the user, and those of teams in which the user may submit jobs.

        The user sees names and keys of these secrets, but never their texts.
        """
        return self.filter(
            models.Q(owner=user) | models.Q(tenant__in=Tenant.objects.visible_to(user, role="member"))
        )

    def writable_by(self, user: User) -> Self:
        """Returns the secrets that `user` may change: those of the user, and those of teams that the user manages."""
        managed = Tenant.objects.visible_to(user, role=Membership.Role.MANAGER)
        return self.filter(models.Q(owner=user) | models.Q(tenant__in=managed))

    def for_jobs_of(self, user: User, tenant: Tenant) -> Self:
        """Returns the secrets that a job of `user` in `tenant` may name.

        These are the secrets of the user and, if the user is a member of the tenant, those of the tenant.
        """
        in_team = Tenant.objects.visible_to(user, role=Membership.Role.MEMBER).filter(pk=tenant.pk)
        return self.filter(models.Q(owner=user) | models.Q(tenant__in=in_team))


class Secret(models.Model):
    """An encrypted secret: one text, or several texts with keys. Jobs get the texts, but nobody can read them in
    Fairlot."""

    name = models.CharField(max_length=63)
    owner = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, null=True, blank=True, related_name="secrets"
    )
    keys = ArrayField(models.CharField(max_length=63))
    sealed = models.BinaryField()  # a JSON object (key → text), encrypted with FAIRLOT_SEALING_KEYS
    created_at = models.DateTimeField(db_default=Now())
    changed_at = models.DateTimeField(db_default=Now())

    objects = SecretQuerySet.as_manager()

    class Meta:
        ordering = by_name("name")
        constraints = [
            models.CheckConstraint(
                name="a_secret_is_a_users_or_a_teams",
                condition=models.Q(owner=None, tenant__isnull=False)
                | models.Q(owner__isnull=False, tenant=None),
            ),
            models.UniqueConstraint(name="one_secret_a_name_and_user", fields=["owner", "name"]),
            models.UniqueConstraint(name="one_secret_a_name_and_team", fields=["tenant", "name"]),
        ]

    def __str__(self) -> str:
        return self.name


class JobSecret(models.Model):
    """Links a job to a secret that its spec names.

    The link stays the same even if another secret gets that name later.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="named_secrets")
    name = models.CharField(max_length=63)
    secret = models.ForeignKey(Secret, on_delete=models.CASCADE, related_name="uses")

    class Meta:
        constraints = [models.UniqueConstraint(name="one_secret_a_job_and_name", fields=["job", "name"])]

    def __str__(self) -> str:
        return self.name
