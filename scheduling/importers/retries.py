"""Converts what other systems say about programs that failed: how often they are started again, after which exit codes
and how long later. Every importer uses these functions, so that the same numbers mean the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.importers.amounts import NoAmount, seconds
from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.report import Fate
from scheduling.spec.retries import LONGEST_WAIT_SECONDS

MOST = 100
# Used where the text asks for retries without a number: the number that a Job of Kubernetes has by default.
USUAL = 6
MOST_CODES, LARGEST_CODE = 50, 255
FAILS = "A program that fails ends its job."
AGAIN = "Fairlot starts a job again after a suspension or a lost node in any case."
OTHER_FIELD = "Another field of the text already says how often the program is started again."
OF_SERVICES = "A service is always started again."


def put_times(
    draft: JobDraft,
    times: int,
    source: str,
    *,
    exit_codes: Sequence[int] = (),
    wait: int | None = None,
    text: str = "",
    fate: Fate = Fate.MAPPED,
) -> None:
    """Sets how often the program is started again. A negative number stands for no limit.

    - `exit_codes`: only failures with these are followed by a retry; empty for all failures.
    - `wait`: the seconds before the first retry.
    - `text`, `fate`: what else the report says.
    """
    usual = draft.spec.get("retries") if "retries" in draft.usual else None
    if "retries" in draft and usual is None:
        draft.report.mapped(source, "retries", OTHER_FIELD)
        return
    if usual is not None:  # a number that is written counts more than one that was chosen
        draft.usual.discard("retries")
        exit_codes = exit_codes or usual.get("exit_codes", ())
        draft.withdraw("retries", OTHER_FIELD)
    if times == 0:
        draft.report.mapped(source, "retries", f"{text} {FAILS}".strip())
        return
    number = MOST if times < 0 else min(times, MOST)
    retries: dict[str, object] = {"times": number}
    if exit_codes:
        retries["exit_codes"] = list(exit_codes)
    if wait is not None:
        retries["backoff_seconds"] = max(1, min(wait, LONGEST_WAIT_SECONDS))
    workers = "once" if number == 1 else f"up to {number} times"
    said = f"{text} When the program fails, all workers start again, {workers}.".strip()
    if number != times:
        said, fate = f"{said} More are not possible.", Fate.APPROXIMATED
    draft.put("retries", retries, source, said, fate)


def put_usual(
    draft: JobDraft, source: str, *, exit_codes: Sequence[int] = (), wait: int | None = None
) -> None:
    """Sets the usual number of retries for a field that asks for retries without a number."""
    if "retries" in draft:
        draft.report.mapped(source, "retries", OTHER_FIELD)
        return
    put_times(
        draft, USUAL, source, exit_codes=exit_codes, wait=wait, text="The text says no number.",
        fate=Fate.APPROXIMATED,
    )  # fmt: skip
    draft.usual.add("retries")


def put_whole(fields: Fields, name: str, draft: JobDraft) -> None:
    """Sets the retries from the whole number in this field, if there is one."""
    if name in fields and (times := fields.whole(name)) is not None:
        put_times(draft, times, fields.at(name))


def exit_codes_in(value: object) -> list[int]:
    """Returns the exit codes of failures in a number or a list of numbers; none if they cannot all be used."""
    given = value if isinstance(value, list) else [value]
    codes = [one for one in given if isinstance(one, int) and not isinstance(one, bool)]
    usable = len(codes) == len(given) <= MOST_CODES and all(1 <= one <= LARGEST_CODE for one in codes)
    return sorted(set(codes)) if usable else []


def put_recovery(fields: Fields, name: str, draft: JobDraft) -> None:
    """Sets the retries from SkyPilot's strategy of recovery, which is a text or a mapping."""
    report = draft.report
    if not isinstance(fields.get(name), dict):
        if name in fields:
            report.mapped(fields.at(name), "", AGAIN)
        return
    recovery, codes_at = fields.section(name), "recover_on_exit_codes"
    times, codes = recovery.whole("max_restarts_on_errors"), exit_codes_in(recovery.get(codes_at))
    if "strategy" in recovery:
        report.mapped(recovery.at("strategy"), "", AGAIN)
    put_whole(recovery, "max_restarts_on_errors", draft)
    if codes and not times:
        put_usual(draft, recovery.at(codes_at), exit_codes=codes)
    elif codes_at in recovery:
        report.approximated(
            recovery.at(codes_at), "retries", "Failures with these exit codes count like all others."
        )


def put_on_events(fields: Fields, name: str, draft: JobDraft) -> None:
    """Sets the retries from dstack's field `retry`: true, false, or the events after which a run starts again."""
    if not isinstance(fields.get(name), dict):
        if name not in fields:
            return
        if fields.flag(name):
            put_usual(draft, fields.at(name))
        else:
            draft.report.mapped(fields.at(name), "retries", FAILS)
        return
    retry = fields.section(name)
    source = retry.at("on_events") if "on_events" in retry else retry.path
    if "on_events" not in retry or "error" in retry.texts("on_events"):
        put_usual(draft, source)
    else:
        draft.report.mapped(source, "", f"{AGAIN} It waits until there are GPUs.")
    if "duration" in retry:
        draft.report.dropped(retry.at("duration"), "Retries are limited by their number, not by a time.")


def put_restart(fields: Fields, name: str, draft: JobDraft) -> None:
    """Sets the retries from the field `restart` of a Compose file: no, always, or on-failure with a number."""
    if name not in fields:
        return
    source, (policy, _, number) = fields.at(name), fields.text(name).strip().partition(":")
    if policy in {"no", "none", "false"}:
        draft.report.mapped(source, "retries", FAILS)
    elif policy == "on-failure" and number.isascii() and number.isdigit() and len(number) < 8:
        put_times(draft, int(number), source)
    else:
        put_usual(draft, source)


def put_restart_policy(fields: Fields, draft: JobDraft) -> None:
    """Sets the retries from `deploy.restart_policy` of a Compose file."""
    if "condition" not in fields and "max_attempts" not in fields:
        return
    source = fields.at("max_attempts") if "max_attempts" in fields else fields.at("condition")
    wait, times = None, fields.whole("max_attempts")
    if "delay" in fields:
        try:
            wait = round(seconds(fields.text("delay")))
            draft.report.mapped(fields.at("delay"), "retries.backoff_seconds", "The wait doubles each time.")
        except NoAmount:
            draft.report.dropped(fields.at("delay"), "This is not a duration.")
    if fields.text("condition") == "none":
        draft.report.mapped(source, "retries", FAILS)
    elif times is None:
        put_usual(draft, source, wait=wait)
    else:
        put_times(draft, times, source, wait=wait)
    for name in ("condition", "window"):
        if name in fields and not draft.report.covers(fields.at(name)):
            draft.report.mapped(fields.at(name), "retries", "A job ends when its program has succeeded.")
