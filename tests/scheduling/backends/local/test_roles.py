"""Gangs whose workers have roles, as real processes: who they are, how they find each other, and what ends the gang."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from scheduling.backends.base import End, Gang, GangRole, Phase, Worker
from scheduling.execution.operations import WAIT_FOR_MPIRUN
from tests.scheduling.local_rig import Rig, rig

__all__ = ["rig"]
WAITS = "exec sleep 600"
UNTIL_GO = "until [ -e $FAIRLOT_CHECKPOINT_DIR/go ]; do sleep 0.01; done"
SHOWN = (
    "CUDA_VISIBLE_DEVICES", "FAIRLOT_ROLE", "FAIRLOT_ROLE_INDEX", "FAIRLOT_ROLE_SIZE", "FAIRLOT_RANK",
    "FAIRLOT_WORLD_SIZE", "RANK", "WORLD_SIZE", "TF_CONFIG", "FAIRLOT_HOSTS_WORKER", "FAIRLOT_HOSTS_PS",
)  # fmt: skip
SHOW = f"import json, os; print('!', json.dumps({{name: os.environ.get(name) for name in {SHOWN}}}))"


def role(
    name: str, command: str | Sequence[str], *, workers: int = 1, gpus: bool = True, **changes: Any
) -> GangRole:
    given: dict[str, Any] = {
        "name": name,
        "workers": workers,
        "holds_gpus": gpus,
        "command": ["/bin/sh", "-c", command] if isinstance(command, str) else command,
        "environment_name": "python",
        "environment": {},
    }
    return GangRole(**given | changes)


def of_roles(rig: Rig, roles: Sequence[GangRole], **changes: Any) -> Gang:
    """Returns a gang with two virtual GPUs for each worker of a role with GPUs. `roles` are in the order of ranks."""
    holds = [one.holds_gpus for one in roles for _ in range(one.workers)]
    workers = [
        Worker(rank, "node-0", (2 * rank, 2 * rank + 1) if held else (), (), 2.0 if held else None)
        for rank, held in enumerate(holds)
    ]
    return rig.gang("exit 99", gpus=workers, roles=roles, **changes)


def shown(rig: Rig, rank: int) -> dict[str, Any]:
    line = next(line for line in rig.wait_for_log("! {", rank=rank).splitlines() if line.startswith("! "))
    found: dict[str, Any] = json.loads(line[2:])
    return found


def test_workers_know_their_role_and_the_addresses_of_all_roles(rig: Rig) -> None:
    script = f'python -c "{SHOW}"'
    roles = [
        role("worker", script, workers=2),
        role("ps", script, gpus=False, environment={"TF_CONFIG": "mine"}),
    ]
    assert rig.wait(rig.start(of_roles(rig, roles))).end is End.SUCCEEDED
    workers, ps = [shown(rig, 0), shown(rig, 1)], shown(rig, 2)

    assert [one["CUDA_VISIBLE_DEVICES"] for one in (*workers, ps)] == ["0,1", "2,3", ""]
    assert [one["FAIRLOT_ROLE"] for one in (*workers, ps)] == ["worker", "worker", "ps"]
    assert [one["FAIRLOT_ROLE_INDEX"] for one in (*workers, ps)] == ["0", "1", "0"]
    assert [one["FAIRLOT_ROLE_SIZE"] for one in (*workers, ps)] == ["2", "2", "1"]
    assert [one["FAIRLOT_RANK"] for one in (*workers, ps)] == ["0", "1", "2"]
    assert {one["FAIRLOT_WORLD_SIZE"] for one in (*workers, ps)} == {"3"}
    # The process group of a program that trains is that of the workers with GPUs.
    assert [(one["RANK"], one["WORLD_SIZE"]) for one in workers] == [("0", "2"), ("1", "2")]
    assert (ps["RANK"], ps["WORLD_SIZE"]) == (None, None)

    addresses = workers[0]["FAIRLOT_HOSTS_WORKER"].split(",")
    assert len({*addresses, ps["FAIRLOT_HOSTS_PS"]}) == 3
    assert all(one["FAIRLOT_HOSTS_WORKER"].split(",") == addresses for one in (workers[1], ps))
    assert json.loads(workers[1]["TF_CONFIG"]) == {
        "cluster": {"worker": addresses, "ps": [ps["FAIRLOT_HOSTS_PS"]]},
        "task": {"type": "worker", "index": 1},
    }
    assert ps["TF_CONFIG"] == "mine"


def test_each_worker_can_listen_at_its_own_address(rig: Rig) -> None:
    listen = """import os, socket
own = os.environ["FAIRLOT_HOSTS_PS"].split(",")[int(os.environ["FAIRLOT_ROLE_INDEX"])]
with socket.create_server(("127.0.0.1", int(own.rpartition(":")[2]))) as server:
    server.accept()[0].sendall(os.environ["FAIRLOT_ROLE_INDEX"].encode())
"""
    connect = """import os, socket, time
for address in os.environ["FAIRLOT_HOSTS_PS"].split(","):
    while True:
        try:
            with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as there:
                print("heard", there.recv(1).decode())
                break
        except ConnectionRefusedError:
            time.sleep(0.01)
"""
    roles = [
        role("worker", ["python", "-c", connect]),
        role("ps", ["python", "-c", listen], workers=2, gpus=False),
    ]
    assert rig.wait(rig.start(of_roles(rig, roles))).end is End.SUCCEEDED
    assert rig.log().split() == ["heard", "0", "heard", "1"]


def test_the_end_of_the_role_that_ends_the_job_stops_the_others(rig: Rig) -> None:
    roles = [role("worker", WAITS, workers=2), role("launcher", "exit 0", gpus=False, ends_job=True)]
    gang = rig.start(of_roles(rig, roles, leader=2))
    seen = rig.wait(gang)
    assert (seen.end, seen.exit_code) == (End.SUCCEEDED, 0)
    assert seen.message == "every worker of launcher exited with code 0"
    assert not rig.processes_of(gang)


def test_other_roles_may_end_before(rig: Rig) -> None:
    roles = [role("chief", UNTIL_GO, ends_job=True), role("ps", "echo done", gpus=False)]
    gang = rig.start(of_roles(rig, roles))
    rig.wait_for_log("done", rank=1)
    assert rig.wait(gang, Phase.RUNNING).end is None
    (rig.files().checkpoints / "go").touch()
    assert rig.wait(gang).end is End.SUCCEEDED


def test_without_such_a_role_all_workers_must_succeed(rig: Rig) -> None:
    roles = [role("worker", "echo done"), role("ps", UNTIL_GO, gpus=False)]
    gang = rig.start(of_roles(rig, roles))
    rig.wait_for_log("done")
    assert rig.wait(gang, Phase.RUNNING).end is None
    (rig.files().checkpoints / "go").touch()
    assert rig.wait(gang).end is End.SUCCEEDED


def test_a_failure_in_any_role_ends_the_gang_and_names_the_role(rig: Rig) -> None:
    roles = [role("worker", WAITS, ends_job=True), role("ps", "exit 7", gpus=False)]
    seen = rig.wait(rig.start(of_roles(rig, roles)))
    assert (seen.end, seen.exit_code) == (End.FAILED, 7)
    assert seen.message == "worker 1 (ps 0) exited with code 7"


def test_an_environment_that_only_a_role_names_must_exist(rig: Rig) -> None:
    roles = [role("worker", WAITS), role("ps", WAITS, gpus=False, environment_name="conda")]
    seen = rig.wait(rig.start(of_roles(rig, roles)))
    assert seen.end is End.START_FAILED
    assert "there is no environment 'conda' on this machine" in seen.message


def test_the_progress_of_the_role_that_ends_the_job_counts(rig: Rig) -> None:
    roles = [
        role("worker", "echo step 1; exec sleep 600"),
        role("launcher", "echo step 40; exec sleep 600", gpus=False, ends_job=True),
    ]
    gang = rig.start(of_roles(rig, roles, leader=1))
    rig.wait_for_log("step 40", rank=1)
    rig.stop(gang, grace=0)
    assert rig.wait(gang).steps == 40


# Starts what it is asked for, like mpirun: as many processes as -np says, or else as the list of hosts has slots.
STAND_IN = """import os, re, subprocess, sys
path = os.environ["OMPI_MCA_orte_default_hostfile"]
hosts = [re.fullmatch(r"(\\S+) slots=(\\d+)", line).groups() for line in open(path).read().splitlines()]
assert {host for host, _ in hosts} == {"localhost"}, hosts
size = sum(int(slots) for _, slots in hosts)
ours = [dict(os.environ, OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_SIZE=str(size)) for rank in range(size)]
sys.exit(max(each.wait() for each in [subprocess.Popen(sys.argv[1:], env=env) for env in ours]))
"""


@pytest.mark.parametrize("own_launcher", [True, False])
def test_mpirun_gets_a_slot_for_each_gpu_of_the_gang(rig: Rig, own_launcher: bool) -> None:
    program = """import os
seen = os.environ["OMPI_COMM_WORLD_RANK"], os.environ["CUDA_VISIBLE_DEVICES"], str("RANK" in os.environ)
os.write(1, f"{' '.join(seen)}\\n".encode())
"""
    mpirun = ["python", "-c", STAND_IN, "python", "-c", program]
    launcher = role("launcher", mpirun, ends_job=True, gpus=not own_launcher)
    waiting = role("worker", WAIT_FOR_MPIRUN, workers=2 if own_launcher else 1, waits_for_mpirun=True)
    roles = [waiting, launcher] if own_launcher else [launcher, waiting]
    leader = 2 if own_launcher else 0
    gang = rig.start(of_roles(rig, roles, leader=leader, is_mpi=True))
    assert rig.wait(gang).end is End.SUCCEEDED
    assert sorted(rig.log(rank=leader).splitlines()) == [f"{rank} 0,1,2,3 False" for rank in range(4)]
    assert not rig.processes_of(gang)


def test_one_worker_is_enough_for_mpirun(rig: Rig) -> None:
    gang = rig.gang("cat $FAIRLOT_HOSTFILE; echo $I_MPI_HYDRA_HOST_FILE | grep -c hostfile", is_mpi=True)
    assert rig.wait(rig.start(gang)).end is End.SUCCEEDED
    assert rig.log().splitlines() == ["localhost slots=2", "1"]
