"""Forms that ask for a password. Each attempt counts against the limits on wrong passwords in
portal.account.lockout."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm
from django.core.exceptions import ValidationError
from django.http import HttpRequest

from accounting.core import wording
from accounting.core.clock import now_from_database
from portal.account import lockout
from portal.account.sign_ins import record_failure

T = TypeVar("T")


class LoginForm(AuthenticationForm):
    """Django's login form with a limit on wrong passwords.

    `minutes` is None until the limit is reached. Then it is the number of minutes until a password is accepted again.
    """

    request: HttpRequest
    minutes: int | None = None

    def clean(self) -> dict[str, Any]:
        username, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if not username or not password:
            return super().clean()
        try:
            cleaned: dict[str, Any] = count_attempt(self.request, username, super().clean, what="sign-in")
        except TooManyTries as error:
            self.minutes = error.minutes
            raise
        return cleaned


class OwnPasswordForm(PasswordChangeForm):
    """Django's form for changing one's own password, with a limit on wrong old passwords.

    Without the limit, an attacker who has taken over a login session could guess the user's password here.
    """

    def __init__(self, *args: Any, request: HttpRequest, **named: Any) -> None:
        super().__init__(*args, **named)
        self.request = request

    def clean_old_password(self) -> str:
        old: str = count_attempt(
            self.request, self.user.get_username(), super().clean_old_password, what="change of the password"
        )
        return old

    def save(self, commit: bool = True) -> Any:
        """Stores the password, and that the user chose it."""
        self.user.must_change_password = False
        return super().save(commit)


class TooManyTries(ValidationError):
    """Raised when the limit on wrong passwords is reached. For the next `minutes` minutes, even the right password is
    refused."""

    def __init__(self, until: datetime) -> None:
        self.minutes = max(math.ceil((until - now_from_database()).total_seconds() / 60), 1)
        super().__init__(f"Too many wrong passwords. Try again in {wording.counted(self.minutes, 'minute')}.")


def count_attempt(request: HttpRequest, username: str, check: Callable[[], T], *, what: str) -> T:
    """Counts one attempt to enter a password, calls `check`, and returns the result of `check`.

    `check` raises ValidationError for a wrong password. A failed attempt is one of three cases:

    - The limit was already reached: raises TooManyTries, without calling `check`.
    - The password is wrong, and this attempt reaches the limit: raises TooManyTries.
    - The password is wrong, and further attempts are allowed: raises the ValidationError of `check`.

    Failures are written to the audit trail; `what` says for what the password was asked.
    """
    tried = lockout.begin(request, username)
    if tried.is_refused:
        record_failure(request=request, tried=tried, what=what)
        raise TooManyTries(tried.ends)
    try:
        result = check()
    except ValidationError:
        record_failure(request=request, tried=tried, what=what)
        if tried.is_last:
            raise TooManyTries(tried.ends) from None
        raise
    except Exception:  # `check` failed before it compared a password, so the attempt does not count
        lockout.take_back(tried)
        raise
    lockout.forget(tried)
    return result
