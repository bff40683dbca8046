"""The nodes of a cluster are recorded one by one, so that an invalid node does not affect others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from accounting.core.clock import now_from_database
from scheduling.backends.base import NodeGpus
from scheduling.draining.actions import drain_node, drains_due, return_node
from scheduling.execution import node_inventory as actions
from scheduling.execution.node_inventory import apply_offers
from scheduling.models import Cluster, Node
from tests.scheduling.world import World, world


@pytest.fixture
def lab(db: None) -> World:
    return world(v100=4)


def offer(host: str, product: str = "NVIDIA-A100-SXM4-80GB", gpus: int = 8) -> NodeGpus:
    return NodeGpus(host, "nvidia.com/gpu", product, "", gpus, 0, 0, is_up=True, why_not="")


def seen(lab: World) -> dict[str, tuple[int, str]]:
    return {node.name: (node.gpus, node.state) for node in Node.objects.filter(cluster=lab.cluster)}


def test_gpus_become_nodes_once_and_leave_when_they_are_gone(lab: World) -> None:
    assert apply_offers(cluster_id=lab.cluster.pk, offers=[offer("a"), offer("b", gpus=4)])
    assert seen(lab) == {"a": (8, "ready"), "b": (4, "ready")}
    assert not apply_offers(cluster_id=lab.cluster.pk, offers=[offer("a"), offer("b", gpus=4)])
    assert apply_offers(cluster_id=lab.cluster.pk, offers=[offer("b", gpus=4)])
    assert seen(lab) == {"b": (4, "ready")}
    assert apply_offers(cluster_id=lab.cluster.pk, offers=[])
    assert seen(lab) == {}


@pytest.mark.parametrize("part", ["_shown", "_generation"])
def test_a_node_that_cannot_be_recorded_blocks_no_other(
    lab: World, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    apply_offers(cluster_id=lab.cluster.pk, offers=[offer("gone"), offer("odd", "ODD-1")])
    real = getattr(actions, part)

    def stumbles(asked: Any, *rest: Any) -> Any:
        if "ODD-1" in (asked, getattr(asked, "product", "")):
            raise ZeroDivisionError
        return real(asked, *rest)

    monkeypatch.setattr(actions, part, stumbles)
    apply_offers(
        cluster_id=lab.cluster.pk, offers=[offer("a"), offer("odd", "ODD-1", gpus=2), *map(offer, "bcdef")]
    )
    assert seen(lab) == dict.fromkeys("abcdef", (8, "ready")) | {"odd": (8, "ready")}
    assert "ZeroDivisionError" in Cluster.objects.get(pk=lab.cluster.pk).failure


def test_a_drained_node_that_vanishes_and_returns_is_drained_until_its_deadline(lab: World) -> None:
    apply_offers(cluster_id=lab.cluster.pk, offers=[offer("a")])
    node = Node.objects.get(name="a")
    deadline = now_from_database() + timedelta(hours=1)
    drain_node(actor=lab.people.olga, node=node, reason="new fan", mode="deadline", deadline=deadline)
    apply_offers(cluster_id=lab.cluster.pk, offers=[])
    node.refresh_from_db()
    assert (node.state, node.gone_at is None) == ("drained", False)
    assert not apply_offers(cluster_id=lab.cluster.pk, offers=[])
    apply_offers(cluster_id=lab.cluster.pk, offers=[offer("a")])
    node.refresh_from_db()
    assert (node.state, node.state_reason, node.gone_at) == ("drained", "new fan", None)
    assert drains_due(deadline) == [node.pk]
    apply_offers(cluster_id=lab.cluster.pk, offers=[])
    return_node(actor=lab.people.olga, node=node)
    assert apply_offers(cluster_id=lab.cluster.pk, offers=[])
    assert seen(lab) == {}
