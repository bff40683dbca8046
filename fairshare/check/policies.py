"""Lists the policies that can be checked, by name and version, and the promises that each one makes."""

from __future__ import annotations

from functools import partial

from fairshare import policies
from fairshare.check.play import PolicyUnderTest
from fairshare.check.promises import PROMISES, Promise
from fairshare.policies import policy_of

POLICIES: dict[str, PolicyUnderTest] = {
    f"{name}:{version}": PolicyUnderTest(f"{name}:{version}", partial(policy_of, name=name, version=version))
    for name in policies.names()
    for version in policies.versions(name)
}
VERSION_1 = POLICIES["gandiva_fair:1"]
# The version of the default policy that clusters use.
DEFAULT = POLICIES[f"{policies.DEFAULT}:{policies.policy_type(policies.DEFAULT).version}"]
# The newest version of the default policy, which may be checked and compared before clusters use it.
NEWEST = POLICIES[f"{policies.DEFAULT}:{policies.versions(policies.DEFAULT)[-1]}"]
# For policies that do not keep all promises, the promises that they keep. Random economies break the others.
_LESS = {
    VERSION_1.name: ("8a", "15"),
    "gandiva_fair:2": ("1", "2", "3", "5", "5b", "7", "8a", "8b", "9b", "10", "13", "14", "15"),
    "market:1": ("1", "2", "3", "7", "8a", "8b", "9b", "12", "13", "15"),
}


def promised(policy: PolicyUnderTest) -> tuple[Promise, ...]:
    """Returns the promises that the policy makes. A policy without an entry in the list makes all of them."""
    names = _LESS.get(policy.name)
    return tuple(promise for promise in PROMISES if names is None or promise.name in names)
