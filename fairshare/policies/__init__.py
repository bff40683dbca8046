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
FIRST = "gandiva_fair"  # decided all rounds before rounds recorded their policy

# All versions that ever decided a round of a released Fairlot; their records are verified with them.
_ALL: tuple[type[Policy], ...] = (GandivaFair1, GandivaFair, Market)
# A newer version is checked and compared (python -m fairshare check) before clusters use it. Of policies that are not
# listed here the newest version is in force.
_IN_FORCE: Mapping[str, int] = {"gandiva_fair": 2}
_BY_VERSION: Mapping[tuple[str, int], type[Policy]] = {(one.name, one.version): one for one in _ALL}


class UnknownPolicy(LookupError):
    """No policy has that name, or that version. The message says which exist."""


def names() -> list[str]:
    """Returns the names of all policies, the default first."""
    return sorted({name for name, _ in _BY_VERSION}, key=lambda name: (name != DEFAULT, name))


def versions(name: str) -> list[int]:
    """Returns the versions of a policy, the newest last."""
    return sorted(number for known, number in _BY_VERSION if known == name)


def all_versions() -> list[tuple[str, int]]:
    """Returns every version of every policy, the default policy first, the newest version of each first."""
    return sorted(_BY_VERSION, key=lambda one: (one[0] != DEFAULT, one[0], -one[1]))


def policy_type(name: str, version: int | None = None) -> type[Policy]:
    """Returns a version of a policy, by default the one in force; raises UnknownPolicy."""
    known = versions(name)
    if not known:
        raise UnknownPolicy(f"{name!r} is not a policy. Available: {', '.join(names())}")
    if version is not None and version not in known:
        raise UnknownPolicy(f"{name} has no version {version}. Available: {', '.join(map(str, known))}")
    return _BY_VERSION[name, _IN_FORCE.get(name, known[-1]) if version is None else version]


def policy_named(
    name: str = DEFAULT, version: int | None = None, options: Mapping[str, object] | None = None
) -> Policy:
    """Returns a version (by default the one in force) with options; raises UnknownPolicy or InvalidOption."""
    kind = policy_type(name, version)
    return kind(read_options(kind, options or {}))


def policy_of(settings: Settings, name: str = DEFAULT, version: int | None = None) -> Policy:
    """Returns a policy with the options that are in the settings, where records of the first rounds keep them."""
    kind = policy_type(name, version)
    known = {one.name for one in fields(kind.options_type)} & {one.name for one in fields(Settings)}
    given: dict[str, Any] = {name: getattr(settings, name) for name in known}
    return kind(read_options(kind, given))
