"""dstack configurations."""

from __future__ import annotations

import pytest

from scheduling.importers.dstack_gpus import read_text
from scheduling.importers.registry import convert
from scheduling.importers.report import Fate, WorkKind
from tests.scheduling.importers.foreign_samples import SAMPLES


@pytest.mark.parametrize(
    ("text", "names", "memory", "count"),
    [
        ("A100", ["A100"], "", ""), ("A100:2", ["A100"], "", "2"), ("8:H200", ["H200"], "", "8"),
        ("24GB", [], "24GB", ""), ("24GB..:1..", [], "24GB..", "1.."), ("80GB:8", [], "80GB", "8"),
        ("A100:40GB..80GB:2..8", ["A100"], "40GB..80GB", "2..8"), ("A100,H100:1", ["A100", "H100"], "", "1"),
        ("nvidia:1..8", [], "", "1..8"), ("4", [], "", "4"), ("amd:MI300X:192GB", ["MI300X"], "192GB", ""),
        ("RTX4090:24GB:1", ["RTX4090"], "24GB", "1"),
    ],
)  # fmt: skip
def test_gpus_are_read_in_any_order(text: str, names: list[str], memory: str, count: str) -> None:
    found = read_text(text)
    assert (found.names, found.memory, found.count) == (names, memory, count)


def test_memory_alone_chooses_among_the_types_of_the_cluster() -> None:
    text = "type: task\ncommands: [python a.py]\nresources: {gpu: '40GB..80GB:2'}\n"
    (work,) = convert(text, known_generations=("V100", "A100-80GB", "H100", "L4", "H200")).works
    assert (work.spec["generations"], work.spec["gpus_per_worker"]) == (["A100-80GB", "H100"], 2)


def test_a_task_becomes_a_job_that_finds_the_variables_of_dstack() -> None:
    (work,) = convert(SAMPLES["dstack-task"]).works
    assert (work.kind, work.spec["workers"], work.spec["gpus_per_worker"]) == (WorkKind.JOB, 2, 8)
    assert (work.spec["shm"], work.spec["time_limit_hours"], work.spec["priority"]) == ("64Gi", 6, 50)
    assert work.spec["command"].startswith('export DSTACK_NODE_RANK="$RANK"')
    assert "set -e\npip install" in work.spec["command"]
    assert work.spec["secrets"] == {"HF_TOKEN": "hf-token", "OPENAI_API_KEY": "openai-api-key"}
    assert work.spec["image_pull_secret"] == "registry"


def test_a_service_has_a_port_a_probe_and_the_least_number_of_replicas() -> None:
    (work,) = convert(SAMPLES["dstack-service"]).works
    assert (work.kind, dict(work.options), work.spec["port"]) == (WorkKind.SERVICE, {"replicas": 1}, 8000)
    assert (work.spec["readiness_path"], work.spec["readiness_period_seconds"]) == ("/health", 15)


def test_a_cron_expression_makes_a_schedule() -> None:
    (work,) = convert(SAMPLES["dstack-nightly"]).works
    assert (work.kind, work.options["expression"]) == (WorkKind.SCHEDULE, "15 23 * * *")
    assert work.spec["generations"] == ["H100-80GB", "A100-80GB"]


def test_a_folder_of_the_instance_is_refused() -> None:
    lines = [line for line in convert(SAMPLES["dstack-instance-volume"]).report if line.fate is Fate.REFUSED]
    assert [line.source for line in lines] == ["resources.gpu", "volumes[0]", "privileged"]


@pytest.mark.parametrize("kind", ["fleet", "volume", "gateway"])
def test_what_is_no_run_is_refused(kind: str) -> None:
    assert convert(f"type: {kind}\nbackend: aws\nname: x\n").refused


def test_fg_becomes_wait_because_there_is_no_terminal() -> None:
    (work,) = convert("type: task\ncommands: [serve &, fg]\nresources: {gpu: 1}\n").works
    assert work.spec["command"] == "set -e\nserve &\nwait"


def test_the_variable_port_is_left_out_because_fairlot_sets_it() -> None:
    text = "type: service\nenv: {PORT: 8000, A: 1}\ncommands: [serve]\nport: 8000\nresources: {gpu: 'RTX 4090'}\n"
    (work,) = convert(text).works
    assert (work.spec["variables"], work.spec["port"]) == ({"A": "1"}, 8000)


def test_mpirun_of_dstack_finds_the_workers_of_an_mpi_job() -> None:
    text = (
        "type: task\nnodes: 2\nresources: {gpu: 8}\nimage: example.org/nccl\ncommands:\n"
        "- |\n  if [ $DSTACK_NODE_RANK -eq 0 ]; then\n"
        "    mpirun --hostfile $DSTACK_MPI_HOSTFILE -n $DSTACK_GPUS_NUM ./all\n"
        "  else\n    sleep infinity\n  fi\n"
    )
    (work,) = convert(text).works
    assert (work.spec["launch"], work.spec["workers"]) == ("mpi", 2)
    for line in ("DSTACK_NODE_RANK=0", "DSTACK_GPUS_NUM=16", 'DSTACK_MPI_HOSTFILE="$FAIRLOT_HOSTFILE"'):
        assert f"export {line}\n" in work.spec["command"]
    (alone,) = convert(text.replace("nodes: 2", "nodes: 1")).works
    assert "launch" not in alone.spec
