"""Times after which other systems stop a job become its time limit, and the report says how they differ."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scheduling.importers.kubernetes.metadata import TIME_LABEL
from scheduling.importers.registry import convert
from scheduling.importers.report import Fate, Line, WorkKind
from scheduling.importers.slurm.settings import minutes_of
from tests.scheduling.importers.test_retries import job, of_kind, pod, torch

GPU = {"containers": [{"name": "c", "image": "a", "command": ["python", "x.py"],
                       "resources": {"limits": {"nvidia.com/gpu": 1}}}]}  # fmt: skip


def batch(*options: str) -> str:
    lines = "".join(f"#SBATCH {one}\n" for one in ("--gpus-per-node=1", *options))
    return f"#!/bin/bash\n{lines}python train.py\n"


def of_pods(seconds: int) -> dict[str, Any]:
    return {"spec": GPU | {"activeDeadlineSeconds": seconds}}


def labelled(kind: str, spec: dict[str, Any], version: str = "batch/v1", seconds: str = "5400") -> str:
    made = yaml.safe_load(of_kind(kind, spec, version))
    made["metadata"]["labels"] = {TIME_LABEL: seconds}
    return yaml.safe_dump(made)


def job_set(*seconds: int) -> str:
    jobs = [{"name": f"w{at}", "template": {"spec": {"activeDeadlineSeconds": one, "template": {"spec": GPU}}}}
            for at, one in enumerate(seconds)]  # fmt: skip
    return of_kind("JobSet", {"replicatedJobs": jobs}, "jobset.x-k8s.io/v1alpha2")


def stack(duration: Any, kind: str = "task", **more: Any) -> str:
    made = {"type": kind, "image": "a", "commands": ["python x.py"], "max_duration": duration} | more
    return yaml.safe_dump(made)


def polyaxon(operation: str, component: str) -> str:
    run = "run: {kind: job, container: {image: a, command: [python, x.py]}}"
    return f"version: 1.1\nkind: operation\n{operation}\ncomponent:\n  {component}\n  {run}\n"


RAY = {"headGroupSpec": {"template": {"spec": GPU}}}
ARMADA = {"queue": "q", "jobs": [{"podSpec": of_pods(5400)["spec"]}]}
DEPLOYMENT = {"replicas": 1, "template": {"spec": {"containers": [
    GPU["containers"][0] | {"ports": [{"containerPort": 8000}]}]}}}  # fmt: skip


def limit_of(text: str) -> tuple[float | None, list[Line]]:
    """Returns the time limit of the first job or service in the text, and the report's lines about time limits."""
    found = convert(text)
    assert found.works, found.report
    lines = [line for line in found.report if line.target == "time_limit_hours"]
    return found.works[0].spec.get("time_limit_hours"), lines


@pytest.mark.parametrize(
    ("text", "hours", "says"),
    [
        (batch("--time=90"), 1.5, "There each attempt has this time."),
        (batch("--time=1-12", "--time-min=2:00:00"), 36, "does not shorten"),
        (job(activeDeadlineSeconds=5400), 1.5, "also while pods wait"),
        (of_kind("Pod", of_pods(5400)["spec"], "v1"), 1.5, "also while pods wait"),
        (of_kind("Job", {"activeDeadlineSeconds": 3600, "template": of_pods(1800)}), 0.5, "A shorter time limit"),
        (of_kind("Job", {"activeDeadlineSeconds": 1800, "template": of_pods(3600)}), 0.5, "also while pods wait"),
        (job(activeDeadlineSeconds=3600, completions=9, parallelism=3), 1, "each member of the sweep"),
        (of_kind("CronJob", {"schedule": "1 2 * * *",
                             "jobTemplate": {"spec": {"activeDeadlineSeconds": 60, "template": pod()}}}),
         round(1 / 60, 6), "also while pods wait"),
        (torch("Never", {"activeDeadlineSeconds": 7200}), 2, "also while pods wait"),
        (of_kind("TrainJob", {"activeDeadlineSeconds": 7200, "trainer": {"image": "a", "command": ["x"]}},
                 "trainer.kubeflow.org/v1alpha1"), 2, "also while pods wait"),
        (job_set(7200, 3600), 1, "also while pods wait"),
        (of_kind("RayJob", {"entrypoint": "python x.py", "activeDeadlineSeconds": 600, "rayClusterSpec": RAY},
                 "ray.io/v1"), round(1 / 6, 6), "also while pods wait"),
        (labelled("Job", {"template": pod()}), 1.5, "Kueue counts while the job is admitted."),
        (yaml.safe_dump(ARMADA), 1.5, "also while pods wait"),
        (stack("6h"), 6, "There each attempt has this time."),
        (stack("1d"), 24, "There each attempt has this time."),
        (stack(90), 0.025, "There each attempt has this time."),
        (polyaxon("termination: {timeout: 7200, maxRetries: 1}", "termination: {timeout: 60, ttl: 9}"), 2,
         "also while pods wait"),
        (polyaxon("tags: [a]", "termination: {timeout: 7200}"), 2, "also while pods wait"),
        ("entrypoint: python x.py\ntimeout_s: 7200\nruntime_env: {}\n", 2, "There each attempt has this time."),
    ],
)  # fmt: skip
def test_the_time_after_which_a_job_is_stopped_becomes_its_time_limit(
    text: str, hours: float, says: str
) -> None:
    limit, lines = limit_of(text)
    assert limit == hours
    assert {line.fate for line in lines} == {Fate.APPROXIMATED}
    assert any(says in line.text for line in lines), lines


WITH_DEADLINE = DEPLOYMENT | {
    "template": {"spec": DEPLOYMENT["template"]["spec"] | {"activeDeadlineSeconds": 9}}
}


@pytest.mark.parametrize(
    ("text", "fate", "says"),
    [
        (batch("--time=UNLIMITED"), Fate.MAPPED, "no time limit of its own"),
        (batch("--time=0"), Fate.MAPPED, "no time limit of its own"),
        (batch("--time=400-00"), Fate.DROPPED, "at most 8760 hours"),
        (batch("--time-min=30"), Fate.DROPPED, "Without --time"),
        (batch("--deadline=2030-01-01"), Fate.DROPPED, "deadline_hours"),
        (job(activeDeadlineSeconds=8760 * 3600 + 9), Fate.DROPPED, "at most 8760 hours"),
        (job(activeDeadlineSeconds=0), Fate.DROPPED, "more than 0"),
        (labelled("Job", {"template": pod()}, seconds="long"), Fate.DROPPED, "Set the field time_limit_hours."),
        (stack("off"), Fate.MAPPED, "no time limit of its own"),
        (stack("6h", "service", port=8000), Fate.DROPPED, "Only jobs have this time limit."),
        (labelled("Deployment", DEPLOYMENT, "apps/v1"), Fate.DROPPED, "Set the field time_limit_hours."),
        (of_kind("Deployment", WITH_DEADLINE, "apps/v1"), Fate.DROPPED, "A service has no time limit."),
    ],
)  # fmt: skip
def test_without_a_usable_time_there_is_no_limit_and_the_report_says_so(
    text: str, fate: Fate, says: str
) -> None:
    limit, lines = limit_of(text)
    assert (limit, lines) == (None, [])
    assert [line.fate for line in convert(text).report if says in line.text] == [fate]


def test_a_time_that_cannot_be_read_is_refused() -> None:
    for text in (batch("--time=soon"), stack("soon"), job(activeDeadlineSeconds="soon")):
        assert Fate.REFUSED in {line.fate for line in convert(text).report}, text


def test_pods_of_roles_with_different_times_have_the_shortest() -> None:
    replicas = {
        name: {"replicas": 1, "template": {"spec": spec["spec"] | {"containers": [
            GPU["containers"][0] | {"image": name.lower()}]}}}
        for name, spec in (("Chief", of_pods(7200)), ("Worker", of_pods(3600)))
    }  # fmt: skip
    limit, _ = limit_of(of_kind("TFJob", {"tfReplicaSpecs": replicas}, "kubeflow.org/v1"))
    assert limit == 1


def colons(*limits: int) -> st.SearchStrategy[str]:
    """Returns texts of numbers up to these limits, with colons between them."""
    return st.tuples(*(st.integers(0, one) for one in limits)).map(
        lambda found: ":".join(f"{one:02}" for one in found)
    )


DAYS = st.builds("{}-{}".format, st.integers(0, 364), colons(23) | colons(23, 59) | colons(23, 59, 59))


@given(text=st.integers(1, 500_000).map(str) | colons(9000, 59) | colons(200, 59, 59) | DAYS)
def test_the_limit_is_as_many_minutes_as_slurm_reads_in_the_text(text: str) -> None:
    minutes = minutes_of(text)
    assert minutes is not None
    limit, _ = limit_of(batch(f"--time={text}"))
    assert round((limit or 0) * 3600) == round(minutes * 60)


def test_a_schedule_and_a_sweep_keep_the_limit_of_their_jobs() -> None:
    found = convert(job(activeDeadlineSeconds=3600, completions=9, parallelism=3))
    assert found.works[0].kind is WorkKind.SWEEP
    assert found.works[0].spec["time_limit_hours"] == 1
