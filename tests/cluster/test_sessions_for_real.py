"""Tests of notebook sessions in real containers behind the portal's own web server.

They check who can reach a session, from where, and for how long.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from django.conf import LazySettings
from django.db.models import F

from scheduling.backends import network_sources
from scheduling.backends.kubernetes import objects, probes
from scheduling.core.event_texts import end_text_of
from scheduling.draining.actions import drain_node
from scheduling.models import Job, Lease, Node, Session
from scheduling.sessions.actions import step_session
from scheduling.sessions.idle_timeout import Step
from tests.cluster import deployed
from tests.cluster.api import PODS, Api, Object
from tests.cluster.attached_lab import Lab, attached_lab
from tests.cluster.images import PYTHON
from tests.cluster.realnode import RealNode
from tests.portal.sessions.test_proxy import Browser, is_refused, let_in, port, signed_in  # noqa: F401
from tests.threads import let_go

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

PROGRAM = Path(__file__).with_name("session_program.py").read_text()
POLICY = "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies/fairlot-sessions"


@pytest.fixture
def lab(
    settings: LazySettings, tmp_path: Path, fairlot: Path, admin: Api, real_node: RealNode
) -> Iterator[Lab]:
    """Yields an attached cluster in which all nodes except the real node are drained."""
    settings.FAIRLOT_JOBS_DIR = tmp_path
    settings.FAIRLOT_PORTAL_FROM = network_sources.read([f"{real_node.network}.1"])
    with attached_lab(deployed.flattened(fairlot), admin) as made:
        for other in Node.objects.filter(cluster=made.cluster).exclude(host=real_node.name):
            drain_node(actor=made.people.olga, node=other, reason="it only plays containers", mode="now")
        yield made


def begun(lab: Lab, **limits: int) -> Session:
    """Starts a notebook session as Bob through the public API, waits until it is ready, and returns it.

    `limits`: further fields of the API request, such as `idle_minutes`.
    """
    spec = {
        "name": "notes",
        "environment": PYTHON,
        "command": 'exec python3 -c "$PROGRAM"',
        "variables": {"PROGRAM": PROGRAM},
        "port": 8000,
        "readiness_period_seconds": 1,
    }
    asked = {"cluster": lab.cluster.name, "spec": spec} | limits
    made = signed_in(lab.people.bob).post("/api/v1/sessions", asked, content_type="application/json")
    assert made.status_code == 201, made.content
    session = Session.objects.select_related("job").get(pk=made.json()["id"])
    ready(lab, session, epoch=1)
    return session


def ready(lab: Lab, session: Session, *, epoch: int) -> Lease:
    """Waits until the session's attempt `epoch` is ready, and returns its lease."""

    def found() -> bool:
        lab.fill()
        return Lease.objects.ready().filter(job=session.job, epoch=epoch).exists()

    lab.until(found, lambda: f"attempt {epoch} answers: {lab.story(session.job)}")
    return Lease.objects.get(job=session.job, epoch=epoch)


def pod_of(lab: Lab, session: Session) -> Object:
    [pod] = [pod for pod in lab.pods(session.job) if not objects.has_ended(pod)]
    return pod


def told(browser: Browser, path: str = "", method: str = "GET", data: bytes | None = None) -> dict[str, Any]:
    answer = browser.ask(path, method, data)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = json.loads(answer.body)
    return found


def steps(session: Session) -> Step:
    return step_session(session_id=session.pk)


def is_over(lab: Lab, session: Session, browser: Browser, *, why: str) -> None:
    """Asserts that the session's program was stopped, its pod is gone, and no request reaches the session.

    `why` is the reason that the portal must show.
    """
    job = lab.reaches(session.job, Job.State.CANCELLED)
    assert end_text_of(job) == why
    lab.until(lambda: not lab.pods(job), lambda: str(lab.pods(job)))
    assert browser.ask().status == 410
    # The last output may arrive after the end was observed.
    lab.until(lambda: log_of(lab, job).endswith("told to stop\n"), lambda: log_of(lab, job))


def log_of(lab: Lab, job: Job) -> str:
    return lab.backend.read_log(job_id=job.pk, rank=0, offset=0, limit=10_000).data.decode()


def test_a_session_in_a_pod_admits_its_users_and_ends_when_idle(
    lab: Lab,
    admin: Api,
    port: int,  # noqa: F811 - the fixture
) -> None:
    session = begun(lab, idle_minutes=60)
    bob = signed_in(lab.people.bob)
    pod = pod_of(lab, session)
    assert Lease.objects.get(job=session.job).address == f"{pod['status']['podIP']}:8000"
    browser = let_in(bob, port, session)
    assert told(browser, "a%2Fb?x=1") == {
        "method": "GET",
        "path": f"{browser.base}a%2Fb?x=1",
        "body": "",
        "is_right": True,
        "cookie": "",
        "epoch": "1",
    }
    assert told(browser, "save", "POST", b"cell 1")["body"] == "cell 1"

    # These requests come from another tenant's user, without the session's cookie, or from a page of another host.
    charlie = signed_in(lab.people.charlie)
    for path in ("", "open/"):
        assert charlie.get(f"/sessions/{session.pk}/{path}").status_code == 404
    assert charlie.get(f"/api/v1/sessions/{session.pk}").status_code == 404
    stranger = Browser(port, session)
    assert stranger.ask().status == 401
    assert stranger.talk(lambda link: is_refused(link, stranger))
    assert browser.talk(lambda link: is_refused(link, browser, Origin="http://evil.example"))

    # The network policy admits the portal, and only to pods of sessions.
    [rule] = admin.get(POLICY.format(lab.home(session.job)))["spec"]["ingress"]
    assert probes.SESSION.items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["containers"][0]["ports"][0]["name"] == rule["ports"][0]["port"]
    assert "cidr" in rule["from"][0]["ipBlock"]

    async def work_and_leave_it_open(link: aiohttp.ClientSession) -> aiohttp.WSMsgType:
        async with link.ws_connect(browser.url("kernel"), headers=browser.headers()) as ws:
            for text in ("hello", "from a pod"):
                await ws.send_str(text)
                assert (await ws.receive()).data == text
            await asyncio.to_thread(let_go, nobody_comes)
            return (await ws.receive()).type

    def nobody_comes() -> None:
        pass_minutes(session, 51)
        assert steps(session) is Step.WARN_IDLE
        pass_minutes(session, 10.1)
        assert steps(session) is Step.STOP_IDLE
        is_over(lab, session, browser, why="Stopped: nobody used the session for 60 min")

    assert browser.talk(work_and_leave_it_open) is aiohttp.WSMsgType.CLOSE


def test_a_session_whose_pod_is_lost_gets_a_new_address_until_its_time_limit(
    lab: Lab,
    admin: Api,
    port: int,  # noqa: F811 - the fixture
) -> None:
    session = begun(lab, longest_hours=1)
    browser = let_in(signed_in(lab.people.bob), port, session)
    assert told(browser)["epoch"] == "1"
    first = Lease.objects.get(job=session.job)
    lost = pod_of(lab, session)
    admin.delete(f"{PODS.format(lab.home(session.job))}/{lost['metadata']['name']}")
    second = ready(lab, session, epoch=2)
    assert second.address == f"{pod_of(lab, session)['status']['podIP']}:8000"
    assert second.address != first.address
    assert told(browser)["epoch"] == "2"

    Job.objects.filter(pk=session.pk).update(first_started_at=F("first_started_at") - timedelta(minutes=51))
    assert steps(session) is Step.WARN_END
    Job.objects.filter(pk=session.pk).update(first_started_at=F("first_started_at") - timedelta(minutes=10))
    Session.objects.filter(pk=session.pk).update(end_warned_at=F("end_warned_at") - timedelta(minutes=10))
    assert steps(session) is Step.STOP_END
    is_over(lab, session, browser, why="Stopped: the session reached its time limit of 1 h")


def pass_minutes(session: Session, minutes: float) -> None:
    """Simulates that `minutes` have passed: moves the session's start, last use and warning into the past."""
    earlier = timedelta(minutes=minutes)
    Lease.objects.filter(job=session.job).update(running_from=F("running_from") - earlier)
    Session.objects.filter(pk=session.pk).update(
        used_at=F("used_at") - earlier, warned_at=F("warned_at") - earlier
    )
