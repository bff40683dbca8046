"""Invitations into a team. A person who opens the link of an invitation may join the team."""

from __future__ import annotations

import re
import secrets
from typing import Self

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now
from django.utils.crypto import constant_time_compare, salted_hmac

from accounting.models.tenants import Membership, Tenant, User

NONCE_BYTES = 8
TOKEN = re.compile(rf"[0-9a-f]{{{2 * NONCE_BYTES + 64}}}", re.ASCII)


def new_invitation_nonce() -> str:
    return secrets.token_hex(NONCE_BYTES)


class InvitationQuerySet(models.QuerySet["Invitation"]):
    def usable(self) -> Self:
        """Returns the invitations that somebody can still accept, as far as time, uses and revocation decide it."""
        return self.filter(
            revoked_at=None, expires_at__gt=Now(), uses__lt=models.F("most_uses"), tenant__archived_at=None
        )

    def with_token(self, token: str) -> Self:
        """Returns the invitation to which the token belongs; no row for a token that Fairlot did not make."""
        nonce, digest = token[: 2 * NONCE_BYTES], token[2 * NONCE_BYTES :]
        if not TOKEN.fullmatch(token) or not constant_time_compare(digest, _digest(nonce)):
            return self.none()
        return self.filter(nonce=nonce)


class Invitation(models.Model):
    """Represents an invitation: a link with which people join a team with a given role.

    The database has no token. The token of the link is the nonce with its keyed hash under Fairlot's SECRET_KEY, so a
    copy of the database opens no team.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="invitations")
    role = models.CharField(max_length=8, choices=Membership.Role, default=Membership.Role.MEMBER)
    tickets = models.PositiveIntegerField(default=100)
    email = models.EmailField(blank=True, default="", help_text="Address to which the link was sent.")
    nonce = models.CharField(max_length=2 * NONCE_BYTES, unique=True, default=new_invitation_nonce)
    most_uses = models.PositiveSmallIntegerField(default=1)
    uses = models.PositiveSmallIntegerField(default=0)
    # Ids of users who were removed from the team since; the link does not undo a removal.
    barred = ArrayField(models.BigIntegerField(), default=list, db_default=[])
    invited_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True)

    objects = InvitationQuerySet.as_manager()

    class Meta:
        ordering = ["-pk"]
        constraints = [
            models.CheckConstraint(
                name="an_invitation_is_used_at_most_so_often",
                condition=models.Q(uses__lte=models.F("most_uses"), most_uses__gte=1),
            ),
            models.CheckConstraint(name="an_invitation_has_tickets", condition=models.Q(tickets__gte=1)),
        ]

    def __str__(self) -> str:
        return f"invitation {self.pk} to {self.tenant.name}"

    @property
    def left(self) -> int:
        """Returns how many people can still accept the invitation."""
        return self.most_uses - self.uses

    def link(self) -> str:
        """Returns the address that the invited person opens. Show it only to people who may add members."""
        return f"{settings.PUBLIC_URL}/invitations/{self.nonce}{_digest(self.nonce)}/"


def _digest(nonce: str) -> str:
    return salted_hmac("fairlot.invitation", nonce, algorithm="sha256").hexdigest()
