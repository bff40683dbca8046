"""Converts the time after which other systems stop a job to the time limit of a job. Every importer uses these
functions, so that the same times mean the same everywhere."""

from __future__ import annotations

from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.report import Fate

MOST_HOURS = 8760
TOGETHER = "The time on GPUs of all attempts counts together."
OF_ATTEMPTS = (
    f"There each attempt has this time. Here one time limit holds: {TOGETHER[0].lower()}{TOGETHER[1:]}"
)
FROM_THE_START = (
    f"Kubernetes counts from the start, also while pods wait. Here waiting does not count. {TOGETHER}"
)
OF_MEMBERS = (
    "Kubernetes counts the time of all completions together. Here each member of the sweep has this time."
)


def put_seconds(draft: JobDraft, seconds: float, source: str, text: str) -> None:
    """Sets the time limit. Of several, the shortest counts. `text` says how the other system counts."""
    hours = round(seconds / 3600, 6)
    if not 0 < hours <= MOST_HOURS:
        draft.report.dropped(
            source, f"A time limit is more than 0 and at most {MOST_HOURS} hours. This one is not set."
        )
    elif draft.spec.get("time_limit_hours", hours) < hours:
        draft.report.approximated(source, "time_limit_hours", "A shorter time limit of the text counts.")
    else:
        draft.put("time_limit_hours", hours, source, text, Fate.APPROXIMATED)


def put_deadline(
    fields: Fields, draft: JobDraft, name: str = "activeDeadlineSeconds", *, of_members: bool = False
) -> None:
    """Sets the time limit from this field, a whole number of seconds from the start of a Job or pod of Kubernetes.

    `of_members`: the completions of the Job become the members of a sweep.
    """
    if name in fields and (seconds := fields.whole(name)) is not None:
        put_seconds(draft, seconds, fields.at(name), OF_MEMBERS if of_members else FROM_THE_START)
