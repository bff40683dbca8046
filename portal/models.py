"""Models of the portal: API tokens, how users see lists, access to the hosts of sessions and services, and
counters of wrong passwords."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from accounting.models import Membership, Tenant, User
from accounting.models.tenants import ids_with_role
from scheduling.models import Service, Session

LAST_USED_STEP = timedelta(minutes=5)


class ApiTokenQuerySet(models.QuerySet["ApiToken"]):
    def of(self, user: User) -> Self:
        """Returns the tokens that `user` created. `user` may list and revoke these; an admin, all."""
        return self.filter(user=user)

    def standing(self) -> Self:
        """Returns the tokens that are neither revoked nor expired."""
        return self.filter(models.Q(expires_at=None) | models.Q(expires_at__gt=Now()), revoked_at=None)

    def usable(self) -> Self:
        """Returns the tokens that the API accepts now: neither revoked nor expired, and of an active user."""
        return self.standing().filter(user__is_active=True)

    def last_used_long_ago(self) -> Self:
        """Returns the tokens whose `last_used_at` is null or older than LAST_USED_STEP.

        A new use is recorded only for these tokens, so that most API calls write nothing.
        """
        return self.filter(models.Q(last_used_at=None) | models.Q(last_used_at__lt=Now() - LAST_USED_STEP))


class Scope(models.TextChoices):
    """What a token may change. Every token may read what its user may see."""

    WORK = "work", "Submit and change work: jobs, sweeps, services, schedules, sessions, files, secrets"
    TEAM = "team", "Lead teams: members, limits, budgets, requests, idle rules, reports by mail"
    CLUSTER = "cluster", "Run clusters: clusters, nodes, policies, volumes"


class ApiToken(models.Model):
    """A token for the REST API.

    The database stores only a keyed digest of the token's secret. The user sees the secret once, when the token is
    created.
    """

    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="api_tokens")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=12, unique=True)
    digest = models.CharField(max_length=64)
    scopes = ArrayField(models.CharField(max_length=16), default=list)
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)

    objects = ApiTokenQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                name="scopes_of_tokens", condition=models.Q(scopes__contained_by=Scope.values)
            ),
        ]

    def __str__(self) -> str:
        return self.name


class TerminalLoginQuerySet(models.QuerySet["TerminalLogin"]):
    def live(self, lifetime: timedelta) -> Self:
        """Returns the logins that began less than `lifetime` ago."""
        return self.filter(created_at__gt=Now() - lifetime)


class TerminalLogin(models.Model):
    """A program on a terminal that asks for a token, and what its user has answered in the browser.

    `user` is null until somebody has answered. Of the program's secret code, only a keyed digest is stored.
    """

    user_code = models.CharField(max_length=9, unique=True)
    digest = models.CharField(max_length=64, unique=True)
    name = models.CharField(max_length=60)  # what the program calls itself, such as a host name
    network = models.CharField(max_length=50)
    created_at = models.DateTimeField(db_default=Now())
    user = models.ForeignKey(User, on_delete=models.CASCADE, null=True, related_name="+")
    is_allowed = models.BooleanField(default=False)
    scopes = ArrayField(models.CharField(max_length=16), default=list)
    days = models.PositiveIntegerField(null=True)

    objects = TerminalLoginQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="only_people_allow_logins",
                condition=models.Q(is_allowed=False) | models.Q(user__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.user_code

    @property
    def token_name(self) -> str:
        return f"fairlot on {self.name}" if self.name else "fairlot"


class SavedViewQuerySet(models.QuerySet["SavedView"]):
    def visible_to(self, user: User) -> Self:
        """Returns the views of `user`, and those that are shared with a team in which the user has a role."""
        return self.filter(models.Q(owner=user) | models.Q(tenant__in=ids_with_role(user)))

    def changeable_by(self, user: User) -> Self:
        """Returns the views of `user`, and those that are shared with a team that the user manages."""
        managed = ids_with_role(user, Membership.Role.MANAGER)
        return self.filter(models.Q(owner=user) | models.Q(tenant__in=managed))


class SavedView(models.Model):
    """A named state of a list: filters, order, columns and grouping, as the query of the list's address.

    `tenant` is the team whose members see the view, too.
    """

    owner = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, null=True, related_name="+")
    list_name = models.CharField(max_length=20)
    name = models.CharField(max_length=60)
    query = models.CharField(max_length=2000, blank=True)
    changed_at = models.DateTimeField(db_default=Now())

    objects = SavedViewQuerySet.as_manager()

    class Meta:
        ordering = ["name", "id"]
        constraints = [
            models.UniqueConstraint(name="one_view_a_name", fields=["owner", "list_name", "name"]),
        ]

    def __str__(self) -> str:
        return self.name


class ListChoice(models.Model):
    """How a user wants to see one list of the portal, such as the list of jobs.

    `columns` are the keys of the chosen columns; empty for the usual ones. `default_view` opens at the list's address
    without a query.
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    list_name = models.CharField(max_length=20)
    columns = ArrayField(models.CharField(max_length=400), default=list, blank=True)
    default_view = models.ForeignKey(SavedView, on_delete=models.SET_NULL, null=True, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(name="one_choice_a_list", fields=["user", "list_name"])]


class Visit(models.Model):
    """The access of one user to the host of a session or service.

    It begins with a ticket, which is a code in a URL and is valid once. A cookie then replaces the ticket. Only a keyed
    digest of the ticket or cookie is stored. The access ends when the user's login session in the portal ends.
    """

    session = models.ForeignKey(Session, on_delete=models.CASCADE, null=True, related_name="visits")
    service = models.ForeignKey(Service, on_delete=models.CASCADE, null=True, related_name="visits")
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    login = models.CharField(max_length=40)  # key of the login session in the portal
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(db_default=Now())
    entered_at = models.DateTimeField(null=True)  # when the cookie replaced the ticket

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="a_visit_is_to_one",
                condition=models.Q(session__isnull=False, service=None)
                | models.Q(session=None, service__isnull=False),
            ),
        ]


class PasswordTries(models.Model):
    """A counter of wrong passwords since the beginning of its time window.

    The columns that are not empty say what is counted: one user from one network, one user from all networks, one
    network with all user names, or one user in a known browser.
    """

    username = models.CharField(max_length=150)
    network = models.CharField(max_length=50)
    browser = models.CharField(max_length=16)
    failures = models.PositiveIntegerField()
    since = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["username", "network", "browser"], name="portal_passwordtries_one_counter"
            )
        ]

    def __str__(self) -> str:
        return self.network or "all network addresses"
