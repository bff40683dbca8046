"""Gangs with roles on a real control plane: a Job for each role, which start together and end together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from scheduling.backends.base import Container, End, Gang, GangRole, Phase, Worker
from scheduling.backends.kubernetes import mpi, objects
from tests.cluster.api import JOBS, Api, Object
from tests.cluster.backend_rig import Rig, Rigging, rigs
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture
def rigging(fairlot: Path, admin: Api, tenant: str, tmp_path: Path) -> Iterator[Rigging]:
    with rigs(admin, fairlot, tenant, tmp_path) as make:
        yield make


@pytest.fixture
def rig(rigging: Rigging) -> Rig:
    return rigging()


def role(name: str, *, workers: int = 1, gpus: bool = True, **changes: Any) -> GangRole:
    given: dict[str, Any] = {
        "name": name,
        "workers": workers,
        "holds_gpus": gpus,
        "command": ["/bin/sh", "-c", f"run {name}"],
        "environment_name": f"example/{name}",
        "environment": {"ONLY": name},
    }
    return GangRole(**given | changes)


def of_roles(rig: Rig, nodes: Sequence[str], roles: Sequence[GangRole], **changes: Any) -> Gang:
    """Returns a gang with two GPUs for each worker of a role with GPUs. `roles` are in the order of ranks."""
    holds = [one.holds_gpus for one in roles for _ in range(one.workers)]
    workers = [
        Worker(rank, nodes[rank % len(nodes)], (0, 1) if held else (), (), virtual_speed=None)
        for rank, held in enumerate(holds)
    ]
    return rig.gang(workers=workers, roles=roles, **changes)


def by_rank(rig: Rig, gang: Gang) -> list[Object]:
    pods = [pod for pod in rig.pods(gang) if objects.epoch_of(pod) == gang.epoch]
    return sorted(pods, key=objects.rank_of)


def end(rig: Rig, pod: Object, code: int = 0) -> None:
    marks = {"test.fairlot/run-for": "0", "test.fairlot/exit-code": str(code)}
    rig.admin.merge(rig.work.pod(pod), {"metadata": {"annotations": marks}})


def variables(pod: Object) -> dict[str, Any]:
    return {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}


def test_each_role_has_its_own_image_command_and_resources(rig: Rig, nodes: list[str]) -> None:
    small = Container(cpus=1.0, memory=2**30)
    roles = [role("worker", workers=2), role("ps", gpus=False, container=small)]
    gang = rig.start(of_roles(rig, nodes[:2], roles))
    rig.wait(gang, Phase.RUNNING)
    first, second, ps = by_rank(rig, gang)
    assert [pod["spec"]["nodeName"] for pod in (first, second, ps)] == [nodes[0], nodes[1], nodes[0]]
    images = [pod["spec"]["containers"][0]["image"] for pod in (first, second, ps)]
    assert images == ["example/worker", "example/worker", "example/ps"]
    assert ps["spec"]["containers"][0]["command"][-1] == "run ps"
    limits = [pod["spec"]["containers"][0]["resources"]["limits"] for pod in (first, ps)]
    assert limits == [{objects.NVIDIA: "2"}, {"cpu": "1", "memory": str(2**30)}]

    name, name_of_ps = objects.job_name(gang.job_id), objects.job_name(gang.job_id, 1)
    addresses = {"worker": [f"{name}-{index}.{name}:2223" for index in range(2)]}
    addresses["ps"] = [f"{name_of_ps}-0.{name_of_ps}:2223"]
    for pod, of in ((first, "worker"), (second, "worker"), (ps, "ps")):
        told = variables(pod)
        assert (told["FAIRLOT_ROLE"], told["ONLY"], told["FAIRLOT_WORLD_SIZE"]) == (of, of, "3")
        assert told["FAIRLOT_HOSTS_WORKER"].split(",") == addresses["worker"]
        assert told["MASTER_ADDR"] == f"{name}-0.{name}"
        task = '"task": {"type": "%s", "index": $(FAIRLOT_ROLE_INDEX)}' % of  # noqa: UP031 - braces
        assert task in told["TF_CONFIG"]
        assert json.loads(told["TF_CONFIG"].replace("$(FAIRLOT_ROLE_INDEX)", "0"))["cluster"] == addresses
    assert variables(first)["WORLD_SIZE"] == "2"
    assert "RANK" in variables(first)
    assert {"RANK", "WORLD_SIZE"}.isdisjoint(variables(ps))
    # An image with CUDA would see all GPUs of the node.
    assert variables(ps)["NVIDIA_VISIBLE_DEVICES"] == "void"
    rig.stop(gang)
    assert rig.wait(gang).end is End.STOPPED
    assert all(map(objects.has_ended, rig.pods(gang)))


def test_no_worker_starts_before_the_pods_of_all_roles_exist(
    rig: Rig, nodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves it with a process that dies after it has started the first of two roles."""
    from scheduling.backends.kubernetes import orders  # noqa: PLC0415

    whole = orders.Orders.start

    def dies(self: orders.Orders, *args: Any) -> orders.Outcome:
        if self.part == 1:
            raise OSError("killed")
        return whole(self, *args)

    gang = of_roles(rig, nodes[:2], [role("worker", workers=2), role("ps", gpus=False)])
    with monkeypatch.context() as patched:
        patched.setattr(orders.Orders, "start", dies)
        with pytest.raises(OSError, match="killed"):
            rig.start(gang)
    wait_for(lambda: len(rig.pods(gang)) == 2, what="the pods of the first role")
    assert rig.wait(gang, Phase.STARTING).end is None
    assert all(map(objects.is_gated, rig.pods(gang)))
    rig.start(gang)
    rig.wait(gang, Phase.RUNNING)
    assert len(rig.pods(gang)) == 3
    rig.stop(gang)
    rig.wait(gang)


def test_the_end_of_the_role_that_ends_the_job_stops_the_others(rig: Rig, nodes: list[str]) -> None:
    roles = [role("worker", workers=2), role("launcher", gpus=False, ends_job=True)]
    gang = rig.start(of_roles(rig, nodes[:2], roles, leader=2))
    rig.wait(gang, Phase.RUNNING)
    end(rig, by_rank(rig, gang)[2])
    ended = rig.wait(gang)
    assert (ended.end, ended.exit_code) == (End.SUCCEEDED, 0)
    assert ended.message == "every worker of launcher exited with code 0"
    assert all(map(objects.has_ended, rig.pods(gang)))


def test_a_failure_in_any_role_ends_the_gang_which_can_start_again(rig: Rig, nodes: list[str]) -> None:
    roles = [role("chief", ends_job=True), role("evaluator", gpus=False), role("ps", gpus=False)]
    gang = rig.start(of_roles(rig, nodes[:1], roles))
    rig.wait(gang, Phase.RUNNING)
    _, evaluator, ps = by_rank(rig, gang)
    end(rig, evaluator)  # a role that does not end the job may succeed before
    wait_for(
        lambda: objects.has_ended(next(pod for pod in rig.pods(gang) if objects.rank_of(pod) == 1)),
        what="the evaluator's end",
    )
    assert rig.seen[gang.token].phase is Phase.RUNNING
    end(rig, ps, 7)
    ended = rig.wait(gang)
    assert (ended.end, ended.exit_code) == (End.FAILED, 7)
    assert ended.message == f"worker 2 (ps 0) on {nodes[0]} exited with code 7"

    again = rig.start(of_roles(rig, nodes[1:2], roles, epoch=2))
    rig.wait(again, Phase.RUNNING)
    pods = by_rank(rig, again)
    assert [pod["spec"]["nodeName"] for pod in pods] == [nodes[1]] * 3
    end(rig, pods[0])
    assert rig.wait(again).end is End.SUCCEEDED
    rig.backend.remove_files(job_id=again.job_id)
    gone = [objects.job_name(again.job_id, part) for part in range(3)]
    wait_for(
        lambda: (
            not {job["metadata"]["name"] for job in rig.admin.items(JOBS.format(rig.namespace))} & {*gone}
        ),
        what="all Jobs are deleted",
    )


def test_a_lost_worker_ends_all_roles(rig: Rig, nodes: list[str]) -> None:
    gang = rig.start(of_roles(rig, nodes[:2], [role("worker", workers=2), role("ps", gpus=False)]))
    rig.wait(gang, Phase.RUNNING)
    rig.evict(by_rank(rig, gang)[2])
    ended = rig.wait(gang)
    assert ended.end is End.LOST
    assert "worker 2 (ps 0)" in ended.message


def test_a_stop_that_reached_only_the_first_role_is_completed(rig: Rig, nodes: list[str]) -> None:
    from scheduling.backends.kubernetes import orders  # noqa: PLC0415

    gang = rig.start(of_roles(rig, nodes[:1], [role("worker"), role("ps", gpus=False)]))
    rig.wait(gang, Phase.RUNNING)
    first = rig.backend._orders(gang.job_id)
    assert isinstance(first, orders.Orders)
    first._stop(gang.job_id, gang.epoch, str(gang.token), "")
    assert rig.wait(gang).end is End.STOPPED
    assert all(map(objects.has_ended, rig.pods(gang)))


def test_mpirun_gets_keys_and_a_list_of_the_hosts_with_gpus(
    rig: Rig, nodes: list[str], admin: Api, tenant: str
) -> None:
    roles = [
        role("worker", workers=2, waits_for_mpirun=True),
        role("launcher", gpus=False, ends_job=True),
    ]
    gang = rig.start(of_roles(rig, nodes[:2], roles, leader=2, is_mpi=True, mpi_seed=b"x" * 32))
    rig.wait(gang, Phase.RUNNING)
    name = objects.job_name(gang.job_id)
    listed = admin.get(f"/api/v1/namespaces/{tenant}/configmaps/{objects.job_name(gang.job_id, 1)}")["data"]
    assert listed["hostfile"] == f"{name}-0.{name} slots=2\n{name}-1.{name} slots=2\n"
    worker, _, launcher = by_rank(rig, gang)
    assert "sshd" in worker["spec"]["containers"][0]["command"][2]
    for pod in (worker, launcher):
        mounted = {one["mountPath"] for one in pod["spec"]["containers"][0]["volumeMounts"]}
        assert {mpi.PLACE, "/job"} <= mounted
        assert {"RANK", "WORLD_SIZE", "PET_NNODES"}.isdisjoint(variables(pod))
        assert variables(pod)["OMPI_MCA_orte_default_hostfile"] == "/job/hostfile"
    secrets = [
        admin.get(f"/api/v1/namespaces/{tenant}/secrets/{objects.job_name(gang.job_id, part)}-files-0")[
            "data"
        ]
        for part in (0, 1)
    ]
    assert secrets[0]["key.pub"] == secrets[1]["key.pub"]
    end(rig, launcher)
    assert rig.wait(gang).end is End.SUCCEEDED
