"""Ed25519 signatures of ledger heads (links of the head chain, which covers the whole ledger).

The keys are outside the database, in the setting FAIRLOT_SIGNING_KEYS. The first key is the newest, and signs new
heads. Signatures of all keys in the setting are trusted.

To rotate the key, add a new key in front, restart, wait for the next head, and then remove the old key. The old key is
no longer needed because the new head covers all earlier heads.
"""

from __future__ import annotations

from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from django.conf import settings

# Binds the derived keys to this purpose: keys that other software derives from the same random text differ.
PURPOSE = b"fairlot: signed ledger heads, version 1"


def sign(message: bytes) -> tuple[bytes, bytes]:
    """Returns (public key, signature of `message`) of the newest key. Both are empty if no key is configured."""
    keys = _keys(tuple(settings.FAIRLOT_SIGNING_KEYS))
    if not keys:
        return b"", b""
    return public_bytes(keys[0].public_key()), keys[0].sign(message)


def is_signed(message: bytes, signer: bytes, signature: bytes) -> bool:
    """Returns whether `signature` is a valid signature of `message` by the owner of the public key `signer`."""
    try:
        Ed25519PublicKey.from_public_bytes(signer).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_keys() -> list[bytes]:
    """Returns the public keys of the keys in FAIRLOT_SIGNING_KEYS, newest first."""
    return [public_bytes(key.public_key()) for key in _keys(tuple(settings.FAIRLOT_SIGNING_KEYS))]


def trusted_keys() -> list[bytes]:
    """Returns the public keys whose signatures on heads are trusted.

    These are the keys in FAIRLOT_TRUSTED_HEAD_KEYS or, if that setting is empty, `public_keys()`. With this setting, a
    machine can verify heads without the secret keys.
    """
    return [bytes.fromhex(key) for key in settings.FAIRLOT_TRUSTED_HEAD_KEYS] or public_keys()


def public_bytes(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def as_pem(signer: bytes) -> str:
    """Returns the public key `signer` in PEM format, for OpenSSL."""
    key = Ed25519PublicKey.from_public_bytes(signer)
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


@lru_cache(maxsize=4)
def _keys(secrets: tuple[str, ...]) -> tuple[Ed25519PrivateKey, ...]:
    return tuple(Ed25519PrivateKey.from_private_bytes(_derived(secret)) for secret in secrets)


def _derived(secret: str) -> bytes:
    """Returns the 32 bytes of a private key, derived from a secret text of any length (HKDF, RFC 5869)."""
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=PURPOSE).derive(secret.encode())
