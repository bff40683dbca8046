"""The clients: what they send, how they read lists, when they try again, and how they raise errors."""

from __future__ import annotations

import asyncio
import inspect
import json
import pydoc
from collections.abc import Callable

import httpx2
import pytest
from asgiref.sync import async_to_sync
from django.core.asgi import get_asgi_application
from hypothesis import given
from hypothesis import strategies as st

import fairlot_client
import fairlot_generator
from fairlot_client import (
    ApiError,
    AsyncFairlot,
    Conflict,
    ConnectionFailed,
    Fairlot,
    NotAccepted,
    NotAllowed,
    NotFound,
    NotSignedIn,
    TimedOut,
    Unavailable,
    polling,
)
from fairlot_client.calls import Call
from fairlot_client.exchange import LATER, LONGEST_PAUSE, Pause
from portal.models import Scope
from portal.tokens.actions import create_token
from scheduling.models import Job
from tests.clients.conftest import URL
from tests.portal.scene import Scene

SPEC = {"name": "api", "command": "true", "gpus_per_worker": 1}


def test_a_client_without_a_token_sends_no_empty_header() -> None:
    assert "Authorization" not in Fairlot(URL, "")._headers
    assert Fairlot(URL, "x")._headers["Authorization"] == "Bearer x"


class TestAgainstThePortal:
    def test_a_job_is_submitted_read_and_cancelled(self, scene: Scene, client_of) -> None:
        portal = client_of(scene.people.bob)
        job = portal.submit_job(spec=SPEC, team="astro")
        assert Job.objects.get(pk=job["id"]).name == "api"
        assert portal.get_job(job["id"]) == job
        assert portal.cancel_job(job["id"])["state"] == "cancelled"

    def test_a_list_is_read_page_by_page_and_only_as_far_as_needed(self, scene: Scene, client_of) -> None:
        portal = client_of(scene.people.bob)
        own = Job.objects.filter(tenant=scene.people.astro).order_by("-id")
        portal.submit_jobs(specs=[SPEC] * 5)
        everything = [job["id"] for job in portal.list_jobs(page_size=2)]
        assert everything == list(own.values_list("id", flat=True))
        sent = []
        send = portal._http.send
        portal._http.send = lambda request: sent.append(request) or send(request)
        jobs = portal.list_jobs(page_size=2, state="queued")
        assert sent == []
        assert [next(jobs)["id"], next(jobs)["id"]] == everything[:2]
        assert len(sent) == 1

    def test_names_in_a_path_and_words_of_python_are_sent_as_they_are(self, scene: Scene, client_of) -> None:
        olga = client_of(scene.people.olga)
        with pytest.raises(NotFound):
            olga.get_cluster("a/b?c")
        assert olga.get_usage(from_="2026-01-01", to="2026-01-02")["begins"].startswith("2026-01-01")

    def test_a_report_is_also_a_file(self, scene: Scene, client_of) -> None:
        portal = client_of(scene.people.alice)
        assert portal.get_usage_file(format="csv").count(b"\n") > 1

    @pytest.mark.parametrize(
        ("act", "error", "text"),
        [
            (
                lambda it: it.submit_job(spec=SPEC | {"workers": 0}),
                NotAccepted,
                "workers: must be a whole number",
            ),
            (lambda it: it.submit_job(spec=SPEC | {"gpus_per_worker": 64}), Conflict, "can never run"),
            (lambda it: it.get_job(2**40), NotFound, "There is no job"),
        ],
    )
    def test_errors_say_what_is_wrong(
        self, scene: Scene, client_of, act: Callable[[Fairlot], object], error: type[ApiError], text: str
    ) -> None:
        with pytest.raises(error) as caught:
            act(client_of(scene.people.bob))
        assert text in str(caught.value)
        assert caught.value.detail

    def test_a_token_that_may_only_read_changes_nothing(self, scene: Scene, client_of) -> None:
        portal = client_of(scene.people.bob, scopes=())
        with pytest.raises(NotAllowed, match="may only read"):
            portal.cancel_job(scene.job.pk)
        assert portal.check_job(spec=SPEC)["verdict"] in {"now", "later"}

    def test_an_unknown_token_is_refused(self, scene: Scene, portal_transport: httpx2.WSGITransport) -> None:
        with pytest.raises(NotSignedIn, match="unknown, has expired or was revoked"):
            Fairlot(URL, "fairlot_x", transport=portal_transport).me()

    def test_the_async_client_has_the_same_methods(self, scene: Scene, kept_connection: None) -> None:
        _, secret = create_token(actor=scene.people.ada, name="async", scopes=Scope.values, days=1)

        async def use() -> tuple[str, list[int], bytes]:
            transport = httpx2.ASGITransport(app=get_asgi_application())
            async with AsyncFairlot(URL, secret, transport=transport) as portal:
                jobs = [job["id"] async for job in portal.list_jobs(page_size=1)]
                return (await portal.me())["username"], jobs, await portal.export("jobs.csv")

        name, jobs, exported = async_to_sync(use)()
        assert (name, jobs) == ("ada", list(Job.objects.order_by("-id").values_list("id", flat=True)))
        assert exported.startswith(b"job_id,")


class Network:
    """A network that gives each request the next of some answers, the last one again and again. It notes requests and
    pauses."""

    def __init__(self, *answers: httpx2.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx2.Request] = []
        self.pauses: list[float] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self, retries: int = 4) -> Fairlot:
        transport = httpx2.MockTransport(self)
        return Fairlot("http://portal/", "t", retries=retries, transport=transport, pause=self.pauses.append)


def ok(body: object = None) -> httpx2.Response:
    return httpx2.Response(200, json=body)


BROKEN = [
    httpx2.ConnectError("refused"),
    httpx2.ReadTimeout("late"),
    *(httpx2.Response(code) for code in LATER),
]


class TestTryingAgain:
    @pytest.mark.parametrize("broken", BROKEN, ids=str)
    def test_calls_that_may_be_repeated_are_tried_again(self, broken: httpx2.Response | Exception) -> None:
        network = Network(broken, broken, ok({"username": "bob"}))
        assert network.client().me()["username"] == "bob"
        assert len(network.pauses) == 2

    @pytest.mark.parametrize("broken", BROKEN, ids=str)
    def test_other_calls_are_sent_once(self, broken: httpx2.Response | Exception) -> None:
        network = Network(broken, ok())
        with pytest.raises((ConnectionFailed, Unavailable)):
            network.client().cancel_job(1)
        assert len(network.requests) == 1

    def test_a_submit_is_repeated_with_the_same_new_key(self) -> None:
        network = Network(httpx2.Response(503), ok())
        network.client().submit_job(spec=SPEC)
        keys = [request.headers["Idempotency-Key"] for request in network.requests]
        assert (len(keys), len(set(keys)), len(keys[0])) == (2, 1, 32)
        other = Network(ok())
        other.client().submit_job(spec=SPEC)
        assert other.requests[0].headers["Idempotency-Key"] != keys[0]
        other.client().submit_job(spec=SPEC, idempotency_key="mine")
        assert other.requests[1].headers["Idempotency-Key"] == "mine"

    def test_other_errors_are_not_tried_again(self) -> None:
        network = Network(httpx2.Response(500))
        with pytest.raises(Unavailable, match="HTTP status 500 and no explanation"):
            network.client().me()
        assert network.pauses == []

    def test_retry_after_is_honoured(self) -> None:
        network = Network(httpx2.Response(429, headers={"Retry-After": "7"}), ok())
        network.client().me()
        assert network.pauses == [7]

    @pytest.mark.parametrize("asked", ["3600", "Fri, 01 Jan 2100 00:00:00 GMT"])
    def test_a_portal_that_asks_for_a_long_pause_is_not_waited_for(self, asked: str) -> None:
        network = Network(httpx2.Response(503, headers={"Retry-After": asked}), ok())
        with pytest.raises(Unavailable):
            network.client().me()
        assert network.pauses == []

    @given(after=st.text(st.characters(min_codepoint=32, max_codepoint=126)), retries=st.integers(0, 8))
    def test_it_gives_up_after_its_retries_with_pauses_of_bounded_length(
        self, after: str, retries: int
    ) -> None:
        network = Network(httpx2.Response(503, headers={"Retry-After": after}))
        with pytest.raises(Unavailable):
            network.client(retries).me()
        assert len(network.requests) == len(network.pauses) + 1 <= retries + 1
        assert all(0 <= pause <= LONGEST_PAUSE for pause in network.pauses)

    def test_a_repeated_delete_that_finds_nothing_has_succeeded(self) -> None:
        gone = httpx2.Response(404, json={"detail": "There is no job"})
        assert Network(httpx2.ReadTimeout("late"), gone).client().remove_limit(1) is None
        with pytest.raises(NotFound):  # the first request was refused before it could delete
            Network(httpx2.Response(503), gone).client().remove_limit(1)
        with pytest.raises(NotFound):
            Network(gone).client().remove_limit(1)

    def test_the_async_client_tries_again_too(self) -> None:
        network = Network(httpx2.Response(503, headers={"Retry-After": "0"}), ok({"username": "bob"}))

        async def use() -> str:
            async with AsyncFairlot("http://portal", "t", transport=httpx2.MockTransport(network)) as portal:
                return (await portal.me())["username"]

        assert asyncio.run(use()) == "bob"
        assert len(network.requests) == 2


def test_what_is_unset_is_left_out_and_none_is_null() -> None:
    network = Network(ok({}))
    network.client().move_team("astro", parent=None)
    network.client().change_service(3, stopped=False)
    network.client().list_jobs(preemptible=True)
    bodies = [json.loads(request.content) for request in network.requests]
    assert bodies == [{"parent": None}, {"stopped": False}]


def test_flags_in_a_query_are_true_and_false() -> None:
    network = Network(ok({"items": [], "next": None}))
    assert list(network.client().list_jobs(preemptible=True, team="a b")) == []
    assert str(network.requests[0].url) == "http://portal/api/v1/jobs?team=a+b&preemptible=true"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            httpx2.Response(301, headers={"Location": "https://portal/x"}),
            "redirects this call to https://portal/x",
        ),
        (httpx2.Response(200, text="<html>"), "Is this the URL of a portal?"),
    ],
)
def test_a_server_that_is_no_portal_is_named(answer: httpx2.Response, text: str) -> None:
    with pytest.raises(ApiError, match="(?s)" + text.replace("?", r"\?")):
        Network(answer).client().me()


def test_later_pages_keep_the_filter() -> None:
    network = Network(ok({"items": [{"id": 9}], "next": 9}), ok({"items": [{"id": 3}], "next": None}))
    assert [job["id"] for job in network.client().list_jobs(team="astro", before=20)] == [9, 3]
    queries = [dict(request.url.params) for request in network.requests]
    assert queries == [{"team": "astro", "before": "20"}, {"team": "astro", "before": "9"}]


def test_the_token_is_sent_and_never_shown() -> None:
    network = Network(httpx2.ConnectError("refused"))
    client = network.client(0)
    with pytest.raises(ConnectionFailed, match="http://portal cannot be reached: refused") as caught:
        client.me()
    assert network.requests[0].headers["Authorization"] == "Bearer t"
    assert "Bearer" not in repr(client) + str(caught.value)


def test_a_name_that_the_package_lacks_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Moon'"):
        fairlot_client.Moon  # noqa: B018


class TestSignatures:
    def test_methods_show_their_arguments_and_answers(self) -> None:
        client = Fairlot("http://portal", "t")
        submit = inspect.signature(client.submit_job)
        assert list(submit.parameters)[:2] == ["spec", "idempotency_key"]
        assert submit.return_annotation == "answers.JobInFull"
        assert str(inspect.signature(client.get_job)) == "(job_id: 'int') -> 'answers.JobInFull'"
        assert inspect.signature(client.list_jobs).return_annotation == "Iterator[answers.Job]"
        assert "(*, spec: " in pydoc.render_doc(client.submit_job)
        assert client.submit_job.__qualname__ == "Fairlot.submit_job"

    def test_methods_of_the_async_client_are_awaited(self) -> None:
        client = AsyncFairlot("http://portal", "t")
        assert inspect.signature(client.get_job).return_annotation == "Awaitable[answers.JobInFull]"
        assert inspect.signature(client.list_jobs).return_annotation == "AsyncIterator[answers.Job]"

    def test_the_class_shows_and_calls_its_methods(self) -> None:
        assert str(inspect.signature(Fairlot.get_job)) == "(self, /, job_id: 'int') -> 'answers.JobInFull'"
        network = Network(ok({"id": 3}))
        assert Fairlot.get_job(network.client(), 3) == {"id": 3}

    def test_every_method_has_a_signature(self) -> None:
        client = Fairlot("http://portal", "t")
        for name in fairlot_generator.NAMES.values():
            assert "args" not in inspect.signature(getattr(client, name)).parameters, name


def job(state: str) -> httpx2.Response:
    return ok({"id": 7, "state": state})


def piece(text: str, offset: int, *, complete: bool = False) -> httpx2.Response:
    return ok({"text": text, "next_offset": offset, "complete": complete})


class TestFollowingAJob:
    def test_a_job_is_waited_for_with_growing_pauses(self) -> None:
        network = Network(*[job("running")] * 8, job("failed"))
        assert network.client().wait_for_job(7)["state"] == "failed"
        assert len(network.pauses) == 8
        assert network.pauses == sorted(network.pauses)
        assert network.pauses[0] < network.pauses[-1] == polling.LONGEST

    def test_waiting_ends_after_the_timeout(self) -> None:
        moments = iter([0.0, 0.0, 0.6, 1.0])
        steps = polling.until_ended(7, 1.0, clock=lambda: next(moments))
        next(steps)
        for seconds in (0.5, 0.4):
            pause = steps.send({"state": "queued"})
            assert isinstance(pause, Pause)
            assert pause.seconds == pytest.approx(seconds)
            assert isinstance(steps.send(None), Call)
        with pytest.raises(TimedOut, match="Job 7 has not ended after 1 seconds: it is queued"):
            steps.send({"state": "queued"})
        assert issubclass(TimedOut, TimeoutError)

    def test_a_log_is_followed_until_it_is_complete(self) -> None:
        network = Network(piece("a", 1), piece("", 1), piece("b", 2), piece("c", 3, complete=True))
        assert list(network.client().follow_log(7)) == ["a", "b", "c"]
        assert [dict(one.url.params)["offset"] for one in network.requests] == ["0", "1", "1", "2"]
        assert network.pauses == [polling.SHORTEST]
        assert list(Network(piece("", 0, complete=True)).client().follow_log(7)) == []

    def test_the_async_client_waits_and_follows_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(polling, "SHORTEST", 0.0)
        network = Network(
            piece("a", 1), piece("", 1), piece("b", 2, complete=True), job("running"), job("succeeded")
        )

        async def use() -> tuple[list[str], str]:
            async with AsyncFairlot("http://portal", "t", transport=httpx2.MockTransport(network)) as portal:
                texts = [text async for text in portal.follow_log(7)]
                return texts, (await portal.wait_for_job(7))["state"]

        assert asyncio.run(use()) == (["a", "b"], "succeeded")
