"""Before an admin changes settings of a cluster, Fairlot says the present and new values and what follows."""

from __future__ import annotations

from typing import Any

import pytest

from accounting.core.errors import Refused
from scheduling.clusters.proposals import EFFECTS, SETTINGS, changes_by
from scheduling.models import Cluster
from tests.scheduling.world import World, start, world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lab() -> World:
    return world()


def effects(cluster: Cluster, **settings: Any) -> dict[str, str]:
    return {one.name: one.effect for one in changes_by(cluster, settings)}


def test_each_setting_has_an_effect_and_only_changes_are_told(lab: World) -> None:
    assert SETTINGS.keys() == EFFECTS.keys()
    cluster = lab.cluster
    same = {name: getattr(cluster, name) for name in SETTINGS}
    assert changes_by(cluster, same) == []
    (one,) = changes_by(cluster, same | {"overhead_limit": 0.25})
    assert (one.label, one.before, one.after) == ("Highest allowed switching overhead", "5 %", "25 %")
    limits = {"cpu_per_gpu": 4.0, "memory_limit_per_gpu": 32.0}
    told = {one.name: (one.before, one.after, one.effect) for one in changes_by(cluster, limits)}
    assert told["cpu_per_gpu"][:2] == ("none", "4")
    assert "start from now on" in told["cpu_per_gpu"][2]
    assert told["memory_limit_per_gpu"][:2] == ("none", "32 GiB")
    assert "submitted from now on" in told["memory_limit_per_gpu"][2]
    assert cluster.overhead_limit == Cluster.objects.get(pk=cluster.pk).overhead_limit == 0.05


def test_the_quantum_is_told_as_it_becomes_with_slow_switches(lab: World) -> None:
    cluster = lab.cluster
    cluster.quantum_seconds = 60
    assert (
        "every 2 min instead of 1 min. No switch has been measured yet."
        in (effects(cluster, quantum_seconds=120)["quantum_seconds"])
    )
    cluster.switch_seconds = 6
    assert effects(cluster, quantum_seconds=240)["quantum_seconds"] == (
        "A quantum round every 4 min instead of 2 min; switching would take up to 2.5 % of the time instead of 5.0 %."
    )
    stretched = effects(cluster, quantum_seconds=30)["quantum_seconds"]
    assert "every 2 min instead of 2 min, because switching is slow" in stretched


def test_what_running_gangs_would_notice_is_counted(lab: World) -> None:
    start(lab, checkpoint="step-*.pt")
    start(lab)
    cluster = lab.cluster
    cluster.slicing = Cluster.Slicing.AUTO
    gangs = "Of 2 running gangs, 1 with a checkpoint pattern"
    assert effects(cluster, slicing="freeze")["slicing"].startswith(f"{gangs}. All would be frozen")
    assert effects(cluster, slicing="checkpoint")["slicing"].startswith(f"{gangs} would resume")
    cluster.slicing = Cluster.Slicing.FREEZE
    assert "the others are frozen" in effects(cluster, slicing="auto")["slicing"]
    cluster.backend = Cluster.Backend.KUBERNETES
    assert "cannot freeze" in effects(cluster, slicing="auto")["slicing"]
    assert effects(cluster, min_hold_seconds=3600)["min_hold_seconds"] == (
        "Of 2 running gangs, 2 could not be suspended now; with the present value 0."
    )
    assert "0 of which run now" in effects(cluster, notice_seconds=600)["notice_seconds"]
    assert "no trades" in effects(cluster, trading=False)["trading"]
    cluster.trading = False
    assert "may trade" in effects(cluster, trading=True)["trading"]
    assert "The next round picks gangs" in effects(cluster, ordering="lottery")["ordering"]


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"quantum_seconds": 0}, "quantum_seconds"), ({"quantum_seconds": None}, "quantum_seconds"),
     ({"overhead_limit": None}, "overhead_limit"), ({"min_hold_seconds": None}, "min_hold_seconds"),
     ({"notice_seconds": None}, "notice_seconds"), ({"name": "x"}, "name")],
)  # fmt: skip
def test_a_setting_that_cannot_be_is_refused_by_its_name(
    lab: World, settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(Refused) as refused:
        changes_by(lab.cluster, settings)
    assert refused.value.field == field
