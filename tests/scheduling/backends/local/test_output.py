"""The output of local jobs is kept and reported: large and binary logs, limits of their size, and progress patterns.
Programs find the environment that they need at their start."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest

from scheduling.backends.base import End, Phase, Worker
from scheduling.backends.output import NOTE_ROOM, Log, Progress
from tests.scheduling.backends.local.test_crashes import memory_of
from tests.scheduling.local_rig import EXAMPLES, USER, Rig, until

FLOOD = "head -c 150000000 /dev/zero | tr '\\0' 'y'; echo; echo step 99; mkfifo go; read line < go"


def test_a_flood_is_drained_capped_and_counted(rig: Rig) -> None:
    gang = rig.start(rig.gang(FLOOD, log_limit_bytes=1_000_000))
    fifo = rig.files().folder / "work" / "rank-0" / "go"
    until(fifo.exists, "the end of the flood")
    assert memory_of(rig.supervisor(gang)) < 40_000_000
    fifo.write_text("on\n")
    seen = rig.wait(gang)
    assert (seen.end, seen.steps) == (End.SUCCEEDED, 99)
    log = rig.files().log(0).read_bytes()
    assert log[:1_000_000] == b"y" * 1_000_000
    assert len(log) < 1_000_000 + NOTE_ROOM
    cut = 150_000_000 + len("\nstep 99\n") - 1_000_000
    assert f"{cut:,} bytes of output were cut".encode() in log[1_000_000:]


def test_the_cap_holds_over_all_epochs(rig: Rig) -> None:
    for epoch in (1, 2, 3):
        rig.wait(rig.start(rig.gang("echo 0123456789", epoch=epoch, log_limit_bytes=15)))
    log = rig.log()
    assert log.startswith("0123456789\n0123\n[fairlot] output is cut here")
    assert "7 bytes of output were cut" in log
    assert "11 bytes of output were cut" in log
    assert log.count("0123456789") == 1


def test_the_log_says_which_attempt_wrote_each_line_also_after_a_freeze(rig: Rig) -> None:
    program = "mkfifo go; printf one; read line < go; echo; echo two; exec sleep 600"
    begun = time.time_ns() // 10**6
    first = rig.start(rig.gang(program))
    rig.wait_for_log("one")
    rig.freeze(first)
    rig.wait(first, Phase.FROZEN)
    thawed = rig.gang(program, epoch=2)
    rig.backend.thaw(thawed)
    (rig.files().folder / "work" / "rank-0" / "go").write_text("on\n")
    rig.wait_for_log("two")
    rig.stop(thawed)
    rig.wait(thawed)
    rig.wait(rig.start(rig.gang("printf three", epoch=3)))
    rig.wait(rig.start(rig.gang("echo four", epoch=4)))
    assert rig.log() == "one\ntwo\nthree\nfour\n"  # each attempt begins a line
    found = rig.backend.log_times(job_id=1).attempts(0, 10)
    assert [(offset, moment.attempt) for offset, moment in found] == [(0, 1), (3, 2), (8, 3), (14, 4)]
    times = [moment.at for _, moment in found]
    assert begun <= times[0] <= times[1] <= times[2] <= times[3] <= time.time_ns() // 10**6


def test_a_full_disk_is_no_reason_to_die(tmp_path: Path) -> None:
    log = Log(os.open("/dev/full", os.O_WRONLY), 1000)
    log.write(b"something")
    assert (log.size, log.cut, log.trouble) == (0, 9, "No space left on device")
    log.close()


def test_binary_output_comes_back_byte_by_byte(rig: Rig) -> None:
    program = "import os; os.write(1, bytes(range(256)) * 1000); os.write(2, b'\\xff\\xfe step 7')"
    seen = rig.wait(rig.start(rig.python(program)))
    assert seen.steps == 7
    data, offset = b"", 0
    while True:
        chunk = rig.backend.read_log(job_id=1, rank=0, offset=offset, limit=1000)
        assert chunk.offset == offset
        data, offset = data + chunk.data, chunk.next_offset
        if chunk.complete:
            break
    assert data == bytes(range(256)) * 1000 + b"\xff\xfe step 7"


def test_many_short_lines_all_arrive_in_order(rig: Rig) -> None:
    gang = rig.start(rig.gang("seq -f 'step %.0f' 200000"))
    seen = rig.wait(gang)
    assert seen.steps == 200_000
    assert rig.log().splitlines() == [f"step {n}" for n in range(1, 200_001)]


def test_progress_comes_from_the_programs_progress_file(rig: Rig) -> None:
    gang = rig.start(rig.gang('echo 12.5 > "$FAIRLOT_PROGRESS"; sleep 600'))
    until(lambda: (seen := rig.look(gang)) and seen.steps == 12.5, "the progress")
    rig.stop(gang)
    rig.wait(gang)
    again = rig.start(rig.gang("true", epoch=2))
    assert rig.wait(again).steps is None  # the progress file of the earlier attempt does not count


def test_only_rank_0_tells_the_progress(rig: Rig) -> None:
    seen = rig.wait(rig.start(rig.gang("echo step 1$RANK", workers=3)))
    assert seen.steps == 10


@pytest.mark.parametrize(
    ("pattern", "pieces", "steps"),
    [
        (r"\bstep[ =:]+(\d+)", [b"step 1\nstep 2\n", b"nothing\n"], 2),
        (r"\bstep[ =:]+(\d+)", [b"st", b"ep 1", b"2\n"], 12),
        (r"\bstep[ =:]+(\d+)", [b"step 3\rstep 4\r"], 4),
        (r"\bstep\s+(\d+)", [b"step\n5\n"], None),
        (r"^(\d+) done$", [b"x 1 done\n7 done\n8 done x\n"], 7),
        (r"loss (\S+)", [b"loss 0.5\n", b"loss nan\nloss x\n"], 0.5),
        (r"step (\d+)", [b"step 6\n" + b"x\n" * 5000], 6),
        (r"step (\d+)", [b"x" * 10_000 + b" step 1", b"\nstep 2\n"], 2),
    ],
)
def test_progress_is_the_last_match_of_a_line(
    tmp_path: Path, pattern: str, pieces: list[bytes], steps: float | None
) -> None:
    progress = Progress(pattern, tmp_path / "none")
    for piece in pieces:
        progress.feed(piece)
    assert progress.steps == steps


LOOK_AROUND = """
import json, os
print(json.dumps({
    "environment": dict(os.environ),
    "files": sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                    if os.path.exists(f"/proc/self/fd/{fd}") or fd in "012"),
    "here": os.getcwd(), "session": os.getsid(0) == os.getpid(),
}))
"""


def test_nothing_of_the_portal_reaches_a_job(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "portal-secret")
    monkeypatch.setenv("FAIRLOT_SEALING_KEYS", "portal-secret")
    monkeypatch.setenv("DATABASE_URL", "postgresql://portal-secret")
    with socket.socket() as listening, open("/etc/hostname") as file:
        for fd in (listening.fileno(), file.fileno()):
            os.set_inheritable(fd, True)
        rig.wait(rig.start(rig.python(LOOK_AROUND, environment={"MINE": "1", "MASTER_PORT": "1"}, workers=2)))
    said = json.loads(rig.log(rank=1))
    environment, folder = said["environment"], rig.files().folder
    assert "portal-secret" not in json.dumps(said)
    assert said["session"]
    assert said["here"] == str(folder / "work" / "rank-1")
    assert all(name == os.devnull or name.startswith("pipe:") for name in said["files"]), said["files"]
    assert len(said["files"]) == 3
    port = environment.pop("MASTER_PORT")
    assert 20_000 <= int(port) < 30_000
    environment.pop("FAIRLOT_RUN")
    environment.pop("LC_CTYPE", None)  # Python itself sets this
    assert environment == {
        "CUDA_VISIBLE_DEVICES": "1,9",
        "FAIRLOT_CHECKPOINT_DIR": str(folder / "checkpoint"),
        "FAIRLOT_EPOCH": "1",
        "FAIRLOT_EXAMPLES": str(EXAMPLES),
        "FAIRLOT_GENERATION": "V100",
        "FAIRLOT_GPU_SPEED": "2.0",
        "FAIRLOT_JOB_ID": "1",
        "FAIRLOT_PROGRESS": str(folder / "tmp" / "progress-1"),
        "FAIRLOT_RANK": "1",
        "FAIRLOT_WORLD_SIZE": "2",
        "HOME": str(folder / "home"),
        "LANG": "C.UTF-8",
        "LOCAL_RANK": "0",
        "LOGNAME": f"uid{USER if rig.has_users else os.geteuid()}",
        "MASTER_ADDR": "127.0.0.1",
        "MINE": "1",
        "PATH": f"{folder}/home/.local/job-packages/bin:{rig.backend.environments['python']}",
        "PYTHONUNBUFFERED": "1",
        "RANK": "1",
        "TMPDIR": str(folder / "tmp" / "rank-1"),
        "USER": f"uid{USER if rig.has_users else os.geteuid()}",
        "WORLD_SIZE": "2",
    }


def test_a_program_finds_a_name_for_the_user_that_it_runs_as(rig: Rig) -> None:
    """A job's user has a name, although the machine has no account for the job's UID. PyTorch asks for this name."""
    seen = rig.wait(rig.start(rig.python("import getpass; print(getpass.getuser())")))
    assert (seen.end, rig.log()) == (End.SUCCEEDED, f"uid{USER if rig.has_users else os.geteuid()}\n")


def test_a_program_may_open_its_output_again(rig: Rig) -> None:
    """A program may open /dev/stdout, although the supervisor owns the pipe and the job may run as another user."""
    gang = rig.start(rig.gang("echo one >/dev/stdout; echo two >/dev/stderr; echo three >/proc/self/fd/1"))
    assert rig.wait(gang).end is End.SUCCEEDED, rig.log()
    assert rig.log() == "one\ntwo\nthree\n"


def test_real_gpus_are_named_by_uuid(rig: Rig) -> None:
    worker = Worker(0, "here", (0, 1), ("GPU-aa", "GPU-bb"), None)
    rig.wait(rig.start(rig.gang('echo "$CUDA_VISIBLE_DEVICES ${FAIRLOT_GPU_SPEED-none}"', workers=1)))
    rig.wait(
        rig.start(rig.gang('echo "$CUDA_VISIBLE_DEVICES ${FAIRLOT_GPU_SPEED-none}"', job=2, gpus=[worker]))
    )
    assert rig.log(1) == "0,8 2.0\n"
    assert rig.log(2) == "GPU-aa,GPU-bb none\n"


def test_gangs_at_the_same_time_meet_at_different_ports(rig: Rig) -> None:
    gangs = [rig.start(rig.gang("echo $MASTER_PORT; sleep 600", job=job)) for job in (1, 2, 3)]
    ports = set()
    for gang in gangs:
        rig.wait(gang, Phase.RUNNING)
        ports.add(rig.wait_for_log("\n", job=gang.job_id))
    assert len(ports) == 3
