"""The policies that can be judged, by name, and what each of them promises."""

from __future__ import annotations

from fairshare.check.play import GANDIVA_FAIR_1, Policy
from fairshare.check.promises import PROMISES, Promise

POLICIES: dict[str, Policy] = {policy.name: policy for policy in (GANDIVA_FAIR_1,)}
# The one that clusters use unless they choose another.
DEFAULT = GANDIVA_FAIR_1
# What a policy promises where that is less than everything.
_LESS = {GANDIVA_FAIR_1.name: ("8a", "15")}


def promised(policy: Policy) -> tuple[Promise, ...]:
    """The promises that the policy is bound by."""
    names = _LESS.get(policy.name)
    return tuple(promise for promise in PROMISES if names is None or promise.name in names)
