"""Tests that Fairlot finds the GPUs of nodes, and gives a reason if it cannot use them."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.backends.kubernetes.discovery import GPU, Supply, requested, supplies, used_by_others
from scheduling.backends.kubernetes.objects import JOB
from tests.cluster.api import NODES, PODS, Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.nodes import A100
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SLICE = "nvidia.com/mig-1g.10gb"


class Host:
    """A simulated node that a test creates."""

    def __init__(self, plane: ControlPlane, **node: Any) -> None:
        self.api = plane.admin
        self.prefix = f"host-{secrets.token_hex(3)}"
        [self.name] = plane.add_nodes(1, prefix=self.prefix, **node)
        self.path = f"{NODES}/{self.name}"

    def seen(self) -> list[Supply]:
        return supplies(self.api.get(self.path))

    def why_not(self) -> set[str]:
        return {supply.why_not for supply in self.seen()}


@pytest.fixture
def host(plane: ControlPlane) -> Iterator[Host]:
    made = Host(plane, resources={SLICE: "7"})
    yield made
    made.api.delete(made.path)


def test_each_gpu_type_is_a_separate_supply(host: Host) -> None:
    whole, sliced = host.seen()
    assert (whole.node, whole.resource, whole.product) == (host.name, GPU, A100)
    assert (whole.installed, whole.healthy, whole.why_not) == (8, 8, "")
    assert (sliced.resource, sliced.product, sliced.installed) == (SLICE, f"{A100} MIG 1g.10gb", 7)


def test_a_gpu_that_fails_is_installed_and_not_healthy(host: Host) -> None:
    change = [{"op": "replace", "path": "/status/allocatable/nvidia.com~1gpu", "value": "7"}]
    host.api.patch(f"{host.path}/status", change)
    assert [(supply.installed, supply.healthy) for supply in host.seen()] == [(8, 7), (7, 7)]


def test_a_node_without_gpus_supplies_none(host: Host) -> None:
    for place in ("capacity", "allocatable"):
        gone = [
            {"op": "remove", "path": f"/status/{place}/{key}"}
            for key in ("nvidia.com~1gpu", SLICE.replace("/", "~1"))
        ]
        host.api.patch(f"{host.path}/status", gone)
    assert host.seen() == []


def test_a_cordoned_node_says_so_until_it_is_uncordoned(host: Host) -> None:
    host.api.merge(host.path, {"spec": {"unschedulable": True}})
    wait_for(lambda: host.why_not() == {"cordoned"}, what=lambda: str(host.why_not()))
    host.api.merge(host.path, {"spec": {"unschedulable": False}})
    wait_for(lambda: host.why_not() == {""}, what=lambda: str(host.why_not()))


@pytest.mark.parametrize(
    ("taint", "why_not"),
    [
        ({"key": "team", "value": "bio", "effect": "NoSchedule"}, "tainted team=bio:NoSchedule"),
        ({"key": "broken", "effect": "NoExecute"}, "tainted broken:NoExecute"),
        ({"key": "slow", "effect": "PreferNoSchedule"}, ""),
        ({"key": GPU, "value": "present", "effect": "NoSchedule"}, ""),
    ],
)
def test_taints_close_a_node_unless_they_are_tolerated(host: Host, taint: Object, why_not: str) -> None:
    host.api.merge(host.path, {"spec": {"taints": [taint]}})
    assert host.why_not() == {why_not}


def test_a_node_that_is_not_ready_says_why(host: Host) -> None:
    host.api.merge(host.path, {"metadata": {"annotations": {"test.fairlot/ready": "false"}}})
    wait_for(
        lambda: all(why.startswith("the node is not ready: ") for why in host.why_not()),
        what=lambda: str(host.why_not()),
    )


def test_gpus_that_the_device_plugin_shares_are_not_allocated(host: Host) -> None:
    host.api.merge(host.path, {"metadata": {"labels": {"nvidia.com/gpu.replicas": "4"}}})
    assert host.why_not() == {"the device plugin shares each GPU of the node between 4 pods"}


def test_pods_of_others_hold_gpus_until_they_have_ended(admin: Api, namespace: str, host: Host) -> None:
    def pod(name: str, gpus: int, **labels: str) -> Object:
        container = {"name": "main", "image": "example/none", "resources": {"limits": {GPU: str(gpus)}}}
        spec = {"nodeName": host.name, "restartPolicy": "Never", "containers": [container]}
        return {
            "metadata": {"name": name, "labels": labels, "annotations": {"test.fairlot/run-for": "3600"}},
            "spec": spec,
        }

    def used() -> Counter[tuple[str, str]]:
        return used_by_others(admin.items(PODS.format(namespace)))

    admin.create_all(PODS.format(namespace), [pod("theirs", 2), pod("more", 1), pod("ours", 4, **{JOB: "1"})])
    assert used() == {(host.name, GPU): 3}
    wait_for(
        lambda: all(one["status"]["phase"] == "Running" for one in admin.items(PODS.format(namespace))),
        what="all run",
    )
    admin.merge(
        f"{PODS.format(namespace)}/more", {"metadata": {"annotations": {"test.fairlot/run-for": "0"}}}
    )
    wait_for(lambda: used() == {(host.name, GPU): 2}, what=lambda: str(used()))


amounts = st.integers(0, 9)
containers = st.lists(st.tuples(amounts, st.booleans()), max_size=4)


@given(containers, st.lists(amounts, min_size=1, max_size=4))
def test_a_pod_holds_the_most_that_it_needs_at_any_moment(
    init: list[tuple[int, bool]], main: list[int]
) -> None:
    """Proves, by a simulation, that the GPUs of a pod are the most that its containers need at the same time.

    Init containers run one after another; those that are sidecars keep running. Then all main containers run.
    """
    sidecars = neediest = 0
    for gpus, stays in init:
        neediest = max(neediest, sidecars + gpus)
        sidecars += gpus if stays else 0
    neediest = max(neediest, sidecars + sum(main))

    def container(gpus: int, **more: str) -> Object:
        return {"resources": {"limits": {GPU: gpus, "cpu": "100m"}}} | more

    listed = [container(gpus, **({"restartPolicy": "Always"} if stays else {})) for gpus, stays in init]
    pod = {"spec": {"initContainers": listed, "containers": [container(gpus) for gpus in main]}}
    assert requested(pod)[GPU] == neediest
    assert set(requested(pod)) <= {GPU}
