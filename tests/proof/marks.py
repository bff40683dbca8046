"""Finds the processes of one portal's jobs by environment variables that only workers of jobs have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class JobProcess:
    """A living process of a job's worker. `group` is the id of its process group.

    `start` is the start time of the process, which distinguishes it from a later process with the same pid.
    """

    pid: int
    start: int
    group: int
    job: int
    epoch: int
    rank: int


def job_processes(jobs_dir: str | Path) -> list[JobProcess]:
    """Returns all living processes whose FAIRLOT_CHECKPOINT_DIR is below `jobs_dir`."""
    return list(_found(f"FAIRLOT_CHECKPOINT_DIR={jobs_dir}/".encode()))


def is_alive(process: JobProcess) -> bool:
    stat = _stat(Path("/proc") / str(process.pid))
    return stat is not None and stat[1] == process.start


def _found(mark: bytes) -> Iterator[JobProcess]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environ = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # the process ended meanwhile, or belongs to another user and so to no job of this portal
        stat = _stat(entry)
        if stat is None or not any(item.startswith(mark) for item in environ):
            continue
        facts = dict(item.split(b"=", 1) for item in environ if b"=" in item)
        yield JobProcess(
            pid=int(entry.name),
            start=stat[1],
            group=stat[0],
            job=int(facts[b"FAIRLOT_JOB_ID"]),
            epoch=int(facts[b"FAIRLOT_EPOCH"]),
            rank=int(facts[b"FAIRLOT_RANK"]),
        )


def _stat(entry: Path) -> tuple[int, int] | None:
    """Returns (process group, start time) of a process from its folder in /proc; None if it has ended or is a
    zombie."""
    try:
        fields = (entry / "stat").read_bytes().rsplit(b")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in b"ZX" else (int(fields[2]), int(fields[19]))
