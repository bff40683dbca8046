"""What a stolen copy of Fairlot's token can do, and what it cannot; the same of a tenant who goes after GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.attack.attacks import Attack, all_attacks
from tests.cluster.controlplane import ControlPlane
from tests.cluster.stage import Stage, stage

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane, fairlot: Path) -> Iterator[Stage]:
    with stage(plane) as made:
        yield made


@pytest.mark.parametrize("attack", [one for one in all_attacks() if one.needs == "cluster"], ids=str)
def test_holds(attack: Attack, cluster: Stage) -> None:
    target: Any = SimpleNamespace(cluster=cluster)
    attack.run(target)
