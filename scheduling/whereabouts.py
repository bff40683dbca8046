"""Where the portal's web servers are, as pods of a Kubernetes cluster see them: so that walls can let them in."""

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


@dataclass(frozen=True, slots=True)
class Addresses:
    """Web servers outside the cluster."""

    cidr: str  # such as "10.20.0.7/32"


@dataclass(frozen=True, slots=True)
class Pods:
    """Web servers in the cluster: the pods of a namespace that have this label."""

    namespace: str
    label: str
    value: str


Place: TypeAlias = Addresses | Pods


def read(texts: Iterable[str]) -> tuple[Place, ...]:
    """As settings have them: "10.20.0.7", "10.20.0.0/28" or "namespace/label=value"; ValueError in plain words."""
    return tuple(_read(text.strip()) for text in texts if text.strip())


def _read(text: str) -> Place:
    if "=" in text:
        found = PODS.fullmatch(text)
        if not found:
            raise ValueError(
                f"{text!r} is not like fairlot/app=fairlot-web: a namespace and a label of its pods"
            )
        return Pods(**found.groupdict())
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"{error}; accepted: 10.20.0.7, 10.20.0.0/28 and fairlot/app=fairlot-web") from None
    if network.prefixlen == 0:
        raise ValueError(f"{text} is everybody: name the web servers' own addresses")
    return Addresses(str(network))
