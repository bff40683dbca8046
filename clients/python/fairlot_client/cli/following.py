"""Follows a job: writes its log as it grows, and says on stderr what the job waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from fairlot_client.cli.app import App, talk
from fairlot_client.cli.finding import ENDED
from fairlot_client.errors import ApiError, FairlotError

if TYPE_CHECKING:
    from fairlot_client.answers import JobInFull, LogLine, LogMatch

SHORTEST, LONGEST = 0.5, 5.0  # seconds between two looks
Ranks = tuple[int, int | None]  # the first and the last worker; None: as many as are shown together


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
    offset, pause, said, streams = 0, SHORTEST, "", True
    while True:
        piece = app.client.read_job_log(job, rank=rank, offset=offset)
        click.echo(piece["text"], nl=False)
        if piece["complete"]:
            return
        if piece["next_offset"] > offset:
            offset, pause = piece["next_offset"], SHORTEST
            continue
        if streams:
            at, is_all = stream(
                app, job, str(offset), (rank, rank), lambda line: click.echo(line["text"], nl=False)
            )
            if is_all:
                return
            offset, streams = int(at), False
            continue
        now = sentence_of(app.client.get_job(job))
        if now != said:
            talk(now)
            said, pause = now, SHORTEST
        app.pause(pause)
        pause = min(LONGEST, pause * 1.5)


def stream(
    app: App, job: int, after: str, ranks: Ranks, write: Callable[[LogLine], object]
) -> tuple[str, bool]:
    """Writes lines after the position `after` as the portal sends them, and says what the job waits for.

    Returns the position that was reached, and whether the log is complete. If it is not, the caller asks from time to
    time instead: the portal is an older one, something between here and it holds streams back, or too many are open.
    """
    said = ""
    try:
        events = app.client.follow_job_log(job, first_rank=ranks[0], last_rank=ranks[1], after=after)
        for event in events:
            match event.name:
                case "":
                    for line in event.data["items"]:
                        write(line)
                    after = event.id
                case "end":
                    return after, True
                case "start" | "comment":
                    now = sentence_of(app.client.get_job(job))
                    if now != said:
                        talk(now)
                        said = now
    except FairlotError as error:
        if isinstance(error, ApiError) and error.status in {401, 403}:
            raise
    return after, False


@dataclass
class LineWriter:
    """Writes lines of logs to stdout, with the rank and the time of each if asked."""

    with_rank: bool
    with_time: bool

    def write(self, line: LogLine, mark: str = "") -> None:
        self._write(line["text"], f"{line['at'] or '-':<32} " if self.with_time else "", line["rank"], mark)

    def write_match(self, match: LogMatch) -> None:
        """Writes a match with the lines around it, which are marked as grep marks them."""
        for text in match["before"]:
            self._write(text, "", match["rank"], "-")
        self.write(match, ":" if match["before"] or match["after"] else "")
        for text in match["after"]:
            self._write(text, "", match["rank"], "-")

    def _write(self, text: str, time: str, rank: int, mark: str) -> None:
        who = f"{rank}| " if self.with_rank else ""
        click.echo(f"{time}{who}{mark}{text}", nl=not text.endswith("\n"))


def write_lines(app: App, job: int, show: LineWriter, *, follow: bool, ranks: Ranks) -> None:
    """Writes the lines of some workers, merged by time; with `follow` until the job has ended and all is written."""
    after, pause, said, streams = "", SHORTEST, "", follow
    while True:
        answer = app.client.read_job_log_lines(job, first_rank=ranks[0], last_rank=ranks[1], after=after)
        for line in answer["items"]:
            show.write(line)
        after = answer["next"]
        if answer["complete"]:
            return
        if answer["items"]:
            pause = SHORTEST
            continue
        if not follow:
            return
        if streams:
            after, is_all = stream(app, job, after, ranks, show.write)
            if is_all:
                return
            streams = False
            continue
        now = sentence_of(app.client.get_job(job))
        if now != said:
            talk(now)
            said, pause = now, SHORTEST
        app.pause(pause)
        pause = min(LONGEST, pause * 1.5)


def write_matches(
    app: App, job: int, show: LineWriter, *, q: str, regex: bool, context: int, ranks: Ranks
) -> bool:
    """Writes the lines that match `q`, with lines around them. Returns whether there were any."""
    was_found = False
    found = app.client.search_job_log(
        job, q=q, regex=regex, context=context, first_rank=ranks[0], last_rank=ranks[1]
    )
    for match in found:
        if was_found and context:
            click.echo("--")
        show.write_match(match)
        was_found = True
    return was_found


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
