"""Takes over when a schedule is due: cron expressions and repeats of ISO 8601."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

from scheduling.importers.credentials import has_credential
from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.report import Fate
from scheduling.timetable.cron import Cron
from scheduling.timetable.repeats import Repeats

EVERY = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip


def put_paused(fields: Fields, name: str, options: dict[str, Any]) -> None:
    """Takes over whether the schedule is paused in the foreign system."""
    if name in fields:
        options["paused"] = fields.flag(name)
        said = "The schedule is created paused." if options["paused"] else "The schedule is not paused."
        fields.report.mapped(fields.at(name), "paused", said)


def zone_of(name: str) -> ZoneInfo | None:
    """Returns the time zone of this name; None if there is no such zone."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        return None


def put_zone(draft: JobDraft, name: str, source: str, options: dict[str, Any]) -> ZoneInfo:
    """Sets the time zone. An unknown one is refused."""
    if zone := zone_of(name):
        options["time_zone"] = name
        draft.report.mapped(source, "time_zone")
        return zone
    draft.report.refused_at(
        source, "This is not the IANA name of a time zone, such as Europe/Berlin.", "time_zone"
    )
    return ZoneInfo("UTC")


def put_cron(draft: JobDraft, said: str, source: str, options: dict[str, Any], zone: str) -> None:
    """Sets a cron expression, which the text reads in the time zone `zone`."""
    expression = EVERY.get(said.strip().lower(), said.strip())
    try:
        Cron(expression, ZoneInfo(zone))
    except ValueError as error:
        draft.report.refused_at(
            source, f"The cron expression is not accepted{_why(said, error)}.", "expression"
        )
        return
    options["expression"] = expression
    options.setdefault("time_zone", zone)
    draft.report.mapped(source, "expression", f"In the time zone {options['time_zone']}.")


def put_repeats(draft: JobDraft, said: str, source: str, options: dict[str, Any], zone: ZoneInfo) -> None:
    """Sets a repeat of ISO 8601, such as R5/2026-11-21T08:00:00Z/PT6H."""
    try:
        found = Repeats(said, zone)
    except ValueError as error:
        draft.report.refused_at(source, f"The schedule is not accepted{_why(said, error)}.", "expression")
        return
    options["expression"] = said
    draft.report.mapped(source, "expression", f"{found.in_words()}.")
    if found.times:
        draft.report.remark(
            Fate.APPROXIMATED, source, "expression",
            f"There are {found.times} runs, the first on {found.start:%d %B %Y}. If all have passed, nothing"
            f" runs: change"
            " the start.",
        )  # fmt: skip


def _why(said: str, error: ValueError) -> str:
    """Returns the reason for a sentence. It may repeat the text, so it is left out if that is confidential."""
    return "" if has_credential(said) else f": {error}"
