"""Encrypts secrets in the database, with keys from the setting FAIRLOT_SEALING_KEYS.

The first key is the newest and encrypts; every key decrypts. To rotate keys without downtime, put a new key in
front, run `manage.py reseal`, then remove the old key.
"""

from __future__ import annotations

import base64
from functools import lru_cache

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

# Binds derived keys to this purpose: keys derived from the same random text for another purpose differ.
NO_KEY = "No key for encrypting secrets is configured: set FAIRLOT_SEALING_KEYS and restart Fairlot."
PURPOSE = b"fairlot: sealed secrets, version 1"


class SealError(Exception):
    """A secret cannot be encrypted or decrypted; `str(error)` explains why, in words for people."""


def seal(secret: bytes) -> bytes:
    """Encrypts and authenticates `secret` with the newest key. Raises SealError if no key is configured."""
    return _keys().encrypt(secret)


def unseal(sealed: bytes) -> bytes:
    """Returns the decrypted secret. Raises SealError if `sealed` was not encrypted with any of the keys."""
    try:
        return _keys().decrypt(sealed)
    except InvalidToken:
        raise SealError(_NOT_THIS_KEY) from None


def reseal(sealed: bytes) -> bytes:
    """Returns the same secret, encrypted with the newest key. Raises SealError if no key decrypts `sealed`."""
    try:
        return _keys().rotate(sealed)
    except InvalidToken:
        raise SealError(_NOT_THIS_KEY) from None


def why_none() -> str:
    """Returns why secrets cannot be encrypted, in words for people; empty if they can."""
    return "" if settings.FAIRLOT_SEALING_KEYS else NO_KEY


def _keys() -> MultiFernet:
    return _opened(tuple(settings.FAIRLOT_SEALING_KEYS))


@lru_cache(maxsize=4)
def _opened(keys: tuple[str, ...]) -> MultiFernet:
    if not keys:
        raise SealError(NO_KEY)
    return MultiFernet([Fernet(_derived(key)) for key in keys])


def _derived(key: str) -> bytes:
    """Derives the 32-byte key that Fernet needs, base64-encoded, from random text of any length (HKDF, RFC 5869)."""
    derivation = HKDF(algorithm=SHA256(), length=32, salt=None, info=PURPOSE)
    return base64.urlsafe_b64encode(derivation.derive(key.encode()))


_NOT_THIS_KEY = (
    "The secret was encrypted with a key that is not among FAIRLOT_SEALING_KEYS. Either put that key back (at the end, "
    "if it is an old one), or enter the secret again."
)
