"""Jobs in Slurm's words, as `TZ=UTC sacct --parsable2` has them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from accounting.texts import one_line
from scheduling.backends.base import End
from scheduling.exports.reading import Told, Turn
from scheduling.models import Job, Lease

SACCT = (
    "JobID", "JobIDRaw", "JobName", "User", "Account", "Cluster", "Partition", "QOS", "State", "Submit", "Eligible",
    "Start", "End", "Elapsed", "ElapsedRaw", "ReqTRES", "AllocTRES", "NNodes", "NTasks", "NodeList", "ExitCode",
    "Priority", "Restarts",
)  # fmt: skip
# As XDMoD's shredder asks sacct for them (`xdmod-slurm-helper`, --duplicates): a line for each turn of a job.
SHREDDER = (
    "JobID", "JobIDRaw", "Cluster", "Partition", "QOS", "Account", "Group", "GID", "User", "UID", "Submit", "Eligible",
    "Start", "End", "Elapsed", "ExitCode", "State", "NNodes", "NCPUS", "ReqCPUS", "ReqMem", "ReqTRES", "AllocTRES",
    "Timelimit", "NodeList", "JobName",
)  # fmt: skip
J = Job.State
# A job between two turns holds nothing: in Slurm it would have been requeued, and SUSPENDED keeps its GPUs there.
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
TURN_STATES = {
    str(End.SUCCEEDED): "COMPLETED",
    "exit": "COMPLETED",
    str(End.FAILED): "FAILED",
    str(End.START_FAILED): "FAILED",
    str(End.LOST): "NODE_FAIL",
    str(End.DELETED): "CANCELLED",
}
UNKNOWN, NO_NODES = "Unknown", "None assigned"


def sacct_head() -> str:
    return "|".join(SACCT) + "\n"


def sacct_lines(told: Told, now: datetime, generations: Mapping[int, str]) -> list[str]:
    """The job's line and one for each of its turns, as steps named JOB.TURN."""
    job, last = told.job, told.turns[-1] if told.turns else None
    ran = sum((_lasted(turn.lease, now) for turn in told.turns), timedelta())
    whole = _common(told, last, job_state(job), generations) | _times(
        job.created_at, job.first_started_at, job.ended_at, ran
    )
    lines = [_line(SACCT, whole | {"Restarts": str(max(len(told.turns) - 1, 0))})]
    for turn in told.turns:
        number = f"{job.pk}.{turn.lease.epoch}"
        lines.append(
            _line(SACCT, _of_turn(told, turn, now, generations) | {"JobID": number, "JobIDRaw": number})
        )
    return lines


def shredder_line(told: Told, now: datetime, generations: Mapping[int, str]) -> str:
    """One turn as sacct shows a job that was requeued: from the end of the turn before it waited for its start."""
    (turn,) = told.turns
    return _line(SHREDDER, _of_turn(told, turn, now, generations))


def job_state(job: Job) -> str:
    if job.state == J.FAILED and job.end_reason == End.LOST:
        return "NODE_FAIL"
    return STATES[Job.State(job.state)]


def turn_state(lease: Lease, job: Job) -> str:
    """Of an open one, what it does; of a closed one, why it ended."""
    if lease.state != Lease.State.CLOSED:
        return "RUNNING"
    if lease.end_reason in TURN_STATES:
        return TURN_STATES[lease.end_reason]
    return "CANCELLED" if job.state == J.CANCELLED and lease.epoch == job.epoch else "PREEMPTED"


def _of_turn(told: Told, turn: Turn, now: datetime, generations: Mapping[int, str]) -> dict[str, str]:
    lease = turn.lease
    return _common(told, turn, turn_state(lease, told.job), generations) | _times(
        turn.waits_since, lease.held_from, lease.held_until, _lasted(lease, now)
    )


def _common(told: Told, turn: Turn | None, state: str, generations: Mapping[int, str]) -> dict[str, str]:
    job = told.job
    ended = job.state in Job.ENDED and (turn is None or turn.lease.epoch == job.epoch)
    return {
        "JobID": str(job.pk),
        "JobIDRaw": str(job.pk),
        "JobName": told.name,
        "User": told.user,
        "UID": str(told.user_number),
        "Group": told.account,
        "GID": str(told.account_number),
        "Account": told.account,
        "Cluster": job.cluster.name,
        "Partition": turn.lease.generation.name if turn else _wanted(job, generations) or "any",
        "QOS": "only_idle" if job.only_idle else job.kind,
        "State": state,
        "ReqTRES": _tres(job, _wanted(job, generations), job.workers),
        "AllocTRES": _tres(job, turn.lease.generation.name, len(turn.nodes)) if turn else "",
        "NNodes": str(len(turn.nodes) if turn else job.workers),
        "NTasks": str(job.workers),
        "NodeList": ",".join(turn.nodes) if turn and turn.nodes else NO_NODES,
        "ExitCode": _exit_code(job) if ended else "0:0",
        "Priority": str(job.priority),
        # What Fairlot does not know, and the shredder wants as numbers.
        "NCPUS": "0",
        "ReqCPUS": "0",
    }


def _times(submit: datetime, start: datetime | None, end: datetime | None, ran: timedelta) -> dict[str, str]:
    seconds = round(ran.total_seconds())
    return {
        "Submit": _moment(submit),
        "Eligible": _moment(submit),
        "Start": _moment(start),
        "End": _moment(end),
        "Elapsed": elapsed(seconds),
        "ElapsedRaw": str(seconds),
    }


def _lasted(lease: Lease, now: datetime) -> timedelta:
    return max((lease.held_until or now) - (lease.held_from or now), timedelta())


def elapsed(seconds: int) -> str:
    """[DD-]HH:MM:SS"""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def _moment(at: datetime | None) -> str:
    """To the second, in UTC, as sacct says it with TZ=UTC."""
    return UNKNOWN if at is None else f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"


def _wanted(job: Job, generations: Mapping[int, str]) -> str:
    """The one generation that the job accepts; empty where it accepts several."""
    return generations.get(job.generation_ids[0], "") if len(job.generation_ids) == 1 else ""


def _tres(job: Job, generation: str, nodes: int) -> str:
    parts = [f"gres/gpu={job.gpus}"]
    if generation:
        parts.append(f"gres/gpu:{_token(generation)}={job.gpus}")
    return ",".join([*parts, f"node={nodes}"])


def _token(name: str) -> str:
    """A type of GPU as Slurm writes it: lower case, and nothing that parts a list."""
    return re.sub(r"[^a-z0-9_.-]+", "_", name.lower())


def _exit_code(job: Job) -> str:
    """CODE:SIGNAL. What a shell calls 128 + N was ended by signal N."""
    code = job.exit_code or 0
    return f"0:{code - 128}" if 128 < code < 128 + 65 else f"{code}:0"


def _line(names: Sequence[str], values: Mapping[str, str]) -> str:
    return "|".join(_harmless(values.get(name, "")) for name in names) + "\n"


def _harmless(value: str) -> str:
    """The value without what looks like the end of it, or of its line."""
    return one_line(value).replace("|", " ")
