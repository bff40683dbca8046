"""The logs of a service's replicas are merged by time, without loss or repetition, on a page, in the API and in the
terminal."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient
from hypothesis import given
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from accounting.models import User
from portal.jobs.log_group import LogGroup
from portal.services import replica_logs as joint
from portal.services import views
from portal.services.replica_logs import ReplicaLog, ReplicaLogs, plain, replica_logs
from scheduling.backends.base import End, LogChunk, LogUnreadable, Phase
from scheduling.backends.logtimes import Moment
from scheduling.jobs.actions import cancel_job
from scheduling.models import Job, Service
from scheduling.services.replicas import step_service
from tests.portal.jobs.test_log_group import Held
from tests.portal.scene import Scene
from tests.portal.services.test_services import bring_up

NOON = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)


class HeldByJob:
    """Logs of several jobs in memory. Stands in for a backend. Those of `broken` jobs cannot be read."""

    def __init__(self) -> None:
        self.jobs: dict[int, Held] = {}
        self.broken: set[int] = set()

    def write(self, job_id: int, text: str, at: int, attempt: int = 1) -> None:
        self.jobs.setdefault(job_id, Held()).write(0, text, Moment(attempt, at))

    def _of(self, job_id: int) -> Held:
        if job_id in self.broken:
            raise LogUnreadable("the node is lost")
        return self.jobs.get(job_id, Held())

    def log_size(self, *, job_id: int, rank: int) -> int:
        return self._of(job_id).log_size(job_id=job_id, rank=rank)

    def read_log(self, *, job_id: int, **facts: Any) -> LogChunk:
        return self._of(job_id).read_log(job_id=job_id, **facts)

    def log_times(self, *, job_id: int) -> Held:
        return self._of(job_id)


def logs_of(held: HeldByJob, jobs: int, *, ended: bool = False) -> ReplicaLogs:
    replicas = [Job(pk=pk, name=f"api-{pk}") for pk in range(1, jobs + 1)]
    files = [ReplicaLog(held, job.pk, 0, has_ended=ended) for job in replicas]  # type: ignore[arg-type]
    return ReplicaLogs(replicas, LogGroup(files), {})


# The job that writes, its attempt, and the time. Clocks may be set back between attempts.
writes = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 5000), st.integers(1, 3)))


@given(writes, writes, st.booleans())
def test_no_line_is_lost_or_repeated_however_logs_grow_and_clocks_go(
    first: list, later: list, ended: bool
) -> None:
    held, expected, got = HeldByJob(), dict[int, str](), dict[int, str]()
    after = ""

    def write_all(some: list) -> None:
        for number, (job, attempt, at, size) in enumerate(sorted(some, key=lambda one: one[:3])):
            text = f"{number} {'x' * size * 3000}\n"
            held.write(job, text, NOON + at, attempt)
            expected[job] = expected.get(job, "") + text

    def read_all(*, ended: bool) -> None:
        nonlocal after
        while True:
            logs = logs_of(held, 3, ended=ended)
            begin = logs.position_from(after)
            assert begin is not None
            found = logs.look(begin)
            for line in found.lines:
                got[line.rank] = got.get(line.rank, "") + line.text
            if not found.lines:
                return
            after = logs.text_of(found.position)

    write_all(first)
    read_all(ended=False)
    write_all(later)
    read_all(ended=ended)
    assert got == expected


def test_lines_are_merged_by_time_whatever_their_attempts_are() -> None:
    held = HeldByJob()
    held.write(1, "a\n", NOON, attempt=5)
    held.write(2, "b\n", NOON + 1, attempt=1)
    held.write(1, "c\n", NOON + 2, attempt=6)
    logs = logs_of(held, 2)
    assert [line.text for line in logs.recent()[0]] == ["a\n", "b\n", "c\n"]
    assert [line.text for line in logs.look((0, 0)).lines] == ["a\n", "b\n", "c\n"]
    assert logs.names == {1: "api-1", 2: "api-2"}


def test_the_last_line_of_an_ended_replica_needs_no_line_end() -> None:
    held = HeldByJob()
    held.write(1, "Killed", NOON)
    assert logs_of(held, 1).look((0,)).lines == []
    assert [line.text for line in logs_of(held, 1, ended=True).look((0,)).lines] == ["Killed"]


@pytest.mark.parametrize("text", ["x", "1-", "-1", "1-2.x-3", "1--2", "1-2-3"])
def test_what_is_no_position_is_refused(text: str) -> None:
    assert logs_of(HeldByJob(), 1).position_from(text) is None


def test_a_replica_that_is_new_begins_at_its_start_and_one_that_is_gone_does_not_matter() -> None:
    logs = logs_of(HeldByJob(), 2)
    assert logs.position_from("9-100.1-7") == (7, 0)
    assert logs.text_of((7, 0)) == "1-7"
    assert logs_of(HeldByJob(), 0).recent() == ([], ())
    assert logs_of(HeldByJob(), 0).look(()).is_complete


def test_people_read_lines_without_colours_and_what_was_overwritten() -> None:
    assert plain("\x1b[31mred\x1b[0m\n") == "red"
    assert plain("10%\r50%\r100%\r\n") == "100%"
    assert plain("a\x07b\x7f\tc") == "a␇b␡\tc"


def end(scene: Scene, job: Job) -> None:
    scene.world.see(scene.world.lease(job), Phase.ENDED, end=End.SUCCEEDED, ended_age=0.0, exit_code=0)


@pytest.fixture
def held(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> HeldByJob:
    return started(scene, monkeypatch)


def started(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> HeldByJob:
    """Starts both replicas of Bob's service, with logs in memory. Returns these logs."""
    cancel_job(actor=scene.people.alice, job=scene.waiting)
    end(scene, scene.other)
    step_service(service_id=scene.service.pk)
    bring_up(scene, scene.service, ready=True)
    backend = HeldByJob()
    monkeypatch.setattr(joint, "backend_for", lambda cluster: backend)
    return backend


def replicas(service: Service) -> list[Job]:
    return list(Job.objects.filter(service=service).order_by("pk"))


def test_the_page_shows_the_lines_of_all_replicas_with_their_names(
    scene: Scene, browser_of, held: HeldByJob
) -> None:
    one, two = replicas(scene.service)
    held.write(two.pk, "second <b>\n", NOON + 2000)
    held.write(one.pk, "first\n", NOON)
    bob = browser_of(scene.people.bob)
    html = bob.get(f"/services/{scene.service.pk}/log/").content.decode()
    lines = html[html.index("service-lines") :]
    assert lines.index(f"</time> {one.name}</span> first") < lines.index(
        f"</time> {two.name}</span> second &lt;b&gt;"
    )
    assert (
        f'href="/services/{scene.service.pk}/log/"'
        in bob.get(f"/services/{scene.service.pk}/").content.decode()
    )
    held.broken.add(two.pk)
    html = bob.get(f"/services/{scene.service.pk}/log/").content.decode()
    assert f"{two.name}: The log cannot be read: the node is lost." in html
    assert "first" in html


def test_the_page_leads_to_earlier_lines_until_the_first(
    scene: Scene, browser_of, held: HeldByJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "LINES_SHOWN", 2)
    one, two = replicas(scene.service)
    for number in range(5):
        held.write((one, two)[number % 2].pk, f"line {number}\n", NOON + number)
    bob, query, pages = browser_of(scene.people.bob), "", []
    for _ in range(3):
        html = bob.get(f"/services/{scene.service.pk}/log/{query}").content.decode()
        pages.append(re.findall(r"line \d", html))
        assert ("data-live-within" in html) == ("Latest lines" not in html) == (query == "")
        query = next(iter(re.findall(r'href="(\?end=[^"&]+)"', html)), "")
    assert pages == [["line 3", "line 4"], ["line 1", "line 2"], ["line 0"]]
    assert query == "", "nothing is before the first line"
    assert logs_of(HeldByJob(), 0).before(None, 2) == ([], ())


def test_replicas_that_ended_lately_are_included_and_earlier_ones_are_not(
    scene: Scene, held: HeldByJob
) -> None:
    one, two = replicas(scene.service)
    now = now_from_database()
    for job, ago in ((one, timedelta(hours=23)), (two, timedelta(hours=25))):
        end(scene, job)
        Job.objects.filter(pk=job.pk).update(ended_at=now - ago)
    found = replica_logs(scene.service)
    assert [job.pk for job in found.replicas] == [one.pk]
    assert found.group.files[0].further(0, None, 10) == (b"", True)


def test_replicas_that_have_not_run_have_no_log(scene: Scene, browser_of) -> None:
    step_service(service_id=scene.service.pk)
    assert replica_logs(scene.service).replicas == []
    html = browser_of(scene.people.bob).get(f"/services/{scene.service.pk}/log/").content.decode()
    assert "No replica has run in the last 24 hours." in html


def test_the_page_finds_lines_of_all_replicas_and_leads_to_their_places(
    scene: Scene, browser_of, held: HeldByJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = replicas(scene.service)
    held.write(two.pk, "Loss 2 <b>\n", NOON + 2000, attempt=1)
    held.write(one.pk, "begin\n", NOON, attempt=3)
    held.write(one.pk, "loss 1\n", NOON + 1000, attempt=3)
    bob, page = browser_of(scene.people.bob), f"/services/{scene.service.pk}/log/"

    def lines(query: str) -> list[tuple[str, str, str]]:
        html = bob.get(f"{page}{query}").content.decode()
        return re.findall(r'<a href="/jobs/(\d+)/log/\?line=(\d+)">([^<]*)</a></li>', html)

    both = [(str(one.pk), "6", "loss 1"), (str(two.pk), "0", "Loss 2 &lt;b&gt;")]
    assert lines("?q=loss") == lines("?q=l.ss&regex=1") == both
    assert lines("?q=l.ss") == []
    html = bob.get(f"{page}?q=loss").content.decode()
    assert "2 matching lines." in html
    assert 'class="log-view"' in html, "what was found begins at the top"
    assert 'class="log-view from-end"' in bob.get(page).content.decode(), "the log begins at its end"
    assert "data-live-within" not in html, "what was searched for stays"
    assert "No match." in bob.get(f"{page}?q=accuracy").content.decode()
    assert "This is not a valid regular expression" in bob.get(f"{page}?q=(&regex=1").content.decode()
    monkeypatch.setattr(views, "MOST_FOUND", 1)
    assert lines("?q=loss") == both[:1]
    assert "The search ended before the end of the logs" in bob.get(f"{page}?q=loss").content.decode()
    assert 'class="log-lines wraps service-lines"' in html
    html = bob.get(f"{page}?wrap=0").content.decode()
    assert 'class="log-lines service-lines"' in html
    assert "log/raw" in html


@pytest.mark.django_db(transaction=True)
def test_the_download_has_all_lines_with_their_replicas_and_is_for_those_who_see_the_service(
    scene: Scene, held: HeldByJob
) -> None:
    one, two = replicas(scene.service)
    held.write(two.pk, "second\n", NOON + 2000)
    held.write(one.pk, "first\n", NOON)

    async def downloaded(user: User) -> tuple[int, bytes]:
        client = AsyncClient()
        await client.aforce_login(user, backend="django.contrib.auth.backends.ModelBackend")
        answer = await client.get(f"/services/{scene.service.pk}/log/raw")
        if not answer.streaming:
            return answer.status_code, b""
        return answer.status_code, b"".join([part async for part in answer.streaming_content])

    status, data = async_to_sync(downloaded)(scene.people.bob)
    assert status == 200
    assert data.decode().splitlines() == [
        f"2026-03-01T12:00:00.000+00:00 {one.name} first",
        f"2026-03-01T12:00:02.000+00:00 {two.name} second",
    ]
    assert async_to_sync(downloaded)(scene.people.charlie)[0] == 404
