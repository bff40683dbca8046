"""The metrics of a job by the API and in the terminal."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from fairlot_client.cli.commands.metrics import sparkline
from scheduling.models import MetricStream
from tests.portal.jobs.test_metrics import print_lines, record
from tests.portal.scene import Scene


def test_the_metrics_of_a_job_are_shown_as_a_table_and_as_points(scene: Scene, fairlot, client_of) -> None:
    bob = scene.people.bob
    record(scene.job, MetricStream.Source.OUTPUT, {"loss": [4.0, 2.0, 1.0]})
    record(scene.job, MetricStream.Source.MACHINE, {"gpu_memory@v100-0/0": [3 * 2.0**30] * 3})
    shown = fairlot(bob, "metrics", scene.job.pk)
    assert shown.exit_code == 0, shown.output
    assert "█" in shown.stdout
    assert "3 GiB" in shown.stdout
    shown = fairlot(bob, "metrics", scene.job.pk, "--name", "loss", "-o", "json")
    [loss] = json.loads(shown.stdout)
    assert [point["mean"] for point in loss["points"]] == [4, 2, 1]
    assert (loss["whole"]["lowest"], loss["whole"]["highest"], loss["whole"]["values"]) == (1, 4, 3)
    found = client_of(bob).get_job_metrics(scene.job.pk)
    assert [(one["name"], one["gpu"], one["unit"]) for one in found["series"]] == [
        ("loss", "", ""), ("gpu_memory", "v100-0/0", "bytes"),
    ]  # fmt: skip
    assert fairlot(scene.people.charlie, "metrics", scene.job.pk).exit_code == 4


def test_metrics_are_shown_by_step_too(scene: Scene, fairlot, client_of) -> None:
    bob = scene.people.bob
    print_lines(scene.job, [f"epoch={epoch} loss={4 - epoch}" for epoch in range(4)])
    shown = fairlot(bob, "metrics", scene.job.pk, "--by-step")
    assert shown.exit_code == 0, shown.output
    assert "OVER EPOCH" in shown.stdout
    assert "█▆▃▁" in shown.stdout
    shown = fairlot(bob, "metrics", scene.job.pk, "--by-step", "--points", 3, "-o", "json")
    [loss] = json.loads(shown.stdout)
    assert [(point["step"], point["last"]) for point in loss["points"]] == [(0, 4), (2, 2), (3, 1)]
    client = client_of(bob)
    found = client.get_job_metrics(scene.job.pk, by="step")
    assert (found["axis"], found["seconds"], len(found["series"][0]["points"])) == ("epoch", 0, 4)
    assert client.get_job_metrics(scene.job.pk, by="step", from_="2100-01-01T00:00:00Z")["series"] == []
    assert client.get_job_metrics(scene.job.pk)["axis"] == "time"
    shown = fairlot(bob, "metrics", scene.waiting.pk, "--by-step")
    assert "The program reports no steps." in shown.output


@pytest.mark.parametrize("year", [1, 9999])
def test_any_period_may_be_asked_for(scene: Scene, client_of, year: int) -> None:
    record(scene.job, MetricStream.Source.OUTPUT, {"loss": [4.0]})
    at = datetime(year, 6, 1, tzinfo=UTC).isoformat()
    client = client_of(scene.people.bob)
    assert (client.get_job_metrics(scene.job.pk, from_=at)["series"] == []) is (year == 9999)
    assert (client.get_job_metrics(scene.job.pk, to=at)["series"] == []) is (year == 1)


def test_a_line_of_bars_shows_any_values() -> None:
    assert sparkline([{"mean": value} for value in (-1e100, 0.0, 1e100)]) == "▁▄█"
    assert sparkline([{"mean": 1.0}] * 2) == "▁▁"
    assert sparkline([]) == ""
