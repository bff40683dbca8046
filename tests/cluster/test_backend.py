"""Tests that the Kubernetes backend runs gangs from start to end on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduling.backends.base import BackendError, End, Phase
from scheduling.backends.kubernetes import objects
from tests.cluster.api import JOBS, Api
from tests.cluster.backend_rig import Rig, Rigging, rigs
from tests.cluster.controlplane import ControlPlane
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture
def rigging(fairlot: Path, admin: Api, tenant: str, tmp_path: Path) -> Iterator[Rigging]:
    with rigs(admin, fairlot, tenant, tmp_path) as make:
        yield make


@pytest.fixture
def rig(rigging: Rigging) -> Rig:
    return rigging()


def test_a_single_worker_runs_to_its_end(rig: Rig, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0], gpus=2))
    seen = rig.wait(gang, Phase.RUNNING)
    assert (seen.job_id, seen.epoch, seen.end) == (gang.job_id, gang.epoch, None)
    assert seen.running_age is not None
    [pod] = rig.pods(gang)
    assert pod["spec"]["nodeName"] == nodes[0]
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {objects.NVIDIA: "2"}
    rig.annotate(gang, run_for="0")
    ended = rig.wait(gang)
    assert (ended.end, ended.exit_code) == (End.SUCCEEDED, 0)
    assert ended.ended_age is not None
    assert ended.running_age is not None
    assert ended.running_age >= ended.ended_age


def test_a_workers_exit_code_is_reported_with_its_rank_and_node(rig: Rig, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0], nodes[1]))
    rig.wait(gang, Phase.RUNNING)
    second = next(pod for pod in rig.pods(gang) if objects.rank_of(pod) == 1)
    marks = {"test.fairlot/run-for": "0", "test.fairlot/exit-code": "3"}
    rig.admin.merge(rig.work.pod(second), {"metadata": {"annotations": marks}})
    ended = rig.wait(gang)
    assert (ended.end, ended.exit_code) == (End.FAILED, 3)
    assert ended.message == f"worker 1 on {nodes[1]} exited with code 3"
    assert all(objects.has_ended(pod) for pod in rig.pods(gang)), "all of them end with it"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failed_gang_can_be_started_again_as_its_next_attempt(
    rig: Rig, nodes: list[str], workers: int
) -> None:
    gang = rig.start(rig.gang(*nodes[:workers]))
    rig.wait(gang, Phase.RUNNING)
    rig.annotate(gang, run_for="0", exit_code="3")
    assert rig.wait(gang).end is End.FAILED
    again = rig.gang(*nodes[2 : 2 + workers], epoch=2)

    def starts() -> bool:
        try:
            rig.start(again)
        except BackendError:  # its failed Job is still being deleted; the worker repeats the order
            return False
        return True

    wait_for(starts, what="the retry is started")
    rig.wait(again, Phase.RUNNING)
    running = [pod for pod in rig.pods(again) if not objects.has_ended(pod)]
    assert [objects.epoch_of(pod) for pod in running] == [2] * workers
    rig.annotate(again, run_for="0")
    assert rig.wait(again).end is End.SUCCEEDED


def test_all_workers_of_a_gang_run_on_their_nodes_or_none_ever_runs(rig: Rig, nodes: list[str]) -> None:
    where = [nodes[2], nodes[3], nodes[2], nodes[4]]
    gang = rig.start(rig.gang(*where))
    rig.wait(gang, Phase.RUNNING)
    assert [pod["spec"]["nodeName"] for pod in sorted(rig.pods(gang), key=objects.rank_of)] == where


def test_a_gang_with_a_pod_denied_by_a_quota_is_stopped_before_any_worker_runs(
    rigging: Rigging, admin: Api, tenant: str, nodes: list[str]
) -> None:
    rig = rigging(gather_seconds=2.0)
    quota = {"metadata": {"name": "two"}, "spec": {"hard": {"requests.nvidia.com/gpu": "2"}}}
    admin.create(f"/api/v1/namespaces/{tenant}/resourcequotas", quota)
    wait_for(
        lambda: admin.get(f"/api/v1/namespaces/{tenant}/resourcequotas/two").get("status", {}).get("used"),
        what="the quota counts",
    )
    gang = rig.start(rig.gang(nodes[0], nodes[1], nodes[2]))
    ended = rig.wait(gang)
    assert ended.end is End.START_FAILED
    assert "2 of the job's 3 pods" in ended.message
    assert ended.running_age is None
    assert Phase.RUNNING not in {seen.phase for seen in rig.told}
    wait_for(lambda: not rig.pods(gang), what="its pods are gone")


def test_a_stopped_gang_holds_its_gpus_until_the_last_pod_is_gone(rig: Rig, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0], nodes[1]))
    rig.wait(gang, Phase.RUNNING)
    rig.annotate(gang, stop_after="3600")
    rig.stop(gang)
    wait_for(
        lambda: all("deletionTimestamp" in pod["metadata"] for pod in rig.pods(gang)), what="they are told"
    )
    first, second = rig.pods(gang)
    goes = {"metadata": {"annotations": {"test.fairlot/stop-after": "0"}}}
    rig.admin.merge(rig.work.pod(first), goes)
    wait_for(lambda: len(rig.pods(gang)) == 1, what="one is gone")
    assert rig.seen[gang.token].phase is not Phase.ENDED
    rig.admin.merge(rig.work.pod(second), goes)
    ended = rig.wait(gang)
    assert (ended.end, ended.message) == (End.STOPPED, "stopped by Fairlot")


def test_it_continues_on_other_nodes_in_its_next_attempt(rig: Rig, nodes: list[str]) -> None:
    first = rig.start(rig.gang(nodes[0], nodes[1]))
    rig.wait(first, Phase.RUNNING)
    rig.stop(first)
    rig.wait(first)
    second = rig.start(rig.gang(nodes[-1], nodes[-2], epoch=2, generation="V100"))
    rig.wait(second, Phase.RUNNING)
    pods = sorted(rig.pods(second), key=objects.rank_of)
    assert [pod["spec"]["nodeName"] for pod in pods] == [nodes[-1], nodes[-2]]
    assert {pod["metadata"]["annotations"][objects.GENERATION] for pod in pods} == {"V100"}
    assert rig.seen[first.token].phase is Phase.ENDED


def test_a_shorter_grace_than_its_own_reaches_its_pods(rig: Rig, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0], grace_seconds=3600.0))
    rig.wait(gang, Phase.RUNNING)
    rig.annotate(gang, stop_after="3600")
    rig.stop(gang, grace=1.0)
    assert rig.wait(gang).end is End.STOPPED


def test_a_lease_that_was_stopped_before_it_began_never_starts(rig: Rig, nodes: list[str]) -> None:
    gang = rig.gang(nodes[0], epoch=2)
    rig.start(rig.gang(nodes[0], epoch=1))
    rig.stop(gang)
    rig.start(gang)
    assert rig.wait(gang).end is End.STOPPED
    assert not rig.pods(gang)


def test_an_image_that_cannot_be_pulled_is_named(rig: Rig, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0], nodes[1], environment_name="missing/image"))
    ended = rig.wait(gang)
    assert ended.end is End.START_FAILED
    assert "the image missing/image cannot be pulled" in ended.message


def test_a_gang_whose_pod_fits_nowhere_is_stopped_with_the_schedulers_message(
    rigging: Rigging, nodes: list[str]
) -> None:
    rig = rigging(start_seconds=2.0)
    ended = rig.wait(rig.start(rig.gang(nodes[0], gpus=9)))
    assert ended.end is End.START_FAILED
    assert "Insufficient nvidia.com/gpu" in ended.message


def test_a_job_that_a_user_deletes_ends_as_deleted_when_its_pods_are_gone(
    rig: Rig, nodes: list[str], tenant: str
) -> None:
    gang = rig.start(rig.gang(nodes[0], nodes[1]))
    rig.wait(gang, Phase.RUNNING)
    path = f"{JOBS.format(tenant)}/{objects.job_name(gang.job_id)}"
    rig.admin.delete(path, propagationPolicy="Background")
    ended = rig.wait(gang)
    assert ended.end is End.DELETED
    assert all(objects.has_ended(pod) for pod in rig.pods(gang))
    rig.backend.forget(job_id=gang.job_id, epoch=gang.epoch, token=gang.token)
    assert gang.token not in {seen.token for seen in rig.backend.observe()}


def test_pods_whose_job_is_deleted_without_them_are_stopped(
    rigging: Rigging, nodes: list[str], tenant: str
) -> None:
    rig = rigging(sweep_seconds=0.0)
    gang = rig.start(rig.gang(nodes[0], nodes[1]))
    rig.wait(gang, Phase.RUNNING)
    rig.admin.delete(f"{JOBS.format(tenant)}/{objects.job_name(gang.job_id)}", propagationPolicy="Orphan")
    ended = rig.wait(gang)
    assert ended.end is End.DELETED
    wait_for(lambda: not rig.pods(gang), what="nothing of it runs on")


def test_a_new_watcher_stops_pods_that_have_lost_their_job(
    admin: Api, fairlot: Path, tenant: str, tmp_path: Path, nodes: list[str]
) -> None:
    first = Rig(admin, fairlot, tenant, tmp_path)
    with first.watching():
        gang = first.start(first.gang(nodes[0], nodes[1]))
        first.wait(gang, Phase.RUNNING)
    first.admin.delete(f"{JOBS.format(tenant)}/{objects.job_name(gang.job_id)}", propagationPolicy="Orphan")
    wait_for(lambda: not first.admin.items(JOBS.format(tenant)), what="the Job is gone")
    assert len(first.pods(gang)) == 2
    with Rig(admin, fairlot, tenant, tmp_path, sweep_seconds=0.0).watching():
        wait_for(lambda: not first.pods(gang), what="nothing of it runs on")


def test_a_job_that_never_began_can_be_stopped_before_its_namespace_is_ready(
    rig: Rig, fairlot: Path, tmp_path: Path, nodes: list[str]
) -> None:
    made: list[int] = []
    rig.backend._namespace_of = lambda job_id: "fairlot-unready"
    rig.backend._settle = lambda api, job_id: made.append(job_id)
    rig.admin.create("/api/v1/namespaces", {"metadata": {"name": "fairlot-unready"}})
    try:
        with pytest.raises(BackendError, match="forbidden"):
            rig.stop(rig.gang(nodes[0]))
    finally:
        rig.admin.delete("/api/v1/namespaces/fairlot-unready")
    assert made == [1], "it sees to the namespace, so that the next try is let in"


def test_a_gang_with_an_evicted_worker_is_lost_and_continues_later(rig: Rig, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0], nodes[1]))
    rig.wait(gang, Phase.RUNNING)
    rig.evict(rig.pods(gang)[0])
    ended = rig.wait(gang)
    assert ended.end is End.LOST
    assert "was evicted" in ended.message
    again = rig.start(rig.gang(nodes[2], nodes[3], epoch=2))
    rig.wait(again, Phase.RUNNING)


def test_a_gang_whose_worker_was_evicted_unwatched_is_lost(
    admin: Api, fairlot: Path, tenant: str, tmp_path: Path, nodes: list[str]
) -> None:
    first = Rig(admin, fairlot, tenant, tmp_path)
    with first.watching():
        gang = first.start(first.gang(nodes[0], nodes[1]))
        first.wait(gang, Phase.RUNNING)
    evicted = first.pods(gang)[0]
    first.evict(evicted)
    wait_for(
        lambda: (
            [
                pod["metadata"]["uid"] != evicted["metadata"]["uid"] and objects.is_gated(pod)
                for pod in first.pods(gang)
            ]
            == [True, False]
        ),
        what="the Job controller makes a new one",
    )
    later = Rig(admin, fairlot, tenant, tmp_path)
    with later.watching():
        ended = later.wait(gang)
    assert ended.end is End.LOST
    assert ended.message == "a worker was removed while Fairlot was not watching the cluster"


def test_a_new_watcher_sees_running_and_ended_gangs(
    rig: Rig, fairlot: Path, tenant: str, tmp_path: Path, nodes: list[str]
) -> None:
    done, runs = rig.start(rig.gang(nodes[0])), rig.start(rig.gang(nodes[1], job=2))
    rig.wait(done, Phase.RUNNING)
    rig.wait(runs, Phase.RUNNING)
    rig.annotate(done, run_for="0")
    rig.wait(done)
    newcomer = Rig(rig.admin, fairlot, tenant, tmp_path)
    asked = {seen.token: seen for seen in newcomer.backend.observe()}
    assert (asked[done.token].phase, asked[done.token].end) == (Phase.ENDED, End.SUCCEEDED)
    assert asked[runs.token].phase is Phase.RUNNING
    with newcomer.watching():
        newcomer.wait(done)
        newcomer.wait(runs, Phase.RUNNING)


def test_a_gang_cannot_be_suspended_in_place(rig: Rig, nodes: list[str]) -> None:
    gang = rig.gang(nodes[0])
    with pytest.raises(BackendError, match="cannot suspend running containers"):
        rig.backend.freeze(job_id=gang.job_id, epoch=gang.epoch, token=gang.token)


def test_without_an_api_server_orders_fail_with_a_clear_message(tmp_path: Path, plane: ControlPlane) -> None:
    kubeconfig = tmp_path / "dead"
    text = plane.kubeconfig("test-admin").read_text()
    kubeconfig.write_text(text.replace(plane.server, "https://127.0.0.1:9"))
    rig = Rig(plane.admin, kubeconfig, "nowhere", tmp_path)
    with pytest.raises(BackendError, match="the API server does not answer"):
        rig.start(rig.gang("gpu-0000"))
    with pytest.raises(BackendError, match="does not answer"):
        rig.backend.prepare()


def test_workers_of_a_gang_find_each_other_by_name_and_by_list(
    rig: Rig, tenant: str, admin: Api, nodes: list[str]
) -> None:
    gang = rig.start(rig.gang(nodes[0], nodes[1], nodes[2], gpus=4))
    rig.wait(gang, Phase.RUNNING)
    name = objects.job_name(gang.job_id)
    service = admin.get(f"/api/v1/namespaces/{tenant}/services/{name}")["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert service["selector"] == {objects.JOB: str(gang.job_id)}
    listed = admin.get(f"/api/v1/namespaces/{tenant}/configmaps/{name}")["data"]["hostfile"]
    assert listed.splitlines() == [f"{name}-{rank}.{name} slots=4" for rank in range(3)]
    for pod in rig.pods(gang):
        told = {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]}
        assert told["MASTER_ADDR"] == told["PET_MASTER_ADDR"] == f"{name}-0.{name}"
        assert (told["PET_NNODES"], told["PET_NPROC_PER_NODE"]) == ("3", "4")
        assert told["OMPI_MCA_orte_default_hostfile"] == "/job/hostfile"
        assert pod["spec"]["hostname"] == f"{name}-{objects.rank_of(pod)}"
    # The Service and the ConfigMap are deleted with the Job.
    admin.delete(f"{JOBS.format(tenant)}/{name}", propagationPolicy="Background")
    rig.wait(gang)
    for kind in ("services", "configmaps"):
        path = f"/api/v1/namespaces/{tenant}/{kind}"
        wait_for(
            lambda path=path: name not in {one["metadata"]["name"] for one in admin.items(path)}, what=kind
        )
