"""Reports on leases: reads the reports of supervisors, and writes the last report when no supervisor can."""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import Any
from uuid import UUID

from scheduling.backends.base import ClusterEvent, End, Observation, Phase
from scheduling.backends.local import processes, secret_files
from scheduling.backends.local.files import Busy, JobFiles, read_json, write_json

logger = logging.getLogger(__name__)

LAUNCH_SECONDS = 30.0  # until a supervisor's first heartbeat; long enough for a machine that swaps
KILL_SECONDS = 1.0  # until processes have ended after SIGKILL; only a blocked system call takes longer


def observation(files: JobFiles, status: dict[str, Any]) -> Observation:
    """Converts a report to an Observation. If the gang has not ended, adds the data of the supervisor's last
    heartbeat."""
    beat = files.last_beat(status["epoch"]) if status["phase"] != "ended" else {}

    def age_of(key: str) -> float | None:
        moment = beat.get(key) or status.get(key)
        return None if moment is None else processes.age(tuple(moment))

    ended_age = age_of("ended_at")
    seen_age = ended_age if ended_age is not None else age_of("at") or age_of("ordered_at") or 0.0
    return Observation(
        job_id=status["job_id"],
        epoch=status["epoch"],
        token=UUID(status["token"]),
        phase=Phase(status["phase"]),
        running_age=age_of("running_at"),
        frozen_age=age_of("frozen_at"),
        seen_age=seen_age,
        ended_age=ended_age,
        end=End(status["end"]) if status.get("end") else None,
        exit_code=status.get("exit_code"),
        message=status.get("message", ""),
        steps=beat.get("steps", status.get("steps")),
        steps_age=age_of("steps_at"),
        ready_age=age_of("ready_at"),
        address=status.get("address", ""),
        why_not_ready=status.get("why_not_ready", ""),
        resumed_from=status.get("resumed_from", ""),
    )


def cluster_events(status: dict[str, Any]) -> list[ClusterEvent]:
    """Returns one event for each log that the supervisor could not write, with the reason, and one that says whether
    the attempt's environment was installed or reused."""
    return _environment_event(status) + [
        ClusterEvent(
            source=f"log {status['job_id']}-{status['epoch']}-{rank}",
            job_id=status["job_id"],
            epoch=status["epoch"],
            text=f"The log of worker {rank} cannot be written ({why}). The job continues.",
            age=processes.age(tuple(since)),
        )
        for rank, (why, since) in status.get("log_troubles", {}).items()
    ]


def _environment_event(status: dict[str, Any]) -> list[ClusterEvent]:
    packages = status.get("packages")
    if packages is None:
        return []
    made = packages["made"]
    return [
        ClusterEvent(
            source=f"packages {status['job_id']}-{status['epoch']}",
            job_id=status["job_id"],
            epoch=status["epoch"],
            text="The environment with the requirements was reused."
            if made is None
            else f"The environment with the requirements was made in {made:g} s.",
            age=processes.age(tuple(packages["at"])),
        )
    ]


def settle(files: JobFiles, status: dict[str, Any]) -> dict[str, Any]:
    """Returns the gang's current report. `status` is the report as it was read from its file.

    If the supervisor vanished without reporting the gang's end, first ends the gang.
    """
    if status["phase"] == "ended":
        return status
    if status["supervisor"]:
        if processes.is_alive(*status["supervisor"]) and status["ordered_at"][0] == processes.boot_id():
            return status
    elif processes.age(status["ordered_at"]) < LAUNCH_SECONDS:
        return status
    try:
        with files.orders_lock(0):
            run_lock = files.open_run_lock()
            if run_lock is None:
                return status
            try:
                status = read_json(files.status(status["epoch"])) or status
                if status["phase"] != "ended":
                    end_leftovers(files, status)
                    status = read_json(files.status(status["epoch"])) or status
            finally:
                os.close(run_lock)
    except Busy:
        return status  # another process ends the gang now; the next observation shows the result
    return status


def kill_hung(files: JobFiles, status: dict[str, Any], *, why: str) -> None:
    """Kills the hanging supervisor of the gang with the report `status`, and all descendants of the supervisor. Reports
    the gang's end with the reason `why`.

    Returns after KILL_SECONDS even if some processes have survived SIGKILL. The next call then tries again.
    """
    logger.error("job %s, epoch %s: %s", files.job_id, status["epoch"], why)
    supervisors = [processes.look(status["supervisor"][0])] if status["supervisor"] else launched(files)
    for supervisor in supervisors:
        if supervisor is None or (status["supervisor"] and supervisor.start != status["supervisor"][1]):
            continue
        # The supervisor is stopped first. While it lives, even detached processes of its job remain its descendants.
        processes.send(supervisor, signal.SIGSTOP)
        deadline = time.monotonic() + KILL_SECONDS
        while left := [each for each in processes.descendants(supervisor.pid) if each.state not in "ZX"]:
            processes.kill(left)
            # A killed first process of a PID namespace ends only after the other processes of its namespace were
            # reaped. Only the supervisor, which is stopped, can reap some of them.
            others = [each for each in left if not processes.is_namespace_init(each.pid)]
            if not others:  # only first processes of PID namespaces are left, which end with the supervisor
                break
            processes.wait_for_end(others, max(0.0, deadline - time.monotonic()))
            if time.monotonic() > deadline:
                return
        processes.send(supervisor, signal.SIGKILL)
        processes.wait_for_end([supervisor, *left], KILL_SECONDS)
    try:
        with files.orders_lock(KILL_SECONDS):
            now = read_json(files.status(status["epoch"]))
            if now is not None and now["phase"] != "ended":
                # Does not need the run lock, which the kernel may release late.
                end_leftovers(files, now, why=why)
    except Busy:
        return


def launched(files: JobFiles) -> list[processes.Process]:
    """Returns the supervisors of a job, including one that has not reported its pid yet. Finds them by their command
    line."""
    return processes.with_arguments("shim.py", ("start", "go-on"), str(files.root), str(files.job_id))


def terminate(files: JobFiles, epoch: int, token: str) -> bool:
    """Sends SIGTERM to the supervisor of the lease that `epoch` and `token` identify. The supervisor then ends its gang
    with the gang's grace period.

    Returns False if the lease has no running supervisor, otherwise True.
    """
    status = read_json(files.status(epoch))
    if status is None or status["token"] != token or status["phase"] == "ended" or not status["supervisor"]:
        return False
    supervisor = processes.look(status["supervisor"][0])
    if supervisor is None or supervisor.start != status["supervisor"][1]:
        return False
    processes.send(supervisor, signal.SIGTERM)
    return True


def end_leftovers(files: JobFiles, status: dict[str, Any], *, why: str = "") -> bool:
    """Kills the processes that a vanished supervisor left, and reports the gang's end with the reason `why`. If some of
    the processes survive, writes no report. Returns whether the report was written.

    If `why` is "", the reason is one of these: the supervisor did not start, the supervisor was killed, or the machine
    was restarted.

    The caller must hold the orders lock and the run lock, so that no supervisor can start. A caller that has just
    killed the supervisor needs only the orders lock.
    """
    epoch, token = status["epoch"], status["token"]
    if not status["supervisor"]:
        finish(files, epoch, token, End.START_FAILED, why or "the supervisor of the job did not start")
        return True
    beat = files.last_beat(epoch)
    same_boot = status["ordered_at"][0] == processes.boot_id()
    if same_boot and (left := processes.marked(status["marker"], beat.get("processes", ()))):
        processes.kill(left)
        processes.wait_for_end(left, KILL_SECONDS)
        if processes.marked(status["marker"], beat.get("processes", ())):
            return False
    why = why or ("the supervisor of the job was killed" if same_boot else "the machine was restarted")
    seen = {key: beat[key] for key in ("steps", "steps_at") if key in beat}
    last = beat.get("at") or status.get("running_at") or status["ordered_at"]
    finish(files, epoch, token, End.LOST, why, **seen, ended_at=last)
    return True


def finish(files: JobFiles, epoch: int, token: str, end: End, message: str, **more: Any) -> None:
    """Writes the last report of an attempt that has no supervisor. Also deletes the job's secrets of this and earlier
    attempts.

    `epoch` and `token` identify the attempt's lease. `end` and `message` say how and why the attempt ended. `more`
    contains further fields of the report.
    """
    secret_files.delete(files, epoch)
    now = processes.stamp()
    status = read_json(files.status(epoch)) or {"ordered_at": now}
    status |= {"job_id": files.job_id, "epoch": epoch, "token": token, "supervisor": None}
    status |= {"phase": "ended", "ended_at": now, "end": str(end), "message": message, **more}
    write_json(files.status(epoch), status)
