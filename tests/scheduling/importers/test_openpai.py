"""Jobs of OpenPAI."""

from __future__ import annotations

import subprocess

import pytest

from scheduling.importers.registry import convert
from scheduling.importers.report import Fate, WorkKind
from tests.scheduling.importers.foreign_samples import SAMPLES


def test_a_task_role_becomes_a_job() -> None:
    (work,) = convert(SAMPLES["openpai-distributed"]).works
    assert (work.name, work.spec["workers"], work.spec["gpus_per_worker"]) == ("cifar10_4gpu", 2, 4)
    assert (work.spec["memory"], work.spec["shm"], work.spec["generations"]) == ("24Gi", "64Mi", ["V100"])
    assert work.spec["environment"] == "openpai/standard:python_3.6-pytorch_1.2.0-gpu"


def test_expressions_are_filled_in_and_secrets_become_variables() -> None:
    found = convert(SAMPLES["openpai-distributed"])
    (work,) = found.works
    command = work.spec["command"]
    assert "wget https://example.org/cifar.tar.gz" in command
    assert '--model resnet20 --bs 32 --token "$TOKEN" --rank $PAI_TASK_INDEX' in command
    assert command.index("echo begin") < command.index("wget") < command.index("echo end")
    assert 'export PAI_TASK_INDEX="$RANK"' in command
    assert work.spec["secrets"] == {"TOKEN": "token"}
    fates = {line.source: line.fate for line in found.report}
    assert fates["defaults.deployment"] == fates["deployments[0]"] == Fate.MAPPED
    assert "deployments" not in fates


def test_task_roles_become_roles_that_find_each_other() -> None:
    found = convert(SAMPLES["openpai-parameter-server"])
    (work,) = found.works
    assert (work.kind, work.name, work.spec["gpus_per_worker"]) == (WorkKind.JOB, "tf", 2)
    server, worker = work.spec["roles"]
    assert (server["name"], server["workers"], server["gpus_per_worker"]) == ("ps-server", 1, 0)
    assert (worker["workers"], worker["gpus_per_worker"], worker["ends_job"]) == (3, 2, True)
    assert "ends_job" not in server
    assert (server["memory"], worker["memory"]) == ("4Gi", "8Gi")
    fates = {line.source: line.fate for line in found.report}
    assert fates["taskRoles.worker.completion.minSucceededInstances"] is Fate.MAPPED


def test_the_addresses_of_tasks_are_those_of_roles() -> None:
    (work,) = convert(SAMPLES["openpai-parameter-server"]).works
    _, worker = work.spec["roles"]
    hosts = {"FAIRLOT_HOSTS_PS_SERVER": "a:1", "FAIRLOT_HOSTS_WORKER": "b:2,c:3,d:4"}
    env = hosts | {"FAIRLOT_ROLE_INDEX": "1", "PATH": "/bin"}
    script = worker["command"].replace("python train.py", "echo")
    ran = subprocess.run(["/bin/sh", "-c", script], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["--ps_hosts=a:1", "--me=1", "--first=b:2", "--third=d:4", "--own=3"]


TWO = (
    "protocolVersion: 2\nname: two\ntype: job\nprerequisites: [{type: dockerimage, uri: a/b, name: i}]\n"
    "taskRoles:\n  x: {dockerImage: i, resourcePerInstance: {gpu: %s, ports: {A: 1, B: 1}}, commands: [a %s]}\n"
    "  y: {instances: %s, dockerImage: i, resourcePerInstance: {gpu: %s}, commands: [b]}\n"
)


@pytest.mark.parametrize(
    ("command", "source"),
    [
        ("$PAI_x_0_B_PORT", "taskRoles.x.commands: $PAI_x_0_B_PORT"),  # a second port
        ("$PAI_HOST_IP_y_7", "taskRoles.x.commands: $PAI_HOST_IP_y_7"),  # a task that does not exist
        ("$PAI_HOST_IP_z_0", "taskRoles.x.commands: $PAI_HOST_IP_z_0"),
    ],
)
def test_an_address_that_no_task_has_is_refused_by_its_name(command: str, source: str) -> None:
    lines = convert(TWO % (1, command, 2, 1)).report
    assert [line.source for line in lines if line.fate is Fate.REFUSED] == [source]


def test_task_roles_with_other_numbers_of_gpus_are_refused_only_if_they_need_each_other() -> None:
    lines = convert(TWO % (1, "$PAI_HOST_IP_y_0", 2, 4)).report
    assert "the task role y" in next(line.text for line in lines if line.fate is Fate.REFUSED)
    assert convert(TWO % (1, "", 0, 1)).refused  # a task role without tasks


def test_without_gpus_the_first_role_gets_some() -> None:
    (work,) = convert(TWO % (0, "", 2, 0)).works
    assert [role["gpus_per_worker"] for role in work.spec["roles"]] == [1, 0]


def test_one_task_role_has_roles_only_to_find_its_tasks() -> None:
    text, first = SAMPLES["openpai-distributed"], "$PAI_HOST_IP_worker_0"
    (plain,) = convert(text.replace(first, f"{first}:$PAI_worker_0_SynPort_PORT $PAI_UNKNOWN")).works
    assert 'export PAI_worker_0_SynPort_PORT="$MASTER_PORT"' in plain.spec["command"]
    assert "roles" not in plain.spec
    (work,) = convert(text.replace(first, "$PAI_HOST_IP_worker_1")).works
    assert [(role["name"], role["workers"]) for role in work.spec["roles"]] == [("worker", 2)]
    few = text.replace("minSucceededInstances: -1", "minSucceededInstances: 1")
    lines = {line.source: line for line in convert(few).report}
    assert lines["taskRoles.worker.completion.minSucceededInstances"].fate is Fate.APPROXIMATED


def test_independent_roles_become_jobs() -> None:
    text = (
        "protocolVersion: 2\nname: two\ntype: job\nprerequisites: [{type: dockerimage, uri: a/b, name: i}]\n"
        "taskRoles:\n  x: {dockerImage: i, resourcePerInstance: {gpu: 1}, commands: [a]}\n"
        "  y: {dockerImage: i, resourcePerInstance: {gpu: 2}, commands: [b]}\n"
    )
    found = convert(text)
    assert [(work.name, work.spec["gpus_per_worker"]) for work in found.works] == [("two-x", 1), ("two-y", 2)]
    assert any("do not start together" in line.text for line in found.report)
