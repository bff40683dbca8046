"""Password hashing with Argon2. Only a few passwords are hashed at the same time.

A hash takes 100 MB of memory, and anybody can make the portal compute one by sending the login form.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.contrib.auth.hashers import Argon2PasswordHasher

WAIT_SECONDS = 5.0


class TooManyPasswords(Exception):
    """Raised if a password has waited WAIT_SECONDS for its turn, because other passwords are being hashed."""


class BoundedArgon2(Argon2PasswordHasher):
    """Django's Argon2 hasher with a limit: each process hashes at most FAIRLOT_PASSWORDS_AT_ONCE passwords at the same
    time."""

    def encode(self, password: str, salt: str) -> str:
        with _turn():
            return super().encode(password, salt)

    def verify(self, password: str, encoded: str) -> bool:
        with _turn():
            return super().verify(password, encoded)


_turns = threading.BoundedSemaphore(max(1, settings.FAIRLOT_PASSWORDS_AT_ONCE))


@contextmanager
def _turn() -> Iterator[Any]:
    if not _turns.acquire(timeout=WAIT_SECONDS):
        raise TooManyPasswords("Too many people are signing in right now.")
    try:
        yield
    finally:
        _turns.release()
