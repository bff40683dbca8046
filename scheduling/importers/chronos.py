"""Imports jobs of Chronos. A job with a schedule becomes a schedule, one that depends on others becomes a job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from scheduling.importers import retries
from scheduling.importers.amounts import NoAmount, seconds
from scheduling.importers.chains import HOW_TO_NEED
from scheduling.importers.commands import put_command
from scheduling.importers.documents import drop_each, fields_of, first_of
from scheduling.importers.draft import JobDraft
from scheduling.importers.environment import put_variables
from scheduling.importers.fields import Fields
from scheduling.importers.images import default_image, put_image
from scheduling.importers.marathon import put_constraints, put_docker_volume
from scheduling.importers.reading import Source
from scheduling.importers.report import Fate, Report, Work, WorkKind
from scheduling.importers.resources import no_gpus, put_cpus, put_gpus
from scheduling.importers.timetables import put_paused, put_repeats, put_zone
from scheduling.timetable.local_time import wall_at, when_reached
from scheduling.timetable.repeats import Period, Repeats

MIB = 2**20
LONGEST_CATCH_UP = 30 * 86_400
REPEAT = re.compile(r"R(\d*)/([^/]*)/(P[^/]+)", re.ASCII)
ISO_PERIOD = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.\d+)?S)?)?", re.ASCII)
STATE = "This is the state of the job, not its definition."
LEFT_OUT = {
    **dict.fromkeys(
        ("successCount", "errorCount", "lastSuccess", "lastError", "errorsSinceLastSuccess"), STATE
    ),
    "owner": "You own the schedule that you create.",
    "ownerName": "You own the schedule that you create.",
    "description": "A description has no effect.",
    "async": "A job ends when its program ends.",
    "softError": "A job whose program fails counts as failed.",
    "highPriority": "Use the field priority to order your own jobs.",
    "concurrent": "A run that is due while another runs is left out.",
    "dataProcessingJobType": "This has no effect.",
    "disk": "A worker's local disk has the size that the node gives.",
    "constraints": "Fairlot chooses the nodes.",
    "runAsUser": "Programs never run as root, but as user 1000. Set user_id for another one.",
    "executor": "Fairlot has no executors.",
    "executorFlags": "Fairlot has no executors.",
    "taskInfoData": "Fairlot has no executors.",
    "shell": "The command is a script of /bin/sh.",
    "maxCompletionTime": "Fairlot does not stop a job after a time.",
    **dict.fromkeys(
        ("uris", "fetch"),
        "Only code from a Git repository is fetched. Put the files into the image, or fetch them in the command.",
    ),
}


def recognise(source: Source) -> bool:
    data = first_of(source)
    if (
        not isinstance(data.get("name"), str)
        or {"apiVersion", "kind", "id", "run", "type", "services"} & data.keys()
    ):
        return False
    schedule = data.get("schedule")
    if isinstance(schedule, str) and re.match(r"R\d*/", schedule, flags=re.ASCII):
        return True
    if {"schedule", "command"} <= data.keys() and {"scheduleTimeZone", "epsilon"} & data.keys():
        return True  # also with a schedule that is not accepted
    return isinstance(data.get("parents"), list) and "command" in data


def convert(source: Source, report: Report, known: Sequence[str]) -> list[Work]:
    """Returns a schedule or a job for each job of Chronos."""
    works: list[Work] = []
    for fields in fields_of(source, report):
        works += _job(fields, report, known)
    return works


def _job(fields: Fields, report: Report, known: Sequence[str]) -> list[Work]:
    draft = JobDraft(report, known_generations=known)
    if fields.text("name"):
        draft.name(fields.text("name"), fields.at("name"))
    draft.default("name", "chronos-job", "The job has no name.")
    _resources(fields, draft)
    container = fields.section("container")
    if container.text("image"):
        put_image(draft, container.text("image"), container.at("image"))
    default_image(draft)
    for volume in container.sections("volumes"):
        put_docker_volume(volume, draft)
    drop_each(container, dict.fromkeys(container, "Options of the container have no effect."))
    put_variables(draft, fields, "environmentVariables")
    arguments = " ".join(shlex.quote(one) for one in fields.texts("arguments"))
    put_command(draft, f"{fields.text('command')} {arguments}".strip(), fields.at("command"))
    if arguments:
        report.mapped(fields.at("arguments"), "command", "The command ends with the arguments.")
    retries.put_whole(fields, "retries", draft)
    drop_each(fields, {"arguments": "There are none."} | LEFT_OUT)
    if fields.items("parents"):
        report.dropped(
            fields.at("parents"),
            f"The job does not wait for other jobs. {HOW_TO_NEED}",
        )
    if fields.text("schedule"):
        return _schedule(fields, draft)
    drop_each(fields, {"parents": "There are none."})
    _not_disabled(fields)
    return draft.finish()


def _not_disabled(fields: Fields) -> None:
    """Refuses a job that runs once, at once, and is disabled, because it would start."""
    if fields.flag("disabled"):
        fields.report.refused_at(
            fields.at("disabled"),
            "The job is disabled there, and an imported one would start: it has no schedule that could be paused.",
        )
    drop_each(fields, {"disabled": "The job is not disabled."})


def _resources(fields: Fields, draft: JobDraft) -> None:
    put_constraints(fields, draft)
    if (gpus := fields.whole("gpus")) is not None:
        put_gpus(draft, gpus, fields.at("gpus"))
    else:
        no_gpus(draft)
    for name in ("cpus", "mem"):
        if name not in fields:
            continue
        try:
            number = Decimal(fields.text(name).strip())
            if not number.is_finite():
                raise ArithmeticError
        except ArithmeticError:
            draft.report.refused_at(fields.at(name), "Here a number is expected.")
            continue
        if name == "cpus":
            put_cpus(draft, number, fields.at(name))
        else:
            draft.amount("memory", int(min(number, Decimal(10**9)) * MIB), fields.at(name))


def _schedule(fields: Fields, draft: JobDraft) -> list[Work]:
    options: dict[str, Any] = {"missed": "once", "overlap": "forbid"}
    zone = ZoneInfo("UTC")
    options["time_zone"] = "UTC"
    if fields.text("scheduleTimeZone"):
        zone = put_zone(draft, fields.text("scheduleTimeZone"), fields.at("scheduleTimeZone"), options)
    drop_each(fields, {"scheduleTimeZone": "The time zone is UTC."})
    written = fields.text("schedule").strip()
    head = re.match(r"R(\d*)/([^/]*)", written, flags=re.ASCII)
    times, start = (head[1], head[2]) if head else ("", written)
    if not start and times == "1":
        draft.report.approximated(fields.at("schedule"), "", "It runs once, at once. Submit the job.")
        drop_each(fields, {"epsilon": "The job runs at once."})
        _not_disabled(fields)
        return draft.finish()
    if not start and times:
        draft.report.refused_at(
            fields.at("schedule"),
            "The schedule has no start, and a limited number of runs. Write the start.",
            "expression",
        )
        return []
    at = fields.at("schedule")
    said = in_zone(written) if "scheduleTimeZone" in fields and zone.key == options["time_zone"] else written
    if said != written:
        draft.report.remark(
            Fate.MAPPED, at, "expression",
            "Chronos reads the time of the start in scheduleTimeZone, whatever offset the start has.",
        )  # fmt: skip
    moved = in_our_years(said, zone)
    if not start:
        draft.report.remark(
            Fate.APPROXIMATED, at, "expression",
            "Chronos starts a schedule without a start at once, and counts from there. This one counts from 1 January"
            f" 2000, 00:00 in {zone.key}: write the start if the time matters.",
        )  # fmt: skip
    elif moved != said:
        draft.report.remark(
            Fate.APPROXIMATED, at, "expression",
            "The schedule has no start after 1999. Its start is moved there by whole periods, so it is due at the same"
            " times.",
        )  # fmt: skip
    said = moved
    put_repeats(draft, said, at, options, zone)
    if fields.text("epsilon"):
        _epsilon(fields, options, draft)
    drop_each(fields, {"epsilon": "A missed run is made up for within a day."})
    if fields.flag("concurrent"):
        options["overlap"] = "allow"
        draft.report.mapped(fields.at("concurrent"), "overlap")
    put_paused(fields, "disabled", options)
    return draft.finish(WorkKind.SCHEDULE, options)


def _epsilon(fields: Fields, options: dict[str, Any], draft: JobDraft) -> None:
    said = fields.text("epsilon").strip()
    found = ISO_PERIOD.fullmatch(said)
    try:
        if found and said not in {"P", "PT"}:
            days, hours, minutes, rest = (int(one or 0) for one in found.groups())
            length = float(((days * 24 + hours) * 60 + minutes) * 60 + rest)
        else:
            length = seconds(said)
    except NoAmount:
        draft.report.dropped(
            fields.at("epsilon"), "This is not a duration. A missed run is made up for within a day."
        )
        return
    options["catch_up_seconds"] = int(min(length, LONGEST_CATCH_UP))
    draft.report.mapped(
        fields.at("epsilon"), "catch_up_seconds", "A missed run is made up for within this time."
    )


def in_zone(said: str) -> str:
    """Returns a repeat with the clock time of its start and without the offset: Chronos keeps the clock time and takes
    the offset from `scheduleTimeZone` (Iso8601Expressions.convertToDateTime). Other texts are returned unchanged."""
    found = REPEAT.fullmatch(said)
    try:
        start = datetime.fromisoformat(found[2]) if found else None
    except ValueError:
        start = None
    if not found or not start or start.tzinfo is None:
        return said
    return f"R{found[1]}/{start.replace(tzinfo=None, microsecond=0).isoformat()}/{found[3]}"


def for_chronos(expression: str, zone: ZoneInfo) -> str:
    """Returns the timetable of a schedule as Chronos reads it with `zone` as its `scheduleTimeZone`: the start is a
    clock time of the zone. A cron expression, which Chronos does not know, stays unchanged."""
    found = REPEAT.fullmatch(in_zone(expression))
    try:
        wall = wall_at(Repeats(expression, zone).start, zone).isoformat()
    except ValueError:
        return expression
    return expression if not found or found[2] == wall else f"R{found[1]}/{wall}/{found[3]}"


def in_our_years(said: str, zone: ZoneInfo) -> str:
    """Returns a repeat without an end whose start is missing or before 2000, with a start in 2000 or later.

    The start is moved by whole periods: days on the calendar of the zone, hours and less as time that passes. Other
    repeats are returned unchanged.
    """
    found = REPEAT.fullmatch(said)
    if not found or found[1]:
        return said
    if not found[2]:
        return f"R/2000-01-01T00:00:00/{found[3]}"
    try:
        start, period = datetime.fromisoformat(found[2]), Period.read(found[3])
    except ValueError:
        return said
    length = timedelta(days=period.days) + period.passing
    if period.passing and start.tzinfo is None and length:
        start = when_reached(start, zone)
    least = datetime(2000, 1, 1, tzinfo=start.tzinfo)
    if start >= least or not length or period.months:
        return said
    return f"R/{(start + -(-(least - start) // length) * length).isoformat()}/{found[3]}"
