"""Attacks by a member's job, with files that the portal or the job's supervisor reads.

Some attacks try to make the portal serve files of others. Others try to make the supervisor hang.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from scheduling.backends.local import processes
from tests.attack.attacks import Person, Target, attack
from tests.attack.local_jobs import members_must_submit
from tests.waiting import wait_for

ENDED = {"succeeded", "failed", "cancelled"}
SOON = 90.0  # seconds; a busy machine may need a minute
LINE = "root:x:0:0"  # from /etc/passwd
IN_PLACE = 'echo root; touch "$FAIRLOT_CHECKPOINT_DIR/in-place"'
WAIT = f"{IN_PLACE}; exec sleep 3600"


def begin(target: Target, command: str) -> tuple[Person, int, Path]:
    """Cancels Bob's other jobs, submits a job with this command as Bob, and waits until its program reports that it is
    done.

    Returns (Bob, the job's ID, the job's folder).
    """
    members_must_submit(target)
    bob = target.person("bob")
    for job in bob.get("/api/v1/jobs?limit=100").json()["items"]:
        if job["owner"] == "bob" and job["state"] not in ENDED:
            bob.cancel(job["id"])
    number = bob.submit(team="astro", command=command, priority=100)
    place = wait_for(
        lambda: next((target.var / "jobs").glob(f"cluster-*/{number}/checkpoint/in-place"), None),
        what=lambda: f"the program of {bob.job(number)}",
    )
    assert place
    return bob, number, place.parents[1]


def end(bob: Person, number: int) -> None:
    """Cancels the job as Bob, and asserts that the job ends soon."""
    bob.cancel(number)
    wait_for(
        lambda: bob.job(number)["state"] in ENDED,
        seconds=SOON,
        what=lambda: f"a cancelled job still holds its GPU: {bob.job(number)['state']}",
    )


def status_of(folder: Path) -> dict[str, Any]:
    """Returns the newest status report that the job's supervisor wrote."""
    found = max(
        (folder.parent / ".status").glob(f"{folder.name}-*.json"), key=lambda path: path.stat().st_mtime
    )
    report: dict[str, Any] = json.loads(found.read_text())
    return report


def wait_for_beats(folder: Path, count: int = 2) -> None:
    """Waits for `count` heartbeats of the job's supervisor, which reads its files again between heartbeats.

    Raises AssertionError if the supervisor hangs.
    """
    for _ in range(count):
        before = _beaten(folder)
        wait_for(
            partial(_has_beaten_since, folder, before),
            seconds=SOON,
            what="the supervisor hangs",
        )


def _has_beaten_since(folder: Path, before: int | None) -> bool:
    return _beaten(folder) not in {None, before}


def _beaten(folder: Path) -> int | None:
    """Returns the modification time of the supervisor's heartbeat file in nanoseconds; None while the file does not
    exist."""
    try:
        return (folder.parent / ".beats" / f"{folder.name}.json").stat().st_mtime_ns
    except FileNotFoundError:
        return None


PROGRESS = {
    "FIFO": 'mkfifo "$P"',
    "folder": 'mkdir "$P"',
    "link": 'ln -s /proc/uptime "$P"',
    "endless file": 'truncate -s 4T "$P"',
    "device": 'ln -s /dev/zero "$P"',
}


@attack("a FIFO, folder, link or endless file as progress file holds a GPU")
def progress_file(target: Target) -> None:
    turns = "; ".join(f'rm -rf "$P"; {make}; sleep 2.5' for make in PROGRESS.values())
    bob, number, folder = begin(target, f'P="$FAIRLOT_PROGRESS"; {turns}; rm -rf "$P"; mkfifo "$P"; {WAIT}')
    wait_for_beats(folder)
    told = bob.job(number)["steps_done"]
    end(bob, number)
    assert not told, f"steps were read from elsewhere: {told}"


def _link(log: Path, mine: Path) -> None:
    log.symlink_to("/etc/passwd")


def _hard_link(log: Path, mine: Path) -> None:
    mine.write_text(f"{LINE} of somebody else\n")
    log.hardlink_to(mine)


def _fifo(log: Path, mine: Path) -> None:
    os.mkfifo(log)


def _folder(log: Path, mine: Path) -> None:
    log.mkdir()


def _device(log: Path, mine: Path) -> None:
    log.symlink_to("/dev/zero")


PUT: tuple[Callable[[Path, Path], None], ...] = (_link, _hard_link, _fifo, _folder, _device)


def read_in_all_ways(bob: Person, number: int, rank: object = 0) -> str:
    """Reads the log of worker `rank` through every page and API call of the portal. Returns all answers as one text.

    Raises AssertionError for an HTTP status of 500 or more.
    """
    said = ""
    job, api = f"/jobs/{number}", f"/api/v1/jobs/{number}/log"
    for path in (
        f"{job}/log/?rank={rank}", f"{job}/log/piece?rank={rank}&end=100", f"{job}/log/search?rank={rank}&q=root",
        f"{job}/log/search?rank={rank}&q=root&from=99999999999999999", f"{job}/log/raw?rank={rank}",
        f"{api}?rank={rank}", f"{api}?rank={rank}&offset={2**63 - 1}",
    ):  # fmt: skip
        answer = bob.get(path)
        assert answer.status_code < 500, f"{path} answered {answer.status_code}"
        said += answer.text
    with bob.http.stream("GET", f"{job}/log/stream?rank={rank}") as stream:
        assert stream.status_code < 500, f"the stream answered {stream.status_code}"
        for line in stream.iter_lines():
            said += line
            if line.startswith("data:"):
                break
    return said


@attack("a link, FIFO, folder or device as log serves another's file or breaks its reader")
def log_file(target: Target) -> None:
    spoil = 'cd "$FAIRLOT_CHECKPOINT_DIR/../logs" && rm -f rank-0.log && ln -s /etc/passwd rank-0.log'
    bob, number, folder = begin(target, f"echo root; ({spoil}); {WAIT}")
    assert LINE not in read_in_all_ways(bob, number), "a link as log served /etc/passwd"
    # The job may be unable to write to its log folder, where jobs of earlier releases may have left such files.
    log, mine = folder / "logs" / "rank-0.log", target.var / "another's file"
    for put in PUT:
        log.unlink() if not log.is_dir() else log.rmdir()
        put(log, mine)
        said = read_in_all_ways(bob, number)
        assert LINE not in said, f"{put.__name__} served another's file"
        assert "The log cannot be read" in said, f"{put.__name__}: nothing says why the log is empty"
    for name in ("rank-x.log", "rank-7.log", "rank-\u0661.log", "rank-99999999999999999999.log"):
        (folder / "logs" / name).symlink_to("/etc/passwd")
        assert LINE not in read_in_all_ways(bob, number, name[5:-4]), f"{name} served another's file"
    wait_for_beats(folder)
    mine.unlink(missing_ok=True)
    end(bob, number)


@attack("a search of a sparse log of 4 TB goes on for ever")
def sparse_log(target: Target) -> None:
    bob, number, folder = begin(target, WAIT)
    os.truncate(folder / "logs" / "rank-0.log", 4 << 40)
    begun = time.monotonic()
    found = bob.get(f"/jobs/{number}/log/search?q=nowhere")
    assert found.status_code == 200, found.text
    assert time.monotonic() - begun < SOON, "one search took longer than a minute"
    with bob.http.stream("GET", f"/jobs/{number}/log/raw") as raw:
        assert int(raw.headers["content-length"]) < 1 << 30, "a download of terabytes was begun"
    end(bob, number)


@attack("a job puts FIFOs and links in the place of its supervisor's files")
def supervisors_files(target: Target) -> None:
    names = "gang.json desired.json .desired.json.new poke supervisor.log orders.lock"
    spoil = f'cd "$FAIRLOT_CHECKPOINT_DIR/.." && for f in {names}; do rm -f $f; mkfifo $f; done'
    bob, number, folder = begin(target, f"({spoil}); {WAIT}")
    wait_for_beats(folder)
    end(bob, number)


@attack("a job stops its supervisor and keeps its GPU")
def stopped_supervisor(target: Target) -> None:
    bob, number, folder = begin(target, f"{IN_PLACE}; kill -STOP $PPID; exec sleep 3600")
    status = status_of(folder)
    supervisor = processes.look(status["supervisor"][0])
    assert supervisor is not None
    processes.send(supervisor, signal.SIGSTOP)  # done on behalf of the job, which may not always do so itself
    wait_for(
        lambda: (
            not processes.is_alive(supervisor.pid, supervisor.start)
            and not processes.marked(status["marker"])
        ),
        seconds=SOON,
        what="a supervisor that hangs keeps its job's GPU",
    )
    end(bob, number)


@attack("a cancelled job lives on as its supervisor was stopped")
def cancel_with_stopped_supervisor(target: Target) -> None:
    bob, number, folder = begin(target, WAIT)
    status = status_of(folder)
    os.kill(status["supervisor"][0], signal.SIGSTOP)
    end(bob, number)
    assert not processes.marked(status["marker"]), "its processes live on"


@attack("a deep tree of temporary files breaks the supervisor")
def deep_tree(target: Target) -> None:
    deep = (
        'python3 -c \'import os\nfor _ in range(3000):\n os.mkdir("d")\n os.chdir("d")\' && echo deep || true'
    )
    bob, number, folder = begin(target, f'(cd "$TMPDIR" && {deep}); {WAIT}')
    supervisor = status_of(folder)["supervisor"]
    end(bob, number)
    wait_for(lambda: not processes.is_alive(*supervisor), seconds=SOON, what="the supervisor's end")
    log = folder / "supervisor.log"
    said = log.read_text() if log.exists() else ""
    assert "Traceback" not in said, said[-2000:]
