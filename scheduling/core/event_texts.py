"""Converts the event codes in a job's history to sentences for pages, the API and mails. No code parses these
sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from accounting.core.wording import counted, duration
from fairshare.model import Reason
from scheduling.core.reason_labels import SHORT
from scheduling.models import Job, JobEvent, Node
from scheduling.models.event_codes import EventCode as E
from scheduling.models.event_codes import Message

# Only a program knows whether it has written a checkpoint.
STARTS_AGAIN = "the job starts again, from its checkpoint if it has saved one"
Parameters = Mapping[str, Any]


def text_of(event: JobEvent) -> str:
    """Returns the sentence for the event's code, without a full stop.

    An event without a code has a text that comes from outside Fairlot. For such an event, returns this text unchanged.
    """
    return sentence(event.code, event.detail) if event.code else event.text


def end_text_of(job: Job) -> str:
    """Returns a text that explains how the job ended.

    This is the sentence for the job's end code. If the job has no end code, it is the message that the backend
    reported, or "" if there is none. Fairlot stores an end code if it ended the job itself, for example after a
    cancellation.
    """
    return end_text(job.end_code, job.end_detail, job.end_message)


def end_text(code: str, parameters: Parameters, message: str) -> str:
    """Explains how a job ended, like `end_text_of`, but takes the values of the job's columns instead of the job.

    `code`, `parameters` and `message` are the values of `end_code`, `end_detail` and `end_message`.
    """
    return sentence(code, parameters) if code else message


def sentence_of(message: Message) -> str:
    return sentence(message.code, message.parameters)


def sentence(code: str, parameters: Parameters) -> str:
    """Returns the sentence for an event code, with the parameters filled in and without a full stop."""
    text = TEXTS[E(code)]
    made = text.format_map(parameters) if isinstance(text, str) else text(parameters)
    return f"{made}; {STARTS_AGAIN}" if parameters.get("starts_again") else made


def minutes_or_hours(seconds: float) -> str:
    """Converts seconds to a text in minutes ("90 min") or, from two hours on, in hours ("3 h")."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 120 else f"{round(minutes / 60)} h"


def _user(parameters: Parameters) -> str:
    return str(parameters["user"] or "Fairlot")


def _utc(moment: str, form: str = "%-d %b %Y %H:%M") -> str:
    return f"{datetime.fromisoformat(moment):{form}} UTC"


def _more(text: str, name: str) -> Callable[[Parameters], str]:
    """Returns a function that fills an event's parameters into `text`. If the event has the parameter `name`, the
    function also appends ": " and its value."""

    def made(parameters: Parameters) -> str:
        return text.format_map(parameters) + (f": {parameters[name]}" if parameters.get(name) else "")

    return made


def _submitted_by_schedule(parameters: Parameters) -> str:
    asked = f", at the request of {parameters['user']}" if parameters.get("user") else ""
    return f"Submitted by the schedule “{parameters['schedule']}”{asked}"


EDITED_FIELDS = {
    "priority": "the priority",
    "labels": "the labels",
    "generations": "the GPU types",
    "expected_hours": "the expected hours",
    "deadline_hours": "the hours from the submit to the deadline",
    "time_limit_hours": "the time limit in hours",
}


def _edited(parameters: Parameters) -> str:
    changes = [
        f"{EDITED_FIELDS.get(name, name)} from {_edit_of(name, before)} to {_edit_of(name, after)}"
        for name, before, after in parameters["changes"]
    ]
    return f"{parameters['user']} changed {', and '.join(changes)}"


def _edit_of(name: str, value: Any) -> str:
    return "any" if name == "generations" and not value else _value(value)


def _value(value: Any) -> str:
    """Returns a value of a job's spec as it is shown in a sentence."""
    if value is None or value in ([], {}):
        return "none"
    match value:
        case list():
            return ", ".join(map(str, value))
        case dict():
            return ", ".join(f"{key}={text}" if text else key for key, text in value.items())
        case float():
            return f"{value:g}"
    return str(value)


CAME = {
    "within": "Started as expected",
    "earlier": "Started earlier than expected",
    "later": "Started later than expected",
}


def _expected_start(parameters: Parameters) -> str:
    earliest, latest = (_utc(parameters[name]) for name in ("earliest", "latest"))
    if earliest == latest:
        return f"{CAME[parameters['when']]}, {latest}"
    end = latest[-9:] if earliest[:-10] == latest[:-10] else latest  # the day only once
    return f"{CAME[parameters['when']]}, between {earliest.removesuffix(' UTC')} and {end}"


def _picked(parameters: Parameters) -> str:
    places = " and ".join(
        f"{node} (GPU {', '.join(map(str, gpus))})" for node, gpus in sorted(parameters["places"].items())
    )
    nodes = places or f"{parameters['nodes']} nodes"
    return f"Assigned {parameters['gpus']} {parameters['generation']} on {nodes}"


def _time_limit(parameters: Parameters) -> str:
    if "above" in parameters:
        return f"a time limit applies that is set for a team above {parameters['above']} in the team tree"
    return "the time limit of {whose} is {hours} h".format_map(parameters)


def _time_limit_near(parameters: Parameters) -> str:
    if "above" in parameters:
        return f"The job will soon be stopped: {_time_limit(parameters)}. Save a checkpoint in time"
    left = minutes_or_hours(parameters["left"])
    if "whose" in parameters:
        why = f"{_time_limit(parameters)}. Save a checkpoint in time"
    else:
        why = "it then reaches its own time limit. Save a checkpoint in time, or edit the job to raise the limit"
    return f"The job will be stopped after another {left} on GPUs: {why}"


def _drained(parameters: Parameters) -> str:
    text = _more("{node} is being drained", "reason")(parameters)
    if "until" not in parameters:
        return text
    if until := parameters["until"]:
        return f"{text}; the job may continue until {_utc(until)}"
    return f"{text}; the drain does not stop the job"


def _beyond(parameters: Parameters) -> str:
    """Describes how many GPUs a job's owner has, and how many of these GPUs are guaranteed. Returns "" if this is
    unknown.

    `parameters` are the parameters of an event.
    """
    if "guaranteed" not in parameters:
        return ""
    gpus = counted(parameters["gpus"], "GPU")
    return f"{parameters['owner']} has {gpus}, of which {parameters['guaranteed']:g} are guaranteed"


def _claimed(parameters: Parameters) -> str:
    waited = parameters.get("waited")
    claims = f"; waiting jobs get {waited}" if waited else ""
    return f"Suspended: {_beyond(parameters) or 'other jobs go first'}{claims}"


def _claim_warned(parameters: Parameters) -> str:
    beyond = _beyond(parameters)
    details = f": {beyond}" if beyond else ""
    time = _utc(parameters["at"], "%H:%M:%S")
    return (
        f"The job holds GPUs that are not guaranteed{details}. From {time} on, the job is suspended if other jobs"
        " claim its GPUs"
    )


def _retried(parameters: Parameters) -> str:
    how, wait = _how_it_failed(parameters), counted(parameters["wait"], "second")
    return f"Failed: {how}; retry {parameters['retry']} of {parameters['retries']} starts after {wait}"


def _failed(parameters: Parameters) -> str:
    how = f"Failed: {_how_it_failed(parameters)}" if parameters.get("message") else "Failed"
    if not (retries := parameters.get("retries")):
        return how
    if parameters["failures"] > retries:
        return f"{how}; no retry is left ({retries} of {retries} used)"
    return f"{how}; this exit code is not retried"


def _how_it_failed(parameters: Parameters) -> str:
    return str(parameters.get("message") or "failed")


IDLE_STEPS = {"preemptible": "the job becomes preemptible", "stop": "the job is stopped"}


def _idle_warned(parameters: Parameters) -> str:
    text = f"The job's GPUs have been idle for {minutes_or_hours(parameters['seconds'])}"
    if "left" not in parameters:
        return text
    what_happens, left = IDLE_STEPS[parameters["then"]], minutes_or_hours(parameters["left"])
    return f"{text}: {what_happens} after another {left} without use"


def _chosen(parameters: Parameters) -> str:
    gpus = counted(parameters["gpus"], "GPU")
    return f"The job was assigned {gpus} on the node {parameters['node']}, but could not start there"


def _chosen_node_closed(parameters: Parameters) -> str:
    why = f" ({parameters['reason']})" if parameters["reason"] else ""
    state = Node.State(parameters["state"]).label.lower()
    return f"{_chosen(parameters)}: the node is {state}{why}"


TEXTS: Mapping[E, str | Callable[[Parameters], str]] = {
    E.SUBMITTED: lambda found: f"Submitted by {_user(found)}",
    E.SUBMITTED_BY_SCHEDULE: _submitted_by_schedule,
    E.SUBMITTED_BY_SWEEP: "Submitted by the sweep “{sweep}”",
    E.SUBMITTED_BY_PIPELINE: "Submitted as step {step} of the pipeline “{pipeline}”",
    E.SESSION_BEGUN: "Session started by {user}",
    E.REPLICA_MADE: "Created as replica {slot} of the service {service}, revision {revision}",
    E.LIMIT_EXCEEDED: "{limit}",
    E.HANDED_OVER: "Handed over from {before} to {user}",
    E.SHARES_AGAIN: "{user} ended preemptible mode",
    E.PREEMPTIBLE: "{user} made the job preemptible",
    E.EDITED: _edited,
    E.EXPECTED_START: _expected_start,
    E.TRIED_NOW: "{user} ended the pause after the failed attempt",
    E.PICKED: _picked,
    E.STARTED: "Running on {gpus} {generation}",
    E.READY: "Ready; the program answers at {address}",
    E.UNREADY: _more("No longer ready", "why"),
    E.FROZEN: "Frozen: the processes of the job are paused until its next attempt",
    E.UNFROZEN: "The frozen processes of the job have ended",
    E.STOPPED: f"Stopped; in its next attempt {STARTS_AGAIN}",
    E.VANISHED: f"The processes of the job disappeared; {STARTS_AGAIN}. {{message}}",
    E.NOT_STARTED: "The GPUs were released before the job started",
    E.START_FAILED: "Could not be started: {message}",
    E.CLUSTER_SAID: "{message}",
    E.SUCCEEDED: _more("Succeeded", "message"),
    E.RETRIED: _retried,
    E.RESUMED: "Resumed from {checkpoint}",
    E.FAILED: _failed,
    E.GIVEN_UP: "Fairlot gave up after {starts} consecutive attempts that failed to start or lasted less than a minute",
    E.GONE: "All processes of the job have ended",
    E.CANCELLED_GONE: "Cancelled; all processes of the job have ended",
    E.CANCELLED_EARLY: "Cancelled before it started",
    E.CANCELLED: lambda found: f"Cancelled by {_user(found)}",
    E.STOPPED_BY: "Stopped by {user}",
    E.DELETED: "Cancelled: {message}",
    E.OWNER_LEAVES: "Cancelled because the owner {user} may no longer run jobs in the team",
    E.NEXT_RUN: "Cancelled: the next run of the schedule “{schedule}” replaces it",
    E.TIME_LIMIT: lambda found: f"Stopped: {_time_limit(found)}",
    E.OWN_TIME_LIMIT: lambda found: (
        f"Stopped: the job reached its time limit of {duration(found['seconds'])}"
    ),
    E.TIME_LIMIT_NEAR: _time_limit_near,
    E.TIME_LIMIT_WARNED: lambda found: f"The job runs longer than allowed: {_time_limit(found)}",
    E.SWEEP_CANCELLED: lambda found: f"Cancelled with the sweep “{found['sweep']}” by {_user(found)}",
    E.PIPELINE_CANCELLED: lambda found: (
        f"Cancelled with the pipeline “{found['pipeline']}” by {_user(found)}"
    ),
    E.SWEEP_STOPPED: "Cancelled: member {index} of the sweep “{sweep}” met the stop rule",
    E.MEMBER_OUTDONE: (
        "Stopped early: at step {step}, {metric} was worse than the median of the other members of the sweep “{sweep}”"
    ),
    E.SERVICE_REMOVED: "Ended: the service {service} was removed",
    E.SERVICE_STOPPED: "Ended: the service {service} was stopped",
    E.SERVICE_CHANGES: "Ended: the service {service} changes to revision {revision}",
    E.SERVICE_SHRINKS: lambda found: (
        f"Ended: the service {found['service']} now has {counted(found['replicas'], 'replica')}"
    ),
    E.IDLE_WARNED: _idle_warned,
    E.IDLE_SNOOZED: lambda found: (
        f"{found['user']} snoozed the idle warning until {_utc(found['until'])}: {found['reason']}"
    ),
    E.IDLE_STOPPED: lambda found: (
        f"Stopped: the job's GPUs were idle for {minutes_or_hours(found['seconds'])}"
    ),
    E.IDLE_PREEMPTIBLE: lambda found: (
        f"Preemptible from now on: the job's GPUs were idle for {minutes_or_hours(found['seconds'])}"
    ),
    E.SESSION_KEPT: "{user} kept the session running",
    E.SESSION_IDLE_WARNED: ("Nobody uses the session: it is stopped after another {minutes} min without use"),
    E.SESSION_IDLE: "Stopped: nobody used the session for {minutes} min",
    E.SESSION_END_WARNED: "The session reaches its time limit of {hours} h in {minutes} min",
    E.SESSION_OVER: "Stopped: the session reached its time limit of {hours} h",
    E.MOVED: "Moved: the job stops on these GPUs within its grace period and continues on other GPUs",
    E.RESIZED: lambda found: (
        f"Resized: the job stops within its grace period and continues with {found['workers']} instead of"
        f" {counted(found['before'], 'worker')}"
    ),
    E.CLAIMED: _claimed,
    E.CLAIM_WARNED: _claim_warned,
    E.OWN_JOBS: "Suspended: other jobs of {owner} go first",
    E.NOT_IDLE: "Preempted: the job is preemptible, and other jobs want its GPUs",
    E.PREEMPTED: lambda found: f"Suspended: {SHORT[Reason(found['reason'])]}",
    E.TEAM_ARCHIVED: "Stopped: the team is archived; the job continues if the team is restored",
    E.OWNER_MAY_NOT: "Stopped: the job's owner may no longer run jobs in the team",
    E.DRAINED: _drained,
    E.NODE_EXCHANGED: "{node} has other GPUs now ({gpus} {generation})",
    E.NODE_LOST_GPUS: "{node} lost GPUs: {works} of {gpus} work",
    E.PORTAL_STOPPED: "Fairlot is shutting down",
    E.CHOSEN_NODE_GONE: "The job was assigned GPUs on a node that no longer exists",
    E.CHOSEN_NODE_CLOSED: _chosen_node_closed,
    E.CHOSEN_GPUS_HELD: lambda found: (
        f"{_chosen(found)}: other jobs hold all GPUs of the node except {found['free']}"
    ),
    E.IMPORTED: "Imported from a trace",
    E.IMPORTED_START: "Started, according to the imported trace",
    E.IMPORTED_END: "Ended, according to the imported trace",
}
