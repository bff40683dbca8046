"""Users, the tree of tenants, and the roles that users have in tenants."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Self

from django.contrib.auth.models import AbstractUser, UserManager
from django.db import models
from django.db.models.functions import Now

from accounting.core.prepared import Prepared
from accounting.core.statements import Statement


class PortalUserManager(UserManager["User"]):
    """`manage.py createsuperuser` creates an admin of the portal, the first of a new Fairlot."""

    def create_superuser(
        self, username: str, email: str | None = None, password: str | None = None, **fields: Any
    ) -> User:
        fields.setdefault("portal_role", User.PortalRole.ADMIN)
        return super().create_superuser(username, email, password, **fields)

    def get(self, *args: Any, **kwargs: Any) -> User:
        """Finds users by primary key without building a query each time, as every request does."""
        # A related manager, whose class derives from this one, searches fewer users.
        is_of_all = type(self) is PortalUserManager
        if is_of_all and not args and kwargs.keys() == {"pk"} and isinstance(kwargs["pk"], int):
            found: User | None = _user_by_key.first(kwargs["pk"])
            if found is not None:
                return found
        return super().get(*args, **kwargs)


class User(AbstractUser):
    """A person. Users with a history are deactivated, never deleted."""

    class PortalRole(models.TextChoices):
        USER = "user", "User"
        OPERATOR = "operator", "Operator"
        ADMIN = "admin", "Admin"

    class JobOrder(models.TextChoices):
        STRICT = "strict", "In order"  # by priority, then by age
        EVEN = "even", "Evenly"  # jobs of one priority share evenly

    class Theme(models.TextChoices):
        SYSTEM = "system", "As the system"
        LIGHT = "light", "Light"
        DARK = "dark", "Dark"

    portal_role = models.CharField(max_length=10, choices=PortalRole, default=PortalRole.USER)
    theme = models.CharField(max_length=6, choices=Theme, default=Theme.SYSTEM)
    time_zone = models.CharField(max_length=64, default="UTC")
    # How the user's jobs in a team divide the user's share.
    job_order = models.CharField(
        max_length=6, choices=JobOrder, default=JobOrder.STRICT, db_default=JobOrder.STRICT
    )

    objects: ClassVar[PortalUserManager] = PortalUserManager()

    keeps_roles = False
    # After `keep_roles`: by id of each tenant that the user sees, in the order of paths, the rank of the highest role.
    _kept_roles: dict[int, int] | None = None

    def keep_roles(self) -> None:
        """Has this object read the user's roles once, when they are first asked for: for requests that only read.

        A later change of memberships shows only in another object of the same user.
        """
        self.keeps_roles = True

    def roles(self) -> dict[int, int]:
        """Returns the rank of the user's highest role, by id of each tenant that memberships let the user see."""
        if not self.keeps_roles:
            return _roles_of(self)
        if self._kept_roles is None:
            self._kept_roles = _roles_of(self)
        return self._kept_roles

    @property
    def is_operator(self) -> bool:
        """Returns whether this user runs the cluster: sees every tenant, drains nodes. Admins may, too."""
        return self.is_active and self.portal_role in {self.PortalRole.OPERATOR, self.PortalRole.ADMIN}

    @property
    def is_admin(self) -> bool:
        """Returns whether this user may change tenants, tickets, limits, prices and users."""
        return self.is_active and self.portal_role == self.PortalRole.ADMIN


_user_by_key = Prepared(lambda pk: User.objects.filter(pk=pk))


class TenantQuerySet(models.QuerySet["Tenant"]):
    def active(self) -> Self:
        return self.filter(archived_at=None)

    def within(self, tenant: Tenant) -> Self:
        """Returns the tenant and all below it."""
        return self.filter(path__startswith=tenant.path)

    def subtree_of(self, tenant_ids: models.QuerySet[Any, Any] | list[int]) -> Self:
        """Returns the given tenants and all below them, by the stored paths."""
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
        """Returns the tenants that `user` may see: all for operators, else own ones and those below.

        With `role`, only those in which the user has at least that role (viewer < member < manager).
        """
        if user.is_anonymous or not user.is_active:
            return self.none()
        if user.is_operator and role is None:
            return self
        if user.keeps_roles:
            return self.filter(pk__in=ids_with_role(user, role))
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
        """Returns the ids from the root down to its own."""
        return [int(step) for step in self.path.split("/") if step]


class Membership(models.Model):
    """A user's role and tickets in a tenant. The role also applies in the tenants below."""

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


def sees_every_tenant(user: User) -> bool:
    """Returns whether `visible_to` includes every tenant for `user`, so that a query needs no condition."""
    return not user.is_anonymous and user.is_operator


def tenants_visible_to(user: User, role: str | None = None) -> TenantQuerySet | list[int]:
    """Returns what `tenant__in` needs for rows of the tenants in `visible_to`.

    Returns ids if they are known, so that the database need not look for them in every statement.
    """
    if user.is_anonymous or not user.keeps_roles or (role is None and sees_every_tenant(user)):
        return Tenant.objects.visible_to(user, role=role)
    return ids_with_role(user, role)


def ids_with_role(user: User, role: str | None = None) -> list[int]:
    """Returns the ids of tenants in which `user` has at least that role (None: any), by membership, in order of path.

    Operators see all tenants without a role: check `sees_every_tenant` first.
    """
    if user.is_anonymous or not user.is_active:
        return []
    least = _rank(role or Membership.Role.VIEWER)
    return [tenant for tenant, rank in user.roles().items() if rank >= least]


def visible_tenants(user: User) -> list[Tenant]:
    """Returns the result of `Tenant.objects.visible_to(user)` without building a query each time."""
    return _every_tenant() if sees_every_tenant(user) else _tenants_by_key(ids_with_role(user))


_every_tenant = Prepared(Tenant.objects.all)
_tenants_by_key = Prepared(lambda keys: Tenant.objects.filter(pk__in=keys))


def has_role(user: User, role: str) -> bool:
    """Returns whether there is a tenant in which `user` has at least that role."""
    return bool(ids_with_role(user, role))


_roles = Statement(
    "SELECT below.id, own.role FROM accounting_membership own"
    " JOIN accounting_tenant top ON top.id = own.tenant_id"
    " JOIN accounting_tenant below ON starts_with(below.path, top.path)"
    " WHERE own.user_id = $1 ORDER BY below.path",
    "bigint",
)


_members = Statement(
    "SELECT DISTINCT wanted.tenant, wanted.person FROM unnest($1, $2) AS wanted (tenant, person)"
    " JOIN accounting_user person ON person.id = wanted.person AND person.is_active"
    " JOIN accounting_tenant below ON below.id = wanted.tenant"
    " JOIN accounting_membership own ON own.user_id = wanted.person AND own.role = ANY($3)"
    " JOIN accounting_tenant top ON top.id = own.tenant_id AND starts_with(below.path, top.path)",
    "bigint[]",
    "bigint[]",
    "text[]",
)


def members_among(pairs: Collection[tuple[int, int]]) -> set[tuple[int, int]]:
    """Returns the (tenant id, user id) pairs in which the active user may submit, as a member there or above.

    Equals Tenant.visible_to with that role, for many pairs at once.
    """
    if not pairs:
        return set()
    tenants, users = zip(*pairs, strict=True)
    roles = Membership.Role.at_least(Membership.Role.MEMBER)
    return {(tenant, user) for tenant, user in _members.ask([list(tenants), list(users), roles])}


def _roles_of(user: User) -> dict[int, int]:
    """Returns, by tenant, the rank of the user's highest role there."""
    found: dict[int, int] = {}
    for tenant, role in _roles.ask([user.pk]):
        found[tenant] = max(found.get(tenant, 0), _rank(role))
    return found


def _rank(role: str) -> int:
    return Membership.Role.values.index(role)
