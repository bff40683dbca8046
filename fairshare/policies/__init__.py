"""The registry of scheduling policies: the only place that names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fairshare.model import Settings
from fairshare.policies.base import Policy, read_options
from fairshare.policies.gandiva_fair.policy import GandivaFair
from fairshare.policies.gandiva_fair_1.policy import GandivaFair1
from fairshare.policies.market.policy import Market

DEFAULT = "gandiva_fair"
FIRST = "gandiva_fair"  # which decided all rounds until these told which policy did

# All versions that ever decided a round of a released Fairlot: their records are drawn again with them.
_ALL: tuple[type[Policy], ...] = (GandivaFair1, GandivaFair, Market)
# A newer version is judged and compared (python -m fairshare check) before clusters decide with it; of other policies
# the newest is in force.
_IN_FORCE: Mapping[str, int] = {"gandiva_fair": 2}
_BY_VERSION: Mapping[tuple[str, int], type[Policy]] = {(one.name, one.version): one for one in _ALL}


class UnknownPolicy(LookupError):
    """No policy has that name, or that version; says which there are."""


def names() -> list[str]:
    """The policies to choose from, the default first."""
    return sorted({name for name, _ in _BY_VERSION}, key=lambda name: (name != DEFAULT, name))


def versions(name: str) -> list[int]:
    """The versions of a policy, the newest last."""
    return sorted(number for known, number in _BY_VERSION if known == name)


def all_versions() -> list[tuple[str, int]]:
    """Every version of every policy, the newest of each first."""
    return sorted(_BY_VERSION, key=lambda one: (one[0] != DEFAULT, one[0], -one[1]))


def policy_type(name: str, version: int | None = None) -> type[Policy]:
    """A version of a policy, or the one in force; raises UnknownPolicy."""
    known = versions(name)
    if not known:
        raise UnknownPolicy(f"{name!r} is not a policy; there are {', '.join(names())}")
    if version is not None and version not in known:
        raise UnknownPolicy(f"{name} has no version {version}; it has {', '.join(map(str, known))}")
    return _BY_VERSION[name, _IN_FORCE.get(name, known[-1]) if version is None else version]


def policy_named(
    name: str = DEFAULT, version: int | None = None, options: Mapping[str, object] | None = None
) -> Policy:
    """A version of a policy, or the one in force, with options; raises UnknownPolicy and InvalidOption."""
    kind = policy_type(name, version)
    return kind(read_options(kind, options or {}))


def policy_of(settings: Settings, name: str = DEFAULT, version: int | None = None) -> Policy:
    """A policy with those of its options that the settings have, as records of the first rounds keep them there."""
    kind = policy_type(name, version)
    known = {one.name for one in fields(kind.options_type)} & {one.name for one in fields(Settings)}
    given: dict[str, Any] = {name: getattr(settings, name) for name in known}
    return kind(read_options(kind, given))
