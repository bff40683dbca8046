"""Forms that ask for a password; each try counts against the limits of portal.account.lockout."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm
from django.core.exceptions import ValidationError
from django.http import HttpRequest

from accounting.core.clock import now_from_database
from portal.account import lockout

T = TypeVar("T")


class LoginForm(AuthenticationForm):
    """Django's, with counted tries; `minutes` says how long none is accepted after too many."""

    request: HttpRequest
    minutes: int | None = None

    def clean(self) -> dict[str, Any]:
        username, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if not username or not password:
            return super().clean()
        try:
            cleaned: dict[str, Any] = counted(self.request, username, super().clean)
        except TooManyTries as error:
            self.minutes = error.minutes
            raise
        return cleaned


class OwnPasswordForm(PasswordChangeForm):
    """Django's, with counted tries of the old password: who took over a session cannot guess it."""

    def __init__(self, *args: Any, request: HttpRequest, **named: Any) -> None:
        super().__init__(*args, **named)
        self.request = request

    def clean_old_password(self) -> str:
        old: str = counted(self.request, self.user.get_username(), super().clean_old_password)
        return old


class TooManyTries(ValidationError):
    """No password of this user is checked for some minutes, not even the right one."""

    def __init__(self, until: datetime) -> None:
        self.minutes = max(math.ceil((until - now_from_database()).total_seconds() / 60), 1)
        plural = "" if self.minutes == 1 else "s"
        super().__init__(f"Too many wrong passwords. Try again in {self.minutes} minute{plural}.")


def counted(request: HttpRequest, username: str, check: Callable[[], T]) -> T:
    """Counts a try, then calls `check`, which raises ValidationError for a wrong password; returns its result.

    Raises TooManyTries instead of checking, and after the last wrong one.
    """
    tried = lockout.begin(request, username)
    if tried.is_refused:
        raise TooManyTries(tried.ends)
    try:
        result = check()
    except ValidationError:
        if tried.is_last:
            raise TooManyTries(tried.ends) from None
        raise
    except Exception:  # no password was checked, so none was wrong
        lockout.take_back(tried)
        raise
    lockout.forget(tried)
    return result
