"""Job files of Armada, manifests of FfDL, and jobs and clusters of Ray."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scheduling.importers.registry import convert
from scheduling.importers.report import Fate, WorkKind
from scheduling.spec.job_spec import JobSpec
from tests.scheduling.importers.foreign_samples import SAMPLES


def test_the_jobs_of_a_gang_become_the_workers_of_one_job() -> None:
    gang, single = convert(SAMPLES["armada-gang"]).works
    assert (gang.spec["workers"], gang.spec["gpus_per_worker"], gang.spec["checkpoint_grace_seconds"]) == (
        2,
        4,
        60,
    )
    assert (single.name, single.spec["command"]) == ("train-set-3", "sleep 10")


def test_each_worker_of_a_gang_runs_the_command_of_its_job(tmp_path: Path) -> None:
    second = SAMPLES["armada-gang"].replace(
        "podSpec: *pod",
        """podSpec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 60
      containers:
        - name: main
          image: example.org/train:1
          command: [echo, "the evaluator of $(RANK)"]
          env:
            - {name: SECRET_KEY, value: abcdef0123456789}
          resources:
            limits: {cpu: 8, memory: 64Gi, nvidia.com/gpu: 4}
            requests: {cpu: 8, memory: 64Gi, nvidia.com/gpu: 4}""",
    )
    found = convert(second)
    assert [line for line in found.report if line.fate is Fate.REFUSED] == []
    gang = found.works[0]
    assert (gang.spec["workers"], gang.spec["gpus_per_worker"]) == (2, 4)
    (tmp_path / "python").write_text("#!/bin/sh\necho began $1\n")
    (tmp_path / "python").chmod(0o755)
    printed = [
        subprocess.run(
            ["sh", "-c", gang.spec["command"]], env={"RANK": rank, "PATH": f"{tmp_path}:/usr/bin:/bin"},
            capture_output=True, text=True, check=True,
        ).stdout
        for rank in ("0", "1")
    ]  # fmt: skip
    assert printed == ["began train.py\n", "the evaluator of 1\n"]
    more = convert(second.replace('gangCardinality: "2"', 'gangCardinality: "3"'))
    assert "The gang has 3 jobs, but the text has 2, which differ" in " ".join(
        line.text for line in more.report
    )
    assert more.works == ()


def test_jobs_of_a_gang_that_differ_are_roles() -> None:
    other = (
        "podSpec: {containers: [{name: serve, image: other, command: [x], resources: {limits: {cpu: 2}}}]}"
    )
    gang, single = convert(SAMPLES["armada-gang"].replace("podSpec: *pod", other)).works
    spec = JobSpec.parse(dict(gang.spec))
    assert [(one.name, one.workers, one.gpus_per_worker, one.environment) for one in spec.roles] == [
        ("main", 1, 4, "example.org/train:1"), ("serve", 1, 0, "other"),
    ]  # fmt: skip
    assert single.name == "train-set-3"


def test_a_manifest_of_ffdl_becomes_a_job_without_its_keys() -> None:
    found = convert(SAMPLES["ffdl-torch"])
    (work,) = found.works
    assert (work.spec["workers"], work.spec["gpus_per_worker"], work.spec["memory"]) == (2, 2, "16Gi")
    assert (work.spec["environment"], work.spec["generations"]) == ("example.org/pytorch:0917", ["V100"])
    assert 'export LEARNER_ID="$((RANK + 1))"' in work.spec["command"]
    assert any("$DATA_DIR" in line.source and line.fate is Fate.DROPPED for line in found.report)


def test_mpirun_starts_the_command_of_horovod_on_all_learners(tmp_path: Path) -> None:
    found = convert(SAMPLES["ffdl-horovod"].replace("--data", "--shard $LEARNER_ID/$NUM_LEARNERS --data"))
    (work,) = found.works
    spec = JobSpec.parse(dict(work.spec))
    assert (spec.launch, spec.workers, spec.environment) == ("mpi", 3, "uber/horovod:0.19")
    (tmp_path / "mpirun").write_text('#!/bin/sh\necho "$1 $2"; shift 2; exec "$@"\n')
    (tmp_path / "python").write_text('#!/bin/sh\necho "$@"\n')
    for one in tmp_path.iterdir():
        one.chmod(0o755)
    printed = subprocess.run(
        ["sh", "-c", spec.command], env={"OMPI_COMM_WORLD_RANK": "2", "PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert printed == "-np 3\nwords.py --shard 3/3 --data\n"
    (alone,) = convert(SAMPLES["ffdl-horovod"].replace("learners: 3", "learners: 1")).works
    assert (alone.spec.get("launch"), alone.spec["command"]) == (None, "python words.py --data $DATA_DIR")
    older = (
        SAMPLES["ffdl-horovod"]
        .replace("name: horovod\n", "name: tensorflow\n")
        .replace('"0.19"', "1.5-horovod")
    )
    assert convert(older).works[0].spec["launch"] == "mpi"


def test_a_job_of_ray_installs_its_packages() -> None:
    (work,) = convert(SAMPLES["ray-job"]).works
    assert "pip install torch 'numpy<2'" in work.spec["command"]
    assert work.spec["command"].endswith("python main.py")
    assert work.spec["secrets"] == {"OPENAI_API_KEY": "openai-api-key"}


def test_a_cluster_of_ray_becomes_a_job_with_the_least_number_of_workers() -> None:
    (work,) = convert(SAMPLES["ray-cluster"], known_generations=("V100", "A100")).works
    assert (work.kind, work.spec["workers"], work.spec["gpus_per_worker"]) == (WorkKind.JOB, 3, 4)
    assert (work.spec["generations"], work.spec["port"]) == (["V100"], 8265)
    assert "ray start --head" in work.spec["command"]


def test_nodes_of_ray_with_other_gpus_than_the_head_are_roles() -> None:
    (work,) = convert(SAMPLES["ray-cpu-head"], known_generations=("V100", "A100")).works
    spec = JobSpec.parse(dict(work.spec))
    assert [(one.name, one.workers, one.gpus_per_worker, one.ends_job) for one in spec.roles] == [
        ("head", 1, 0, True), ("small", 2, 1, False), ("more", 1, 1, False),
    ]  # fmt: skip
    assert (spec.generations, spec.port) == (["V100"], 8265)
    assert '[ "$FAIRLOT_ROLE" = head ]' in spec.command
    assert "${FAIRLOT_HOSTS_HEAD%%:*}:6379" in spec.command


@pytest.mark.parametrize("name", ["polyaxon-hub", "ffdl-host", "marathon-host", "skypilot-pool"])
def test_a_refusal_has_no_works_and_says_why(name: str) -> None:
    found = convert(SAMPLES[name])
    assert found.works == ()
    assert all(line.text.endswith(".") for line in found.report if line.fate is Fate.REFUSED)
