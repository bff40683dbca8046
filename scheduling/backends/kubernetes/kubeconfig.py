"""The parser of kubeconfigs. It accepts one user of one cluster, and refuses references to local files or programs."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from accounting.core.wording import fixed
from scheduling.spec import yaml_core

# Many times the length of a kubeconfig with one context. A longer text is something else.
MOST_CHARACTERS = 64 * 1024
LONGEST_SERVER = 500

_FLATTEN = (
    "Run `kubectl config view --raw --flatten --minify` and paste its output, which contains certificates and keys"
    " instead of file names."
)
_INSTEAD = "Use a token of the service account fairlot instead."
_NO_FILES = "Fairlot does not read files that a kubeconfig names."
# Keys that are refused, each with the reason and what to do instead.
_OF_CLUSTERS = {
    "certificate-authority": f"{_NO_FILES} {_FLATTEN}",
    "proxy-url": "Fairlot connects to the API server directly, without a proxy.",
}
_OF_USERS = {
    "client-certificate": f"{_NO_FILES} {_FLATTEN}",
    "client-key": f"{_NO_FILES} {_FLATTEN}",
    "tokenFile": f"{_NO_FILES} {_INSTEAD}",
    "exec": f"Fairlot does not run programs that a kubeconfig names. {_INSTEAD}",
    "auth-provider": f"Fairlot does not run plug-ins that a kubeconfig names. {_INSTEAD}",
    "username": f"Fairlot does not log in with a password. {_INSTEAD}",
    "password": f"Fairlot does not log in with a password. {_INSTEAD}",
    **dict.fromkeys(
        ("as", "as-uid", "as-groups", "as-user-extra"),
        f"Fairlot does not impersonate other users. {_INSTEAD}",
    ),
}
_KEPT_OF_CLUSTERS = ("server", "certificate-authority-data", "tls-server-name")
_KEPT_OF_USERS = ("token", "client-certificate-data", "client-key-data")
_IGNORED = frozenset({"extensions", "disable-compression", "insecure-skip-tls-verify"})


class Unusable(ValueError):
    """Raised when a kubeconfig is not accepted. `str(error)` gives users the reason and, where possible, what to do
    instead."""


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """A parsed kubeconfig. `content` is the kubeconfig reduced to one context and to the settings that are needed to
    reach the cluster."""

    server: str
    content: Mapping[str, Any] = field(repr=False)
    ends: datetime | None  # expiry of the token or certificate; None if it states none

    def as_bytes(self) -> bytes:
        return json.dumps(self.content).encode()


def parse(text: str) -> Kubeconfig:
    """Parses the text of a kubeconfig and reduces it to one context.

    Raises Unusable if the text is not a complete kubeconfig or has settings that Fairlot refuses.
    """
    if len(text) > MOST_CHARACTERS:
        raise Unusable(
            f"The kubeconfig is too long. It must have at most {fixed(MOST_CHARACTERS)} characters."
        )
    try:
        found = yaml_core.read(text)
    except yaml_core.NotYaml as error:
        raise Unusable(f"The kubeconfig cannot be read as YAML{error.where}.") from None
    if not isinstance(found, dict) or found.get("kind", "Config") != "Config":
        raise Unusable("The text is not a kubeconfig: it must contain `kind: Config`.")
    context = _context(found)
    cluster = _named(found, "clusters", "cluster", _text(context, "cluster", "The context"))
    user = _named(found, "users", "user", _text(context, "user", "The context"))
    if cluster.get("insecure-skip-tls-verify"):
        raise Unusable(
            "The kubeconfig sets insecure-skip-tls-verify, so another server could pose as the cluster. Set"
            " certificate-authority-data to the cluster's authority instead."
        )
    kept_cluster = _kept(cluster, "cluster", _KEPT_OF_CLUSTERS, _OF_CLUSTERS)
    kept_user = _kept(user, "user", _KEPT_OF_USERS, _OF_USERS)
    server = _server(kept_cluster)
    _authority(kept_cluster)
    return Kubeconfig(server, _minimal(kept_cluster, kept_user), _ends(kept_user))


def load(stored: bytes) -> Kubeconfig:
    """Parses a stored kubeconfig: the bytes that `Kubeconfig.as_bytes` returned. Raises Unusable like `parse`."""
    return parse(stored.decode())


def _minimal(cluster: Mapping[str, str], user: Mapping[str, str]) -> dict[str, Any]:
    name = "fairlot"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": dict(cluster)}],
        "users": [{"name": name, "user": dict(user)}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def _context(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the current context. If no current context is set, returns the only context.

    Raises Unusable if no current context is set and there is not exactly one context.
    """
    contexts = _list(found, "contexts")
    current = found.get("current-context")
    if current:
        return _named(found, "contexts", "context", current)
    if len(contexts) != 1:
        raise Unusable("The kubeconfig has several contexts, none of which is current. Set current-context.")
    return _named(found, "contexts", "context", contexts[0].get("name"))


def _list(found: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = found.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise Unusable(f"The kubeconfig has no list of {key}.")
    return entries


def _named(found: Mapping[str, Any], key: str, inner: str, name: object) -> Mapping[str, Any]:
    for entry in _list(found, key):
        if entry.get("name") == name and isinstance(entry.get(inner), dict):
            inside: Mapping[str, Any] = entry[inner]
            return inside
    if isinstance(name, str):
        raise Unusable(f"The kubeconfig has no {inner} named {name[:60]}.")
    raise Unusable(f"The kubeconfig must contain the name of the {inner} to use.")


def _kept(
    entry: Mapping[str, Any], what: str, kept: tuple[str, ...], refused: Mapping[str, str]
) -> dict[str, str]:
    for key, value in entry.items():
        if key in refused and value:
            raise Unusable(f"The {what} has {key}, which is not accepted. {refused[key]}")
        if key not in kept and key not in refused and key not in _IGNORED:
            raise Unusable(f"The {what} has {str(key)[:60]}, which Fairlot does not know.")
    return {key: _text(entry, key, f"The {what}") for key in kept if entry.get(key)}


def _text(entry: Mapping[str, Any], key: str, what: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value.strip():
        raise Unusable(f"{what} has no {key}.")
    return value.strip()


def _server(cluster: Mapping[str, str]) -> str:
    server = _text(cluster, "server", "The cluster").rstrip("/")
    try:
        parts = urlsplit(server)
        port_is_right = parts.port != 0
    except ValueError:
        raise Unusable("The cluster's server is not a valid URL.") from None
    if parts.scheme != "https":
        raise Unusable(
            "The cluster's server must begin with https://, so that no one can read or change the traffic."
        )
    plain = server.isascii() and server.isprintable() and " " not in server
    if not (parts.hostname and port_is_right and plain) or len(server) > LONGEST_SERVER:
        raise Unusable("The cluster's server is not a valid URL.")
    if parts.username is not None or parts.query or parts.fragment:
        raise Unusable("The cluster's server must be a URL without a user, query or fragment.")
    return server


def _authority(cluster: Mapping[str, str]) -> None:
    """Checks the cluster's certificate authorities. Raises Unusable if they are not valid certificates.

    The kubeconfig need not contain any. The client then uses the certificate authorities that this machine trusts.
    """
    if "certificate-authority-data" in cluster:
        _certificates(cluster, "certificate-authority-data")


def _certificates(entry: Mapping[str, str], key: str) -> list[x509.Certificate]:
    decoded = _decoded(entry, key)
    try:
        return x509.load_pem_x509_certificates(decoded)
    except ValueError:
        raise Unusable(f"The kubeconfig's {key} is not a certificate in base64.") from None


def _decoded(entry: Mapping[str, str], key: str) -> bytes:
    try:
        return base64.b64decode("".join(entry[key].split()), validate=True)
    except (binascii.Error, ValueError):
        raise Unusable(f"The kubeconfig's {key} is not valid base64.") from None


def _ends(user: Mapping[str, str]) -> datetime | None:
    """Returns the time at which the user's token or certificate expires, whichever is first; None if neither states it.

    Raises Unusable if credentials are missing or invalid.
    """
    ends = [_end_of_token(user["token"])] if "token" in user else []
    if "client-certificate-data" in user or "client-key-data" in user:
        ends.append(_end_of_certificate(user))
    if not ends:
        raise Unusable("The user has no credentials. Use a token of the service account fairlot.")
    return min((end for end in ends if end), default=None)


def _end_of_certificate(user: Mapping[str, str]) -> datetime:
    if not ("client-certificate-data" in user and "client-key-data" in user):
        raise Unusable("The user has only one of client-certificate-data and client-key-data. Enter both.")
    certificate = _certificates(user, "client-certificate-data")[0]
    decoded = _decoded(user, "client-key-data")
    try:
        key = load_pem_private_key(decoded, password=None)
    except (ValueError, TypeError):
        raise Unusable(
            "The user's client-key-data must be a private key in base64, without a password."
        ) from None
    if key.public_key() != certificate.public_key():
        raise Unusable("The user's client-key-data does not match client-certificate-data.")
    return certificate.not_valid_after_utc


def _end_of_token(token: str) -> datetime | None:
    """Returns the time at which a JSON Web Token, such as a service account's token, expires; None for other tokens.

    Does not check the signature, because only the API server can check it. Raises Unusable if the token contains
    characters that tokens cannot have.
    """
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise Unusable("The user's token has characters that are not allowed in tokens.")
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return datetime.fromtimestamp(claims["exp"], UTC)
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        return None
