"""Network addresses for the network policies of jobs are parsed, and invalid ones are refused with the reason.

Fairlot's settings name the portal's web servers, which may connect to sessions, as addresses or pods. Admins enter the
address ranges that jobs may reach.
"""

from __future__ import annotations

import pytest

from scheduling.backends.network_sources import HIDDEN, Addresses, Pods, hidden_in, read, read_ranges


def test_addresses_and_pods_are_distinguished() -> None:
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
        ("0.0.0.0/0", "includes every address"),
        ("::/0", "includes every address"),
        ("10.20.0.7/28", "has host bits set"),
        ("::ffff:10.20.0.7", "must not have a zone, such as %eth0, or be IPv4-mapped"),
        ("fairlot", "accepted: 10.20.0.7, 10.20.0.0/28 and fairlot/app=fairlot-web"),
        ("app=web", "a namespace, a slash and a pod label"),
        ("fairlot/app=", "a namespace, a slash and a pod label"),
        ("Fairlot/app=web", "a namespace, a slash and a pod label"),
        ("fairlot/app=web+tier=front", "a namespace, a slash and a pod label"),
    ],
)
def test_invalid_and_unlimited_sources_are_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read([text])


def test_ranges_are_read_as_people_list_them() -> None:
    asked = " 10.20.0.0/16, 2001:db8::/32;10.1.2.3\n10.20.0.0/16\n"
    assert read_ranges(asked) == ["10.20.0.0/16", "2001:db8::/32", "10.1.2.3/32"]
    assert read_ranges(" \n") == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("example.org", "accepted: ranges such as"),
        ("10.20.0.1/16", "has host bits set"),
        ("169.254.169.254", "a cloud's metadata address"),
        ("10.0.0.0/8 fd00:ec2::254", "a cloud's metadata address"),
        ("168.63.129.16", "a cloud's metadata address"),
        ("::ffff:169.254.0.0/112", "must not have a zone, such as %eth0, or be IPv4-mapped"),
        ("2001:db8::1%eth0", "must not have a zone, such as %eth0, or be IPv4-mapped"),
        (" ".join(f"10.0.{number}.0/24" for number in range(101)), "at most 100"),
    ],
)
def test_ranges_that_cannot_be_opened_are_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_ranges(text)


def test_credential_addresses_of_clouds_stay_closed_in_a_wide_range() -> None:
    assert hidden_in("169.0.0.0/8") == ["169.254.0.0/16"]
    assert hidden_in("100.64.0.0/10") == ["100.100.100.200/32"]
    assert hidden_in("fd00:ec0::/28") == ["fd00:ec2::/32"]
    assert hidden_in("0.0.0.0/0") + hidden_in("::/0") == [str(hidden) for hidden in HIDDEN]
    assert hidden_in("10.0.0.0/8") == []
