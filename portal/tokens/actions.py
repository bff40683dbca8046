"""Creates, revokes and finds API tokens."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from datetime import timedelta

from django.db import transaction
from django.db.models.functions import Now
from django.urls import reverse
from django.utils import timezone
from django.utils.crypto import constant_time_compare, salted_hmac

from accounting import actions as accounts
from accounting.access.audit import record
from accounting.access.permissions import may
from accounting.actions.checks import check_name
from accounting.actions.users import Credentials
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.core.prepared import Prepared
from accounting.models import User
from accounting.models.notifications import Audience, EventKind
from accounting.notifications.events import announce
from portal.account.lockout import lift_of_user
from portal.models import LAST_USED_STEP, ApiToken, Scope, TerminalLogin

LONGEST_DAYS = 366
MOST_TOKENS = 50


def create_token(
    *, actor: User, name: str, scopes: Collection[str], days: int | None
) -> tuple[ApiToken, str]:
    """Creates an API token for the actor. Returns the token, and its secret text, which is not stored.

    `scopes` are values of Scope: what the token may change. `days` is its lifetime; None means that it does not expire.
    Raises Refused, with the name of the field, if the name, a scope or `days` is invalid. Also raises Refused if the
    actor already has too many tokens. Raises NotAllowed if the actor is inactive, or if the actor's password has
    changed since `actor` was read.
    """
    check_token(actor, name=name, scopes=scopes, days=days)
    with transaction.atomic(durable=True):
        return add_token(actor, name=name, scopes=scopes, days=days)


def check_token(actor: User, *, name: str, scopes: Collection[str], days: int | None) -> None:
    """Raises NotAllowed or Refused, like `create_token`, if the actor cannot have such a token."""
    if not actor.is_active:
        raise NotAllowed("Only active users may have tokens.")
    if not name.strip() or len(name.strip()) > 80:
        raise Refused("A token needs a name of 1 to 80 characters.", field="name")
    check_name(name.strip())
    if unknown := set(scopes) - set(Scope.values):
        raise Refused(
            f"There is no scope {min(unknown)}. Choose some of: {', '.join(Scope.values)}.", field="scopes"
        )
    if days is not None and not 1 <= days <= LONGEST_DAYS:
        raise Refused(f"A token is valid for 1 to {LONGEST_DAYS} days, or has no expiry date.", field="days")


def add_token(actor: User, *, name: str, scopes: Collection[str], days: int | None) -> tuple[ApiToken, str]:
    """Creates a token that `check_token` accepts, in the transaction of the caller. Returns it and its secret text."""
    prefix, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    # The lock on the user's row keeps concurrent calls from exceeding MOST_TOKENS together.
    user = User.objects.select_for_update().get(pk=actor.pk)
    if not user.is_active:
        raise NotAllowed("Only active users may have tokens.")
    if user.password != actor.password:
        # The change of password may have revoked all tokens.
        raise NotAllowed("Your password was changed in the meantime. Sign in again.")
    if ApiToken.objects.of(actor).usable().count() >= MOST_TOKENS:
        raise Refused(f"You already have {MOST_TOKENS} tokens. Revoke one first.")
    token = ApiToken.objects.create(
        user=actor,
        name=name.strip(),
        prefix=prefix,
        digest=_digest(secret),
        scopes=[scope for scope in Scope.values if scope in scopes],
        expires_at=None if days is None else now_from_database() + timedelta(days=days),
    )
    record(
        actor=actor,
        verb="token.create",
        target=token,
        after={"prefix": prefix, "scopes": token.scopes, "expires_at": token.expires_at},
    )
    return token, f"fairlot_{prefix}_{secret}"


def revoke_token(*, actor: User, token: ApiToken) -> ApiToken:
    """Revokes a token of the actor, or, for an admin, of any user. Returns the token.

    The owner is notified if another user revokes the token. A token that is already revoked stays unchanged. Raises
    NotAllowed if the token belongs to another user and the actor is no admin.
    """
    is_own = token.user_id == actor.pk
    if not is_own and not may(actor, "user.change"):
        raise NotAllowed("Only the owner of a token and admins may revoke it.")
    with transaction.atomic(durable=True):
        if ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=Now()):
            whose = {} if is_own else {"user": token.user.get_username()}
            before = {"prefix": token.prefix} | whose
            record(actor=actor, verb="token.revoke", target=token, before=before)
            if not is_own:
                _announce_revoked(actor, token)
    token.refresh_from_db()
    return token


def _announce_revoked(actor: User, token: ApiToken) -> None:
    announce(
        EventKind.TOKEN_REVOKED,
        f"token:{token.pk}:revoked",
        audience=Audience.PERSON,
        concerns=[token.user_id],
        actor_name=actor.get_username(),
        title=f"Your API token {token.name} was revoked",
        text=f"The admin {actor} revoked it. Programs that use the token {token.prefix}… no longer reach the API.",
        path=reverse("tokens"),
    )


def revoke_all(*, actor: User) -> int:
    """Revokes all tokens of the actor. Returns the number of tokens that were still valid."""
    with transaction.atomic(durable=True):
        revoked = _revoke_standing(actor)
        if revoked:
            record(actor=actor, verb="token.revoke_all", target=actor, after={"tokens_revoked": revoked})
    return revoked


def reset_password(*, actor: User, user: User) -> Credentials:
    """Sets a random password for `user`. Also revokes all API tokens of the user, and lifts the locks of the user's
    login.

    Returns the password, the number of revoked tokens, and the number of lifted locks.
    """

    def shut_out(found: User) -> dict[str, int]:
        locks = lift_of_user(found.get_username())
        return {"tokens_revoked": _revoke_standing(found)} | ({"login_locks_lifted": locks} if locks else {})

    return accounts.reset_password(actor=actor, user=user, shut_out=shut_out)


def _revoke_standing(user: User) -> int:
    TerminalLogin.objects.filter(user=user).delete()  # those that are allowed would become tokens
    return ApiToken.objects.of(user).standing().update(revoked_at=Now())


def find_token(text: str) -> ApiToken | None:
    """Returns the valid token with this secret text, together with its user; None if there is no such token.

    Updates the token's `last_used_at`, but at most once per LAST_USED_STEP.
    """
    scheme, _, rest = text.partition("_")
    prefix, _, secret = rest.partition("_")
    if scheme != "fairlot" or not secret:
        return None
    if "\0" in prefix:  # the database cannot store such a text
        return None
    token: ApiToken | None = _usable.first(prefix)
    if token is None or not constant_time_compare(token.digest, _digest(secret)):
        return None
    # This process's clock decides first, so that most calls write nothing; the database's clock decides about the
    # update.
    if token.last_used_at is None or timezone.now() - token.last_used_at >= LAST_USED_STEP:
        ApiToken.objects.filter(pk=token.pk).last_used_long_ago().update(last_used_at=Now())
    return token


_usable = Prepared(lambda prefix: ApiToken.objects.usable().select_related("user").filter(prefix=prefix))


def _digest(secret: str) -> str:
    return salted_hmac("fairlot.api-token", secret, algorithm="sha256").hexdigest()
