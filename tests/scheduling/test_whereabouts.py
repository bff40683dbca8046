"""Where the portal's web servers are, as settings say it."""

from __future__ import annotations

import pytest

from scheduling.whereabouts import Addresses, Pods, read


def test_addresses_and_pods_are_told_apart() -> None:
    asked = [
        " 10.20.0.7",
        "10.20.0.0/28",
        "fd00:20::/64",
        "fairlot/app=web",
        "web/example.org/tier=front",
        "",
    ]
    assert read(asked) == (
        Addresses("10.20.0.7/32"),
        Addresses("10.20.0.0/28"),
        Addresses("fd00:20::/64"),
        Pods("fairlot", "app", "web"),
        Pods("web", "example.org/tier", "front"),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0.0.0.0/0", "is everybody"),
        ("::/0", "is everybody"),
        ("10.20.0.7/28", "has host bits set"),
        ("fairlot", "accepted: 10.20.0.7, 10.20.0.0/28 and fairlot/app=fairlot-web"),
        ("app=web", "a namespace and a label"),
        ("fairlot/app=", "a namespace and a label"),
        ("Fairlot/app=web", "a namespace and a label"),
        ("fairlot/app=web+tier=front", "a namespace and a label"),
    ],
)
def test_what_names_nobody_or_everybody_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read([text])
