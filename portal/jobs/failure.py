"""Summarises why a job failed: the last lines of its log, and the meaning of its exit code."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from scheduling.backends.base import BackendError
from scheduling.clusters.backend_factory import backend_for
from scheduling.core.event_texts import end_text_of
from scheduling.models import Job

MOST_BYTES, MOST_LINES = 4096, 20
MOST_CHARACTERS = 200  # of the last line, where one line says why a job failed
RANKS = 4  # of these workers, the first whose log is not empty is shown
# Terminal escape sequences (colours, cursor, title), and characters that hide text or reverse its direction.
COMMANDS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x07|\x1b\\|$)|[ -/]*[0-~])", re.DOTALL)
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
MEANINGS = {
    126: (
        "A program was found but cannot run: it is not executable, or it was built for another "
        "kind of machine."
    ),
    127: (
        "A program was not found. Check the program names in the command, and that the environment "
        "or image contains them."
    ),
    128 + signal.SIGINT: "The program was interrupted (SIGINT).",
    128 + signal.SIGILL: "The program used an instruction that this processor does not have (SIGILL).",
    128 + signal.SIGABRT: "The program aborted itself (SIGABRT), as native code does after a failed check.",
    128 + signal.SIGBUS: (
        "The program lost access to its memory (SIGBUS), often because shared memory is too small. "
        "Set a larger shm for the job."
    ),
    128
    + signal.SIGFPE: "The program made an arithmetic error in native code, such as a division by zero (SIGFPE).",
    128 + signal.SIGKILL: (
        "The program was killed (SIGKILL), usually because memory ran out. Give the job more memory, or use less."
    ),
    128 + signal.SIGSEGV: (
        "The program used memory that does not belong to it (SIGSEGV), a fault in native code or "
        "in a library."
    ),
    128 + signal.SIGPIPE: "The program wrote to a pipe or connection that nobody reads any more (SIGPIPE).",
    128 + signal.SIGTERM: "The program was ended from outside (SIGTERM).",
}


@dataclass(frozen=True)
class Failure:
    """The end of a program's log, and what its exit code means."""

    meaning: str  # what the exit code means; empty if the code has no common meaning
    worker: str  # the name of the worker whose log it is: its rank, or the name of its role and a number
    lines: list[str]


def failure_of(job: Job) -> Failure | None:
    """Returns the summary of why a job failed; None if the job did not fail.

    A service replica that exits with code 0 has also failed, because a replica should run without end.
    """
    is_over = job.kind == Job.Kind.REPLICA and job.state == Job.State.SUCCEEDED
    return log_end_of(job) if job.state == Job.State.FAILED or is_over else None


def log_end_of(job: Job) -> Failure:
    """Returns the last lines of the log of a job in any state.

    The exit code of a job that Fairlot ended has no meaning, because Fairlot's signals caused it.
    """
    names = job.worker_names
    rank, lines = _last_lines(job, range(min(len(names), RANKS)))
    ended_by_itself = job.state in (Job.State.FAILED, Job.State.SUCCEEDED)
    meaning = meaning_of(job.exit_code) if ended_by_itself else ""
    return Failure(meaning, names[rank] if lines else "", lines)


def cause_of(job: Job) -> str:
    """Returns in one line why a job failed: why Fairlot ended it, otherwise the last line of its log, otherwise the
    meaning of its exit code or the backend's message.

    Needs no query if `job` has its cluster and spec, so lists can show it.
    """
    if job.end_code:
        return end_text_of(job)
    _, lines = _last_lines(job, range(RANKS))
    return lines[-1][:MOST_CHARACTERS] if lines else meaning_of(job.exit_code) or end_text_of(job)


def meaning_of(code: int | None) -> str:
    """Returns the meaning of an exit code by the shell's convention; "" if the convention does not define the code."""
    if code is None or code in MEANINGS:
        return MEANINGS.get(code or 0, "")
    try:
        return f"The program was ended by the signal {signal.Signals(code - 128).name}." if code > 128 else ""
    except ValueError:
        return ""


def readable(data: bytes) -> list[str]:
    """Returns the last lines of a program's output as plain text.

    A line that the program overwrote, for example a progress bar, appears only in its last state.
    """
    text = COMMANDS.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n")
    lines = [CONTROLS.sub("", line.rstrip("\r").rpartition("\r")[2]).rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines[-MOST_LINES:]


def _last_lines(job: Job, ranks: range) -> tuple[int, list[str]]:
    """Returns the rank of the first worker whose log has lines, and the last lines of this log.

    Reads only the logs of `ranks`, and before them that of the worker that stands for the job. Returns (0, []) if none
    of them has lines, or if a log cannot be read.
    """
    if job.first_started_at is None or job.files_removed_at is not None:
        return 0, []
    try:
        backend = backend_for(job.cluster)
        for rank in dict.fromkeys([job.leading_rank, *ranks]):
            size = backend.log_size(job_id=job.pk, rank=rank)
            begin = max(0, size - MOST_BYTES)
            data = backend.read_log(job_id=job.pk, rank=rank, offset=begin, limit=MOST_BYTES).data
            cut = data.find(b"\n") + 1 if begin else 0  # start of the first whole line
            if lines := readable(data[cut:]):
                return rank, lines
    except (BackendError, OSError):  # the page of the log says why
        pass
    return 0, []
