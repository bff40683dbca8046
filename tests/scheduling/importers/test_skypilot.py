"""SkyPilot tasks."""

from __future__ import annotations

import pytest

from scheduling.importers.registry import convert
from scheduling.importers.report import Fate, WorkKind
from scheduling.pipelines.definition import Definition, Need
from tests.scheduling.importers.foreign_samples import SAMPLES

TRAIN = SAMPLES["skypilot-train-on-two-nodes"]


def _spec(resources: str) -> dict[str, object]:
    found = convert(
        f"resources:\n  {resources}\nrun: python train.py\n", known_generations=("A100", "H100", "L4")
    )
    return dict(found.works[0].spec) if found.works else {}


@pytest.mark.parametrize(
    ("said", "count", "names"),
    [
        ("accelerators: A100:8", 8, ["A100"]),
        ("accelerators: A100", 1, ["A100"]),
        ("accelerators: {A100: 4}", 4, ["A100"]),
        ("accelerators: {H100:2, A100:2}", 2, ["H100", "A100"]),
        ("accelerators: {L4, A100}", 1, ["L4", "A100"]),
        ("accelerators: ['H100:8', 'A100:8', 'L4:1']", 8, ["H100", "A100"]),
        ("accelerators: [A100:1, tpu-v4-8]", 1, ["A100"]),
        ("any_of: [{accelerators: A100:2}, {accelerators: H100:2, use_spot: true}]", 2, ["A100", "H100"]),
        ("instance_type: p3.8xlarge", 4, ["V100-16GB"]),
        ("accelerators: A100:0.5", 1, ["A100"]),
    ],
)
def test_accelerators_become_gpus_and_types(said: str, count: int, names: list[str]) -> None:
    spec = _spec(said)
    assert (spec["gpus_per_worker"], spec["generations"]) == (count, names)


def test_a_task_on_two_nodes_becomes_a_job_with_two_workers() -> None:
    (work,) = convert(TRAIN).works
    assert (work.kind, work.spec["workers"], work.spec["gpus_per_worker"]) == (WorkKind.JOB, 2, 8)
    assert (work.spec["cpu"], work.spec["memory"]) == (64, "512Gi")
    assert work.spec["environment"] == "nvcr.io/nvidia/pytorch:24.05-py3"
    assert work.spec["secrets"] == {"HF_TOKEN": "hf-token", "WANDB_API_KEY": "wandb-api-key"}
    assert work.spec["variables"] == {"MODEL_SIZE": "8B", "EPOCHS": "3", "DEBUG": "yes"}


def test_the_command_finds_the_variables_of_skypilot() -> None:
    command = convert(TRAIN).works[0].spec["command"]
    assert 'export SKYPILOT_NODE_RANK="$RANK"' in command
    assert "export SKYPILOT_NUM_GPUS_PER_NODE=8" in command
    assert command.index("pip install") < command.index("torchrun")


def test_what_fairlot_cannot_do_is_reported_with_its_consequence() -> None:
    lines = {line.source: line for line in convert(TRAIN).report}
    assert lines['file_mounts["/data"]'].fate is Fate.DROPPED
    assert "buckets" in lines['file_mounts["/data"]'].text
    assert "used as it was written" in lines["envs.DEBUG"].text
    assert "section Code" in lines["workdir"].text


def test_a_service_gets_its_port_its_probe_and_its_replicas() -> None:
    (work,) = convert(SAMPLES["skypilot-serve-on-any-of-a-set"]).works
    assert (work.kind, dict(work.options)) == (WorkKind.SERVICE, {"replicas": 1})
    assert (work.spec["port"], work.spec["readiness_path"], work.spec["preemptible"]) == (
        8000,
        "/health",
        True,
    )


def test_the_tasks_of_a_chain_are_the_steps_of_a_pipeline() -> None:
    (work,) = convert(SAMPLES["skypilot-pipeline"]).works
    assert (work.kind, work.name, work.members) == (WorkKind.PIPELINE, "prepare-and-train", "2 steps")
    prepare, train = Definition.parse(work.options["pipeline"]).steps
    assert (prepare.needs, train.needs) == ((), (Need(step="prepare", files=False),))
    assert train.spec.volumes[0].name == "astro-data"


TASK = "name: %s\nresources: {accelerators: A100}\nrun: ./a.sh\n"


def test_a_chain_whose_tasks_name_what_they_need_keeps_that() -> None:
    text = "---\n".join([TASK % "Last One" + "depends_on: [first, job-2]\n", TASK % "job-2", TASK % "first"])
    (work,) = convert(text).works
    steps = Definition.parse(work.options["pipeline"]).steps
    assert [(step.name, [need.step for need in step.needs]) for step in steps] == [
        ("step-job-2", []), ("first", []), ("last-one", ["first", "step-job-2"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("needs", "says"),
    [(["b"], "in a circle"), (["c"], "needs c, which is not in the text")],
)
def test_a_chain_that_cannot_run_is_refused(needs: list[str], says: str) -> None:
    text = f"{TASK % 'a'}depends_on: {needs}\n---\n{TASK % 'b'}depends_on: [a]\n"
    assert says in next(line.text for line in convert(text).report if line.fate is Fate.REFUSED)


def test_tasks_without_names_are_steps_with_numbers_and_too_many_are_refused() -> None:
    unnamed = "resources: {accelerators: A100}\nrun: ./a.sh\n"
    (work,) = convert(f"{unnamed}---\n{unnamed}").works
    assert list(work.options["pipeline"]["steps"]) == ["task-1", "task-2"]
    assert convert("---\n".join([unnamed] * 101)).refused


def test_a_parallel_group_is_jobs_and_a_service_is_no_step() -> None:
    found = convert(f"name: g\nexecution: parallel\n---\n{TASK % 'a'}---\n{TASK % 'b'}")
    assert [work.kind for work in found.works] == [WorkKind.JOB] * 2
    assert "not together" in next(line.text for line in found.report if line.source == "document 1.execution")
    service = f"{TASK % 'b'}service: {{ports: 8000, readiness_probe: /}}\n"
    assert [work.kind for work in convert(f"{TASK % 'a'}---\n{service}").works] == [
        WorkKind.JOB,
        WorkKind.SERVICE,
    ]


def test_a_probe_that_sends_data_is_left_out() -> None:
    text = SAMPLES["skypilot-serve-on-any-of-a-set"].replace(
        "path: /health", "path: /v1/chat\n    post_data: {model: x}"
    )
    (work,) = convert(text).works
    assert "readiness_path" not in work.spec


@pytest.mark.parametrize(
    ("said", "image"),
    [
        ("docker:ubuntu:22.04", "ubuntu:22.04"),
        ("ghcr.io/a/b:1.2", "ghcr.io/a/b:1.2"),
        ("runpod/pytorch:2.4.0-py3.11", "runpod/pytorch:2.4.0-py3.11"),
        ("ami-0868a20f5a3bf9702", ""),
        ("projects/x/global/images/common-cpu", ""),
        ("microsoft-dsvm:ubuntu-2004:2004:21.11.04", ""),
    ],
)
def test_an_image_of_a_container_is_told_apart_from_that_of_a_machine(said: str, image: str) -> None:
    assert _spec(f"image_id: '{said}'").get("environment", "") == image
