"""Tests that orders to Jobs take effect once, even if they are lost, repeated, delayed, outdated, or name a missing
Job."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace

import pytest

from scheduling.backends.base import Secrets
from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.api import Invalid, Object, Unreachable
from scheduling.backends.kubernetes.orders import NotOurs, Orders, Outcome, StillThere
from tests.cluster.api import JOBS, Api
from tests.cluster.jobs import Work
from tests.cluster.lossy import Lossy
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

POD = objects.Pod(image="example/train", command=["train"], environment={}, gpus=1)
JOB_ID = 12
STEPS = 150
SEED = random.randrange(1_000_000)


@pytest.fixture
def orders(network: Lossy, namespace: str) -> Orders:
    return Orders(network, namespace, "ours")


def start(orders: Orders, epoch: int, node: str) -> Outcome:
    return orders.start(JOB_ID, POD, objects.Attempt(epoch, f"lease-{epoch}", "A100", [node]))


def stop(orders: Orders, epoch: int) -> Outcome:
    return orders.stop(JOB_ID, epoch=epoch, token=f"lease-{epoch}")


def state(admin: Api, namespace: str) -> tuple[int, bool]:
    """Returns the Job's epoch and whether it is suspended. Returns (0, True) if the Job does not exist."""
    jobs = admin.items(JOBS.format(namespace))
    if not jobs:
        return 0, True
    [job] = jobs
    return objects.epoch_of(job), objects.is_suspended(job)


def test_a_job_is_created_once_however_often_it_is_ordered(
    admin: Api, namespace: str, orders: Orders, network: Lossy
) -> None:
    network.lose = "request"
    with pytest.raises(Unreachable):
        orders.prepare(JOB_ID, POD, workers=1)
    network.lose = "answer"
    with pytest.raises(Unreachable):
        orders.prepare(JOB_ID, POD, workers=1)
    there = orders.find(JOB_ID)
    assert there is not None
    assert orders.prepare(JOB_ID, POD, workers=1)["metadata"]["uid"] == there["metadata"]["uid"]
    assert len(admin.items(JOBS.format(namespace))) == 1


def test_a_job_without_other_objects_is_created_running_by_one_write(
    admin: Api, namespace: str, orders: Orders, network: Lossy, nodes: list[str]
) -> None:
    """Proves that Fairlot creates a Job with one write and already running if the Job needs no other objects.

    The Job equals one that is created suspended and then started.
    """
    network.lose = "answer"
    with pytest.raises(Unreachable):
        start(orders, 1, nodes[0])
    assert start(orders, 1, nodes[0]) is Outcome.DONE
    made = orders.find(JOB_ID)
    assert made
    network.delete(f"{JOBS.format(namespace)}/{objects.job_name(JOB_ID)}", uid=made["metadata"]["uid"])
    wait_for(lambda: not Work(admin, namespace).pods(objects.job_name(JOB_ID)), what="its pod is gone")
    wait_for(lambda: not admin.items(JOBS.format(namespace)), what="it is gone")
    orders.prepare(JOB_ID, POD, workers=1)
    assert start(orders, 1, nodes[0]) is Outcome.DONE
    started = orders.find(JOB_ID)
    assert started
    assert made["metadata"]["generation"] == 1
    assert told(made) == told(started)


def told(job: Object) -> object:
    """Returns the fields that Fairlot sets in a Job, for comparison. The Job's UID is replaced by a constant."""
    uid = job["metadata"]["uid"]
    said = {**{key: job["metadata"][key] for key in ("name", "labels", "annotations")}, "spec": job["spec"]}
    return json.loads(json.dumps(said).replace(uid, "uid"))


@pytest.mark.parametrize("what", ["several workers", "secrets"])
def test_a_job_that_needs_other_objects_is_created_suspended(
    orders: Orders, network: Lossy, nodes: list[str], what: str
) -> None:
    pod = replace(POD, secrets=Secrets(variables={"TOKEN": "secret"})) if what == "secrets" else POD
    seen: list[tuple[str, object]] = []
    network.overhear = lambda path, thing: seen.append(
        (path.rsplit("/", 1)[1], thing.get("spec", {}).get("suspend"))
    )
    attempt = objects.Attempt(1, "lease-1", "A100", nodes[: 1 if what == "secrets" else 2])
    assert orders.start(JOB_ID, pod, attempt) is Outcome.DONE
    assert seen[0] == ("jobs", True)
    there = orders.find(JOB_ID)
    assert there
    assert (objects.epoch_of(there), objects.is_suspended(there)) == (1, False)


def test_a_foreign_job_with_the_same_name_is_refused(
    namespace: str, network: Lossy, orders: Orders, nodes: list[str]
) -> None:
    Orders(network, namespace, "theirs").prepare(JOB_ID, POD, workers=1)
    with pytest.raises(NotOurs, match=objects.job_name(JOB_ID)):
        start(orders, 1, nodes[0])
    with pytest.raises(NotOurs):
        stop(orders, 1)


def test_an_order_whose_answer_is_lost_is_found_done_when_it_is_repeated(
    admin: Api, namespace: str, orders: Orders, network: Lossy, nodes: list[str]
) -> None:
    orders.prepare(JOB_ID, POD, workers=1)
    network.lose = "answer"
    with pytest.raises(Unreachable):
        start(orders, 1, nodes[0])
    assert state(admin, namespace) == (1, False)
    before = admin.items(JOBS.format(namespace))[0]["spec"]
    assert start(orders, 1, nodes[1]) is Outcome.DONE
    assert admin.items(JOBS.format(namespace))[0]["spec"] == before, "nothing was asked for a second time"


def test_a_start_that_comes_after_its_stop_starts_nothing(
    admin: Api, namespace: str, orders: Orders, nodes: list[str]
) -> None:
    orders.prepare(JOB_ID, POD, workers=1)
    assert stop(orders, 1) is Outcome.DONE
    assert start(orders, 1, nodes[0]) is Outcome.OVERTAKEN
    assert state(admin, namespace) == (1, True)
    assert start(orders, 2, nodes[0]) is Outcome.DONE
    assert state(admin, namespace) == (2, False)


def test_an_order_of_an_older_lease_is_void(
    admin: Api, namespace: str, orders: Orders, nodes: list[str]
) -> None:
    start(orders, 5, nodes[0])
    assert stop(orders, 4) is Outcome.OVERTAKEN
    assert start(orders, 4, nodes[1]) is Outcome.OVERTAKEN
    assert state(admin, namespace) == (5, False)


def test_a_start_ends_the_previous_attempt_and_waits_for_it(
    admin: Api, namespace: str, orders: Orders, nodes: list[str]
) -> None:
    start(orders, 1, nodes[0])
    with pytest.raises(StillThere):
        start(orders, 2, nodes[1])
    assert state(admin, namespace) == (1, True)

    def goes() -> bool:
        try:
            return start(orders, 2, nodes[1]) is Outcome.DONE
        except (StillThere, Invalid):
            return False

    wait_for(goes, what="the second attempt")
    assert state(admin, namespace) == (2, False)


def test_orders_to_a_deleted_job_report_it_and_a_start_creates_it_again(
    admin: Api, namespace: str, orders: Orders, network: Lossy, nodes: list[str]
) -> None:
    uid = orders.prepare(JOB_ID, POD, workers=1)["metadata"]["uid"]
    network.delete(f"{JOBS.format(namespace)}/{objects.job_name(JOB_ID)}", uid=uid)
    wait_for(lambda: not admin.items(JOBS.format(namespace)), what="it is gone")
    assert stop(orders, 1) is Outcome.MISSING
    assert start(orders, 2, nodes[0]) is Outcome.DONE
    assert state(admin, namespace) == (2, False)


def test_a_job_is_not_created_again_while_pods_of_the_old_one_exist(
    admin: Api, namespace: str, orders: Orders, nodes: list[str]
) -> None:
    assert start(orders, 1, nodes[0]) is Outcome.DONE
    work = Work(admin, namespace)
    [pod] = work.wait_for_pods(objects.job_name(JOB_ID), 1, "Running")
    path = f"{JOBS.format(namespace)}/{objects.job_name(JOB_ID)}"
    admin.delete(path, propagationPolicy="Orphan")
    wait_for(lambda: not admin.items(JOBS.format(namespace)), what="it is gone")
    with pytest.raises(StillThere, match="still exist, although its Kubernetes Job is gone"):
        start(orders, 2, nodes[0])
    assert admin.items(JOBS.format(namespace)) == []
    admin.delete(work.pod(pod))
    wait_for(lambda: not work.pods(objects.job_name(JOB_ID)), what="its pod is gone")
    assert start(orders, 2, nodes[0]) is Outcome.DONE


def test_a_repeated_first_start_starts_nothing_beside_existing_pods(
    admin: Api, namespace: str, orders: Orders, nodes: list[str]
) -> None:
    """Proves that a repeated start order fails while pods of a deleted Job still exist, and starts nothing.

    The process that carried out the first order died before it recorded this. Then somebody deleted the Job without its
    pods.
    """
    attempt = objects.Attempt(1, "lease-1", "A100", [nodes[0]])
    assert orders.start(JOB_ID, POD, attempt) is Outcome.DONE
    Work(admin, namespace).wait_for_pods(objects.job_name(JOB_ID), 1, "Running")
    admin.delete(f"{JOBS.format(namespace)}/{objects.job_name(JOB_ID)}", propagationPolicy="Orphan")
    wait_for(lambda: not admin.items(JOBS.format(namespace)), what="it is gone")
    with pytest.raises(StillThere, match="still exist, although its Kubernetes Job is gone"):
        orders.start(JOB_ID, POD, replace(attempt, may_have_begun=True))
    assert admin.items(JOBS.format(namespace)) == []


def test_there_is_nothing_to_stop_in_a_namespace_that_does_not_exist(
    own: OwnApi, admin: Api, nodes: list[str]
) -> None:
    nowhere = Orders(own, "fairlot-0", "ours")
    assert stop(nowhere, 1) is Outcome.MISSING


def test_random_orders_over_a_bad_network_leave_the_job_where_the_latest_good_one_led(
    admin: Api, namespace: str, orders: Orders, network: Lossy, nodes: list[str]
) -> None:
    """Proves that after random orders and lost messages the Job is in a state that a simple model predicts.

    The model has two values: the epoch, and whether the Job is suspended.
    """
    sys.stdout.write(f"seed {SEED}\n")
    chance = random.Random(SEED)
    epoch, suspended = 0, True
    carried_out = 0
    for _ in range(STEPS):
        about, stops = max(1, epoch + chance.choice([-1, 0, 0, 0, 1, 1, 2])), chance.random() < 0.5
        network.lose = chance.choice(["", "", "answer", "request"])
        outcome: Outcome | None = None
        try:
            outcome = stop(orders, about) if stops else start(orders, about, chance.choice(nodes))
        except (Unreachable, StillThere, Invalid) as trouble:
            sys.stdout.write(f"{trouble}\n")  # the Job itself shows whether the order took effect
        network.lose = ""
        at = state(admin, namespace)
        # A start order first stops pods of an older lease that still run.
        led_to = (about, stops)
        overtaken = about < epoch or (about == epoch and suspended)
        may_be = {(epoch, suspended)} | (set() if overtaken else {led_to})
        if about > epoch and not stops:
            may_be.add((epoch, True))
        assert at in may_be, f"seed {SEED}"
        if outcome is Outcome.DONE:
            assert at == led_to, f"seed {SEED}"
            carried_out += 1
        elif outcome is Outcome.OVERTAKEN:
            assert overtaken, f"seed {SEED}"
        elif outcome is Outcome.MISSING:
            assert (epoch, stops) == (0, True), f"seed {SEED}"
        epoch, suspended = at
    assert carried_out > 10, f"seed {SEED}"
