"""Jobs of OpenPAI."""

from __future__ import annotations

from scheduling.importers.registry import convert
from scheduling.importers.report import Fate
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


def test_roles_that_need_each_others_hosts_are_refused() -> None:
    lines = [line for line in convert(SAMPLES["openpai-roles"]).report if line.fate is Fate.REFUSED]
    assert "task role ps_server" in lines[0].text
    assert {line.source for line in lines} == {
        "taskRoles.worker.commands", "taskRoles.ps_server.dockerImage", "taskRoles.ps_server.commands",
    }  # fmt: skip


def test_independent_roles_become_jobs() -> None:
    text = (
        "protocolVersion: 2\nname: two\ntype: job\nprerequisites: [{type: dockerimage, uri: a/b, name: i}]\n"
        "taskRoles:\n  x: {dockerImage: i, resourcePerInstance: {gpu: 1}, commands: [a]}\n"
        "  y: {dockerImage: i, resourcePerInstance: {gpu: 2}, commands: [b]}\n"
    )
    found = convert(text)
    assert [(work.name, work.spec["gpus_per_worker"]) for work in found.works] == [("two-x", 1), ("two-y", 2)]
    assert any("do not start together" in line.text for line in found.report)
