"""Runs every attack on a portal as a test. tests/cluster/test_stolen_account.py runs the attacks on a cluster."""

from pathlib import Path

import pytest

from tests.attack.__main__ import NOT_TRIED, outcome
from tests.attack.attacks import Attack, NotTried, Target, all_attacks
from tests.proof.portal import RunningPortal

pytestmark = pytest.mark.xdist_group("attacks")


def _parameter(attack: Attack) -> object:
    return pytest.param(attack, id=str(attack), marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "attack", [_parameter(attack) for attack in all_attacks() if attack.needs != "cluster"]
)
def test_the_portal_holds(attack: Attack, target: Target) -> None:
    try:
        attack.run(target)
    except NotTried as why:
        pytest.skip(f"not tried: {why}")


def test_an_attack_that_was_not_tried_did_not_hold() -> None:
    def run(_: object) -> None:
        raise NotTried("members may not submit")

    assert outcome(Attack("local_jobs", "rob", run, ""), Target(RunningPortal(Path()))) == (
        NOT_TRIED,
        "members may not submit",
    )
