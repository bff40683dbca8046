"""Gives a token to a program on a terminal, after its user has allowed it in the browser (device authorization).

The program gets two codes: a short one, which its user types or follows to the portal, and a secret one, with which it
asks for the token until the user has decided. The token is created when it is handed over, so it is stored nowhere.

Source: RFC 8628, OAuth 2.0 Device Authorization Grant.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from django.db import transaction
from django.db.models.functions import Now
from django.utils.crypto import salted_hmac

from accounting.access.audit import record
from accounting.core.errors import NotAllowed, Refused
from accounting.models import User
from portal.models import TerminalLogin
from portal.tokens.actions import add_token, check_token

LIFETIME = timedelta(minutes=10)
INTERVAL = 3  # seconds between two questions of a program
MOST_FROM_A_NETWORK, MOST = 20, 5_000  # logins that wait at once
LETTERS = "BCDFGHJKLMNPQRSTVWXZ"  # no vowels, so that no code is a word (RFC 8628, section 6.1)


class Answer(StrEnum):
    """The answer to a program that asks for its token."""

    WAITING = "waiting"
    ALLOWED = "allowed"
    DENIED = "denied"
    EXPIRED = "expired"


@dataclass(frozen=True)
class Begun:
    """A login that a program has begun: the code for the person, and the program's secret code."""

    user_code: str
    device_code: str


@transaction.atomic(durable=True)
def begin_login(*, name: str, network: str) -> Begun | None:
    """Begins a login for a program that calls itself `name`. Needs no user, because the program has none yet.

    Returns None while too many logins wait: of this network, or of all. Old logins are deleted.
    """
    TerminalLogin.objects.filter(created_at__lt=Now() - 6 * LIFETIME).delete()
    live = TerminalLogin.objects.live(LIFETIME)
    if live.filter(network=network).count() >= MOST_FROM_A_NETWORK or live.count() >= MOST:
        return None
    letters = "".join(secrets.choice(LETTERS) for _ in range(8))
    device_code = secrets.token_urlsafe(32)
    made = TerminalLogin.objects.create(
        user_code=f"{letters[:4]}-{letters[4:]}",
        digest=_digest(device_code),
        name=name.strip(),
        network=network,
    )
    return Begun(made.user_code, device_code)


@transaction.atomic(durable=True)
def decide_login(
    *, actor: User, user_code: str, allowed: bool, scopes: Collection[str] = (), days: int | None = None
) -> TerminalLogin:
    """Allows or denies the login with this code, in the name of the actor, whose token the program then gets.

    Raises Refused if no such login waits, or if the actor could not have a token with these scopes and days. Raises
    NotAllowed if the actor's password has changed since `actor` was read.
    """
    # The lock makes the answer and a change of the password follow each other, which ends all answers before it.
    user = User.objects.select_for_update().get(pk=actor.pk)
    if user.password != actor.password:
        raise NotAllowed("Your password was changed in the meantime. Sign in again.")
    waiting = TerminalLogin.objects.live(LIFETIME).filter(user=None).select_for_update()
    login = waiting.filter(user_code=read_code(user_code)).first()
    if login is None:
        raise Refused(
            "No login waits with this code. Codes end after ten minutes. Run the program again.", "code"
        )
    if allowed:
        check_token(user, name=login.token_name, scopes=scopes, days=days)
    login.user, login.is_allowed, login.scopes, login.days = actor, allowed, list(scopes), days
    login.save(update_fields=["user", "is_allowed", "scopes", "days"])
    record(
        actor=actor,
        verb="terminal_login.allow" if allowed else "terminal_login.deny",
        target=login,
        after={"name": login.name, "network": login.network} | ({"scopes": list(scopes)} if allowed else {}),
    )
    return login


@transaction.atomic(durable=True)
def redeem_login(*, device_code: str) -> tuple[Answer, str]:
    """Returns the state of the login with this secret code, and the token if it is allowed, else "".

    The token is handed over once. After that, and for an unknown code, the login counts as expired.
    """
    asked = TerminalLogin.objects.live(LIFETIME).filter(digest=_digest(device_code))
    decided_by = asked.values_list("user", flat=True).first()
    if decided_by is not None:
        # Before the login, in the order of those who revoke all tokens of the user.
        User.objects.select_for_update().get(pk=decided_by)
    login = asked.select_for_update(of=("self",)).first()
    if login is None:
        return Answer.EXPIRED, ""
    if login.user is None or decided_by is None:
        return Answer.WAITING, ""
    login.delete()
    if not login.is_allowed:
        return Answer.DENIED, ""
    try:
        _, secret = add_token(login.user, name=login.token_name, scopes=login.scopes, days=login.days)
    except (Refused, NotAllowed):  # the user has been deactivated, or has too many tokens by now
        return Answer.DENIED, ""
    return Answer.ALLOWED, secret


def login_with(user_code: str) -> TerminalLogin | None:
    """Returns the login that waits with this code."""
    return TerminalLogin.objects.live(LIFETIME).filter(user=None, user_code=read_code(user_code)).first()


def read_code(text: str) -> str:
    """Returns a typed code in its canonical form, such as BCDF-GHJK."""
    letters = "".join(one for one in text.upper() if one in LETTERS)[:8]
    return f"{letters[:4]}-{letters[4:]}"


def _digest(device_code: str) -> str:
    return salted_hmac("fairlot.terminal-login", device_code, algorithm="sha256").hexdigest()
