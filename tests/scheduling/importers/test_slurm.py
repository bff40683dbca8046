"""A Slurm script keeps its meaning: what it requests, and what it does when it runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scheduling.importers.registry import convert
from scheduling.importers.report import Conversion, Fate, Work, WorkKind
from scheduling.importers.slurm.settings import minutes_of
from scheduling.spec.job_spec import JobSpec
from scheduling.sweeps.commands import check_lengths, check_members, spec_of_member
from scheduling.sweeps.parameters import Parameters

KNOWN = ("A100-40GB", "A100-80GB", "H100", "V100")


def converted(options: str, body: str = "python train.py") -> Conversion:
    lines = "\n".join(f"#SBATCH {one}" for one in options.split("\n") if one)
    return convert(f"#!/bin/bash\n{lines}\n\n{body}\n", name="slurm", known_generations=KNOWN)


def spec_of(options: str, body: str = "python train.py") -> Any:
    found = converted(options, body)
    assert len(found.works) == 1, found.report
    return found.works[0].spec


def members_of(work: Work) -> list[JobSpec]:
    """Returns the jobs that the sweep submits."""
    parameters, base = Parameters(**work.options["parameters"]), JobSpec.parse(dict(work.spec))
    parameters.check()
    members = list(parameters.expand())
    check_members(base, parameters.names)
    check_lengths(base, members)
    return [spec_of_member(base, index, values) for index, values in enumerate(members)]


def refusals(found: Conversion) -> str:
    return " ".join(line.text for line in found.report if line.fate is Fate.REFUSED)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ("-N 2 --gpus-per-node=4", {"workers": 2, "gpus_per_worker": 4}),
        ("--nodes=2\n--gres=gpu:a100:4", {"workers": 2, "generations": ["A100-40GB", "A100-80GB"]}),
        ("--gres gpu:v100:1 # one", {"gpus_per_worker": 1, "generations": ["V100"]}),
        ("-G 8 -N2", {"workers": 2, "gpus_per_worker": 4}),
        ("-w gpu[01-02,7],login --gpus-per-node=8", {"workers": 4, "gpus_per_worker": 8}),
        ("-w gpu1 --gpus-per-node=8", {"workers": None, "gpus_per_worker": 8}),
        ("-N2 -w gpu[1-3] --gpus-per-node=8", {"workers": 2, "gpus_per_worker": 8}),
        ("-G h100:2", {"gpus_per_worker": 2, "generations": ["H100"]}),
        ("-N 2 --ntasks-per-node=4 --gpus-per-task=1 -c 8", {"workers": 2, "gpus_per_worker": 4, "cpu": 32}),
        ("-n 8 --ntasks-per-node=4 --gres=gpu:4", {"workers": 2, "gpus_per_worker": 4}),
        ("--gres=gpu:2 --mem=64G --cpus-per-gpu=6", {"memory": "64Gi", "cpu": 12}),
        ("--gres=gpu:2 --mem=4000 -c4", {"memory": "4000Mi", "cpu": 4}),
        ("--gres=gpu:2 --mem-per-gpu=40G", {"memory": "80Gi"}),
        ("-c 8 --mem-per-cpu=4G --gres=gpu:1", {"memory": "32Gi", "cpu": 8}),
        ("--gres=gpu:1,tmpdir:50G", {"gpus_per_worker": 1}),
        ("-C 'a100_80gb|h100' --gres=gpu:1", {"generations": ["A100-80GB", "H100"]}),
        ("--gpus-per-node 1 --time 1-12", {"time_limit_hours": 36}),
        ("--signal=B:USR1@120 --gres=gpu:1", {"checkpoint_grace_seconds": 120}),
        ("--container-image=nvcr.io\\#nvidia/nemo:1 -G1", {"environment": "nvcr.io/nvidia/nemo:1"}),
        ("--export=ALL,LR=0.1,NAME=a=b", {"variables": {"LR": "0.1", "NAME": "a=b"}}),
        ("--job=short", {"name": "short"}),
    ],
)  # fmt: skip
def test_options_become_fields(options: str, fields: dict[str, Any]) -> None:
    spec = spec_of(options)
    assert {name: spec.get(name) for name in fields} == fields


@pytest.mark.parametrize(
    ("options", "body", "says"),
    [
        ("--gres=gpu:a100_3g.20gb:1", "", "part of a GPU"),
        ("--gres=shard:1", "", "part of a GPU"),
        ("-N2 -G 3", "", "evenly"),
        ("--gres=gpu:a100:1,gpu:v100:1", "", "one type"),
        ("--container-mounts=/home:/home", "", "Folders of the node"),
        ("--nodes={{ nodes }}", "", "template"),
        ("--nodes=$N", "", "does not replace variables"),
        ("-N1\nhetjob\n-N2", "", "heterogeneous"),
        ("-J 'open", "", "quotation marks"),
        ("-G1", "sbatch next.sh", "cannot submit"),
        ("-G1", "export HF_TOKEN=hf_AbCdEfGhIjKlMnOpQr\npython x.py", "credential"),
        ("-N2 -G2", "pdsh ./a.out", "log in"),
        ("-N2 -G2", "srun hostname\nmpirun -np 2 ./a.out", "log in"),
        ("-N2 -G2", "srun -N1 -w node1 ray start --head &\nsrun python x.py", "some of the 2 nodes"),
        ("-G1", "srun --container-mounts=/x:/x python x.py", "Folders of the node"),
        ("-G1", "# nothing", "no commands"),
    ],
)
def test_what_would_do_something_else_is_refused(options: str, body: str, says: str) -> None:
    found = converted(options, body or "python train.py")
    assert found.works == ()
    assert says in refusals(found)


def test_options_after_the_first_command_count_for_nothing() -> None:
    found = converted("-G1", "python a.py\n#SBATCH --nodes=4")
    assert "workers" not in found.works[0].spec
    assert [line.fate for line in found.report if line.source == "line 5: --nodes"] == [Fate.DROPPED]


def test_each_option_is_in_the_report() -> None:
    found = converted(
        "-A lab -p gpu --qos high --exclusive --mail-type=END --unknown=1 --nice -Q\n-t 5:00 -G1"
    )
    sources = {line.source for line in found.report}
    given = ("-A", "-p", "--qos", "--exclusive", "--mail-type", "--unknown", "--nice", "-Q")
    assert {f"line 2: {option}" for option in given} <= sources
    assert {"line 3: -t", "line 3: -G"} <= sources


@pytest.mark.parametrize(
    ("array", "kind", "at_once", "tasks"),
    [
        ("0-3%2", "array", 2, [0, 1, 2, 3]),
        ("1-3%9", "array", None, [1, 2, 3]),
        ("10-40:10", "array", None, [10, 20, 30, 40]),
        ("0-6:3", "array", None, [0, 3, 6]),
        ("3,2,1", "array", None, [1, 2, 3]),
        ("1-7:3,20%2", "list", 2, [1, 4, 7, 20]),
    ],
)
def test_the_tasks_of_an_array_are_the_members_of_a_sweep(
    tmp_path: Path, array: str, kind: str, at_once: int | None, tasks: list[int]
) -> None:
    body = 'echo "{index} {{index}} $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT" "${SLURM_ARRAY_JOB_ID}"'
    found = converted(f"--array={array} -G1 -J sweep", body)
    [work] = found.works
    assert (work.kind, work.options["parameters"]["kind"]) == (WorkKind.SWEEP, kind)
    assert work.options.get("at_once") == at_once
    said = [f"{{index}} {{{{index}}}} {task} of {len(tasks)} 77\n" for task in tasks]
    members = [member.to_dict() for member in members_of(work)]
    assert [run(member, tmp_path, rank=0, FAIRLOT_SWEEP_ID="9") for member in members] == [
        text.replace(" 77\n", " 9\n") for text in said
    ]
    assert [run(member, tmp_path, rank=0) for member in members] == said  # each submitted again by itself


def test_a_script_finds_its_gpus_by_the_names_of_slurm(tmp_path: Path) -> None:
    spec = spec_of(
        "--gres=gpu:2", "export CUDA_VISIBLE_DEVICES=${SLURM_JOB_GPUS##*:}\necho $CUDA_VISIBLE_DEVICES"
    )
    assert run(spec, tmp_path, rank=0, CUDA_VISIBLE_DEVICES="2,3") == "2,3\n"


def test_the_report_says_which_sweep_an_array_becomes() -> None:
    [line] = [line for line in converted("--array=1-4%2").report if line.target == "parameters"]
    assert line.fate is Fate.APPROXIMATED
    assert line.text == "A sweep of 4 members, 2 at once. Member 0 is task 1, member 1 is task 2, and so on."
    shared = next(
        line
        for line in converted("--array=1-4", "echo $SLURM_ARRAY_JOB_ID").report
        if "JOB_ID" in line.source
    )
    assert (shared.fate, "all its members" in shared.text) == (Fate.MAPPED, True)
    missing = [
        line for line in converted("-G1", "echo $SLURM_ARRAY_TASK_ID").report if "TASK_ID" in line.source
    ]
    assert [line.fate for line in missing] == [Fate.DROPPED]
    assert "add a line such as #SBATCH --array=1-10" in missing[0].text
    [alone] = converted("--array=5", "echo $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_JOB_ID").works
    assert (alone.kind, alone.spec["variables"]["SLURM_ARRAY_TASK_ID"]) == (WorkKind.JOB, "5")


@pytest.mark.parametrize(
    ("array", "why"),
    [
        ("0-999999999", "more than 10 000 tasks"),
        ("0-10000", "--array=0-9999"),
        ("0-3%0", "After % a number"),
        ("0-3%x", "After % a number"),
        ("3-1", "not a list of task numbers"),
        ("1-x", "not a list of task numbers"),
        ("1-4:0", "not a list of task numbers"),
    ],
)
def test_an_array_that_no_sweep_can_be_is_refused(array: str, why: str) -> None:
    assert why in refusals(converted(f"--array={array} -G1")).replace("\N{NO-BREAK SPACE}", " ")


def test_variables_that_a_sweep_sets_are_left_out_of_its_job() -> None:
    found = converted("--array=1,2,5 -G1 --export=ALL,SLURM_ARRAY_TASK_ID=9,SWEEP_INDEX=3,A=b")
    [work] = found.works
    assert work.spec["variables"]["A"] == "b"
    assert not {"SWEEP_INDEX", "SLURM_ARRAY_TASK_ID"} & work.spec["variables"].keys()
    dropped = {line.target for line in found.report if line.fate is Fate.DROPPED}
    assert {"variables.SWEEP_INDEX", "variables.SLURM_ARRAY_TASK_ID"} <= dropped
    assert len(members_of(work)) == 3


def test_times_are_read_as_slurm_reads_them() -> None:
    said = {
        "30": 30,
        "30:30": 30.5,
        "1:30:00": 90,
        "1-12": 2160,
        "1-12:30": 2190,
        "2-0:0:30": 2880.5,
        "x": None,
    }
    assert {text: minutes_of(text) for text in said} == said


def run(spec: Any, folder: Path, rank: int = 0, **more: str) -> str:
    """Runs the command of a job as a worker and returns its output."""
    given = {"RANK": str(rank), "WORLD_SIZE": str(spec.get("workers", 1)), "LOCAL_RANK": "0",
             "MASTER_ADDR": "worker-0", "FAIRLOT_JOB_ID": "77", "FAIRLOT_EPOCH": "2", "TMPDIR": str(folder),
             "PATH": os.environ["PATH"]}  # fmt: skip
    done = subprocess.run(
        ["/bin/sh", "-c", spec["command"]], env=given | spec.get("variables", {}) | more, cwd=folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("body", "plain"),
    [
        ("srun python x.py", "python x.py"),
        ("A=1 srun -n1 --cpu-bind=none -c 4 \\\n  --gres=gpu:1 python x.py --n 2", "A=1 python x.py --n 2"),
        ("cd x && time srun --ntasks 1 --export=ALL ./go | tee log", "cd x && time ./go | tee log"),
        ("if srun --unbuffered true; then srun -N 1 a; fi", "if true; then a; fi"),
    ],
)
def test_srun_of_one_task_is_the_plain_command(body: str, plain: str) -> None:
    command = spec_of("-n 1 --gres=gpu:1", body)["command"]
    assert f"\n{plain}\n" in f"\n{command}\n"
    assert "srun" not in command
    if "time" not in plain:
        assert command == plain


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ("-n 2 --gres=gpu:1", "srun python x.py"),
        ("-N 2 --gres=gpu:1", "srun python x.py"),
        ("-n 1 --gres=gpu:1", "srun -n $TASKS python x.py"),
        ("-n 1 --gres=gpu:1", "srun -n 10 python x.py"),
        ("-n 1 --gres=gpu:1", "srun --chdir=/tmp pwd"),
        ("-n 1 --gres=gpu:1", "srun --export=A=1 env"),
        ("-n 1 --gres=gpu:1", "srun python x.py\nrun() { srun -o out $@; }"),
    ],
)
def test_srun_that_does_more_stays(options: str, body: str) -> None:
    assert body in spec_of(options, body)["command"]
    assert "SLURM_WORKERS" in spec_of(options, body)["command"]


def test_srun_starts_the_tasks_of_each_worker(tmp_path: Path) -> None:
    spec = spec_of(
        "-N 2 --ntasks-per-node=2 --gpus-per-task=2",
        "export WORLD_SIZE=$(($SLURM_NNODES * $SLURM_NTASKS_PER_NODE))\n"
        "srun --cpu-bind=none --label -o /dev/null bash -c "
        "'echo $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $WORLD_SIZE $CUDA_VISIBLE_DEVICES'",
    )
    assert sorted(run(spec, tmp_path, rank=1).splitlines()) == ["2 0 1 4 0,1", "3 1 1 4 2,3"]


def test_mpirun_of_a_script_may_name_the_file_of_hosts_that_it_writes() -> None:
    body = "scontrol show hostnames > hosts\nmpirun --hostfile hosts -np 4 ./a.out"
    assert spec_of("-N 2 --gpus-per-node=2", body)["launch"] == "mpi"
    assert "other hosts" in refusals(converted("-N 2 --gpus-per-node=2", "mpirun -H node1,node2 ./a.out"))


def test_srun_gives_each_task_the_gpus_that_its_own_options_ask_for(tmp_path: Path) -> None:
    body = (
        "srun -n 2 --gpus-per-task=a100:1 --export=ALL,MODE=quick sh -c 'echo $MODE $CUDA_VISIBLE_DEVICES"
        " $SLURM_GPUS_PER_TASK'\nsrun -n 1 -D / sh -c 'echo $PWD ${SLURM_GPUS_PER_TASK-none}'"
    )
    said = run(spec_of("-N 1 --gres=gpu:4", body), tmp_path)
    assert sorted(said.splitlines()) == ["/ none", "quick 0 1", "quick 1 1"]
    one = spec_of("-n 1 --gres=gpu:4", "srun --gpus-per-task=2 sh -c 'echo $CUDA_VISIBLE_DEVICES'")
    assert run(one, tmp_path) == "0,1\n"


@pytest.mark.parametrize(
    ("options", "source", "fate", "says"),
    [
        ("--gpus-per-task=1", "--gpus-per-task", Fate.MAPPED, "1 GPU of its worker"),
        ("--gpus-per-task=8", "--gpus-per-task", Fate.APPROXIMATED, "A worker has 4"),
        ("--gpus-per-task=$N", "--gpus-per-task", Fate.APPROXIMATED, "CUDA_VISIBLE_DEVICES"),
        ("--gres=gpu:1", "--gres", Fate.APPROXIMATED, "sees all GPUs"),
        ("--gres=gpu", "--gres", Fate.APPROXIMATED, "sees all GPUs"),
        ("-G 4 -n 2", "-G", None, ""),
        ("--mem=4G -n 2", "--mem", Fate.DROPPED, "the memory of their worker"),
        ("-t 10:00 -n 2", "-t", Fate.DROPPED, "no time limit"),
    ],
)  # fmt: skip
def test_options_of_srun_are_honoured_or_reported(
    options: str, source: str, fate: Fate | None, says: str
) -> None:
    report = converted("-N 1 --ntasks-per-node=2 --gres=gpu:4", f"srun {options} ./a.out").report
    lines = [line for line in report if line.source == f"line 4: srun {source}"]
    assert [line.fate for line in lines] == ([fate] if fate else [])
    assert all(says in line.text for line in lines)


def test_a_failing_task_fails_the_script(tmp_path: Path) -> None:
    spec = spec_of("-n 2 --gres=gpu:1", "srun sh -c 'exit $((SLURM_PROCID * 3))' || echo failed with $?")
    assert run(spec, tmp_path) == "failed with 3\n"


def test_a_script_finds_the_first_worker_and_the_variables_of_slurm(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("worker-0 slots=4\nworker-1 slots=4\n")
    spec = spec_of(
        "-N 2 --gpus-per-node=4 -J name",
        "module load cuda\nFIRST=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\nHERE=$(hostname)\n"
        "NAMES=(a b)\n"
        "echo $FIRST $HERE $SLURM_JOB_NODELIST $SLURM_JOB_ID $SLURM_JOB_NAME $SLURM_RESTART_COUNT ${NAMES[1]}\n"
        "timeout 60 srun echo $SLURM_NODEID",
    )
    said = run(spec, tmp_path, rank=1, FAIRLOT_HOSTFILE=str(tmp_path / "hosts"))
    assert said == "worker-0 worker-0 worker-0,worker-1 77 name 1 b\n1\n"


def test_an_image_in_a_variable_is_found() -> None:
    body = 'IMAGE="nvcr.io#nvidia/nemo:24.07"\nsrun --container-image=$IMAGE python x.py'
    assert spec_of("-G1", body)["environment"] == "nvcr.io/nvidia/nemo:24.07"


def test_the_address_of_a_node_is_looked_up(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost slots=4\nworker-1 slots=4\n")
    spec = spec_of(
        "-N 2 --gpus-per-node=4",
        "nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))\n"
        'for node in "${nodes[@]}"; do srun -N1 --ntasks=1 -w "$node" hostname; done\n'
        'address=$(srun --nodes=1 --ntasks=1 -w "${nodes[0]}" hostname --ip-address)\n'
        "echo $address `srun --nodes=1 --nodelist=${nodes[0]} hostname`\nsrun echo $SLURM_NODEID",
    )
    said = run(spec, tmp_path, rank=1, FAIRLOT_HOSTFILE=str(tmp_path / "hosts"))
    assert said == "localhost\nworker-1\n127.0.0.1 localhost\n1\n"


@pytest.mark.parametrize(
    ("body", "source"),
    [
        ("python x.py --config $1", "line 4: $1"),
        ('ls\npython x.py "${@:2}"', "line 5: ${@:2}"),
        ("awk '{print $1}' x", ""),
        ('run() { python "$1"; }\nrun x.py', ""),
    ],
)
def test_arguments_of_the_script_are_reported(body: str, source: str) -> None:
    said = [line.source for line in converted("-G1", body).report if "passes arguments" in line.text]
    assert said == ([source] if source else [])


def test_a_script_that_calls_mpirun_runs_in_the_launcher_of_an_mpi_job() -> None:
    found = converted("-N2 -G2", "mpirun -np 2 ./a.out")
    assert refusals(found) == ""
    [work] = found.works
    assert (work.spec["launch"], work.spec["workers"]) == ("mpi", 2)
    assert "mpirun -np 2 ./a.out" in work.spec["command"]
    [alone] = converted("-N1 -G2", "mpirun -np 2 ./a.out").works
    assert "launch" not in alone.spec
