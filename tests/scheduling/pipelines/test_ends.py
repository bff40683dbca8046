"""The expected end of a pipeline follows from the run times of its steps, or the first reason is named."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from accounting.core.clock import now_from_database
from scheduling.models import Job, JobForecast, Pipeline, PipelineStep
from scheduling.pipelines.definition import Definition
from scheduling.pipelines.ends import Ends, ends_of, time_on_gpus
from tests.scheduling.piped import make, step
from tests.scheduling.swept import end
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def lab() -> World:
    return world(v100=4)


def piped(lab: World, **steps: dict[str, Any]) -> Pipeline:
    written = {name: {"command": "go", **fields} for name, fields in steps.items()}
    return step(make(lab, definition=Definition.parse({"name": "digits", "steps": written})))


def steps_of(pipeline: Pipeline) -> list[PipelineStep]:
    found = pipeline.steps.select_related("job__forecast")
    return list(found.prefetch_related("needs__on", "needs__job"))


def ends(pipeline: Pipeline, now: datetime) -> tuple[dict[str, timedelta], Ends]:
    steps = steps_of(pipeline)
    found = ends_of(pipeline, steps, now)
    names = {one.pk: one.name for one in steps}
    return {names[key]: end - now for key, end in found.by_step.items()}, found


def test_steps_follow_each_other_and_a_failure_is_not_expected(lab: World) -> None:
    pipeline = piped(
        lab,
        prepare={"expected_hours": 1},
        train={"needs": ["prepare"], "expected_hours": 2},
        check={"needs": [{"step": "prepare", "when": "always"}], "expected_hours": 5},
        repair={"needs": [{"step": "train", "when": "failure"}]},
        tell={"needs": ["repair"]},
    )
    now = now_from_database()
    first = pipeline.steps.get(name="prepare").job
    assert first is not None
    by_step, found = ends(pipeline, now)
    assert (by_step, found.whole, found.why) == ({}, None, "prepare: it is not known when it starts")
    JobForecast.objects.create(job=first, at=now, earliest=now, starts_by=now + HOUR)
    by_step, found = ends(pipeline, now)
    assert by_step == {"prepare": 2 * HOUR, "train": 4 * HOUR, "check": 7 * HOUR}
    assert (found.whole, found.why) == (now + 7 * HOUR, "")
    # A job that runs has the rest of its time left.
    lab.quantum()
    lab.carry_out()
    JobForecast.objects.all().delete()
    later = now_from_database() + HOUR / 2
    by_step, found = ends(pipeline, later)
    first.refresh_from_db()
    had = time_on_gpus([first], later)[first.pk]
    assert HOUR / 2 <= had < HOUR
    assert by_step["prepare"] == HOUR - had
    by_step, found = ends(pipeline, later + HOUR)
    assert (by_step, found.whole, found.why) == ({}, None, "prepare: it runs longer than expected")


def test_an_earlier_run_of_the_same_name_tells_the_run_time(lab: World) -> None:
    earlier = lab.submit(lab.people.bob, lab.people.astro, name="digits-a")
    lab.quantum()
    lab.carry_out()
    end(lab, earlier)
    Job.objects.filter(pk=earlier.pk).update(held_for=3 * HOUR)
    pipeline = piped(lab, a={}, b={"needs": ["a"]})
    lab.quantum()
    lab.carry_out()
    now = now_from_database()
    by_step, found = ends(pipeline, now)
    assert timedelta(0) < by_step["a"] <= 3 * HOUR
    assert (found.whole, found.why) == (None, "b: no run time is known; write expected_hours")


def test_jobs_outside_and_jobs_that_have_just_ended(lab: World) -> None:
    other = lab.submit(lab.people.bob, lab.people.astro)
    pipeline = piped(
        lab,
        a={"needs": [other.pk], "expected_hours": 1},
        b={"needs": [{"job": other.pk, "when": "failure"}], "expected_hours": 1},
    )
    now = now_from_database()
    by_step, found = ends(pipeline, now)
    assert (by_step, found.why) == ({}, f"a: it is not known when job {other.pk} ends")
    ended = piped(lab, a={}, b={"needs": ["a"], "expected_hours": 1})
    Job.objects.filter(pipeline=ended).update(state=Job.State.SUCCEEDED, ended_at=now)
    by_step, found = ends(ended, now)
    assert (by_step, found.whole) == ({"a": timedelta(0), "b": HOUR}, now + HOUR)
    assert ends_of(ended, [], now) == Ends({}, None, "")
