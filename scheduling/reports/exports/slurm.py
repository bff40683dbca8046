"""Writes exported jobs in the format of `TZ=UTC sacct --parsable2`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from accounting.core.texts import one_line
from scheduling.backends.base import End
from scheduling.models import Job
from scheduling.reports.exports.reading import Attempt, ExportedJob

SACCT = (
    "JobID", "JobIDRaw", "JobName", "User", "Account", "Cluster", "Partition", "QOS", "State", "Submit", "Eligible",
    "Start", "End", "Elapsed", "ElapsedRaw", "ReqTRES", "AllocTRES", "NNodes", "NTasks", "NodeList", "ExitCode",
    "Priority", "Restarts",
)  # fmt: skip
# The fields that XDMoD's `xdmod-slurm-helper` requests from sacct with --duplicates, which gives one line per attempt.
SHREDDER = (
    "JobID", "JobIDRaw", "Cluster", "Partition", "QOS", "Account", "Group", "GID", "User", "UID", "Submit", "Eligible",
    "Start", "End", "Elapsed", "ExitCode", "State", "NNodes", "NCPUS", "ReqCPUS", "ReqMem", "ReqTRES", "AllocTRES",
    "Timelimit", "NodeList", "JobName",
)  # fmt: skip
J = Job.State
# A suspended job is PENDING, as after a requeue in Slurm, because it holds no GPUs; a job that is SUSPENDED in Slurm
# keeps them.
STATES = {
    J.QUEUED: "PENDING",
    J.SUSPENDED: "PENDING",
    J.STARTING: "RUNNING",
    J.RUNNING: "RUNNING",
    J.STOPPING: "RUNNING",
    J.CANCELLING: "RUNNING",
    J.SUCCEEDED: "COMPLETED",
    J.FAILED: "FAILED",
    J.CANCELLED: "CANCELLED",
}
ATTEMPT_STATES = {
    str(End.SUCCEEDED): "COMPLETED",
    str(End.FAILED): "FAILED",
    str(End.START_FAILED): "FAILED",
    str(End.LOST): "NODE_FAIL",
    str(End.DELETED): "CANCELLED",
}
UNKNOWN, NO_NODES = "Unknown", "None assigned"


def sacct_head() -> str:
    return "|".join(SACCT) + "\n"


def sacct_lines(exported: ExportedJob, now: datetime, generations: Mapping[int, str]) -> list[str]:
    """Returns the lines of a job: a job line and a step line JOB.EPOCH for each attempt.

    Job lines are like those that `sacct --duplicates` prints for a requeued job. A job that waits, or that ended while
    it waited, has one more line.
    """
    lines = []
    for attempt in exported.attempts:
        line = _of_attempt(exported, attempt, now, generations) | {"Restarts": str(attempt.number - 1)}
        step = f"{exported.job.pk}.{attempt.lease.epoch}"
        lines += [_line(SACCT, line), _line(SACCT, line | {"JobID": step, "JobIDRaw": step})]
    if not exported.attempts or _waits_after(exported, exported.attempts[-1]):
        lines.append(_line(SACCT, _without_gpus(exported, now, generations)))
    return lines


def shredder_line(exported: ExportedJob, now: datetime, generations: Mapping[int, str]) -> str:
    """Returns the line for the only attempt in `exported`.

    If the job has an earlier attempt, the submit time in the line is the end of that attempt, as sacct prints for a
    requeued job.
    """
    (attempt,) = exported.attempts
    return _line(SHREDDER, _of_attempt(exported, attempt, now, generations))


def job_state(exported: ExportedJob) -> str:
    if exported.state == J.FAILED and exported.job.end_reason == End.LOST:
        return "NODE_FAIL"
    return STATES[Job.State(exported.state)]


def attempt_state(exported: ExportedJob, attempt: Attempt) -> str:
    """Returns the Slurm state of an attempt: RUNNING, or a state that corresponds to the reason of its end.

    An attempt that was stopped is PREEMPTED, or CANCELLED if it was the last one of a cancelled job.
    """
    if attempt.held.goes_on:
        return "RUNNING"
    stopped = "CANCELLED" if exported.state == J.CANCELLED and attempt.is_last else "PREEMPTED"
    return ATTEMPT_STATES.get(attempt.lease.end_reason, stopped)


def _waits_after(exported: ExportedJob, last: Attempt) -> bool:
    """Returns whether the job needs one more line, because it waited after its last attempt.

    This is the case if it still waits, or if it was cancelled while it waited.
    """
    if exported.there.goes_on:
        return not last.held.goes_on
    return exported.state == J.CANCELLED and attempt_state(exported, last) != "CANCELLED"


def _of_attempt(
    exported: ExportedJob, attempt: Attempt, now: datetime, generations: Mapping[int, str]
) -> dict[str, str]:
    times = _times(attempt.waits_since, attempt.held.begins, attempt.held.ends, now)
    return _common(exported, attempt, attempt_state(exported, attempt), generations) | times


def _without_gpus(exported: ExportedJob, now: datetime, generations: Mapping[int, str]) -> dict[str, str]:
    """Returns the columns of the line for the time in which a job waits, or waited until it ended."""
    ended = None if exported.there.goes_on else exported.there.ends
    times = _times(exported.waits_since, None, ended, now)
    return (
        _common(exported, None, job_state(exported), generations)
        | times
        | {"Restarts": str(exported.attempts_over)}
    )


def _common(
    exported: ExportedJob, attempt: Attempt | None, state: str, generations: Mapping[int, str]
) -> dict[str, str]:
    job = exported.job
    ended = exported.state in Job.ENDED and (attempt is None or attempt.is_last)
    # One CPU per worker if the spec gives no number, because XDMoD warns of jobs without CPUs.
    cpus = str(math.ceil(round(job.workers * (exported.cpu or 1), 6)))
    return {
        "JobID": str(job.pk),
        "JobIDRaw": str(job.pk),
        "JobName": exported.name,
        "User": exported.user,
        "UID": str(exported.user_number),
        "Group": exported.account,
        "GID": str(exported.account_number),
        "Account": exported.account,
        "Cluster": job.cluster.name,
        "Partition": attempt.lease.generation.name if attempt else _wanted(job, generations) or "any",
        "QOS": "preemptible" if job.preemptible else job.kind,
        "State": state,
        "ReqTRES": _tres(job, _wanted(job, generations), job.workers),
        "AllocTRES": _tres(job, attempt.lease.generation.name, len(attempt.nodes)) if attempt else "",
        "NNodes": str(len(attempt.nodes) if attempt else job.workers),
        "NTasks": str(job.workers),
        "NodeList": ",".join(attempt.nodes) if attempt and attempt.nodes else NO_NODES,
        "ExitCode": _exit_code(job) if ended else "0:0",
        "Priority": str(job.priority),
        "NCPUS": cpus,
        "ReqCPUS": cpus,
    }


def _times(submit: datetime, start: datetime | None, end: datetime | None, now: datetime) -> dict[str, str]:
    """Returns the time columns. Elapsed is the end minus the start, after both are rounded down to whole seconds."""
    # Rounding before subtracting keeps sums exact if an attempt is exported in several periods.
    seconds = 0 if start is None else max(_second(end or now) - _second(start), 0)
    return {
        "Submit": _moment(submit),
        "Eligible": _moment(submit),
        "Start": _moment(start),
        "End": _moment(end),
        "Elapsed": elapsed(seconds),
        "ElapsedRaw": str(seconds),
    }


def _second(at: datetime) -> int:
    """Returns the time as a Unix time in whole seconds, rounded down as in `_moment`."""
    return int(at.replace(microsecond=0).timestamp())


def elapsed(seconds: int) -> str:
    """Returns the duration as [DD-]HH:MM:SS."""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def _moment(at: datetime | None) -> str:
    """Returns the time in UTC to the second, in sacct's format; "Unknown" for None."""
    return UNKNOWN if at is None else f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"


def _wanted(job: Job, generations: Mapping[int, str]) -> str:
    """Returns the name of the generation that the job accepts; an empty text if the job accepts several."""
    return generations.get(job.generation_ids[0], "") if len(job.generation_ids) == 1 else ""


def _tres(job: Job, generation: str, nodes: int) -> str:
    parts = [f"gres/gpu={job.gpus}"]
    if generation:
        parts.append(f"gres/gpu:{_token(generation)}={job.gpus}")
    return ",".join([*parts, f"node={nodes}"])


def _token(name: str) -> str:
    """Returns the name of a GPU type in Slurm's form: in lower case, without characters that separate items of
    lists."""
    return re.sub(r"[^a-z0-9_.-]+", "_", name.lower())


def _exit_code(job: Job) -> str:
    """Returns the exit code in Slurm's form CODE:SIGNAL.

    Shells report an exit code of 128 + N if signal N ended the program. Such a code is returned as "0:N".
    """
    code = job.exit_code or 0
    return f"0:{code - 128}" if 128 < code < 128 + 65 else f"{code}:0"


def _line(names: Sequence[str], values: Mapping[str, str]) -> str:
    return "|".join(_harmless(values.get(name, "")) for name in names) + "\n"


def _harmless(value: str) -> str:
    """Returns the value without line breaks and without "|", so that it stays one column on one line."""
    return one_line(value).replace("|", " ")
