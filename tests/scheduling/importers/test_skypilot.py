"""SkyPilot tasks."""

from __future__ import annotations

import pytest

from scheduling.importers.registry import convert
from scheduling.importers.report import Fate, WorkKind
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
    assert "uploads no files" in lines["workdir"].text
    assert "used as it was written" in lines["envs.DEBUG"].text


def test_a_service_gets_its_port_its_probe_and_its_replicas() -> None:
    (work,) = convert(SAMPLES["skypilot-serve-on-any-of-a-set"]).works
    assert (work.kind, dict(work.options)) == (WorkKind.SERVICE, {"replicas": 1})
    assert (work.spec["port"], work.spec["readiness_path"], work.spec["preemptible"]) == (
        8000,
        "/health",
        True,
    )


def test_each_document_of_a_pipeline_becomes_a_job() -> None:
    found = convert(SAMPLES["skypilot-pipeline"])
    assert [work.name for work in found.works] == ["prepare", "train"]
    assert any("one after the other" in line.text for line in found.report)
    assert found.works[1].spec["volumes"] == [{"name": "astro-data", "path": "/mnt/data"}]


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
