"""Endpoints with which a program gets a token, after its user has allowed it in the browser."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode
from ninja import Router
from ninja.errors import HttpError
from ninja.responses import Status

from portal.addresses import network_of
from portal.api.login import schemas
from portal.tokens.terminal_logins import INTERVAL, LIFETIME, begin_login, redeem_login

router = Router(tags=["Tokens"])


@router.post("/login", response={201: schemas.Login}, url_name="login_begin", auth=None)
def begin(request: HttpRequest, new: schemas.NewLogin) -> Status[Any]:
    """Begins a login for a program that has no token yet. Show `user_code` and `url` to its user, and ask for the
    token every `interval` seconds."""
    begun = begin_login(name=new.name, network=network_of(request.META.get("REMOTE_ADDR", "")))
    if begun is None:
        raise HttpError(429, "Too many programs wait for a login. Try again in ten minutes.")
    page = f"{settings.PUBLIC_URL}{reverse('token_terminal')}"
    return Status(
        201,
        {
            "user_code": begun.user_code,
            "device_code": begun.device_code,
            "url": f"{page}?{urlencode({'code': begun.user_code})}",
            "expires_in": int(LIFETIME.total_seconds()),
            "interval": INTERVAL,
        },
    )


@router.post("/login/token", response=schemas.LoginAnswer, url_name="login_token", auth=None)
def token(request: HttpRequest, asked: schemas.LoginCode) -> dict[str, Any]:
    """Returns whether the program may have a token, and the token, once."""
    state, secret = redeem_login(device_code=asked.device_code)
    return {"state": state, "token": secret}
