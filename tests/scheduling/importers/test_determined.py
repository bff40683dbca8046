"""Configurations of Determined."""

from __future__ import annotations

import itertools
import json
import subprocess

import pytest

from scheduling.importers.registry import convert
from scheduling.importers.report import Conversion, Fate, WorkKind
from scheduling.spec.placeholders import render
from scheduling.sweeps.parameters import Parameters, text_of
from tests.scheduling.importers.foreign_samples import SAMPLES


@pytest.mark.parametrize(
    ("slots", "workers", "gpus"), [(0, 1, 1), (1, 1, 1), (8, 1, 8), (16, 2, 8), (12, 1, 12)]
)
def test_slots_become_workers_with_gpus(slots: int, workers: int, gpus: int) -> None:
    text = f"searcher: {{name: single}}\nresources: {{slots_per_trial: {slots}}}\nentrypoint: python a.py\n"
    (work,) = convert(text).works
    assert (work.spec.get("workers", 1), work.spec["gpus_per_worker"]) == (workers, gpus)


def _experiment(searcher: str, hyperparameters: str, more: str = "") -> Conversion:
    resources = "" if "resources" in more else "resources: {slots_per_trial: 1}\n"
    return convert(
        f"searcher: {{{searcher}}}\nhyperparameters: {{{hyperparameters}}}\n{resources}entrypoint: python a.py\n{more}"
    )


def test_an_adaptive_search_becomes_a_random_sweep_that_ends_no_trial_early() -> None:
    found = convert(SAMPLES["determined-search"])
    (work,) = found.works
    assert (work.kind, work.members) == (WorkKind.SWEEP, "100 members")
    assert work.options == {
        "parameters": {
            "kind": "random", "count": 100,
            "random": {
                "lr": {"distribution": "log_uniform", "low": 1e-5, "high": 0.1},
                "optimizer_name": {"distribution": "choice", "values": ["adam", "sgd"]},
            },
        },
        "metric": "val_loss", "goal": "min",
    }  # fmt: skip
    Parameters(**work.options["parameters"], seed=1).check()
    lines = [line for line in found.report if line.source == "searcher.name"]
    assert [(line.fate, "ends no member early" in line.text) for line in lines] == [(Fate.APPROXIMATED, True)]


def test_members_have_the_hyperparameters_as_json_whatever_their_values_are() -> None:
    hyperparameters = (
        "note: it's, lr: {type: double, minval: 0.1, maxval: 0.3, count: 3}, layers: {type: int, minval: 1, maxval: 2,"
        " count: 9}, deep: {act: {type: categorical, vals: [relu, 'a\"b']}, mix: {type: categorical, vals: [true, 1,"
        " [2, x]]}}, index: {type: const, val: {a: 1}}"
    )
    (work,) = _experiment("name: grid, metric: acc, smaller_is_better: false", hyperparameters).works
    parameters = Parameters(**work.options["parameters"])
    parameters.check()
    assert (parameters.size, work.options["goal"]) == (3 * 2 * 2 * 3, "max")
    seen = []
    for values in parameters.expand():
        texts = {name: text_of(value) for name, value in values.items()}
        script = render(work.spec["command"].replace("python a.py", 'printf %s "$DET_HPARAMS"'), texts)
        ran = subprocess.run(["/bin/sh", "-c", script], env=texts, capture_output=True, text=True, check=True)
        seen.append(json.loads(ran.stdout))
    wanted = itertools.product([0.1, 0.2, 0.3], [1, 2], ["relu", 'a"b'], [True, 1, [2, "x"]])
    assert seen == [
        {"note": "it's", "lr": lr, "layers": layers, "deep": {"act": act, "mix": mix}, "index": {"a": 1}}
        for lr, layers, act, mix in wanted
    ]


def test_a_sweep_keeps_how_many_trials_run_at_once_and_the_seed() -> None:
    more = "resources: {slots_per_trial: 2, max_slots: 7}\nreproducibility: {experiment_seed: 9}\n"
    double = "lr: {type: double, minval: 0, maxval: 1}"
    (work,) = _experiment("name: random, max_trials: 20, max_concurrent_trials: 5", double, more).works
    assert (work.options["at_once"], work.options["parameters"]["seed"]) == (3, 9)
    (work,) = _experiment("name: random, max_trials: 20", "depth: 4").works
    assert work.options == {"parameters": {"kind": "array", "count": 20}}
    assert json.loads(work.spec["variables"]["DET_HPARAMS"]) == {"depth": 4}


def test_one_trial_is_a_job_and_draws_its_hyperparameters() -> None:
    for searcher in ("name: single", "name: grid"):
        (work,) = _experiment(searcher, "depth: 4").works
        assert work.kind is WorkKind.JOB
    (work,) = _experiment("name: single", "depth: {type: int, minval: 2, maxval: 8}").works
    assert (work.members, work.options["parameters"]["random"]["depth"]["high"]) == ("1 member", 8)


def test_parameters_have_names_that_sweeps_accept() -> None:
    drawn = "{type: int, minval: 1, maxval: 2}"
    names = f"index: {drawn}, 'a b': {drawn}, a_b: {drawn}, '?': {drawn}"
    (work,) = _experiment("name: random, max_trials: 2", names).works
    assert list(work.options["parameters"]["random"]) == ["hp_index", "a_b", "hp_a_b", "hp_"]


@pytest.mark.parametrize(
    ("searcher", "hyperparameters", "source"),
    [
        ("name: random", "x: {type: int, minval: 1, maxval: 2}", "searcher.max_trials"),
        ("name: pbt, max_trials: 3", "x: {type: int, minval: 1, maxval: 2}", "searcher.name"),
        ("name: grid", "x: {type: double, minval: 0, maxval: 1}", "hyperparameters.x"),
        ("name: grid", "x: {type: int, minval: 3, maxval: 1, count: 2}", "hyperparameters.x"),
        ("name: grid", "x: {type: log, minval: 1, maxval: 90, count: 2}", "hyperparameters.x"),
        ("name: grid", "x: {type: categorical, vals: []}", "hyperparameters.x"),
        ("name: grid", ", ".join(f"x{at}: {{type: categorical, vals: [1]}}" for at in range(21)), "searcher.name"),
    ],
)  # fmt: skip
def test_a_search_that_no_sweep_can_be_is_refused(searcher: str, hyperparameters: str, source: str) -> None:
    report = _experiment(searcher, hyperparameters).report
    assert source in [line.source for line in report if line.fate is Fate.REFUSED]


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
