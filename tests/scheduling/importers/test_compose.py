"""Docker Compose files."""

from __future__ import annotations

import pytest

from scheduling.importers.interpolation import filled
from scheduling.importers.registry import convert
from scheduling.importers.report import Fate, WorkKind
from tests.scheduling.importers.foreign_samples import SAMPLES

SERVE = SAMPLES["compose-serve-with-webui"]
ONE = "services:\n  a:\n    image: python:3.12\n    command: python a.py\n    {}\n"


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ("gpus: all", 1),
        ("gpus: 2", 2),
        ("gpus: [{driver: nvidia, count: 4}]", 4),
        ("runtime: nvidia", 1),
        ("{runtime: nvidia, environment: [\"NVIDIA_VISIBLE_DEVICES=0,1,5\"]}", 3),
        ("deploy: {resources: {reservations: {devices: [{capabilities: [gpu], count: 8}]}}}", 8),
        ("deploy: {resources: {reservations: {devices: [{capabilities: [[gpu]], device_ids: ['3', '4']}]}}}", 2),
        ("deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}", 1),
        ("gpus: ${GPUS:-3}", 3),
        ("environment: ['NVIDIA_VISIBLE_DEVICES=${GPUS:-all}']", 1),
        ("tty: true", 1),
    ],
)  # fmt: skip
def test_each_way_of_requesting_gpus_is_understood(said: str, count: int) -> None:
    text = ONE.format(
        said.strip("{}").replace(", environment", "\n    environment") if said[0] == "{" else said
    )
    (work,) = convert(text).works
    assert work.spec["gpus_per_worker"] == count


def test_a_service_with_a_port_becomes_a_service_and_others_without_gpus_are_left_out() -> None:
    found = convert(SERVE)
    (work,) = found.works
    assert (work.kind, work.name, work.spec["port"], work.spec["gpus_per_worker"]) == (
        WorkKind.SERVICE,
        "vllm",
        8000,
        2,
    )
    assert work.spec["command"].startswith("vllm serve --model org/model --served-model-name 'my model'")
    assert (work.spec["readiness_path"], work.spec["readiness_period_seconds"]) == ("/health", 90)
    lines = {line.source: line for line in found.report}
    assert (lines["services.redis"].fate, "no GPUs" in lines["services.redis"].text) == (Fate.DROPPED, True)


def test_a_service_without_a_port_becomes_a_job() -> None:
    (work,) = convert(SAMPLES["compose-train"]).works
    assert work.kind is WorkKind.JOB
    assert work.spec["command"] == "pip install -r requirements.txt && python train.py --epochs $EPOCHS"
    assert (work.spec["user_id"], work.spec["group_id"], work.spec["checkpoint_grace_seconds"]) == (
        1000,
        1001,
        120,
    )


@pytest.mark.parametrize(
    "said",
    [
        "privileged: true", "network_mode: host", "pid: host", "volumes: ['./data:/data']",
        "volumes: ['.:/data']", "volumes: ['$PWD:/data:cached']", 'volumes: ["C:/a:/b"]',
        "volumes: ['/a:/b:ro']",
        "volumes: ['~/a:/b']", "volumes: [{type: bind, source: a, target: /b}]", "devices: [/dev/snd]",
        "extends: {file: a.yaml, service: b}", "volumes: ['${DATA:-/srv}:/data']",
    ],
)  # fmt: skip
def test_access_to_the_node_is_refused(said: str) -> None:
    assert not convert(ONE.format("gpus: 1")).refused
    found = convert(ONE.format(f"gpus: 1\n    {said}"))
    assert found.refused
    assert all(line.source.startswith("services.a.") for line in found.report if line.fate is Fate.REFUSED)


def test_an_image_whose_program_is_unknown_needs_a_command() -> None:
    text = "services: {a: {image: example.org/x, gpus: 1}}"
    assert "program" in next(line.text for line in convert(text).report if line.fate is Fate.REFUSED)
    assert convert(text.replace("gpus", "command: [--flag], gpus")).refused
    assert not convert(text.replace("example.org/x", "ollama/ollama:latest")).refused


def test_a_file_that_only_adds_gpus_to_another_one_is_refused() -> None:
    found = convert(
        "services: {a: {deploy: {resources: {reservations: {devices: [{capabilities: [gpu]}]}}}}}"
    )
    (line,) = [line for line in found.report if line.fate is Fate.REFUSED]
    assert (line.source, "docker compose config" in line.text) == ("services.a", True)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("${A:-b}", "b"), ("${A-}", ""), ("$$HOME", "$HOME"), ("x$A/${B}", "x${A}/${B}"), ("${A:?set it}", "${A}"),
        ("${A:+b}c", "c"), ("100$", "100$"),
    ],
)  # fmt: skip
def test_references_get_their_defaults(text: str, result: str) -> None:
    assert filled(text)[0] == result
