"""Follows a job: writes its log as it grows, and says on stderr what the job waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlot_client.cli.app import App, talk
from fairlot_client.cli.finding import ENDED

if TYPE_CHECKING:
    from fairlot_client.answers import JobInFull

SHORTEST, LONGEST = 0.5, 5.0  # seconds between two looks


def write_log(app: App, job: int, rank: int) -> None:
    """Writes the log of one worker as far as it exists."""
    offset = 0
    while True:
        piece = app.client.read_job_log(job, rank=rank, offset=offset)
        click.echo(piece["text"], nl=False)
        if piece["complete"] or piece["next_offset"] == offset:
            return
        offset = piece["next_offset"]


def follow_log(app: App, job: int, rank: int) -> None:
    """Writes the log of one worker until the job has ended and the log is complete."""
    offset, pause, said = 0, SHORTEST, ""
    while True:
        piece = app.client.read_job_log(job, rank=rank, offset=offset)
        click.echo(piece["text"], nl=False)
        if piece["complete"]:
            return
        if piece["next_offset"] > offset:
            offset, pause = piece["next_offset"], SHORTEST
            continue
        now = sentence_of(app.client.get_job(job))
        if now != said:
            talk(now)
            said, pause = now, SHORTEST
        app.pause(pause)
        pause = min(LONGEST, pause * 1.5)


def wait_for_end(app: App, job: int) -> JobInFull:
    """Returns the job once it has ended."""
    pause = SHORTEST
    while (found := app.client.get_job(job))["state"] not in ENDED:
        app.pause(pause)
        pause = min(LONGEST, pause * 1.5)
    return found


def sentence_of(job: JobInFull) -> str:
    """Returns what a job does now, or how it ended."""
    verb = {"succeeded": "succeeded", "failed": "failed", "cancelled": "was cancelled"}.get(job["state"])
    why = job["reason"] or (job["end_message"] if verb else "")
    text = f"Job {job['id']} {verb or 'is ' + job['state']}"
    return f"{text}: {why}" if why else f"{text}."


def exit_code_of_job(job: JobInFull) -> int:
    """Returns the exit code for the end of a job: that of its program, 128 + n after the signal n, otherwise 1."""
    if job["state"] == "succeeded":
        return 0
    code = job["exit_code"] or 0
    if code < 0:
        code = 128 - code
    return code if 1 <= code <= 255 else 1
