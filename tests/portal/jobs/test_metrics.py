"""The tab Metrics of a job: charts on one axis, what was left out, and several jobs beside each other."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from html import unescape

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from portal.jobs.metric_charts import scale_of
from scheduling.backends.summaries import of_value
from scheduling.metrics.recording import Report, count_left_out, lock_streams, store
from scheduling.metrics.rolling import roll_up, streams_to_roll
from scheduling.models import Job, MetricStream
from tests.portal.scene import Scene

SOURCE = MetricStream.Source


def record(job: Job, source: str, values: dict[str, list[float]], *, every: int = 10) -> None:
    """Stores series of the job; the last values are of now."""
    now, count = now_from_database(), max(map(len, values.values()))
    reports = [
        Report(
            job.pk,
            number,
            now - timedelta(seconds=every * (count - number)),
            {name: of_value(some[number]) for name, some in values.items() if number < len(some)},
        )
        for number in range(count)
    ]
    with transaction.atomic():
        store(lock_streams(source, {job.pk}), reports)


def held_for(job: Job, time: timedelta) -> None:
    since = now_from_database() - time
    job.leases.update(held_from=since, running_from=since)


def page_of(client: Client, job: Job, query: str = "") -> str:
    return client.get(reverse("job_metrics", args=[job.pk]) + query).content.decode()


def charts_in(page: str) -> dict[str, list[dict[str, float]]]:
    """Returns the values of the lines of each chart, by the chart's title."""
    found = re.findall(r'data-values="([^"]*)".*?<h3 class="break">(.*?)</h3>', page, re.DOTALL)
    return {title: json.loads(unescape(values)) for values, title in found}


@pytest.fixture
def bob(scene: Scene, browser_of) -> Client:
    return browser_of(scene.people.bob)


def test_each_metric_has_a_chart_with_its_values_and_the_marks_of_leases_and_trades(
    scene: Scene, bob: Client
) -> None:
    held_for(scene.job, timedelta(hours=1))
    gpus = {f"gpu_utilisation@v100-0/{index}": [40.0 + index, 80.0] for index in range(2)}
    record(scene.job, SOURCE.MACHINE, gpus | {"memory": [3 * 2.0**30] * 2}, every=1800)
    record(scene.job, SOURCE.OUTPUT, {"loss": [2.5, 0.5]}, every=1800)
    page = page_of(bob, scene.job)
    charts = charts_in(page)
    assert [sorted(line.values()) for line in charts["GPU utilisation"]] == [[40, 80], [41, 80]]
    assert [sorted(line.values()) for line in charts["Memory of the workers"]] == [[3, 3]]
    assert [sorted(line.values()) for line in charts["loss"]] == [[0.5, 2.5]]
    assert "Attempt 1: 4 × " in page
    assert "the team gives 0.9 × A100 for 1.97 × V100" in page
    assert 'data-value="3 GiB"' in page


def test_a_job_without_metrics_says_when_they_come(scene: Scene, bob: Client) -> None:
    assert "No metrics yet" in page_of(bob, scene.waiting)
    record(scene.job, SOURCE.OUTPUT, {"loss": [1.0] * 3})
    page = page_of(bob, scene.job)
    assert "The GPUs of this job report no metrics" in page
    assert "No metrics in this period" not in page_of(bob, scene.job, "?last=1h")
    MetricStream.objects.update(newest_at=None)


def test_hostile_names_are_text_and_what_was_left_out_is_said(scene: Scene, bob: Client) -> None:
    record(scene.job, SOURCE.EVENTS, {"<script>alert(1)</script>": [1.0, 2.0], "a\"b'c": [1e100, -1e100]})
    with transaction.atomic():
        streams = lock_streams(SOURCE.OUTPUT, {scene.job.pk})
        for word, count in (("not_numbers", 1234), ("names", 2), ("bytes", 7)):
            count_left_out(streams[scene.job.pk], word, count)
        store(streams, [])
    page = page_of(bob, scene.job)
    assert "<script>alert" not in page
    assert "such as NaN or infinity: 1\N{NO-BREAK SPACE}234." in page
    assert "a job may have 50 names: 2." in page
    assert "they came too fast: 7." in page


def test_jobs_are_compared_from_their_starts_on_and_others_jobs_do_not_exist(
    scene: Scene, bob: Client
) -> None:
    for job in (scene.job, scene.waiting, scene.other):
        record(job, SOURCE.OUTPUT, {"loss": [3.0, 2.0, 1.0]})
    page = page_of(bob, scene.job, f"?with=%23{scene.waiting.pk},{scene.other.pk}+9999999+x")
    assert len(charts_in(page)["loss"]) == 2
    assert f"“{scene.other.pk}”, “9999999”, “x”" in page
    assert "genome" not in page


def test_the_page_takes_the_same_queries_for_few_and_many_samples(scene: Scene, bob: Client) -> None:
    def queries() -> int:
        page_of(bob, scene.job)
        with CaptureQueriesContext(connection) as asked:
            page_of(bob, scene.job)
        return len(asked)

    held_for(scene.job, timedelta(days=2))
    record(scene.job, SOURCE.OUTPUT, {"loss": [1.0] * 10})
    few = queries()
    MetricStream.objects.all().delete()
    record(scene.job, SOURCE.OUTPUT, {f"x{n}": [1.0 + n] * 10_000 for n in range(3)})
    assert queries() == few
    roll_up(stream_id=streams_to_roll().get().pk)
    assert queries() == few
    assert max(len(line) for lines in charts_in(page_of(bob, scene.job)).values() for line in lines) <= 240


@given(st.floats(-1e100, 1e100), st.floats(-1e100, 1e100), st.booleans())
def test_every_value_is_on_its_axis(one: float, other: float, is_measured: bool) -> None:
    low, high = sorted(map(abs, (one, other)) if is_measured else (one, other))
    scale = scale_of(low, high, unit="", is_measured=is_measured)
    rounding = 1e-9 * max(abs(low), abs(high), 1e-9)  # what an axis of 28 digits cannot tell apart
    assert float(scale.low) - rounding <= low <= high <= float(scale.high) + rounding
    assert 1 <= scale.steps <= 6
    assert all(0 <= y <= 100 for _, y in scale.marks)


def test_charts_can_show_steps_instead_of_time(scene: Scene, bob: Client) -> None:
    # The program starts again after its third window, and reports the steps 0 and 50 anew.
    loss, steps = [4.0, 3.0, 2.0, 3.9, 2.9], [0.0, 50.0, 100.0, 0.0, 50.0]
    record(scene.job, SOURCE.OUTPUT, {"loss": loss, "step": steps})
    assert 'href="?axis=step"' in page_of(bob, scene.job)
    page = page_of(bob, scene.job, "?axis=step")
    assert list(charts_in(page)["loss"][0].values()) == [3.9, 2.9, 2.0]
    times = json.loads(unescape(re.findall(r'data-times="([^"]*)"', page)[0]))
    assert (times[0], times[-1]) == ("step 0", "step 100")
    assert "loss over step, on an axis" in page


def test_a_program_of_some_seconds_has_a_curve_over_its_steps(scene: Scene, bob: Client) -> None:
    record(scene.job, SOURCE.OUTPUT, {"loss": [5.0, 4, 3, 2, 1], "step": [1.0, 2, 3, 4, 5]}, every=1)
    assert list(charts_in(page_of(bob, scene.job, "?axis=step"))["loss"][0].values()) == [5, 4, 3, 2, 1]


def test_a_short_run_begins_by_step_and_a_long_one_by_time(scene: Scene, bob: Client) -> None:
    record(scene.job, SOURCE.OUTPUT, {"loss": [5.0, 4, 3, 2, 1], "epoch": [1.0, 2, 3, 4, 5]}, every=1)
    page = page_of(bob, scene.job)
    assert "loss over epoch, on an axis" in page
    assert 'hx-get="?axis=step"' in page, "a refresh after five minutes changes the axis under the reader"
    assert "loss over time, on an axis" in page_of(bob, scene.job, "?axis=time")
    record(scene.waiting, SOURCE.OUTPUT, {"loss": [4.0, 3, 2], "step": [0.0, 1, 2]}, every=200)
    assert "loss over time, on an axis" in page_of(bob, scene.waiting)
    assert "loss over time, on an axis" in page_of(bob, scene.job, f"?with={scene.waiting.pk}")


def test_epochs_are_the_progress_of_a_job_that_reports_no_steps(scene: Scene, bob: Client) -> None:
    overview = reverse("job", args=[scene.job.pk])
    Job.objects.filter(pk=scene.job.pk).update(steps_done=None)
    assert "The log reports no progress yet." in bob.get(overview).content.decode()
    record(scene.job, SOURCE.OUTPUT, {"loss": [2.0, 1.0, 0.5], "epoch": [2.0, 3.0]})
    page = bob.get(overview).content.decode()
    assert "The program reports epoch 3." in page
    assert '3 <small>epoch</small></span><span class="tile-note">as the program reports it' in page
    assert "no progress" not in page
    record(scene.job, SOURCE.EVENTS, {"global_step": [40.0]})
    assert "The program reports global_step 40." in bob.get(overview).content.decode()
    Job.objects.filter(pk=scene.job.pk).update(steps_done=7)
    assert "7 completed steps" in bob.get(overview).content.decode()


def test_jobs_are_compared_by_step_on_one_axis(scene: Scene, bob: Client) -> None:
    record(scene.job, SOURCE.OUTPUT, {"loss": [4.0, 2.0], "step": [0.0, 100.0]}, every=600)
    record(scene.waiting, SOURCE.OUTPUT, {"loss": [4.5, 1.0], "step": [0.0, 200.0]}, every=600)
    page = page_of(bob, scene.job, f"?axis=step&with={scene.waiting.pk}")
    first, second = charts_in(page)["loss"]
    assert list(first.values()) == [4, 2]
    assert list(second.values()) == [4.5, 1]
    assert "step 200" in page


def test_only_jobs_that_report_steps_offer_an_axis_of_steps(scene: Scene, bob: Client) -> None:
    record(scene.job, SOURCE.OUTPUT, {"loss": [4.0, 3.0]})
    for query in ("", "?axis=step"):
        page = page_of(bob, scene.job, query)
        assert "By step" not in page
        assert "loss over time, on an axis" in page
