"""Converts the entries in a service's history to sentences for pages and the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from accounting.core.wording import counted
from scheduling.core.event_texts import Parameters, end_text, sentence
from scheduling.models import Job, ServiceEvent
from scheduling.models.event_codes import EventCode
from scheduling.models.event_codes import ServiceEventKind as Kind


def service_text_of(event: ServiceEvent) -> str:
    """Returns the sentence for the event's kind and parameters, without a full stop.

    An event of an earlier release has a text instead of parameters. For such an event, returns this text.
    """
    return event.text or TEXTS[Kind(event.kind)](event.detail)


def _changed(found: Parameters) -> str:
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in found["settings"].items())
    return f"{found['user']} changed settings: {settings}"


def _rolled_back(found: Parameters) -> str:
    if "user" in found:
        before, revision = found["before"], found["revision"]
        how = "rolled the service back" if revision < (before or 0) else "changed the service"
        return f"{found['user']} {how} from revision {before} to {revision}"
    return (
        f"Revision {found['failed']} has failed: {found['why']}. Rolled back to revision {found['revision']}"
    )


def _replaced(found: Parameters) -> str:
    how = end_text(found["code"], found["detail"], found["message"]) or Job.State(found["state"]).label
    return f"{found['replica']} ended by itself ({how}); {found['by']} replaces it"


def _stopped(found: Parameters) -> str:
    if "leaver" in found:
        return f"Stopped because the owner {found['leaver']} may no longer run services in the team"
    return f"Stopped by {found['user']}"


def _scaled(found: Parameters) -> str:
    return f"{found['user']} scaled the service from {found['before']} to {counted(found['replicas'], 'replica')}"


TEXTS: Mapping[Kind, Callable[[Parameters], str]] = {
    Kind.CREATED: lambda found: f"Created by {found['user']} with {counted(found['replicas'], 'replica')}",
    Kind.SCALED: _scaled,
    Kind.CHANGED: _changed,
    Kind.STOPPED: _stopped,
    Kind.STARTED: lambda found: f"Started by {found['user']}",
    Kind.REMOVED: lambda found: f"Removed by {found['user']}",
    Kind.UPDATED: lambda found: f"{found['user']} created revision {found['revision']}",
    Kind.ROLLED_BACK: _rolled_back,
    Kind.PROVED: lambda found: (
        f"Revision {found['revision']} works: {counted(found['replicas'], 'replica')} became ready"
    ),
    Kind.FAILED: lambda found: f"Revision {found['revision']} has failed: {found['why']}",
    Kind.REPLACED: _replaced,
    Kind.CRASHES: lambda found: str(found["text"]),
    Kind.TROUBLE: lambda found: f"No replicas can be created: {found['trouble']}",
    Kind.HANDED_OVER: lambda found: sentence(EventCode.HANDED_OVER, found),
    Kind.WARNED: lambda found: f"{found['replica']}: {sentence(EventCode.CLAIM_WARNED, found)}",
}
