"""Signs users in and out, and writes both, and failures, to the audit trail.

A failure is recorded only if the name is a user's, because people type passwords into the field for the name. An
attacker cannot fill the trail: of the wrong passwords for one user within a window of `lockout`, the trail gets the
1st, 10th, 100th and so on, and each lock that they cause until an attack from many networks is recognised.
"""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth import login, logout
from django.db import transaction
from django.http import HttpRequest

from accounting.access import audit
from accounting.models import User
from portal.account.lockout import Try
from portal.addresses import parsed


def sign_in(*, request: HttpRequest, user: User) -> None:
    """Begins a login session for the user, who has entered the right password or just made an account."""
    with transaction.atomic(durable=True):
        login(request, user)
        audit.record(actor=user, verb="login.sign_in", target=user, after=_origin(request))


def sign_out(*, request: HttpRequest) -> None:
    """Ends the login session of the request, if it has one."""
    user = request.user
    with transaction.atomic(durable=True):
        if user.is_authenticated:
            audit.record(actor=user, verb="login.sign_out", target=user, after=_origin(request))
        logout(request)


def record_failure(*, request: HttpRequest, tried: Try, what: str) -> None:
    """Records that an attempt to enter the password of a user failed, if the attempt counts for the trail.

    `what` says for what the password was asked. The actor is Fairlot, because nobody knows who typed it.
    """
    if not tried.is_news:
        return
    user = User.objects.filter(username=tried.username).first()
    if user is None:
        return
    verb = "login.refuse" if tried.is_refused else "login.lock_out" if tried.is_last else "login.fail"
    after = _origin(request) | {"for": what} | ({} if tried.is_refused else {"tries": tried.failures})
    with transaction.atomic(durable=True):
        audit.record(actor=None, verb=verb, target=user, after=after)


def _origin(request: HttpRequest) -> dict[str, str]:
    """Returns the client's address; nothing if only the address of a proxy is known."""
    address = parsed(request.META.get("REMOTE_ADDR", ""))
    is_known = address and (settings.FAIRLOT_TRUSTED_PROXIES or not settings.BEHIND_PROXY)
    return {"from": address} if is_known else {}
