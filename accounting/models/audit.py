"""The audit trail.

Each change of data is one row, which is written in the transaction of the change and never edited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchQuery, SearchVectorField
from django.db import models
from django.db.models import F, Func, Q, TextField
from django.db.models.functions import Cast, Now

from accounting.models.tenants import Membership, Tenant, User

# The words of an event, as the index has them: first those of the object's name, which have the weight A, then the
# actor's name and the values. Line breaks inside JSON are written as \n. Values of any length are cut, because
# PostgreSQL refuses a text with too many words.
WORDS = Func(
    Func(
        F("target_name"),
        template="setweight(to_tsvector('simple', %(expressions)s), 'A')",
        output_field=SearchVectorField(),
    ),
    Func(
        F("actor_name"),
        Cast(F("after"), TextField()),
        Cast(F("before"), TextField()),
        arg_joiner=" || ' ' || ",  # before `template`: Django compares the order of these with the migration's
        template=r"to_tsvector('simple', left(replace(%(expressions)s, '\n', ' '), 20000))",
        output_field=SearchVectorField(),
    ),
    arg_joiner=" || ",
    template="(%(expressions)s)",
    output_field=SearchVectorField(),
)
MOST_WORDS = 20


def words_query(text: str, weight: str = "") -> SearchQuery | None:
    """Returns a query for the events that have a word with each beginning in `text`; None for a text without words.

    `weight` "A" looks only at the name of the changed object.
    """
    words = [word.replace("\\", "\\\\").replace("'", "''") for word in text.split()[:MOST_WORDS]]
    if not words:
        return None
    return SearchQuery(
        " & ".join(f"'{word}':*{weight}" for word in words), search_type="raw", config="simple"
    )


@dataclass(frozen=True)
class AuditFilter:
    """Which audit events are wanted. An empty value wants all.

    - `actor`: a part of the name of the user who made the change, or of "Fairlot".
    - `verb`: what was done.
    - `target`: words, or their beginnings, in the name of the changed object, or a part of the name of its team. So
      the name of a team also finds changes of its members, limits and work.
    - `text`: words, or their beginnings, in the names and in the values before and after the change.
    - `or_verbs`: verbs whose events match `text` too, because people know what was done by words that have it.
    - `since` (included) and `until` (excluded): when the change was made.
    """

    actor: str = ""
    verb: str = ""
    target: str = ""
    text: str = ""
    or_verbs: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None


class AuditEventQuerySet(models.QuerySet["AuditEvent"]):
    def visible_to(self, user: User) -> Self:
        """Returns the events that `user` may see.

        Operators and admins may see all events. Other users may see the events of the tenants that they manage.
        """
        if user.is_anonymous or not user.is_active:
            return self.none()
        if user.is_operator:
            return self
        return self.filter(tenant__in=Tenant.objects.visible_to(user, role=Membership.Role.MANAGER))

    def matching(self, wanted: AuditFilter) -> Self:
        """Returns the events that match all parts of the filter."""
        found = self.alias(words=WORDS)
        if wanted.since is not None:
            found = found.filter(at__gte=wanted.since)
        if wanted.until is not None:
            found = found.filter(at__lt=wanted.until)
        if wanted.verb:
            found = found.filter(verb=wanted.verb)
        if wanted.actor:
            itself = Q(actor=None) if wanted.actor.lower() in "fairlot" else Q()
            found = found.filter(Q(actor__in=User.objects.filter(username__icontains=wanted.actor)) | itself)
        if (words := words_query(wanted.target, "A")) is not None:
            # As a list, because the database uses no index for a condition or a subquery.
            teams = list(Tenant.objects.filter(name__icontains=wanted.target).values_list("pk", flat=True))
            found = found.filter(Q(words=words) | Q(tenant__in=teams))
        if (words := words_query(wanted.text)) is not None:
            found = found.filter(Q(words=words) | Q(verb__in=wanted.or_verbs))
        return found


class AuditEvent(models.Model):
    at = models.DateTimeField(db_default=Now(), db_index=True)
    actor = models.ForeignKey(User, on_delete=models.PROTECT, null=True)  # None: Fairlot itself
    actor_name = models.CharField(max_length=150)
    verb = models.CharField(max_length=60)  # "tenant.create", "job.cancel"
    target_type = models.CharField(max_length=40)
    target_id = models.CharField(max_length=40)
    target_name = models.CharField(max_length=150)
    # No database constraint: a tenant without history may be deleted, and its audit events stay.
    tenant = models.ForeignKey(Tenant, on_delete=models.DO_NOTHING, null=True, db_constraint=False)
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)

    objects = AuditEventQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["target_type", "target_id"]),
            GinIndex(WORDS, name="words_of_audit_events"),
        ]
