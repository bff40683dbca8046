"""The traffic of a service on its page, in the API and in the terminal, and how a web process counts it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client

from accounting.core.clock import now_from_database
from portal.services.traffic import failed_part, latency_text, not_counted, panels_of
from portal.sessions import traffic as counting
from portal.sessions.traffic import Tally
from scheduling.backends.summaries import WINDOW
from scheduling.metrics.rolling import number_at
from scheduling.models import Cluster, Service, TrafficSample
from scheduling.services.traffic import Outcome, Traffic
from scheduling.services.traffic_samples import Report, TrafficPoints, note_traffic, read_traffic
from tests.portal.jobs.test_metrics import charts_in
from tests.portal.scene import Scene


def record(service: Service, *, slow: float = 0.2) -> None:
    """Stores ten requests of a minute ago: six quick answers, one slow one, a 404, a 500, and one without a replica."""
    Service.objects.filter(pk=service.pk).update(created_at=now_from_database() - timedelta(days=2))
    sums = Traffic()
    for outcome, seconds in (
        *[(Outcome.OK, 0.02)] * 6,
        (Outcome.OK, slow),
        (Outcome.CLIENT_ERROR, 0.02),
        (Outcome.SERVER_ERROR, 0.02),
        (Outcome.NO_REPLICA, None),
    ):
        sums.note(outcome, seconds)
    number = number_at(now_from_database(), WINDOW) - 6
    note_traffic(source="a", reports=[Report(service.pk, number, sums)])


def page_of(client: Client, service: Service, query: str = "") -> str:
    return re.sub(r"\s+", " ", client.get(f"/services/{service.pk}/{query}").content.decode())


def test_the_page_shows_rate_latency_and_failed_requests(scene: Scene, browser_of) -> None:
    bob = browser_of(scene.people.bob)
    assert "No requests in this period." in page_of(bob, scene.service)
    record(scene.service)
    html = page_of(bob, scene.service)
    charts = charts_in(html)
    assert list(charts) == ["Requests", "Latency", "Errors"]
    assert sum(charts["Requests"][0].values()) * 30 == pytest.approx(10, rel=0.01)
    [p50], [p95] = (line.values() for line in charts["Latency"])
    assert 16 < p50 <= 20 * 1.2
    assert 160 < p95 <= 200 * 1.2
    assert [list(line.values()) for line in charts["Errors"]] == [[10], [10], [10]]
    for label in ("Client errors (4xx)", "Server errors (5xx)", "No replica ready"):
        assert f'{label}</dt><dd class="strong">1</dd>' in html
    assert "Timed out" not in html, "none did"
    assert '<dd class="strong">20 %</dd>' in html
    assert "Latency is the time until the first byte" in html
    assert "Requests that programs send to the address of a replica itself are not counted." in html
    assert 'aria-current="true">Last hour' in html
    assert 'aria-current="true">30 days' in page_of(bob, scene.service, "?last=30d")
    assert charts_in(page_of(bob, scene.service, "?last=nonsense")) == charts


def test_a_dot_shows_each_value_that_no_line_reaches() -> None:
    sums = Traffic()
    sums.note(Outcome.OK, 0.01)
    now = datetime(2026, 3, 1, tzinfo=UTC)
    points = dict.fromkeys((0, 3, 4, 9), sums)
    requests, latency, errors = panels_of(TrafficPoints(now, now + timedelta(seconds=20), 10, points))
    assert [line.dots for line in requests.lines] == [""], "it has a value in every window"
    for line in (*latency.lines, *errors.lines):
        assert re.findall(r"M([\d.]+),", line.dots) == ["0.5", "9.5"], "3 and 4 are joined"
        assert re.findall(r"M([\d.]+),[\d.]+L([\d.]+)", line.path) == [("3.5", "4.5")]


def test_slow_answers_are_shown_in_seconds() -> None:
    sums = Traffic()
    sums.note(Outcome.OK, 40.0)
    now = datetime(2026, 3, 1, tzinfo=UTC)
    panels = panels_of(TrafficPoints(now, now + timedelta(seconds=20), 10, {1: sums}))
    assert [panel.unit for panel in panels] == ["per second", "s", "% of requests"]
    assert 30 < panels[1].lines[0].values[1] <= 48
    only_failed = Traffic()
    only_failed.note(Outcome.NO_ANSWER, None)
    panels = panels_of(TrafficPoints(now, now + timedelta(seconds=20), 10, {1: only_failed}))
    assert [panel.title for panel in panels] == ["Requests", "Errors"]
    assert [line.label for line in panels[1].lines] == ["unreachable"]
    for outcome in Outcome:
        only_failed.note(outcome, None)
    panels = panels_of(TrafficPoints(now, now + timedelta(seconds=20), 10, {1: only_failed}))
    assert [line.label for line in panels[-1].lines] == [
        "4xx",
        "5xx",
        "no replica",
        "unreachable",
        "timed out",
    ]
    assert failed_part(only_failed) == pytest.approx(5 / 8)
    assert [latency_text(None), latency_text(0.0123), latency_text(12.0)] == ["–", "12.3 ms", "12 s"]


def test_the_page_says_what_kubernetes_carries_past_the_portal(scene: Scene) -> None:
    assert not_counted(scene.service).startswith("Requests that programs send")
    scene.service.cluster.backend = Cluster.Backend.KUBERNETES
    assert "http://supernova-api inside the cluster do not pass Fairlot" in not_counted(scene.service)


# --- counting in a web process -----------------------------------------------------------------------


def whole_of(service: Service) -> Traffic:
    now = now_from_database()
    return read_traffic(service, begins=now - timedelta(days=1), ends=now + timedelta(minutes=1)).whole


@pytest.fixture
def service(scene: Scene) -> Service:
    Service.objects.filter(pk=scene.service.pk).update(created_at=now_from_database() - timedelta(days=2))
    return Service.objects.get(pk=scene.service.pk)


def test_counts_of_two_processes_add_up_and_a_repeated_flush_adds_nothing(service: Service) -> None:
    one, two = Tally(), Tally()
    for tally in (one, two):
        tally.note(service.pk, Outcome.OK, 0.1)
        tally.flush()
        tally.note(service.pk, Outcome.OK, 0.1)
        tally.flush()
        tally.flush()
        assert not tally.has_unsent()
    assert whole_of(service).outcomes == {"ok": 4}


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_flush_whose_answer_is_lost_is_repeated_and_counts_once(
    service: Service, monkeypatch: pytest.MonkeyPatch, *, is_stored: bool
) -> None:
    tally = Tally()
    tally.note(service.pk, Outcome.OK, 0.1)

    def cut_off(**facts: Any) -> None:
        if is_stored:
            note_traffic(**facts)
        raise OperationalError("the connection is lost")

    with monkeypatch.context() as broken:
        broken.setattr(counting, "note_traffic", cut_off)
        with pytest.raises(OperationalError):
            tally.flush()
    assert tally.has_unsent()
    tally.note(service.pk, Outcome.OK, 0.1)
    tally.flush()
    assert whole_of(service).outcomes == {"ok": 2}


def test_windows_are_those_of_the_database_however_wrong_the_clock_is(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = now_from_database().timestamp()
    monkeypatch.setattr(counting.time, "time", lambda: clock - 7200)
    tally = Tally()
    tally.note(service.pk, Outcome.OK, 0.1)
    tally.flush()
    now = now_from_database()
    assert now - TrafficSample.objects.get().at < timedelta(minutes=1)
    monkeypatch.setattr(counting.time, "time", lambda: clock - 9000)
    tally.note(service.pk, Outcome.OK, 0.1)
    tally.flush()
    assert whole_of(service).outcomes == {"ok": 2}, "no window goes back"


def test_a_process_forgets_what_is_stored_and_bounds_what_is_not(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [now_from_database().timestamp()]
    monkeypatch.setattr(counting.time, "time", lambda: clock[0])
    tally = Tally()
    tally.note(service.pk, Outcome.OK, 0.1)
    tally.flush()
    for _ in range(counting.MOST_WINDOWS + 5):
        clock[0] += WINDOW
        tally.note(service.pk, Outcome.OK, 0.1)
    assert len(tally._sums) == counting.MOST_WINDOWS
    assert "were not counted" in caplog.text


def test_an_event_loop_stores_its_counts_soon_also_after_an_error(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(counting, "tally", Tally())
    failures = [OperationalError("no answer")]

    async def in_thread(work: Callable[[], Any]) -> Any:
        if failures:
            raise failures.pop()
        stored.append(1)
        counting.tally._sent = {key: sums.requests for key, sums in counting.tally._sums.items()}

    stored: list[int] = []

    async def requests() -> None:
        for _ in range(3):
            counting.count(service.pk, Outcome.OK, 0.1, in_thread)
        loop = asyncio.get_running_loop()
        await counting._planned[loop]
        counting.count(service.pk, Outcome.OK, 0.1, in_thread)
        await counting._planned[loop]

    asyncio.run(requests())
    assert stored == [1, 1]
    assert not failures
