"""Every attack on a portal, as a test. Those on a cluster are run by tests/cluster/test_stolen_account.py."""

import pytest

from tests.attack.attacks import Attack, Target, all_attacks


def _parameter(attack: Attack) -> object:
    return pytest.param(attack, id=str(attack), marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "attack", [_parameter(attack) for attack in all_attacks() if attack.needs != "cluster"]
)
def test_the_portal_holds(attack: Attack, target: Target) -> None:
    attack.run(target)
