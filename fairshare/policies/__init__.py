"""The registry of scheduling policies: finds the class of a policy by its name and version. No other module lists all
policies.

A policy can have several versions. Old versions stay here, because a recorded round is verified with the version that
decided it. One version of each policy is *in force*: clusters use it. It is not always the newest, because a newer
version may still be in testing.
"""

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
FIRST = "gandiva_fair"  # the policy of all rounds from before rounds recorded their policy

# All versions that ever decided a round of a released Fairlot. Records of rounds are verified with the version that
# decided them.
_ALL: tuple[type[Policy], ...] = (GandivaFair1, GandivaFair, Market)
# The version in force of policies whose newest version is still checked and compared (python -m fairshare check). For
# all other policies the newest version is in force.
_IN_FORCE: Mapping[str, int] = {"gandiva_fair": 2}
_BY_VERSION: Mapping[tuple[str, int], type[Policy]] = {(one.name, one.version): one for one in _ALL}


class UnknownPolicy(LookupError):
    """Raised when no policy has the given name, or the policy has no such version. The message lists the available
    ones."""


def names() -> list[str]:
    """Returns the names of all policies, the default first."""
    return sorted({name for name, _ in _BY_VERSION}, key=lambda name: (name != DEFAULT, name))


def versions(name: str) -> list[int]:
    """Returns the version numbers of the policy called `name` in ascending order. The list is empty if there is no such
    policy."""
    return sorted(number for known, number in _BY_VERSION if known == name)


def all_versions() -> list[tuple[str, int]]:
    """Returns a pair (name, version) for each version of each policy.

    The default policy comes first; the others follow by name. The versions of one policy are in descending order.
    """
    return sorted(_BY_VERSION, key=lambda one: (one[0] != DEFAULT, one[0], -one[1]))


def policy_type(name: str, version: int | None = None) -> type[Policy]:
    """Returns the class of the policy called `name`.

    If `version` is None, it is the class of the version in force: the one that clusters use, which is not always the
    newest. Raises UnknownPolicy if the name or version does not exist.
    """
    known = versions(name)
    if not known:
        raise UnknownPolicy(f"{name!r} is not a policy. Available: {', '.join(names())}")
    if version is not None and version not in known:
        raise UnknownPolicy(f"{name} has no version {version}. Available: {', '.join(map(str, known))}")
    return _BY_VERSION[name, _IN_FORCE.get(name, known[-1]) if version is None else version]


def policy_named(
    name: str = DEFAULT, version: int | None = None, options: Mapping[str, object] | None = None
) -> Policy:
    """Creates the policy called `name` with the given options, and with the defaults of all other options.

    If `version` is None, the version in force is created: the one that clusters use, which is not always the newest.
    Raises UnknownPolicy if the name or version does not exist, and InvalidOption if an option is not accepted.
    """
    kind = policy_type(name, version)
    return kind(read_options(kind, options or {}))


def policy_of(settings: Settings, name: str = DEFAULT, version: int | None = None) -> Policy:
    """Creates the policy called `name` with options from `settings`, the scheduler settings of a round.

    Early records of rounds store the options there. Options that are no field of `Settings` get their defaults. If
    `version` is None, the version in force is created.
    """
    kind = policy_type(name, version)
    known = {one.name for one in fields(kind.options_type)} & {one.name for one in fields(Settings)}
    given: dict[str, Any] = {name: getattr(settings, name) for name in known}
    return kind(read_options(kind, given))
