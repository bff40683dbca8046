"""Parses network addresses from Fairlot's settings, for the network policies of jobs. The settings contain the portal's
addresses, and address ranges that jobs may reach."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

_WORD = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
PODS = re.compile(
    rf"(?P<namespace>[a-z0-9](?:[-a-z0-9]{{0,61}}[a-z0-9])?)/"
    rf"(?P<label>(?:[a-z0-9](?:[-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_WORD})=(?P<value>{_WORD})"
)


Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
# Addresses at which clouds give credentials to their machines: the link-local addresses and some others.
HIDDEN = tuple(
    map(
        ipaddress.ip_network,
        (
            "169.254.0.0/16",
            "100.100.100.200/32",  # Alibaba
            "168.63.129.16/32",  # Azure's host
            "192.0.0.192/32",  # Oracle Classic
            "fe80::/10",
            "fd00:ec2::/32",  # Amazon: metadata at ::254, credentials of pods at ::23
            "fd20:ce::254/128",  # Google
            "fd00:c1::a9fe:a9fe/128",  # Oracle
            "fd00:100::100:200/128",  # Alibaba
            "fd00:42::42/128",  # Scaleway
            "fd00:a9fe:a9fe::1/128",  # Akamai
        ),
    )
)
MOST_RANGES = 100


@dataclass(frozen=True, slots=True)
class Addresses:
    """The portal's web servers outside the cluster, given by a range of addresses."""

    cidr: str  # for example "10.20.0.7/32"


@dataclass(frozen=True, slots=True)
class Pods:
    """The portal's web servers inside the cluster, given by the namespace and a label of their pods."""

    namespace: str
    label: str
    value: str


Place: TypeAlias = Addresses | Pods


def read(texts: Iterable[str]) -> tuple[Place, ...]:
    """Parses the places from which the portal's web servers connect to jobs. Examples of texts: "10.20.0.7",
    "10.20.0.0/28", "namespace/label=value".

    Ignores empty texts. Raises ValueError, with a message for users, if a text is not valid.
    """
    return tuple(_read(text.strip()) for text in texts if text.strip())


def read_ranges(text: str) -> list[str]:
    """Parses a list of address ranges. Returns each range once, in CIDR notation and in the given order.

    Raises ValueError, with a message for users, if a range is not accepted.
    """
    found: list[str] = []
    for word in re.split(r"[\s,;]+", text.strip(), flags=re.ASCII):
        if not word:
            continue
        try:
            network = _network(word)
        except ValueError as error:
            raise ValueError(f"{error}; accepted: ranges such as 10.20.0.0/16, one a line") from None
        if any(_is_within(network, hidden) for hidden in HIDDEN):
            raise ValueError(
                f"{word} is a cloud's metadata address, which gives out credentials of machines: jobs must not reach it"
            )
        if str(network) not in found:
            found.append(str(network))
    if len(found) > MOST_RANGES:
        raise ValueError(
            f"there are {len(found)} address ranges, but at most {MOST_RANGES} are accepted: combine some of them"
        )
    return found


def hidden_in(cidr: str) -> list[str]:
    """Returns the parts of the range `cidr` that no job may reach, in CIDR notation.

    These are addresses at which clouds give credentials to their machines.
    """
    network = ipaddress.ip_network(cidr)
    return [str(hidden) for hidden in HIDDEN if _is_within(hidden, network)]


def _network(text: str) -> Network:
    """Parses a network. Raises ValueError if the text is not valid, or if Kubernetes would not accept it in a
    NetworkPolicy."""
    network = ipaddress.ip_network(text)
    first = network.network_address
    # With such an address in a NetworkPolicy, no job of the cluster could start.
    if isinstance(first, ipaddress.IPv6Address) and (first.scope_id or first.ipv4_mapped):
        raise ValueError(
            f"{text} is not accepted: an IPv6 address must not have a zone, such as %eth0, or be IPv4-mapped"
        )
    return network


def _is_within(inner: Network, outer: Network) -> bool:
    if isinstance(inner, ipaddress.IPv4Network) and isinstance(outer, ipaddress.IPv4Network):
        return inner.subnet_of(outer)
    if isinstance(inner, ipaddress.IPv6Network) and isinstance(outer, ipaddress.IPv6Network):
        return inner.subnet_of(outer)
    return False


def _read(text: str) -> Place:
    if "=" in text:
        found = PODS.fullmatch(text)
        if not found:
            raise ValueError(
                f"{text!r} must be a namespace, a slash and a pod label, such as fairlot/app=fairlot-web"
            )
        return Pods(**found.groupdict())
    try:
        network = _network(text)
    except ValueError as error:
        raise ValueError(f"{error}; accepted: 10.20.0.7, 10.20.0.0/28 and fairlot/app=fairlot-web") from None
    if network.prefixlen == 0:
        raise ValueError(f"{text} includes every address: enter the addresses of the web servers")
    return Addresses(str(network))
