"""Tests that the backend runs jobs of one worker as pods without a Job ("bare pods"), on a real control plane."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scheduling.backends.base import BackendError, End, Phase, Secrets
from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.api import Unreachable
from scheduling.backends.kubernetes.orders import NotOurs, Outcome, StillThere
from scheduling.backends.kubernetes.standalone_pods import BarePodOrders
from tests.cluster.api import JOBS, PODS, Api, Object, Refused
from tests.cluster.backend_rig import Rig, Rigging, rigs
from tests.cluster.controlplane import ControlPlane
from tests.cluster.kubelets import Kubelets
from tests.cluster.lossy import Lossy
from tests.cluster.test_orders import JOB_ID, POD
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

STEPS = 150
SEED = random.randrange(1_000_000)


@pytest.fixture
def rigging(fairlot: Path, admin: Api, tenant: str, tmp_path: Path) -> Iterator[Rigging]:
    with rigs(admin, fairlot, tenant, tmp_path, bare=True) as make:
        yield make


@pytest.fixture
def rig(rigging: Rigging) -> Rig:
    return rigging()


# --- a job's life --------------------------------------------------------------------------------------------


def test_it_runs_on_its_node_to_its_end_without_a_job(
    rig: Rig, admin: Api, tenant: str, nodes: list[str]
) -> None:
    gang = rig.start(rig.gang(nodes[1], gpus=2))
    seen = rig.wait(gang, Phase.RUNNING)
    assert (seen.job_id, seen.epoch, seen.end) == (gang.job_id, gang.epoch, None)
    [pod] = rig.pods(gang)
    assert (pod["spec"]["nodeName"], objects.rank_of(pod)) == (nodes[1], 0)
    rig.annotate(gang, run_for="0")
    ended = rig.wait(gang)
    assert (ended.end, ended.exit_code) == (End.SUCCEEDED, 0)
    assert ended.running_age is not None
    assert ended.ended_age is not None
    assert ended.running_age >= ended.ended_age
    assert admin.items(JOBS.format(tenant)) == []


def test_its_exit_code_is_reported(rig: Rig, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0]))
    rig.wait(gang, Phase.RUNNING)
    rig.annotate(gang, run_for="0", exit_code="3")
    ended = rig.wait(gang)
    assert (ended.end, ended.exit_code) == (End.FAILED, 3)
    assert ended.message == f"worker 0 on {nodes[0]} exited with code 3"


def test_it_holds_its_gpu_until_it_is_gone_and_continues_on_another_node(rig: Rig, nodes: list[str]) -> None:
    first, second = rig.gang(nodes[0]), rig.gang(nodes[-1], epoch=2, generation="V100")
    rig.start(first)
    rig.wait(first, Phase.RUNNING)
    rig.annotate(first, stop_after="3600")
    rig.stop(first)
    with pytest.raises(BackendError, match="the pod of attempt 1 of job 1 still exists"):
        rig.start(second)
    assert rig.seen[first.token].phase is not Phase.ENDED
    rig.annotate(first, stop_after="0")
    ended = rig.wait(first)
    assert (ended.end, ended.message) == (End.STOPPED, "stopped by Fairlot")
    assert [objects.epoch_of(pod) for pod in rig.pods(first)] == [1], "it keeps late starts off"
    rig.start(first)
    rig.start(second)
    rig.wait(second, Phase.RUNNING)
    [pod] = rig.pods(second)
    assert pod["spec"]["nodeName"] == nodes[-1]
    assert pod["metadata"]["annotations"][objects.GENERATION] == "V100"
    assert rig.seen[first.token].phase is Phase.ENDED


def test_a_program_that_saves_and_exits_with_0_on_sigterm_was_stopped(rig: Rig, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0]))
    rig.wait(gang, Phase.RUNNING)
    rig.annotate(gang, stop_exit_code="0")
    rig.stop(gang)
    assert rig.wait(gang).end is End.STOPPED


def test_a_stop_after_the_end_does_not_change_how_it_ended(rig: Rig, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0]))
    rig.wait(gang, Phase.RUNNING)
    rig.annotate(gang, run_for="0")
    rig.wait(gang)
    rig.stop(gang)
    assert {seen.end for seen in rig.told if seen.phase is Phase.ENDED} == {End.SUCCEEDED}
    assert len(rig.pods(gang)) == 1, "it keeps late starts off"


def test_a_shorter_grace_than_its_own_reaches_it(rig: Rig, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0], grace_seconds=3600.0))
    rig.wait(gang, Phase.RUNNING)
    rig.annotate(gang, stop_after="3600")
    rig.stop(gang, grace=1.0)
    assert rig.wait(gang).end is End.STOPPED


def test_an_image_that_cannot_be_pulled_is_named_and_the_pod_stopped(rig: Rig, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0], environment_name="missing/image"))
    ended = rig.wait(gang)
    assert ended.end is End.START_FAILED
    assert "the image missing/image cannot be pulled" in ended.message
    wait_for(lambda: rig.pods(gang) == [], what="it is gone: its kubelet would pull first, and then end it")


def test_a_pod_that_fits_nowhere_is_stopped_with_the_schedulers_message(
    rigging: Rigging, nodes: list[str]
) -> None:
    rig = rigging(start_seconds=2.0)
    gang = rig.start(rig.gang(nodes[0], gpus=9))
    ended = rig.wait(gang)
    assert ended.end is End.START_FAILED
    assert "Insufficient nvidia.com/gpu" in ended.message
    assert rig.pods(gang) == [], "no kubelet would end it"


def test_a_pod_without_a_node_is_deleted_when_it_is_stopped(rig: Rig, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0], gpus=9))
    rig.wait(gang, Phase.STARTING)
    wait_for(
        lambda: any((event.job_id, event.epoch) == (1, 1) for event in rig.cluster_events),
        what="the scheduler's words are on its time line",
    )
    rig.stop(gang)
    assert rig.wait(gang).end is End.STOPPED
    assert rig.pods(gang) == []


def test_an_interrupted_stop_is_completed_when_it_is_repeated(rig: Rig, nodes: list[str]) -> None:
    """Proves that a repeated stop order completes the first one and keeps its reason.

    The process that carried out the first order died after it had recorded the reason and before it deleted the pod.
    """
    gang = rig.start(rig.gang(nodes[0], gpus=9))
    rig.wait(gang, Phase.STARTING)
    [pod] = rig.pods(gang)
    rig.backend.api.patch(
        rig.work.pod(pod), objects.note_reason(pod["metadata"]["uid"], at=1, because="lost: for a reason")
    )
    rig.stop(gang)
    ended = rig.wait(gang)
    assert (ended.end, ended.message) == (End.LOST, "for a reason")


def test_a_quota_that_denies_its_pod_is_named_at_once(
    rig: Rig, admin: Api, tenant: str, nodes: list[str]
) -> None:
    quota = {"metadata": {"name": "one"}, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}}
    path = f"/api/v1/namespaces/{tenant}/resourcequotas"
    admin.create(path, quota)
    wait_for(lambda: admin.get(f"{path}/one").get("status", {}).get("used"), what="the quota counts")
    with pytest.raises(BackendError, match="exceeded quota: one"):
        rig.start(rig.gang(nodes[0], gpus=2))


def test_an_evicted_pod_is_lost_with_the_reason(rig: Rig, tenant: str, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0]))
    rig.wait(gang, Phase.RUNNING)
    rig.annotate(gang, stop_exit_code="0")
    name = rig.pods(gang)[0]["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    rig.admin.create(f"{PODS.format(tenant)}/{name}/eviction", eviction)
    ended = rig.wait(gang)
    assert ended.end is End.LOST, "though it said 0"
    assert "was evicted" in ended.message


def test_a_pod_that_vanishes_before_its_end_is_seen_was_stopped(rig: Rig, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0]))
    rig.wait(gang, Phase.RUNNING)
    path = f"{PODS.format(rig.namespace)}/{rig.pods(gang)[0]['metadata']['name']}"
    rig.admin.delete(path, gracePeriodSeconds=0)
    assert rig.wait(gang).end is End.STOPPED


# --- watchers and leftovers -----------------------------------------------------------------------------------


def test_a_new_watcher_sees_running_and_ended_pods(
    admin: Api, fairlot: Path, tenant: str, tmp_path: Path, nodes: list[str]
) -> None:
    first = Rig(admin, fairlot, tenant, tmp_path, bare=True)
    done, runs = first.gang(nodes[0]), first.gang(nodes[1], job=2)
    with first.watching():
        for gang in (done, runs):
            first.start(gang)
            first.wait(gang, Phase.RUNNING)
    first.annotate(done, run_for="0")
    wait_for(lambda: all(map(objects.has_ended, first.pods(done))), what="it has ended")
    second = Rig(admin, fairlot, tenant, tmp_path, bare=True)
    seen = {found.token: found for found in second.backend.observe()}
    assert (seen[done.token].phase, seen[done.token].end) == (Phase.ENDED, End.SUCCEEDED)
    assert seen[runs.token].phase is Phase.RUNNING
    with second.watching():
        assert second.wait(done).end is End.SUCCEEDED
        assert second.wait(runs, Phase.RUNNING).epoch == 1


def test_an_ended_pod_keeps_its_name_for_a_while_and_is_then_deleted(
    rigging: Rigging, nodes: list[str]
) -> None:
    rig = rigging(sweep_seconds=0.0, keep_seconds=3600.0)
    done, runs = rig.gang(nodes[0]), rig.gang(nodes[1], job=2)
    for gang in (done, runs):
        rig.start(gang)
        rig.wait(gang, Phase.RUNNING)
    rig.annotate(done, run_for="0")
    rig.wait(done)
    assert len(rig.pods(done)) == 1
    later = rigging(sweep_seconds=0.0, keep_seconds=0.0)
    wait_for(lambda: later.pods(done) == [], what="it is removed")
    assert later.wait(runs, Phase.RUNNING).end is None
    assert {seen.end for seen in (*rig.told, *later.told)} == {None, End.SUCCEEDED}, (
        "its end stays what it was"
    )


def test_the_pod_of_an_ended_job_is_deleted_with_its_files(rig: Rig, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0]))
    rig.wait(gang, Phase.RUNNING)
    with pytest.raises(BackendError, match="job 1 is still running"):
        rig.backend.remove_files(job_id=gang.job_id)
    rig.annotate(gang, run_for="0")
    rig.wait(gang)
    rig.backend.remove_files(job_id=gang.job_id)
    wait_for(lambda: not rig.pods(gang), what="its pod is gone")
    rig.backend.remove_files(job_id=gang.job_id)


# --- orders ---------------------------------------------------------------------------------------------------


@pytest.fixture
def orders(network: Lossy, namespace: str) -> BarePodOrders:
    return BarePodOrders(network, namespace, "ours")


@pytest.fixture
def played(plane: ControlPlane, namespace: str) -> Iterator[list[str]]:
    """Yields the names of nodes with simulated kubelets that delete a pod by UID, as real ones do.

    kwok deletes a pod by its name, even if the pod with this name has been replaced by a newer one.
    """
    kubelets = Kubelets(
        plane, [f"{namespace}-{number}" for number in (0, 1)], selector=f"{objects.OWNER}=ours"
    )
    with kubelets.started(gpus=4):
        yield kubelets.names


def runs(pod: Object | None) -> bool:
    return bool(pod and pod["status"].get("phase") == "Running")


def start(orders: BarePodOrders, epoch: int, node: str) -> Outcome:
    return orders.start(JOB_ID, POD, objects.Attempt(epoch, f"lease-{epoch}", "A100", [node]))


def stop(orders: BarePodOrders, epoch: int) -> Outcome:
    return orders.stop(JOB_ID, epoch=epoch, token=f"lease-{epoch}")


def there(admin: Api, namespace: str) -> Object | None:
    pods = admin.items(PODS.format(namespace))
    assert len(pods) <= 1, "its name lets no second one be"
    return pods[0] if pods else None


def test_a_start_is_repeated_after_a_lost_request_or_answer_and_starts_once(
    admin: Api, namespace: str, orders: BarePodOrders, network: Lossy, nodes: list[str]
) -> None:
    for lost in ("request", "answer"):
        network.lose = lost
        with pytest.raises(Unreachable):
            start(orders, 1, nodes[0])
    assert start(orders, 1, nodes[0]) is Outcome.DONE
    made = there(admin, namespace)
    assert start(orders, 1, nodes[1]) is Outcome.DONE
    again = there(admin, namespace)
    assert made
    assert again
    assert made["metadata"]["uid"] == again["metadata"]["uid"]


def test_orders_of_an_overtaken_attempt_do_nothing(
    admin: Api, namespace: str, orders: BarePodOrders, nodes: list[str]
) -> None:
    assert start(orders, 3, nodes[0]) is Outcome.DONE
    assert start(orders, 2, nodes[1]) is Outcome.OVERTAKEN
    assert stop(orders, 2) is Outcome.OVERTAKEN
    pod = there(admin, namespace)
    assert pod
    assert objects.epoch_of(pod) == 3
    assert "deletionTimestamp" not in pod["metadata"]


def test_a_start_waits_for_the_previous_attempt_and_ends_it(
    admin: Api, namespace: str, orders: BarePodOrders, played: list[str]
) -> None:
    assert start(orders, 1, played[0]) is Outcome.DONE
    wait_for(lambda: runs(there(admin, namespace)), what="it runs")
    with pytest.raises(StillThere):
        start(orders, 2, played[1])
    pod = there(admin, namespace)
    assert pod
    assert (objects.epoch_of(pod), objects.is_ordered_to_end(pod)) == (1, True)

    def goes() -> bool:
        try:
            return start(orders, 2, played[1]) is Outcome.DONE
        except StillThere:
            return False

    wait_for(goes, what="the second attempt")
    assert start(orders, 1, played[0]) is Outcome.OVERTAKEN


def test_an_attempt_that_is_over_cannot_be_started_again(
    admin: Api, namespace: str, orders: BarePodOrders, played: list[str]
) -> None:
    assert start(orders, 1, played[0]) is Outcome.DONE
    wait_for(lambda: runs(there(admin, namespace)), what="it runs")
    assert stop(orders, 1) is Outcome.DONE
    assert stop(orders, 1) in {Outcome.DONE, Outcome.FINISHED}
    assert start(orders, 1, played[0]) is Outcome.OVERTAKEN
    wait_for(lambda: objects.has_ended(there(admin, namespace) or {}), what="it has ended")
    assert start(orders, 1, played[0]) is Outcome.OVERTAKEN
    assert stop(orders, 1) is Outcome.FINISHED


def test_a_foreign_pod_is_left_alone(
    admin: Api, namespace: str, orders: BarePodOrders, nodes: list[str]
) -> None:
    theirs = BarePodOrders(orders.api, namespace, "theirs")
    assert start(theirs, 1, nodes[0]) is Outcome.DONE
    with pytest.raises(NotOurs):
        start(orders, 2, nodes[0])
    with pytest.raises(NotOurs):
        stop(orders, 2)
    pod = there(admin, namespace)
    assert pod
    assert "deletionTimestamp" not in pod["metadata"]


def test_there_is_nothing_to_stop_in_a_namespace_that_does_not_exist(own: OwnApi) -> None:
    nowhere = BarePodOrders(own, "fairlot-0", "ours")
    assert stop(nowhere, 1) is Outcome.MISSING
    assert nowhere.find(JOB_ID) is None


def test_gangs_and_jobs_with_secrets_are_no_bare_pods(orders: BarePodOrders, nodes: list[str]) -> None:
    with pytest.raises(ValueError, match="must run as a Kubernetes Job"):
        orders.start(JOB_ID, POD, objects.Attempt(1, "lease-1", "A100", nodes[:2]))
    hidden = replace(POD, secrets=Secrets(variables={"TOKEN": "secret"}))
    with pytest.raises(ValueError, match="must run as a Kubernetes Job"):
        orders.start(JOB_ID, hidden, objects.Attempt(1, "lease-1", "A100", nodes[:1]))


def test_random_orders_over_a_bad_network_leave_the_pod_of_the_latest_good_one_or_none(
    admin: Api, namespace: str, orders: BarePodOrders, network: Lossy, played: list[str]
) -> None:
    """Proves that after random orders and lost messages, a pod of an older attempt never replaces a newer one."""
    sys.stdout.write(f"seed {SEED}\n")
    chance = random.Random(SEED)
    epoch, carried_out = 1, 0
    for _ in range(STEPS):
        about, stops = max(1, epoch + chance.choice([-1, 0, 0, 0, 1])), chance.random() < 0.4
        before = there(admin, namespace)
        network.lose = chance.choice(["", "", "answer", "request"])
        outcome: Outcome | None = None
        try:
            outcome = stop(orders, about) if stops else start(orders, about, chance.choice(played))
        except (Unreachable, StillThere) as trouble:
            sys.stdout.write(f"{trouble}\n")
        network.lose = ""
        after = there(admin, namespace)
        at = objects.epoch_of(after) if after else 0
        was = objects.epoch_of(before) if before else 0
        lives = after is not None and not objects.is_ordered_to_end(after)
        assert at in {was, about, 0}, f"seed {SEED}"
        # The kubelet may have deleted the terminating pod before the order, which then found the name free.
        goes = before is not None and "deletionTimestamp" in before["metadata"]
        assert at >= was or at == 0 or goes, f"seed {SEED}: an older attempt came after a newer one"
        if outcome is Outcome.DONE:
            assert (lives and at == about) if not stops else not lives, f"seed {SEED}"
            carried_out += 1
        elif outcome is Outcome.OVERTAKEN:
            assert about < was or (about == was and not lives), f"seed {SEED}"
        elif outcome is Outcome.FINISHED:
            assert before, f"seed {SEED}"
            assert objects.has_ended(after or {}), f"seed {SEED}"
        elif outcome is Outcome.MISSING:
            assert (stops, after) == (True, None), f"seed {SEED}"
        epoch = max(epoch, about)
    assert carried_out > 10, f"seed {SEED}"


def test_a_tenants_users_cannot_make_a_pod_that_looks_like_fairlots(admin: Api, tenant: str) -> None:
    """Proves that only Fairlot's own account may put Fairlot's labels on pods. Not even an admin of the cluster may."""
    made = objects.new_pod(9, POD, owner=tenant, attempt=objects.Attempt(1, "lease", "A100", ["n"]))
    with pytest.raises(Refused) as refused:
        admin.create(PODS.format(tenant), made)
    assert refused.value.code == 403
