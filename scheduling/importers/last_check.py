"""The last look at all values of a foreign text: templates that nobody fills in, and numbers that other programs read
differently. Converters need not look for them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from scheduling.importers.reading import Document, parameter_in, step, template_in, templated
from scheduling.importers.report import Fate, Line, Report, containers_of

# Fields whose values are texts for programs. A template in a command stays, and the report says so.
FOR_PROGRAMS = {"command", "variables", "secrets"}
# Paths of fields that choose GPUs or nodes: if a template in them is left out, the job runs elsewhere.
OF_GPUS = re.compile(r"gpu|accelerator|nodeselector|nodeaffinity|matchexpressions", re.IGNORECASE)
NUMBERS = {
    "workers", "max_workers", "gpus_per_worker", "cpu", "memory", "shm", "port", "replicas", "priority", "retries",
    "expected_hours", "deadline_hours", "checkpoint_grace_seconds", "user_id", "group_id", "at_once",
    "catch_up_seconds", "readiness_period_seconds", "readiness_failures", "max_surge", "max_unavailable", "max_hours",
}  # fmt: skip


def nobody_fills(parameter: str) -> str:
    """Returns the sentence that refuses a reference to a variable where no shell replaces it."""
    return f"The value contains {parameter[:60]}, which nobody fills in. Write the value."


def check(report: Report, document: Document, *, fills_templates: bool) -> None:
    """Refuses values whose meaning is not known. `fills_templates`: whether the converter fills in templates itself."""
    by_source: dict[str, list[Line]] = {}
    for line in report.lines:
        by_source.setdefault(line.source, []).append(line)

    def about(path: str) -> list[Line]:
        """Returns the lines about a field, or about the smallest field that contains it and has some."""
        return next((by_source[part] for part in (path, *containers_of(path)) if part in by_source), [])

    for path, value in texts(document.data, document.path):
        if not fills_templates and ("{" in value or "<%" in value or "$" in value):
            _check_template(report, path, value, about(path))
    for path, doubt in document.doubtful.items():
        lines = about(path)
        if doubt.is_number and _fields(lines) & NUMBERS:
            report.refused_at(path, doubt.as_number)
        else:
            said = (
                doubt.as_text
                if _fields(lines) & (FOR_PROGRAMS | {"name", "labels", "environment"})
                else doubt.as_value
            )
            report.remark(Fate.APPROXIMATED, path, "", said)


def _check_template(report: Report, path: str, value: str, lines: Collection[Line]) -> None:
    if any(line.fate is Fate.REFUSED for line in lines) or _fields(lines) & FOR_PROGRAMS:
        return
    chooses = bool(OF_GPUS.search(path))
    is_left_out = all(line.fate is Fate.DROPPED for line in lines)
    if template := template_in(value):
        if chooses or not is_left_out:
            report.refused_at(path, templated(template))
    elif chooses and is_left_out and (parameter := parameter_in(value)):
        report.refused_at(path, nobody_fills(parameter))


def _fields(lines: Collection[Line]) -> set[str]:
    """Returns the fields of a job, also those of its roles, to which the lines lead."""
    return {re.sub(r"^roles\[\d+\]\.", "", line.target, flags=re.ASCII).partition(".")[0] for line in lines}


def texts(data: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the path of each text in the data, and the text."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from texts(value, step(path, str(key)))
    elif isinstance(data, list):
        for at, value in enumerate(data):
            yield from texts(value, step(path, at))
    elif isinstance(data, str):
        yield path, data
