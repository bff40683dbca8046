"""Who: users, the tree of tenants, and the roles that users have in tenants."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from django.contrib.auth.models import AbstractUser, UserManager
from django.db import models
from django.db.models.functions import Now


class PortalUserManager(UserManager["User"]):
    """`manage.py createsuperuser` makes an admin of the portal, the first of a new Fairlot."""

    def create_superuser(
        self, username: str, email: str | None = None, password: str | None = None, **fields: Any
    ) -> User:
        fields.setdefault("portal_role", User.PortalRole.ADMIN)
        return super().create_superuser(username, email, password, **fields)


class User(AbstractUser):
    """A person. Users are deactivated, never deleted, once they have a history."""

    class PortalRole(models.TextChoices):
        USER = "user", "User"
        OPERATOR = "operator", "Operator"
        ADMIN = "admin", "Admin"

    class Theme(models.TextChoices):
        SYSTEM = "system", "As the system"
        LIGHT = "light", "Light"
        DARK = "dark", "Dark"

    portal_role = models.CharField(max_length=10, choices=PortalRole, default=PortalRole.USER)
    theme = models.CharField(max_length=6, choices=Theme, default=Theme.SYSTEM)
    time_zone = models.CharField(max_length=64, default="UTC")

    objects: ClassVar[PortalUserManager] = PortalUserManager()

    @property
    def is_operator(self) -> bool:
        """Whether this user runs the cluster: sees every tenant, drains nodes. Admins may, too."""
        return self.is_active and self.portal_role in {self.PortalRole.OPERATOR, self.PortalRole.ADMIN}

    @property
    def is_admin(self) -> bool:
        """Whether this user may change tenants, tickets, quotas, prices and users."""
        return self.is_active and self.portal_role == self.PortalRole.ADMIN


class TenantQuerySet(models.QuerySet["Tenant"]):
    def active(self) -> Self:
        return self.filter(archived_at=None)

    def within(self, tenant: Tenant) -> Self:
        """The tenant and all below it."""
        return self.filter(path__startswith=tenant.path)

    def subtree_of(self, tenant_ids: models.QuerySet[Any, Any] | list[int]) -> Self:
        """The given tenants and all below them, by the stored paths."""
        return self.filter(
            models.Exists(
                Tenant.objects.filter(
                    pk__in=tenant_ids,
                    path=models.Func(
                        models.OuterRef("path"),
                        1,
                        models.functions.Length("path"),
                        function="substr",
                        output_field=models.CharField(),
                    ),
                )
            )
        )

    def visible_to(self, user: User, *, role: str | None = None) -> Self:
        """Tenants that `user` may look at: all for operators, else own ones and what lies below.

        With `role`, only where the user has at least that role (viewer < member < manager).
        """
        if user.is_anonymous or not user.is_active:
            return self.none()
        if user.is_operator and role is None:
            return self
        roles = Membership.Role.at_least(role or Membership.Role.VIEWER)
        own = Membership.objects.filter(user=user, role__in=roles).values("tenant")
        return self.subtree_of(own)


class Tenant(models.Model):
    """A team. Teams form a tree: organisation → department → team."""

    name = models.CharField(max_length=80, unique=True)
    slug = models.SlugField(max_length=80, unique=True)
    parent = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, blank=True, related_name="children"
    )
    # Ids of the ancestors and itself, each followed by a slash: "1/4/9/". A prefix is a subtree.
    path = models.CharField(max_length=255, unique=True, editable=False)
    tickets = models.PositiveIntegerField(default=100, help_text="Weight among the siblings.")
    created_at = models.DateTimeField(db_default=Now())
    archived_at = models.DateTimeField(null=True, blank=True)

    objects = TenantQuerySet.as_manager()

    class Meta:
        ordering = ["path"]
        constraints = [
            models.CheckConstraint(name="tenant_has_tickets", condition=models.Q(tickets__gte=1)),
            models.CheckConstraint(
                name="tenant_is_not_its_own_parent", condition=~models.Q(parent=models.F("id"))
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def lineage(self) -> list[int]:
        """Ids from the root down to its own."""
        return [int(step) for step in self.path.split("/") if step]


class Membership(models.Model):
    """A user's role and tickets in a tenant. A role holds for the tenants below, too."""

    class Role(models.TextChoices):
        VIEWER = "viewer", "Viewer"
        MEMBER = "member", "Member"
        MANAGER = "manager", "Manager"

        @classmethod
        def at_least(cls, role: str) -> list[str]:
            return cls.values[cls.values.index(role) :]

    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="memberships")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="memberships")
    role = models.CharField(max_length=8, choices=Role, default=Role.MEMBER)
    tickets = models.PositiveIntegerField(default=100, help_text="Weight inside the team.")

    class Meta:
        constraints = [
            models.UniqueConstraint(name="one_membership_a_user_and_tenant", fields=["user", "tenant"]),
            models.CheckConstraint(name="membership_has_tickets", condition=models.Q(tickets__gte=1)),
        ]
