"""Valid kubeconfigs are accepted; invalid ones are refused with a clear message."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from scheduling.backends.kubernetes.kubeconfig import Kubeconfig, Unusable, parse
from tests.scheduling.stand_in import TOKEN, self_signed

CERTIFICATE, KEY = self_signed()
OTHER_KEY = self_signed()[1]


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def config(**changes: Any) -> dict[str, Any]:
    """Returns a valid kubeconfig, changed by `changes`.

    The changes `cluster` and `user` replace the section of the only cluster or of the only user.
    """
    reached = {"server": "https://k.example:6443", "certificate-authority-data": base64_of(CERTIFICATE)}
    found: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "k", "cluster": changes.pop("cluster", reached)}],
        "users": [{"name": "u", "user": changes.pop("user", {"token": TOKEN})}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
        "current-context": "c",
    }
    return found | changes


def read(**changes: Any) -> Kubeconfig:
    return parse(yaml.safe_dump(config(**changes)))


def test_only_what_reaches_the_cluster_is_kept() -> None:
    more = config()
    more["users"].append({"name": "root", "user": {"token": "root's own"}})
    more["clusters"].append({"name": "other", "cluster": {"server": "http://other"}})
    more["contexts"].append({"name": "root", "context": {"cluster": "other", "user": "root"}})
    found = parse(yaml.safe_dump(more))
    assert found.server == "https://k.example:6443"
    assert b"root" not in found.as_bytes()
    assert b"other" not in found.as_bytes()
    assert TOKEN.encode() in found.as_bytes()
    assert TOKEN not in repr(found)
    assert parse(found.as_bytes().decode()) == found


def test_the_only_context_is_meant_and_of_several_the_current_one() -> None:
    assert read(**{"current-context": ""}).server == "https://k.example:6443"
    two = config()
    two["contexts"].append({"name": "d", "context": {"cluster": "k", "user": "u"}})
    with pytest.raises(Unusable, match="Set current-context"):
        parse(yaml.safe_dump(two | {"current-context": ""}))


def test_a_client_certificate_will_do_and_says_when_it_ends() -> None:
    user = {"client-certificate-data": base64_of(CERTIFICATE), "client-key-data": base64_of(KEY)}
    found = read(user=user)
    assert found.ends is not None
    assert (found.ends - datetime.now(UTC)).days in {29, 30}


def test_a_token_says_when_it_ends_if_it_does() -> None:
    claims = base64.urlsafe_b64encode(b'{"exp": 1893456000}').decode().rstrip("=")
    assert read(user={"token": f"x.{claims}.y"}).ends == datetime(2030, 1, 1, tzinfo=UTC)
    assert read(user={"token": "opaque"}).ends is None
    assert read(user={"token": "x.bm90IGpzb24.y"}).ends is None


SERVER = {"server": "https://k.example"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"cluster": SERVER | {"certificate-authority": "/ca.crt"}}, "has certificate-authority, .* does not read files"),
    ({"cluster": SERVER | {"insecure-skip-tls-verify": True}}, "insecure-skip-tls-verify"),
    ({"cluster": SERVER | {"proxy-url": "http://proxy"}}, "has proxy-url"),
    ({"cluster": {"server": "http://k.example"}}, "https://"),
    ({"cluster": {"server": "https://me:secret@k.example"}}, "without a user"),
    ({"cluster": {"server": "https://k.example:99999"}}, "not a valid URL"),
    ({"cluster": {"server": "https:///nowhere"}}, "not a valid URL"),
    ({"cluster": {"server": ["https://k.example"]}}, "no server"),
    ({"cluster": SERVER | {"certificate-authority-data": "%"}}, "is not valid base64"),
    ({"cluster": SERVER | {"certificate-authority-data": base64_of(b"x")}}, "not a certificate"),
    ({"cluster": SERVER | {"color": "blue"}}, "has color, which Fairlot does not know"),
    ({"user": {"exec": {"command": "sh"}}}, "has exec, .* does not run programs"),
    ({"user": {"auth-provider": {"name": "gcp"}}}, "has auth-provider"),
    ({"user": {"tokenFile": "/token"}}, "has tokenFile, .* does not read files"),
    ({"user": {"client-certificate": "/c", "client-key": "/k"}}, "has client-certificate, .* does not read files"),
    ({"user": {"username": "me", "password": "x"}}, "has (username|password), which is not accepted"),
    ({"user": {"token": TOKEN, "as": "root"}}, "has as, .* does not impersonate other users"),
    ({"user": {"token": "two\nlines"}}, "characters that are not allowed in tokens"),
    ({"user": {}}, "has no credentials"),
    ({"user": {"client-certificate-data": base64_of(CERTIFICATE)}}, "only one of"),
    ({"user": {"client-certificate-data": base64_of(CERTIFICATE), "client-key-data": base64_of(OTHER_KEY)}},
     "does not match client-certificate-data"),
    ({"contexts": [{"name": "c", "context": {"cluster": "gone", "user": "u"}}]}, "no cluster named gone"),
    ({"contexts": []}, "no context named c"),
    ({"users": "none"}, "no list of users"),
    ({"kind": "Secret"}, "not a kubeconfig"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), REFUSED)
def test_refused_keys_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(Unusable, match=said) as refused:
        read(**changes)
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["", "just words", "- a\n- list", "a: [", "[" * 5000, "a: \x00", "\ud800: 1"]
)
def test_other_texts_are_no_kubeconfigs(text: str) -> None:
    with pytest.raises(Unusable):
        parse(text)


def test_a_text_that_is_too_long_is_not_parsed() -> None:
    with pytest.raises(Unusable, match="too long"):
        parse("#" * 70_000)
