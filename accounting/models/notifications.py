"""Notifications: events of interest, the rules that say who wants to know of them and how, and what each reader got."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.crypto import salted_hmac

from accounting.models.budgets import new_nonce
from accounting.models.tenants import Membership, Tenant, User, ids_with_role


class EventKind(models.TextChoices):
    JOB_FAILED = "job.failed", "Job failed"
    JOB_ENDED = "job.ended", "Job ended without a failure"
    JOB_WAITING = "job.waiting", "Job has waited for long"
    JOB_WARNED = (
        "job.warned",
        "GPUs are idle, work is repeated, a session or job stops soon, or a job may be suspended",
    )
    JOB_STARTED = "job.started", "Job started for the first time"
    JOB_SUSPENDED = "job.suspended", "Job was suspended, or goes on"
    SWEEP_ENDED = "sweep.ended", "Sweep ended"
    SERVICE_FAILED = "service.failed", "Revision of a service failed, or its replicas end again and again"
    BUDGET = "budget.warning", "Budget is nearly or completely spent"
    REQUEST_OPEN = "request.open", "Request waits for an answer"
    REQUEST_ANSWERED = "request.answered", "Request was answered, or its grant ends"
    CHANNEL_FAILED = "channel.failed", "Channel no longer works"
    TOKEN_REVOKED = "token.revoked", "API token was revoked by an admin"
    TEAM_MEMBER = "team.member", "Somebody added you to a team, changed your role or removed you"


# Stored only where a rule asks for them: most users want to know how their jobs end, not each step on the way.
OF_RUNS = (EventKind.JOB_STARTED, EventKind.JOB_SUSPENDED)
OF_JOBS = (
    EventKind.JOB_FAILED,
    EventKind.JOB_ENDED,
    EventKind.JOB_WAITING,
    EventKind.JOB_WARNED,
    *OF_RUNS,
)
# How long a job waits before an event says so, in minutes. A rule chooses one of these times.
WAITS = (15, 60, 240, 1440)
USUAL_WAIT = 60


class Audience(models.TextChoices):
    """Says which users may see an event. Routing and lists check it again each time, because roles change."""

    TEAM = "team", "members of the team, and operators"
    MANAGERS = "managers", "managers of the team, and operators"
    PERSON = "person", "the users whom it concerns"


class NotificationEvent(models.Model):
    """Represents something that happened and that users may want to know.

    It is stored in the transaction of the change, and routed to readers after the commit. `key` makes it unique: a
    change that is repeated stores no second event.
    """

    key = models.CharField(max_length=150, unique=True)
    kind = models.CharField(max_length=20, choices=EventKind)
    audience = models.CharField(max_length=10, choices=Audience, default=Audience.TEAM)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, null=True, related_name="+", db_index=False)
    # The users whom the event concerns, such as the owner of a job. Rules about "what concerns me" look here.
    concerns = ArrayField(models.BigIntegerField(), default=list)
    actor_name = models.CharField(max_length=150, blank=True, default="")  # who caused it, and is not told
    job_id = models.BigIntegerField(null=True)  # a job of scheduling; jobs are never deleted
    # A member of a sweep: only rules about this very job match, because the sweep has an event when it ends.
    is_part = models.BooleanField(default=False)
    waited_minutes = models.PositiveIntegerField(null=True)  # only for JOB_WAITING: one of WAITS
    title = models.CharField(max_length=200)
    text = models.TextField(blank=True, default="")
    # Pairs [name, value]. A value is a text, {"at": moment in ISO format}, or None for "no end".
    facts = models.JSONField(default=list)
    path = models.CharField(max_length=200)  # of the page about it
    at = models.DateTimeField(db_default=Now())
    routed_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["id"], condition=Q(routed_at=None), name="event_to_route"),
            models.Index(fields=["at"], name="event_by_age"),
        ]

    def __str__(self) -> str:
        return self.title

    @classmethod
    def about(cls, kind: str, key: str, **fields: Any) -> Self:
        """Returns an unsaved event. Shortens the title, and puts it on one line, because names may have line breaks."""
        title = " ".join(str(fields.pop("title")).split())
        return cls(kind=kind, key=key, title=title if len(title) <= 200 else f"{title[:199]}…", **fields)

    def may_be_seen_by(self, user: User) -> bool:
        """Returns whether the user may see the event now."""
        if not user.is_active:
            return False
        match self.audience:
            case Audience.PERSON:
                return user.pk in self.concerns
            case Audience.MANAGERS:
                return user.is_operator or self.tenant_id in ids_with_role(user, Membership.Role.MANAGER)
        return user.is_operator or self.tenant_id in ids_with_role(user)


class NotificationQuerySet(models.QuerySet["Notification"]):
    def visible_to(self, user: User) -> Self:
        """Returns the user's notifications of events that the user may still see."""
        own = self.filter(user=user)
        if not user.is_active:
            return own.none()
        if user.is_operator:
            return own
        return own.filter(
            Q(event__audience=Audience.PERSON)
            | Q(event__audience=Audience.TEAM, event__tenant__in=ids_with_role(user))
            | Q(
                event__audience=Audience.MANAGERS,
                event__tenant__in=ids_with_role(user, Membership.Role.MANAGER),
            )
        )

    def unread(self) -> Self:
        return self.filter(read_at=None)


class Notification(models.Model):
    """Represents an event in the list behind a user's bell."""

    event = models.ForeignKey(NotificationEvent, on_delete=models.CASCADE, related_name="notifications")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="notifications", db_index=False)
    at = models.DateTimeField(db_default=Now())
    read_at = models.DateTimeField(null=True)

    objects = NotificationQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["user", "-id"], name="notification_of_user"),
            models.Index(fields=["user", "-id"], condition=Q(read_at=None), name="notification_unread"),
        ]
        constraints = [
            models.UniqueConstraint(name="one_notification_a_user_and_event", fields=["event", "user"])
        ]

    def __str__(self) -> str:
        return f"{self.event} for {self.user}"


class ChannelQuerySet(models.QuerySet["NotificationChannel"]):
    def changeable_by(self, user: User) -> Self:
        """Returns the user's own channels and those of the teams that the user manages; for an admin, all of teams."""
        if not user.is_active:
            return self.none()
        of_teams = Q(tenant__isnull=False)
        if not user.is_admin:
            of_teams = Q(tenant__in=ids_with_role(user, Membership.Role.MANAGER))
        return self.filter(Q(user=user) | of_teams)


class NotificationChannel(models.Model):
    """Represents an address outside Fairlot to which notifications are posted. It belongs to a user or to a team.

    Its URL is a secret, because everyone who knows the URL can post. It is stored encrypted, and only its host is
    shown.
    """

    class Kind(models.TextChoices):
        SLACK = "slack", "Slack"
        TEAMS = "teams", "Microsoft Teams"
        WEBHOOK = "webhook", "Signed webhook"

    user = models.ForeignKey(User, on_delete=models.CASCADE, null=True, related_name="channels")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, null=True, related_name="channels")
    kind = models.CharField(max_length=10, choices=Kind)
    name = models.CharField(max_length=60)
    sealed = models.BinaryField(help_text="The URL, encrypted.")
    host = models.CharField(max_length=260)
    # The signing key depends on the nonce: a new nonce gives a new key.
    nonce = models.CharField(max_length=16, default=new_nonce)
    created_at = models.DateTimeField(db_default=Now())
    # How the latest calls went. `gave_up_at`: a message was given up, so nothing is posted until a test succeeds.
    sent_at = models.DateTimeField(null=True)
    failing_since = models.DateTimeField(null=True)
    gave_up_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=300, blank=True, default="")

    objects = ChannelQuerySet.as_manager()

    class Meta:
        verbose_name = "notification channel"
        ordering = ["tenant__name", "name"]
        constraints = [
            models.UniqueConstraint(
                name="one_channel_a_name", fields=["user", "tenant", "name"], nulls_distinct=False
            ),
            models.CheckConstraint(
                name="a_channel_is_of_a_user_or_a_team",
                condition=Q(user=None, tenant__isnull=False) | Q(user__isnull=False, tenant=None),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def state(self) -> str:
        """Returns "new", "works", "fails", or "paused" if nothing is posted until a test succeeds."""
        if self.gave_up_at is not None:
            return "paused"
        if self.failing_since is not None:
            return "fails"
        return "works" if self.sent_at is not None else "new"

    def signing_key(self) -> str:
        """Returns the key that signs the channel's calls, derived from Fairlot's SECRET_KEY and the nonce."""
        return salted_hmac("fairlot.channel", f"{self.pk}:{self.nonce}", algorithm="sha256").hexdigest()


class RuleQuerySet(models.QuerySet["NotificationRule"]):
    def changeable_by(self, user: User) -> Self:
        """Returns the user's own rules, and the rules that post to channels that the user may change."""
        return self.filter(Q(user=user) | Q(channel__in=NotificationChannel.objects.changeable_by(user)))


class NotificationRule(models.Model):
    """Represents what a user or team wants to know, where, and when.

    A rule of a team (`user` is None) posts to a channel of the team. A user without a stored rule for the bell or mail
    about "what concerns me" has the usual one (accounting/notifications/wishes.py).
    """

    class About(models.TextChoices):
        ME = "me", "What concerns me"
        TEAM = "team", "A team, with the teams below it"
        JOB = "job", "One job"

    class Way(models.TextChoices):
        BELL = "bell", "the bell in the top bar"
        MAIL = "mail", "mail"
        CHANNEL = "channel", "a channel"

    class Rhythm(models.TextChoices):
        AT_ONCE = "at_once", "at once"
        HOURLY = "hourly", "every hour, together"
        DAILY = "daily", "every day, together"

    user = models.ForeignKey(User, on_delete=models.CASCADE, null=True, related_name="notification_rules")
    about = models.CharField(max_length=4, choices=About, default=About.ME)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, null=True, related_name="+")
    job_id = models.BigIntegerField(null=True, db_index=True)
    kinds = ArrayField(models.CharField(max_length=20, choices=EventKind), default=list)
    wait_minutes = models.PositiveIntegerField(default=USUAL_WAIT)
    way = models.CharField(max_length=7, choices=Way, default=Way.BELL)
    channel = models.ForeignKey(
        NotificationChannel, on_delete=models.CASCADE, null=True, related_name="rules"
    )
    rhythm = models.CharField(max_length=7, choices=Rhythm, default=Rhythm.AT_ONCE)
    created_at = models.DateTimeField(db_default=Now())

    objects = RuleQuerySet.as_manager()

    class Meta:
        verbose_name = "notification rule"
        ordering = ["about", "tenant__name", "job_id", "way", "channel__name", "pk"]
        constraints = [
            models.UniqueConstraint(
                name="one_rule_a_subject_and_way",
                fields=["user", "about", "tenant", "job_id", "way", "channel"],
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                name="a_rule_is_about_its_subject",
                condition=Q(about="me", tenant=None, job_id=None)
                | Q(about="team", tenant__isnull=False, job_id=None)
                | Q(about="job", tenant=None, job_id__isnull=False),
            ),
            models.CheckConstraint(
                name="a_rule_has_a_way",
                condition=Q(way="channel", channel__isnull=False)
                | Q(way__in=["bell", "mail"], channel=None, user__isnull=False),
            ),
            models.CheckConstraint(
                name="a_rule_of_a_team_is_about_it", condition=Q(user__isnull=False) | Q(about="team")
            ),
            models.CheckConstraint(name="waits_of_rules", condition=Q(wait_minutes__in=WAITS)),
        ]

    def __str__(self) -> str:
        return f"{self.get_about_display()} by {self.way}"

    @property
    def interval(self) -> timedelta | None:
        """Returns the time between two digests; None if events are sent at once."""
        return {"hourly": timedelta(hours=1), "daily": timedelta(days=1)}.get(self.rhythm)


class NotificationItem(models.Model):
    """Represents an event that must be sent to a user by mail, or to a channel.

    Composing takes all items of one destination that are due, and stores mails or webhook calls in the outbox in the
    same transaction.
    """

    event = models.ForeignKey(NotificationEvent, on_delete=models.CASCADE, related_name="items")
    user = models.ForeignKey(User, on_delete=models.CASCADE, null=True, related_name="+", db_index=False)
    channel = models.ForeignKey(
        NotificationChannel, on_delete=models.CASCADE, null=True, related_name="items"
    )
    due_at = models.DateTimeField()
    composed_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [models.Index(fields=["due_at"], condition=Q(composed_at=None), name="item_due")]
        constraints = [
            models.UniqueConstraint(
                name="one_item_a_destination", fields=["event", "user", "channel"], nulls_distinct=False
            ),
            models.CheckConstraint(
                name="an_item_has_one_destination",
                condition=Q(user=None, channel__isnull=False) | Q(user__isnull=False, channel=None),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.event} to {self.channel or self.user}"
