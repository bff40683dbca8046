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
    """Manager of users, with which `manage.py createsuperuser` creates an admin of the portal.

    This admin is the first user of a new installation.
    """

    def create_superuser(
        self, username: str, email: str | None = None, password: str | None = None, **fields: Any
    ) -> User:
        fields.setdefault("portal_role", User.PortalRole.ADMIN)
        return super().create_superuser(username, email, password, **fields)

    def get(self, *args: Any, **kwargs: Any) -> User:
        """Returns one user. If the only condition is a primary key, uses a prepared query.

        A prepared query is faster, and every HTTP request of a user makes this query.
        """
        # The class of a related manager derives from this class; a related manager only searches its related users.
        is_of_all = type(self) is PortalUserManager
        if is_of_all and not args and kwargs.keys() == {"pk"} and isinstance(kwargs["pk"], int):
            found: User | None = _user_by_key.first(kwargs["pk"])
            if found is not None:
                return found
        return super().get(*args, **kwargs)


class User(AbstractUser):
    """Represents a user account. A user with a history is deactivated and never deleted."""

    class PortalRole(models.TextChoices):
        USER = "user", "User"
        OPERATOR = "operator", "Operator"
        ADMIN = "admin", "Admin"

    class JobOrder(models.TextChoices):
        STRICT = "strict", "In order"  # by priority, then by age
        EVEN = "even", "Evenly"  # jobs of one priority share evenly

    class Theme(models.TextChoices):
        SYSTEM = "system", "Same as your device"
        LIGHT = "light", "Light"
        DARK = "dark", "Dark"

    portal_role = models.CharField(max_length=10, choices=PortalRole, default=PortalRole.USER)
    theme = models.CharField(max_length=6, choices=Theme, default=Theme.SYSTEM)
    time_zone = models.CharField(max_length=64, default="UTC")
    # How a user's share of a team is divided among the user's jobs.
    job_order = models.CharField(
        max_length=6, choices=JobOrder, default=JobOrder.STRICT, db_default=JobOrder.STRICT
    )
    # An admin has set the password, and knows it: pages ask for another one first. API tokens are not affected.
    must_change_password = models.BooleanField(default=False, db_default=False)
    # Unread notifications, counted whenever they change, so that the bell on each page needs no query.
    unread = models.PositiveIntegerField(default=0, db_default=0)

    objects: ClassVar[PortalUserManager] = PortalUserManager()

    keeps_roles = False
    # After `keep_roles`: the rank of the user's highest role, by id of each visible tenant, in the order of paths.
    _kept_roles: dict[int, int] | None = None

    def keep_roles(self) -> None:
        """Makes this object cache the user's roles after the first query. Use it in requests that only read.

        Later changes of memberships are not visible in this object.
        """
        self.keeps_roles = True

    def roles(self) -> dict[int, int]:
        """Returns the rank of the user's highest role in each tenant, by tenant id. A higher rank means more
        permissions.

        Contains the tenants of the user's memberships and all tenants below them.
        """
        if not self.keeps_roles:
            return _roles_of(self)
        if self._kept_roles is None:
            self._kept_roles = _roles_of(self)
        return self._kept_roles

    @property
    def is_operator(self) -> bool:
        """Returns whether the user is an active operator or admin, who may see every tenant and drain nodes."""
        return self.is_active and self.portal_role in {self.PortalRole.OPERATOR, self.PortalRole.ADMIN}

    @property
    def is_admin(self) -> bool:
        """Returns whether the user is an active admin, who may change tenants, tickets, limits, prices and users."""
        return self.is_active and self.portal_role == self.PortalRole.ADMIN


_user_by_key = Prepared(lambda pk: User.objects.filter(pk=pk))


class TenantQuerySet(models.QuerySet["Tenant"]):
    def active(self) -> Self:
        return self.filter(archived_at=None)

    def within(self, tenant: Tenant) -> Self:
        """Returns `tenant` and all tenants below it in the tree."""
        return self.filter(path__startswith=tenant.path)

    def subtree_of(self, tenant_ids: models.QuerySet[Any, Any] | list[int]) -> Self:
        """Returns the tenants with these ids and all tenants below them, by comparing the stored paths of tenants."""
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
        """Returns the tenants that `user` may see.

        Operators and admins see all tenants. Other users see the tenants of their memberships and all tenants below
        them. With `role`, returns only the tenants in which a membership gives the user at least that role (viewer <
        member < manager).
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
    """Represents a team. Teams form a tree: organisation → department → team."""

    name = models.CharField(max_length=80, unique=True)
    slug = models.SlugField(max_length=80, unique=True)
    parent = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, blank=True, related_name="children"
    )
    # The ids of the ancestors and of the tenant itself, each followed by a slash: "1/4/9/". The paths of a subtree
    # begin with the path of its root.
    path = models.CharField(max_length=255, unique=True, editable=False)
    tickets = models.PositiveIntegerField(
        default=100, help_text="Weight of the team among the teams below the same parent."
    )
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
        """Returns the ids of the tenant's ancestors, from the root down, followed by the tenant's own id."""
        return [int(step) for step in self.path.split("/") if step]


class MembershipQuerySet(models.QuerySet["Membership"]):
    def with_part(self) -> Self:
        """Returns the memberships whose users divide the team's share by their tickets: those of active users who may
        submit jobs. Viewers and deactivated users run nothing, so their tickets count for nothing."""
        return self.filter(role__in=Membership.Role.at_least(Membership.Role.MEMBER), user__is_active=True)


class Membership(models.Model):
    """Represents a user's role and tickets in a tenant. The role also applies in all tenants below."""

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
    tickets = models.PositiveIntegerField(default=100, help_text="Weight of the member inside the team.")

    objects = MembershipQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="one_membership_a_user_and_tenant", fields=["user", "tenant"]),
            models.CheckConstraint(name="membership_has_tickets", condition=models.Q(tickets__gte=1)),
        ]

    @property
    def has_part(self) -> bool:
        """Returns whether the user's tickets give a part of the team's share, as in `with_part`."""
        return self.role != self.Role.VIEWER and self.user.is_active


def sees_every_tenant(user: User) -> bool:
    """Returns whether `user` may see every tenant. If so, a query needs no condition on tenants."""
    return not user.is_anonymous and user.is_operator


def tenants_visible_to(user: User, role: str | None = None) -> TenantQuerySet | list[int]:
    """Returns the tenants that `user` may see, as a value for a `tenant__in` filter.

    With `role`, returns only the tenants in which a membership gives the user at least that role.

    The value is a queryset, or a list of ids if the user object has cached its roles (`User.keep_roles`).
    """
    if user.is_anonymous or not user.keeps_roles or (role is None and sees_every_tenant(user)):
        return Tenant.objects.visible_to(user, role=role)
    return ids_with_role(user, role)


def ids_with_role(user: User, role: str | None = None) -> list[int]:
    """Returns the ids of the tenants in which memberships give `user` at least `role` (None: any role), sorted by path.

    Operators may see all tenants without a membership, so check `sees_every_tenant` first.
    """
    if user.is_anonymous or not user.is_active:
        return []
    least = _rank(role or Membership.Role.VIEWER)
    return [tenant for tenant, rank in user.roles().items() if rank >= least]


def visible_tenants(user: User) -> list[Tenant]:
    """Returns the tenants that `user` may see, with a prepared query.

    The result is the same as that of `Tenant.objects.visible_to`.
    """
    return _every_tenant() if sees_every_tenant(user) else _tenants_by_key(ids_with_role(user))


_every_tenant = Prepared(Tenant.objects.all)
_tenants_by_key = Prepared(lambda keys: Tenant.objects.filter(pk__in=keys))


def has_role(user: User, role: str) -> bool:
    """Returns whether a membership gives `user` at least `role` in some tenant."""
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
    """Returns the (tenant id, user id) pairs whose user may submit jobs in the tenant.

    Such a user is active, and is a member or manager of the tenant or of a tenant above it. Checks all pairs in one
    query.
    """
    if not pairs:
        return set()
    tenants, users = zip(*pairs, strict=True)
    roles = Membership.Role.at_least(Membership.Role.MEMBER)
    return {(tenant, user) for tenant, user in _members.ask([list(tenants), list(users), roles])}


def _roles_of(user: User) -> dict[int, int]:
    """Returns the rank of the user's highest role in each tenant, by tenant id, sorted by the tenants' paths."""
    found: dict[int, int] = {}
    for tenant, role in _roles.ask([user.pk]):
        found[tenant] = max(found.get(tenant, 0), _rank(role))
    return found


def _rank(role: str) -> int:
    return Membership.Role.values.index(role)
