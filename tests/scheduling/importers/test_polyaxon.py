"""Polyaxonfiles."""

from __future__ import annotations

import pytest

from scheduling.importers.registry import convert
from scheduling.importers.report import Fate, WorkKind
from scheduling.sweeps.parameters import Parameters
from tests.scheduling.importers.foreign_samples import SAMPLES


def test_the_points_of_a_grid_are_the_members_of_a_sweep() -> None:
    (work,) = convert(SAMPLES["polyaxon-grid"]).works
    assert (work.kind, work.name, work.members) == (WorkKind.SWEEP, "grid", "4 members")
    assert work.spec["command"] == (
        'python -u train.py "--lr=${lr}" "--layers=${layers}" --epochs=7 "--out=${FAIRLOT_CHECKPOINT_DIR}"'
    )
    rows = [{"lr": lr, "layers": layers} for lr in (0.1, 0.01) for layers in (1, 2)]
    assert work.options == {"parameters": {"kind": "list", "rows": rows}}
    assert (work.spec["gpus_per_worker"], work.spec["generations"]) == (2, ["A100"])
    Parameters(**work.options["parameters"]).check()


MATRIX = "matrix: {kind: grid, concurrency: 2, params: {%s: {kind: choice, value: [a, b, '3']}}}\n"
RUN = "kind: component\nversion: 1.1\n%srun: {kind: job, container: {image: x, command: [%s]%s}}\n"


def test_a_sweep_of_a_matrix_keeps_how_many_run_at_once() -> None:
    (work,) = convert(RUN % (MATRIX % "opt", "python, a.py, '{{ opt }}'", "")).works
    assert (work.members, work.options["parameters"]["rows"][2]) == ("3 members, 2 at once", {"opt": 3})
    (few,) = convert(RUN % (MATRIX.replace("concurrency", "numRuns") % "opt", "a, '{{ opt }}'", "")).works
    assert few.members == "2 members"


@pytest.mark.parametrize(
    ("name", "command", "rest"),
    [
        ("opt", "a.sh", ", env: [{name: OPT, value: '{{ opt }}'}]"),  # a value outside of the command
        ("opt", "sh, -c, \"a.sh '{{ opt }}' b\"", ""),  # a value in quotes
        ("RANK", "a.sh, '{{ RANK }}'", ""),  # a name that Fairlot uses
    ],
)
def test_a_matrix_that_no_sweep_can_be_becomes_a_job_for_each_point(
    name: str, command: str, rest: str
) -> None:
    works = convert(RUN % (MATRIX % name, command, rest)).works
    assert [work.kind for work in works] == [WorkKind.JOB] * 3


def test_a_service_and_a_schedule() -> None:
    (service,) = convert(SAMPLES["polyaxon-service"]).works
    assert (service.kind, service.name, service.spec["port"]) == (WorkKind.SERVICE, "tensor-board", 6006)
    (schedule,) = convert(SAMPLES["polyaxon-nightly"]).works
    assert (schedule.kind, schedule.spec["workers"]) == (WorkKind.SCHEDULE, 4)
    assert schedule.options["begins"] == "2030-06-01T21:00:00Z"


@pytest.mark.parametrize(
    ("said", "source"),
    [
        ("hubRef: kaniko", "hubRef"),
        ("urlRef: https://example.org/x.yaml", "urlRef"),
        ("run: {kind: dag, operations: []}", "run.kind"),
        ("run: {kind: job, container: {image: '{{ image }}', command: [a]}}", "run.container.image"),
        ("run: {kind: tfjob, chief: {container: {image: a}}, worker: {container: {image: b}}}", "run.worker"),
        ("matrix: {kind: bayes, params: {x: {kind: uniform, value: 0:1}}}\nrun: {kind: job, container: {image: a,"
            " command: [b]}}",
         "matrix.params.x"),
    ],
)  # fmt: skip
def test_what_the_text_does_not_contain_is_refused(said: str, source: str) -> None:
    lines = convert(f"version: 1.1\nkind: component\n{said}\n").report
    assert source in [line.source for line in lines if line.fate is Fate.REFUSED]


def test_an_elastic_policy_bounds_the_workers() -> None:
    run = "{kind: pytorchjob, elasticPolicy: {minReplicas: 2, maxReplicas: 5}, worker: {replicas: 3, %s}}"
    container = "container: {image: a, command: [b], resources: {limits: {nvidia.com/gpu: 1}}}"
    (work,) = convert(f"kind: component\nversion: 1.1\nrun: {run % container}\n").works
    assert (work.spec["workers"], work.spec["max_workers"]) == (2, 5)


def test_an_input_without_a_value_is_refused() -> None:
    text = "kind: component\ninputs: [{name: lr, type: float}]\n"
    run = "run: {kind: job, container: {image: a, command: [python, a.py], args: ['--lr={{ lr }}']}}\n"
    (line,) = [line for line in convert(text + run).report if line.fate is Fate.REFUSED]
    assert (line.source, "{{ lr }}" in line.text) == ("run.container.args", True)
    given = convert(text.replace("float}", "float, value: 0.1}") + run).works
    assert [work.spec["command"] for work in given] == ["python a.py --lr=0.1"]
