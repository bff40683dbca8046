"""Polyaxonfiles."""

from __future__ import annotations

import pytest

from scheduling.importers.registry import convert
from scheduling.importers.report import Fate, WorkKind
from scheduling.spec.job_spec import JobSpec
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


SEARCH = "matrix: {kind: %s, concurrency: 2, metric: {name: acc, optimization: maximize}, params: {x: {kind: %s}}}\n"


@pytest.mark.parametrize(
    ("values", "tried"),
    [
        ("range, value: 0:0.3:0.1", [0, 0.1, 0.2]),
        ("linspace, value: [0, 1, 3]", [0, 0.5, 1]),
        ("logspace, value: '-3:-1:3'", [0.001, 0.01, 0.1]),
        ("logspace, value: {start: 0, stop: 3, num: 4, base: 2}", [1, 2, 4, 8]),
        ("geomspace, value: 1:100:3", [1, 10, 100]),
    ],
)
def test_ranges_of_a_grid_are_values_of_its_members(values: str, tried: list[float]) -> None:
    (work,) = convert(RUN % (SEARCH % ("grid", values), "python, a.py, '{{ x }}'", "")).works
    assert [row["x"] for row in work.options["parameters"]["rows"]] == tried


@pytest.mark.parametrize(
    ("kind", "values", "drawn", "count"),
    [
        ("random, numRuns: 5, seed: 3", "uniform, value: 0:1", {"distribution": "uniform", "low": 0, "high": 1}, 5),
        ("hyperopt, numRuns: 5", "loguniform, value: '0:0'", {"distribution": "log_uniform", "low": 1, "high": 1}, 5),
        ("bayes, numInitialRuns: 2, maxIterations: 4", "quniform, value: 0:1:0.5",
         {"distribution": "choice", "values": [0, 0.5, 1]}, 6),
        ("random, numRuns: 5", "choice, value: [a, 2]", {"distribution": "choice", "values": ["a", 2]}, 5),
    ],
)  # fmt: skip
def test_a_search_becomes_a_random_sweep(
    kind: str, values: str, drawn: dict[str, object], count: int
) -> None:
    found = convert(RUN % (SEARCH % (kind, values), "python, a.py, '{{ x }}'", ""))
    (work,) = found.works
    options = work.options
    assert (options["parameters"]["random"], options["parameters"]["count"]) == ({"x": drawn}, count)
    assert (options["at_once"], options["metric"], options["goal"]) == (2, "acc", "max")
    Parameters(**{"seed": 1, **options["parameters"]}).check()
    fates = [line.fate for line in found.report if line.source == "matrix"]
    assert fates == [Fate.MAPPED if "random" in kind else Fate.APPROXIMATED]


@pytest.mark.parametrize(
    ("kind", "values", "command", "source"),
    [
        ("random", "uniform, value: 0:1", "{{ x }}", "matrix.numRuns"),
        ("iterative, maxIterations: 3", "uniform, value: 0:1", "{{ x }}", "matrix.kind"),
        ("hyperband, eta: 1, maxIterations: 9", "uniform, value: 0:1", "{{ x }}", "matrix.maxIterations"),
        ("random, numRuns: 5", "normal, value: 0:1", "{{ x }}", "matrix.params.x"),
        ("random, numRuns: 5", "quniform, value: 0:1e9:0.5", "{{ x }}", "matrix.params.x"),
        ("random, numRuns: 5", "uniform, value: some", "{{ x }}", "matrix.params.x"),
        ("grid", "uniform, value: 0:1", "{{ x }}", "matrix.params.x"),
        ("grid", "geomspace, value: '0:1:3'", "{{ x }}", "matrix.params.x"),
        ("grid", "range, value: '0:1e9:1'", "{{ x }}", "matrix.params.x"),
        ("random, numRuns: 5", "uniform, value: 0:1", "sh, -c, \"a '{{ x }}' b\"", "matrix"),
    ],
)  # fmt: skip
def test_a_matrix_that_no_sweep_can_draw_is_refused(
    kind: str, values: str, command: str, source: str
) -> None:
    command = command if "sh" in command else f"'{command}'"
    lines = convert(RUN % (SEARCH % (kind, values), command, "")).report
    assert source in [line.source for line in lines if line.fate is Fate.REFUSED]


def test_a_search_by_hyperband_does_the_same_work_with_members_that_run_to_the_end() -> None:
    search = SEARCH % (
        "hyperband, maxIterations: 27, eta: 3, resume: true, resource: {name: epochs}",
        "uniform, value: 0:1",
    )
    found = convert(RUN % (search, "python, a.py, '{{ x }}', '{{ epochs }}'", ""))
    (work,) = found.works
    assert work.options["parameters"]["count"] == 16  # 4 brackets, each with the work of 4 whole runs
    assert work.spec["command"] == 'python a.py "${x}" 27'
    (line,) = [line for line in found.report if line.source == "matrix.maxIterations"]
    assert (line.fate, "16 members" in line.text) == (Fate.APPROXIMATED, True)


CONTAINER = "{replicas: %d, container: {image: %s, command: [%s], resources: {limits: {nvidia.com/gpu: %d}}}}"


def test_replicas_that_differ_are_roles() -> None:
    chief, worker = CONTAINER % (1, "a", "train", 2), CONTAINER % (3, "a", "'train, --worker'", 2)
    ps = "{replicas: 1, container: {image: b, command: [serve]}}"
    run = f"run: {{kind: tfjob, chief: {chief}, worker: {worker}, ps: {ps}, evaluator: {{replicas: 0}}}}\n"
    (work,) = convert("kind: component\nversion: 1.1\n" + run).works
    spec = JobSpec.parse(dict(work.spec))
    assert [(one.name, one.workers, one.gpus_per_worker, one.ends_job, one.environment) for one in spec.roles] == [
        ("chief", 1, 2, True, "a"), ("worker", 3, 2, False, "a"), ("ps", 1, 0, False, "b"),
    ]  # fmt: skip
    idle = f"run: {{kind: pytorchjob, master: {ps}, worker: {worker}}}\n"
    found = convert("kind: component\nversion: 1.1\n" + idle)
    assert [line.source for line in found.report if line.fate is Fate.REFUSED] == ["run.master"]


@pytest.mark.parametrize("waits", ["", ", command: [/usr/sbin/sshd, -D]"])
def test_the_launcher_of_an_mpi_job_calls_mpirun(waits: str) -> None:
    launcher = "{container: {image: a, command: [mpirun, train]}}"
    worker = f"{{replicas: 2, container: {{image: a, resources: {{limits: {{nvidia.com/gpu: 1}}}}{waits}}}}}"
    run = f"run: {{kind: mpijob, launcher: {launcher}, worker: {worker}}}\n"
    (work,) = convert("kind: component\nversion: 1.1\n" + run).works
    spec = JobSpec.parse(dict(work.spec))
    assert (spec.launch, spec.command) == ("mpi", "mpirun train")
    assert [(one.name, one.workers, one.command) for one in spec.roles] == [
        ("launcher", 1, "mpirun train"), ("worker", 2, ""),
    ]  # fmt: skip


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
        ("run: {kind: tfjob, chief: {container: {image: a}}, worker: {container: {image: b}}}",
         "run.chief.container.command"),
        ("run: {kind: daskjob, job: {container: {image: a}}}", "run"),
        ("matrix: {kind: bayes, params: {x: {kind: uniform, value: 0:1}}}\nrun: {kind: job, container: {image: a,"
            " command: [b]}}",
         "matrix.maxIterations"),
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
