"""Every attack, as a test."""

import pytest

from tests.attack.attacks import Attack, Target, all_attacks


def _parameter(attack: Attack) -> object:
    marks = [pytest.mark.slow, *([pytest.mark.cluster] if attack.needs == "cluster" else [])]
    return pytest.param(attack, id=str(attack), marks=marks)


@pytest.mark.parametrize("attack", [_parameter(attack) for attack in all_attacks()])
def test_the_portal_holds(attack: Attack, target: Target) -> None:
    attack.run(target)
