"""Configurations of Determined."""

from __future__ import annotations

import json

import pytest

from scheduling.importers.registry import convert
from scheduling.importers.report import Fate
from tests.scheduling.importers.foreign_samples import SAMPLES


@pytest.mark.parametrize(
    ("slots", "workers", "gpus"), [(0, 1, 1), (1, 1, 1), (8, 1, 8), (16, 2, 8), (12, 1, 12)]
)
def test_slots_become_workers_with_gpus(slots: int, workers: int, gpus: int) -> None:
    text = f"searcher: {{name: single}}\nresources: {{slots_per_trial: {slots}}}\nentrypoint: python a.py\n"
    (work,) = convert(text).works
    assert (work.spec.get("workers", 1), work.spec["gpus_per_worker"]) == (workers, gpus)


def test_constant_hyperparameters_are_passed_on_and_searched_ones_are_reported() -> None:
    found = convert(SAMPLES["determined-search"])
    (work,) = found.works
    assert json.loads(work.spec["variables"]["DET_HPARAMS"]) == {
        "global_batch_size": 512, "layers": 4, "weight_decay": 1e-4,
    }  # fmt: skip
    lines = {line.source: line for line in found.report}
    assert {lines[f"hyperparameters.{name}"].fate for name in ("lr", "optimizer")} == {Fate.DROPPED}
    assert "one trial" in lines["searcher.name"].text


def test_the_image_and_the_variables_for_gpus_are_taken() -> None:
    assert convert(SAMPLES["determined-search"]).works[0].spec["environment"] == "example.org/det:cuda"
    assert convert(SAMPLES["determined-command"]).works[0].spec["variables"] == {"A": "2"}


def test_a_folder_of_the_node_is_refused_and_a_trial_class_is_explained() -> None:
    found = convert(SAMPLES["determined-trial"])
    assert [line.source for line in found.report if line.fate is Fate.REFUSED] == ["bind_mounts[0]"]
    assert any(line.source == "entrypoint" and "trial class" in line.text for line in found.report)


def test_a_notebook_waits() -> None:
    (work,) = convert("description: x\nresources: {slots: 1}\n").works
    assert work.spec["command"] == "sleep infinity"
