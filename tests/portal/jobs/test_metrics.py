"""The tab Metrics of a job: charts on one axis, what was left out, and several jobs beside each other."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import timedelta
from html import unescape
from itertools import pairwise

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
from scheduling.metrics.printed import Line, sum_up
from scheduling.metrics.recording import Report, count_left_out, lock_streams, store
from scheduling.metrics.reported import Reported
from scheduling.metrics.rolling import roll_up, streams_to_roll
from scheduling.metrics.thinning import MOST
from scheduling.models import Job, MetricPoint, MetricSample, MetricStream
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
    reported = Reported()
    for report in reports:
        reported.add_line(
            {name: one.last for name, one in report.values.items()}, attempt=1, at=report.at.timestamp()
        )
    by_step = {job.pk: reported} if source == SOURCE.OUTPUT else {}
    with transaction.atomic():
        store(lock_streams(source, {job.pk}), reports, by_step)


def print_lines(job: Job, lines: Sequence[str], *, attempt: int = 1) -> None:
    """Stores what the job has printed just now."""
    with transaction.atomic():
        streams = lock_streams(SOURCE.OUTPUT, {job.pk})
        stream = streams[job.pk]
        reported, now = Reported.after(stream.by_step), now_from_database()
        found = sum_up([Line(line.encode(), now, attempt) for line in lines], reported)
        number = MetricSample.objects.filter(stream=stream).count()
        store(streams, [Report(job.pk, number, now, found.values)], {job.pk: reported})


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
    # The program starts again after its third window, and reports the steps 0 and 50 again.
    loss, steps = [4.0, 3.0, 2.0, 3.9, 2.9], [0.0, 50.0, 100.0, 0.0, 50.0]
    record(scene.job, SOURCE.OUTPUT, {"loss": loss, "step": steps})
    record(scene.job, SOURCE.MACHINE, {"memory": [2.0**30, 3 * 2.0**30]})
    assert 'href="?axis=step"' in page_of(bob, scene.job)
    page = page_of(bob, scene.job, "?axis=step")
    charts = charts_in(page)
    assert charts["loss"] == [{"0": 3.9, "50": 2.9, "100": 2.0}]
    assert list(charts["Memory of the workers"][0].values()), (
        "what the cluster measures is shown by step, too"
    )
    assert "step" not in charts, "steps over steps say nothing"
    assert 'data-steps="step" data-first="0.0" data-last="100.0"' in page
    assert "loss over step, on an axis" in page


@pytest.mark.parametrize("count", [1, 6, 15, MOST])
def test_a_run_of_few_steps_is_drawn_exactly(scene: Scene, bob: Client, count: int) -> None:
    """All steps are printed within a second, from step 0 on."""
    print_lines(scene.job, [f"step={step} loss={100 - step / 8} lr=0.1" for step in range(count)])
    page = page_of(bob, scene.job)
    if count == 1:
        assert "loss over time" in page
        return
    losses = {str(step): float(f"{100 - step / 8:.5g}") for step in range(count)}
    assert charts_in(page)["loss"] == [losses]
    assert f'data-value="{100 - (count - 1) / 8:.4g}"' in page, "the legend has the last value that is drawn"
    assert "<span>step 0</span>" in page
    assert f"<span>step {count - 1}</span>" in page
    assert "fewer steps" not in page


def test_a_long_run_is_thinned_evenly_with_its_first_and_last_step(scene: Scene, bob: Client) -> None:
    last = 20_000
    for begin in range(0, last + 1, 1000):
        lines = [f"step={step} loss={step}" for step in range(begin, min(begin + 1000, last + 1))]
        print_lines(scene.job, lines)
    page = page_of(bob, scene.job, "?axis=step")
    [loss] = charts_in(page)["loss"]
    steps = [int(step) for step in loss]
    assert (steps[0], steps[-1]) == (0, last)
    assert MOST // 3 <= len(steps) <= MOST + 1
    assert len({after - before for before, after in pairwise(steps[:-1])}) == 1
    assert list(loss.values()) == [float(f"{step:.5g}") for step in steps]
    assert "Longer runs are drawn with fewer steps, evenly apart." in page
    assert MetricPoint.objects.count() <= MOST


def test_a_later_attempt_replaces_the_steps_that_it_repeats(scene: Scene, bob: Client) -> None:
    print_lines(scene.job, [f"step={step} loss={step}" for step in range(10)])
    print_lines(scene.job, ["loss=77", "step=6 loss=60", "step=7 loss=70"], attempt=2)
    [loss] = charts_in(page_of(bob, scene.job))["loss"]
    assert list(loss.items())[-3:] == [("5", 5.0), ("6", 60.0), ("7", 70.0)]


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
    assert first == {"0": 4, "100": 2}
    assert second == {"0": 4.5, "200": 1}
    assert "step 200" in page


def test_jobs_that_count_steps_and_epochs_are_compared_by_epoch(scene: Scene, bob: Client) -> None:
    print_lines(scene.job, [f"epoch={step // 2} step={step} loss={step}" for step in range(6)])
    print_lines(scene.waiting, [f"epoch={epoch} loss={epoch}" for epoch in range(3)])
    first, second = charts_in(page_of(bob, scene.job, f"?axis=step&with={scene.waiting.pk}"))["loss"]
    assert second == {"0": 0, "1": 1, "2": 2}
    assert list(first)


def test_only_jobs_that_report_steps_offer_an_axis_of_steps(scene: Scene, bob: Client) -> None:
    record(scene.job, SOURCE.OUTPUT, {"loss": [4.0, 3.0]})
    for query in ("", "?axis=step"):
        page = page_of(bob, scene.job, query)
        assert "By step" not in page
        assert "loss over time, on an axis" in page
