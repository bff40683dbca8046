"""An interruption of a session or service records when no replica answered, why, and for how long."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from accounting.core.clock import now_from_database
from scheduling.backends.base import End, Phase
from scheduling.draining.actions import drain_node
from scheduling.leases.interruptions import Interruption, back_by, of_service, of_session, silent_since
from scheduling.models import Job, JobForecast, Node, Service
from scheduling.models.event_codes import Cause
from scheduling.services.actions import change_service
from scheduling.services.replicas import step_service
from tests.scheduling.rounds.test_notices import sessions
from tests.scheduling.services.test_services import come_up, fail, living, service_of, spec
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    return world(v100=4)


def answer(lab: World, *jobs: Job) -> None:
    lab.fill()
    lab.carry_out()
    for job in jobs:
        lab.see(lab.lease(job), Phase.RUNNING, address="127.0.0.1:9", ready_age=0.0)


def causes(found: list[Interruption]) -> list[tuple[Cause, bool]]:
    """Returns (cause, whether the interruption has ended) for each interruption, in order from the oldest to the
    latest."""
    return [(one.cause, one.ended is not None) for one in reversed(found)]


def test_a_session_tells_each_cause_and_when_it_answered_again(lab: World) -> None:
    session = sessions(lab, 1)[0]
    assert of_session(session) == [], "it has never answered"
    answer(lab, session)
    assert of_session(session) == []
    lab.see(lab.lease(session), Phase.RUNNING, address="127.0.0.1:9", why_not_ready="refused")
    assert causes(of_session(session)) == [(Cause.UNREADY, False)]
    answer(lab, session)
    node = lab.cluster.nodes.get()
    drain_node(actor=lab.people.olga, node=node, reason="fans", mode="now")
    lab.carry_out()
    lost = [(Cause.UNREADY, True), (Cause.DRAINED, False)]
    assert causes(of_session(session)) == lost
    assert of_session(session)[0].text == "v100-0 is being drained: fans"
    Node.objects.update(state=Node.State.READY)
    answer(lab, session)
    lab.see(lab.lease(session), Phase.ENDED, end=End.LOST, ended_age=0.0, message="The node does not answer.")
    lost = [(cause, True) for cause, _ in lost]
    assert causes(of_session(session)) == [*lost, (Cause.LOST, False)]
    answer(lab, session)
    assert causes(of_session(session)) == [*lost, (Cause.LOST, True)]
    assert all(one.ended is not None and one.began <= one.ended for one in of_session(session))


def test_an_interruption_gets_the_cause_that_is_found_later(lab: World) -> None:
    session = sessions(lab, 1)[0]
    answer(lab, session)
    lab.see(lab.lease(session), Phase.RUNNING, address="127.0.0.1:9", why_not_ready="no route")
    began = of_session(session)[0].began
    lab.see(lab.lease(session), Phase.ENDED, end=End.LOST, ended_age=0.0)
    [only] = of_session(session)
    assert (only.cause, only.began, only.ended) == (Cause.LOST, began, None)


def test_a_service_counts_each_place_and_neither_roll_outs_nor_scaling(lab: World) -> None:
    service = service_of(lab, 2)
    come_up(lab, service)
    change_service(actor=lab.people.bob, service=service, replicas=1)
    step_service(service_id=service.pk)
    lab.carry_out()
    assert of_service(service) == []
    fail(lab, living(service)[0])
    assert causes(of_service(service)) == [(Cause.ENDED, False)]
    Job.objects.filter(state=Job.State.FAILED).update(ended_at=now_from_database() - timedelta(hours=1))
    step_service(service_id=service.pk)
    come_up(lab, service)
    assert causes(of_service(service)) == [(Cause.ENDED, True)]
    assert of_service(service)[0].name == "api-0-1"
    change_service(actor=lab.people.bob, service=service, stopped=True)
    step_service(service_id=service.pk)
    assert causes(of_service(service)) == [(Cause.ENDED, True), (Cause.PERSON, False)]


def roll_over(lab: World, service: Service) -> None:
    """Begins a rollout that ends the only replica, which is ready."""
    change_service(actor=lab.people.bob, service=service, max_unavailable=1, spec=spec(command="new"))
    step_service(service_id=service.pk)
    lab.carry_out()


def test_a_rollout_that_leaves_no_ready_replica_interrupts_its_service_until_the_next_is_ready(
    lab: World,
) -> None:
    service = service_of(lab, 1)
    come_up(lab, service)
    roll_over(lab, service)
    [gap] = of_service(service)
    assert (gap.cause, gap.name, gap.ended) == (Cause.REPLACED, "api-0-1", None)
    assert gap.text == "Ended: the service api changes to revision 2"
    assert silent_since(service) == gap.began
    come_up(lab, service, ready=False)
    assert causes(of_service(service)) == [(Cause.REPLACED, False)], (
        "a replica that is not ready ends nothing"
    )
    come_up(lab, service)
    assert causes(of_service(service)) == [(Cause.REPLACED, True)]
    assert silent_since(service) is None


def test_a_rollout_that_keeps_a_ready_replica_interrupts_nothing(lab: World) -> None:
    service = service_of(lab, 2)
    come_up(lab, service)
    change_service(actor=lab.people.bob, service=service, max_unavailable=1, spec=spec(command="new"))
    for _ in range(6):
        come_up(lab, service)
    assert service.good == service.current
    assert of_service(service) == []


@pytest.mark.parametrize("change", [{"stopped": True}, {"replicas": 0}], ids=["stopped", "scaled to none"])
def test_a_rollout_interrupts_no_service_that_is_to_answer_nobody(lab: World, change: dict[str, Any]) -> None:
    service = service_of(lab, 1)
    come_up(lab, service)
    roll_over(lab, service)
    change_service(actor=lab.people.bob, service=service, **change)
    step_service(service_id=service.pk)
    [gap] = of_service(service)
    assert (gap.cause, gap.ended) == (Cause.REPLACED, service.events.latest("pk").at)
    other = service_of(lab, 1, spec=spec(name="web"))
    come_up(lab, other)
    change_service(actor=lab.people.bob, service=other, spec=spec(name="web", command="new"), replicas=0)
    step_service(service_id=other.pk)
    assert of_service(other) == [], "the rollout ends its replica because none is wanted"


def test_a_service_is_back_when_its_first_waiting_replica_starts(lab: World) -> None:
    service = service_of(lab, 2)
    assert back_by(living(service)) is None
    soon = now_from_database() + timedelta(minutes=5)
    for job, minutes in zip(living(service), (3, 0), strict=True):
        JobForecast.objects.create(
            job=job, at=now_from_database(), starts_by=soon + timedelta(minutes=minutes), earliest=soon
        )
    assert back_by(living(service)) == soon
