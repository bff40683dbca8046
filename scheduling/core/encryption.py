"""Secrets as they lie in the database: sealed with keys that lie elsewhere (FAIRLOT_SEALING_KEYS).

The newest key, which is the first, seals; each of them opens. So keys are exchanged without a pause: put a
new one in front, `manage.py reseal`, take the old one away.
"""

from __future__ import annotations

import base64
from functools import lru_cache

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

# Whatever else should be made of the same random text would be another key.
NO_KEY = "There is no key to seal secrets with: set FAIRLOT_SEALING_KEYS and start Fairlot again."
PURPOSE = b"fairlot: sealed secrets, version 1"


class SealError(Exception):
    """What is sealed cannot be opened, or nothing can be sealed; `str(error)` says why in plain words."""


def seal(secret: bytes) -> bytes:
    """Encrypts and signs `secret` with the newest key. SealError without a key."""
    return _keys().encrypt(secret)


def unseal(sealed: bytes) -> bytes:
    """What was sealed. SealError when none of the keys is the one that it was sealed with."""
    try:
        return _keys().decrypt(sealed)
    except InvalidToken:
        raise SealError(_NOT_THIS_KEY) from None


def reseal(sealed: bytes) -> bytes:
    """The same secret, sealed with the newest key."""
    try:
        return _keys().rotate(sealed)
    except InvalidToken:
        raise SealError(_NOT_THIS_KEY) from None


def why_none() -> str:
    """Why nothing can be sealed; empty where it can."""
    return "" if settings.FAIRLOT_SEALING_KEYS else NO_KEY


def _keys() -> MultiFernet:
    return _opened(tuple(settings.FAIRLOT_SEALING_KEYS))


@lru_cache(maxsize=4)
def _opened(keys: tuple[str, ...]) -> MultiFernet:
    if not keys:
        raise SealError(NO_KEY)
    return MultiFernet([Fernet(_derived(key)) for key in keys])


def _derived(key: str) -> bytes:
    """Random text of any length as the 32 bytes that Fernet wants (RFC 5869)."""
    derivation = HKDF(algorithm=SHA256(), length=32, salt=None, info=PURPOSE)
    return base64.urlsafe_b64encode(derivation.derive(key.encode()))


_NOT_THIS_KEY = (
    "It was sealed with a key that is not among FAIRLOT_SEALING_KEYS: put that key back (at the end, if it "
    "is an old one), or enter the secret anew."
)
