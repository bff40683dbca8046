"""Deployments become services."""

from __future__ import annotations

from typing import Any

from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.kubernetes.batch import drop_known
from scheduling.importers.kubernetes.metadata import drop_template_metadata
from scheduling.importers.kubernetes.objects import Objects
from scheduling.importers.kubernetes.pods import PodTemplate
from scheduling.importers.report import Fate, Work, WorkKind

LEAST_PORT, MOST_PORT = 1024, 65_535
DROPPED = {
    "selector": "Fairlot finds the replicas itself.",
    "revisionHistoryLimit": "All revisions stay on the service's page.",
    "minReadySeconds": "A replica counts as soon as it is ready.",
    "paused": "The rollout begins at once.",
}
MOST_PERIOD, MOST_FAILURES = 300, 100


def deployment(root: Fields, objects: Objects, draft: JobDraft) -> list[Work]:
    """Returns a service whose replicas are the pods of the Deployment."""
    spec, template = root.section("spec"), root.section("spec", "template")
    drop_template_metadata(template, draft)
    pods = PodTemplate(template, objects, draft, is_of_job=False)
    containers = pods.spec.sections("containers")
    if containers:
        _port(containers[0], draft)
        _readiness(containers[0].section("readinessProbe"), draft)
    pods.put()
    options = _rules(spec, draft)
    drop_known(spec, DROPPED, draft)
    return draft.finish(WorkKind.SERVICE, options)


def _port(container: Fields, draft: JobDraft) -> None:
    ports = container.sections("ports")
    number = ports[0].whole("containerPort") if ports else None
    if number is None:
        draft.report.refused_at(
            container.at("ports"),
            "A service answers at a port. Add the containerPort of the program.",
            "port",
        )
    elif not LEAST_PORT <= number <= MOST_PORT:
        draft.report.refused_at(
            ports[0].at("containerPort"),
            f"Programs listen at a port from {LEAST_PORT} to {MOST_PORT}.",
            "port",
        )
    else:
        draft.put("port", number, ports[0].path, "Members of the team reach the service at its own URL.")
    for other in ports[1:]:
        draft.report.dropped(other.path, "A service has one port.")


def _readiness(probe: Fields, draft: JobDraft) -> None:
    """Sets how a replica is asked whether it is ready."""
    get = probe.section("httpGet")
    if get and (path := get.text("path")):
        draft.put("readiness_path", path, get.path, "Asked at the port of the service.")
    elif probe:
        draft.report.approximated(probe.path, "readiness_path", "A replica is ready when its port is open.")
    for name, field, most in (
        ("periodSeconds", "readiness_period_seconds", MOST_PERIOD),
        ("failureThreshold", "readiness_failures", MOST_FAILURES),
    ):
        number = probe.whole(name)
        if number is not None:
            kept = max(1, min(number, most))
            draft.put(field, kept, probe.at(name), "", Fate.MAPPED if kept == number else Fate.APPROXIMATED)


def _rules(spec: Fields, draft: JobDraft) -> dict[str, Any]:
    """Returns the number of replicas and the rules of rollouts."""
    report = draft.report
    options: dict[str, Any] = {"replicas": 1}
    replicas = spec.whole("replicas")
    if replicas == 0:
        report.approximated(spec.at("replicas"), "replicas", "A service has at least one replica.")
    elif replicas is not None:
        options["replicas"] = replicas
        report.mapped(spec.at("replicas"), "replicas")
    seconds = spec.whole("progressDeadlineSeconds")
    if seconds is not None:
        options["progress_deadline_seconds"] = seconds
        report.mapped(spec.at("progressDeadlineSeconds"), "progress_deadline_seconds")
    strategy = spec.section("strategy")
    if strategy.text("type") == "Recreate":
        options |= {"max_surge": 0, "max_unavailable": options["replicas"]}
        report.mapped(strategy.at("type"), "max_unavailable", "All replicas are replaced at once.")
    elif "type" in strategy:
        report.mapped(strategy.at("type"), "", "Replicas are replaced one after the other.")
    rolling = strategy.section("rollingUpdate")
    for name, option in (("maxSurge", "max_surge"), ("maxUnavailable", "max_unavailable")):
        text = rolling.text(name)
        if text.isascii() and text.isdigit() and len(text) < 6:
            options[option] = int(text)
            report.mapped(rolling.at(name), option)
        elif text:
            report.dropped(rolling.at(name), "Fairlot counts replicas, not percentages. The default is used.")
    return options
