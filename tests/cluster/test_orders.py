"""Orders to Jobs have the effect of once: lost, doubled, late, overtaken, or meant for what is gone."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import yaml

from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.api import Invalid, Object, Unreachable
from scheduling.backends.kubernetes.orders import NotOurs, Orders, Outcome
from tests.cluster.api import JOBS, Api
from tests.cluster.controlplane import ControlPlane
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

POD = objects.Pod(image="example/train", command=["train"], environment={}, gpus=1)
JOB_ID = 12
STEPS = 150
SEED = random.randrange(1_000_000)


class Lossy(OwnApi):
    """The network between Fairlot and the API server loses the next request, or its answer."""

    lose = ""  # "request", "answer", or nothing

    def create(self, path: str, thing: Object) -> Object:
        self._before()
        return self._after(super().create(path, thing))

    def patch(self, path: str, operations: Sequence[Mapping[str, object]]) -> Object:
        self._before()
        return self._after(super().patch(path, operations))

    def _before(self) -> None:
        if self.lose == "request":
            self.lose = ""
            raise Unreachable("the request was lost")

    def _after(self, answer: Object) -> Object:
        if self.lose == "answer":
            self.lose = ""
            raise Unreachable("the answer was lost")
        return answer


@pytest.fixture
def network(plane: ControlPlane) -> Any:
    api = Lossy(yaml.safe_load(plane.kubeconfig("test-admin").read_text()))
    yield api
    api.close()


@pytest.fixture
def orders(network: Lossy, namespace: str) -> Orders:
    return Orders(network, namespace)


def prepare(orders: Orders, mark: str = "ours") -> Object:
    return orders.prepare(JOB_ID, POD, workers=1, token=mark)


def state(admin: Api, namespace: str) -> tuple[int, bool]:
    """Epoch, and whether it is suspended."""
    job = admin.get(f"{JOBS.format(namespace)}/{objects.job_name(JOB_ID)}")
    return objects.epoch_of(job), job["spec"]["suspend"]


def test_a_job_is_prepared_once_however_often_it_is_asked_for(
    admin: Api, namespace: str, orders: Orders, network: Lossy
) -> None:
    network.lose = "request"
    with pytest.raises(Unreachable):
        prepare(orders)
    network.lose = "answer"
    first = prepare(orders)
    again = prepare(orders)
    assert first["metadata"]["uid"] == again["metadata"]["uid"]
    assert len(admin.items(JOBS.format(namespace))) == 1


def test_a_job_of_somebody_else_with_the_same_name_is_not_taken_for_ours(orders: Orders) -> None:
    prepare(orders, mark="theirs")
    with pytest.raises(NotOurs, match=objects.job_name(JOB_ID)):
        prepare(orders)


def test_an_order_whose_answer_is_lost_was_carried_out(
    admin: Api, namespace: str, orders: Orders, network: Lossy, nodes: list[str]
) -> None:
    uid = prepare(orders)["metadata"]["uid"]
    network.lose = "answer"
    assert orders.start(JOB_ID, uid, epoch=0, nodes=nodes[:1]) is Outcome.DONE
    assert state(admin, namespace) == (1, False)
    assert orders.start(JOB_ID, uid, epoch=0, nodes=nodes[1:2]) is Outcome.DONE, "the same order again"
    assert state(admin, namespace) == (1, False)


def test_an_order_that_never_arrived_is_to_be_given_again(
    admin: Api, namespace: str, orders: Orders, network: Lossy, nodes: list[str]
) -> None:
    uid = prepare(orders)["metadata"]["uid"]
    network.lose = "request"
    with pytest.raises(Unreachable, match="request was lost"):
        orders.start(JOB_ID, uid, epoch=0, nodes=nodes[:1])
    assert state(admin, namespace) == (0, True)
    assert orders.start(JOB_ID, uid, epoch=0, nodes=nodes[:1]) is Outcome.DONE


def test_an_order_that_was_overtaken_is_void(
    admin: Api, namespace: str, orders: Orders, nodes: list[str]
) -> None:
    uid = prepare(orders)["metadata"]["uid"]
    orders.start(JOB_ID, uid, epoch=0, nodes=nodes[:1])
    orders.stop(JOB_ID, uid, epoch=1)
    assert orders.start(JOB_ID, uid, epoch=0, nodes=nodes[:1]) is Outcome.OVERTAKEN
    assert state(admin, namespace) == (2, True)


def test_orders_to_a_deleted_job_and_to_its_namesake_say_so(
    admin: Api, namespace: str, orders: Orders, network: Lossy, nodes: list[str]
) -> None:
    uid = prepare(orders)["metadata"]["uid"]
    path = f"{JOBS.format(namespace)}/{objects.job_name(JOB_ID)}"
    network.delete(path, uid=uid)
    wait_for(lambda: not admin.items(JOBS.format(namespace)), what="it is gone")
    assert orders.stop(JOB_ID, uid, epoch=0) is Outcome.MISSING
    prepare(orders)
    assert orders.start(JOB_ID, uid, epoch=0, nodes=nodes[:1]) is Outcome.OVERTAKEN
    assert state(admin, namespace) == (0, True)


def test_random_orders_over_a_bad_network_leave_the_job_where_the_last_good_one_led(
    admin: Api, namespace: str, orders: Orders, network: Lossy, nodes: list[str]
) -> None:
    """Every step's epoch and state are foretold by a model of three lines."""
    sys.stdout.write(f"seed {SEED}\n")
    chance = random.Random(SEED)
    uid = prepare(orders)["metadata"]["uid"]
    epoch, suspended = 0, True
    history: dict[int, bool] = {}  # which order led on from an epoch: whether it was a stop
    carried_out = 0
    for _ in range(STEPS):
        at = max(0, epoch - chance.choice([0, 0, 0, 1, 2]))
        # Of one epoch there is one order only, which may come again.
        stops = history.get(at, not suspended)
        network.lose = chance.choice(["", "", "answer", "request"])
        lost = network.lose == "request"
        try:
            if stops:
                outcome = orders.stop(JOB_ID, uid, epoch=at)
            else:
                outcome = orders.start(JOB_ID, uid, epoch=at, nodes=[chance.choice(nodes)])
        except Unreachable:
            assert lost
            assert at == epoch
        except Invalid:
            # Its pods have not gone yet: a Job may be placed anew only when they have.
            assert at == epoch
            assert not stops
        else:
            if at == epoch:
                assert outcome is Outcome.DONE
                history[at], epoch, suspended = stops, epoch + 1, stops
                carried_out += 1
            else:
                assert outcome is (Outcome.DONE if at == epoch - 1 else Outcome.OVERTAKEN)
        network.lose = ""
        assert state(admin, namespace) == (epoch, suspended), f"seed {SEED}"
    assert carried_out > 10, f"seed {SEED}"
