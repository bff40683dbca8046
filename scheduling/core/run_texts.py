"""Converts the notes of a schedule's runs to sentences for pages and the API."""

from __future__ import annotations

from scheduling.models import ScheduleRun
from scheduling.models.event_codes import AfterMissed, Delay, RunNote

EARLIER_RUN = "No new run was started, because job #{job} of an earlier run had not ended."
DELAYS = {
    Delay.NOT_RUNNING: "Fairlot was not running",
    Delay.PAUSED: "the schedule was paused",
    Delay.DETACHED: "the cluster was detached",
}
AFTER_MISSED = {
    AfterMissed.SKIPPED: "missed runs are skipped",
    AfterMissed.LATEST: "Fairlot starts only the latest of the missed runs",
    AfterMissed.TOO_OLD: "this run was due too long ago to be started now",
    AfterMissed.CHANGED: "it does not start later, because the timetable has been changed",
}


def run_text_of(run: ScheduleRun) -> str:
    """Returns the sentence for the run's note. For a run without a note, returns its text, which may be empty."""
    match run.note:
        case RunNote.REQUESTED:
            return f"Run at the request of {run.detail['user']}."
        case RunNote.LATE:
            return f"Late because {DELAYS[run.detail['because']]}."
        case RunNote.MISSED:
            return f"Missed because {DELAYS[run.detail['because']]}; {AFTER_MISSED[run.detail['then']]}."
        case RunNote.EARLIER_RUN:
            return EARLIER_RUN.format(job=run.detail["job"])
        case _:
            return run.text
