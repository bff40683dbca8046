"""Encrypts secrets for storage in the database, with the keys in the setting FAIRLOT_SEALING_KEYS.

The first key is the newest; new secrets are encrypted with it. All keys can decrypt. To rotate keys without downtime,
put a new key in front, run `manage.py reseal`, then remove the old key.
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
    """Raised when a secret cannot be encrypted or decrypted. `str(error)` explains the reason to users."""


def seal(secret: bytes) -> bytes:
    """Encrypts and authenticates `secret` with the newest key. Raises SealError if no key is configured."""
    return _keys().encrypt(secret)


def unseal(sealed: bytes) -> bytes:
    """Returns the decrypted secret. Raises SealError if none of the keys decrypts `sealed`."""
    try:
        return _keys().decrypt(sealed)
    except InvalidToken:
        raise SealError(_NOT_THIS_KEY) from None


def reseal(sealed: bytes) -> bytes:
    """Encrypts an encrypted secret again, with the newest key. Raises SealError if none of the keys decrypts
    `sealed`."""
    try:
        return _keys().rotate(sealed)
    except InvalidToken:
        raise SealError(_NOT_THIS_KEY) from None


def why_sealing_is_off() -> str:
    """Explains to users why secrets cannot be encrypted. Returns "" if they can."""
    return "" if settings.FAIRLOT_SEALING_KEYS else NO_KEY


def _keys() -> MultiFernet:
    return _opened(tuple(settings.FAIRLOT_SEALING_KEYS))


@lru_cache(maxsize=4)
def _opened(keys: tuple[str, ...]) -> MultiFernet:
    if not keys:
        raise SealError(NO_KEY)
    return MultiFernet([Fernet(_derived(key)) for key in keys])


def _derived(key: str) -> bytes:
    """Derives a base64-encoded 32-byte key, as Fernet needs it, from random text of any length (HKDF, RFC 5869)."""
    derivation = HKDF(algorithm=SHA256(), length=32, salt=None, info=PURPOSE)
    return base64.urlsafe_b64encode(derivation.derive(key.encode()))


_NOT_THIS_KEY = (
    "The secret was encrypted with a key that is not among FAIRLOT_SEALING_KEYS. Either put that key back (at the end, "
    "if it is an old one), or enter the secret again."
)
