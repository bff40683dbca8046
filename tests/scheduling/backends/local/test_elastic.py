"""An elastic gang as real processes: its workers meet as torchrun's do, and continue after a restart with another
number of workers."""

from __future__ import annotations

from scheduling.backends.base import Bounds, End, Gang, Phase
from tests.scheduling.local_rig import Rig, rig

__all__ = ["rig"]
# Reads torchrun's variables. The first worker lets as many come as there may be, and tells all of them the step of the
# last checkpoint; they go on from there until they are told to end, and save their step.
PROGRAM = """
import os, pathlib, signal, socket, sys, threading
saved = pathlib.Path(os.environ["FAIRLOT_CHECKPOINT_DIR"]) / "step"
least, most = map(int, os.environ["PET_NNODES"].split(":"))
host, port = os.environ["PET_RDZV_ENDPOINT"].split(":")
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
if os.environ["RANK"] == "0":
    server = socket.create_server((host, int(port)))
    met = [server.accept()[0] for _ in range(most - 1)]
    step = int(saved.read_text()) if saved.exists() else 0
    for one in met:
        one.sendall(f"{step}\\n".encode())
else:
    while True:
        try:
            joined = socket.create_connection((host, int(port)))
            break
        except ConnectionRefusedError:
            ended.wait(0.01)
    step = int(joined.makefile().readline())
print("met", most, "from", step, "bounds", os.environ["FAIRLOT_MIN_WORKERS"], os.environ["FAIRLOT_MAX_WORKERS"])
while not ended.wait(0.01):
    step += most
    print("step", step)
if os.environ["RANK"] == "0":
    saved.write_text(str(step))
"""


def attempt(rig: Rig, epoch: int, workers: int) -> Gang:
    return rig.start(rig.python(PROGRAM, epoch=epoch, workers=workers, bounds=Bounds(1, 4)))


def test_workers_meet_and_a_larger_attempt_continues_from_the_checkpoint(rig: Rig) -> None:
    small = attempt(rig, 1, 2)
    rig.wait_for_log("step 10")
    assert "met 2 from 0 bounds 1 4" in rig.wait_for_log("met", rank=1)
    rig.stop(small)
    assert rig.wait(small).end is End.STOPPED
    saved = int((rig.files().checkpoints / "step").read_text())
    assert saved >= 10
    large = attempt(rig, 2, 4)
    rig.wait(large, Phase.RUNNING)
    for rank in range(4):
        assert f"met 4 from {saved} bounds 1 4" in rig.wait_for_log("met 4", rank=rank)
    rig.stop(large)
    rig.wait(large)
    alone = attempt(rig, 3, 1)
    rig.wait_for_log("met 1")
    rig.stop(alone)
    assert rig.wait(alone).end is End.STOPPED


def test_variables_of_the_user_replace_those_of_torchrun(rig: Rig) -> None:
    shown = 'import os; print("|", os.environ["PET_NNODES"], os.environ["FAIRLOT_MAX_WORKERS"])'
    mine = {"PET_NNODES": "7"}
    rig.wait(rig.start(rig.python(shown, bounds=Bounds(1, 4), environment=mine)))
    assert "| 7 4" in rig.log()


def test_horovod_finds_the_hosts_of_the_attempt_by_a_script(rig: Rig) -> None:
    gang = rig.gang(
        '"$FAIRLOT_HOST_DISCOVERY"; echo "| ${PET_NNODES-none}"', is_mpi=True, bounds=Bounds(2, 4)
    )
    assert rig.wait(rig.start(gang)).end is End.SUCCEEDED
    assert rig.log().splitlines()[-2:] == ["localhost:2", "| none"]
