"""The result of an import: jobs, services, schedules, sweeps and pipelines, and a report with a line for each field of
the foreign text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from accounting.core.wording import fixed

OF_ROLE = re.compile(r"roles\[\d+\]\.", re.ASCII)  # before the name of a role's field


class Fate(StrEnum):
    """What became of a field of the foreign text."""

    MAPPED = "mapped"  # the result says the same
    DEFAULTED = "defaulted"  # the text says nothing; the result has a value that was chosen
    APPROXIMATED = "approximated"  # the result says something similar; the line says what differs
    DROPPED = "dropped"  # the result says nothing about it; the line says the consequence
    REFUSED = "refused"  # the result would do something else than asked, so there is no result


@dataclass(frozen=True)
class Line:
    """A line of the report. `source` is the path of a field in the foreign text, such as spec.parallelism. `target` is
    the field of the result, or "" if there is none."""

    fate: Fate
    source: str
    target: str
    text: str


class WorkKind(StrEnum):
    JOB = "job"
    SERVICE = "service"
    SCHEDULE = "schedule"
    SWEEP = "sweep"
    PIPELINE = "pipeline"


@dataclass(frozen=True)
class Work:
    """A job, service, schedule, sweep or pipeline that an import found.

    `spec` is accepted by JobSpec.parse; a pipeline has {} and its definition in `options["pipeline"]`. `options` has
    the other fields of what is not a job, with the names and values of the API.
    """

    kind: WorkKind
    spec: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.options["pipeline"]["name"] if self.kind is WorkKind.PIPELINE else self.spec["name"])

    @property
    def specs(self) -> list[Mapping[str, Any]]:
        """Returns the specifications of all jobs: those of the steps for a pipeline."""
        return (
            list(self.options["pipeline"]["steps"].values())
            if self.kind is WorkKind.PIPELINE
            else [self.spec]
        )

    def with_specs(self, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Work:
        """Returns the work with each specification changed."""
        if self.kind is not WorkKind.PIPELINE:
            return replace(self, spec=change(self.spec))
        pipeline = self.options["pipeline"]
        steps = {name: change(fields) for name, fields in pipeline["steps"].items()}
        return replace(self, options={**self.options, "pipeline": {**pipeline, "steps": steps}})

    @property
    def members(self) -> str:
        """Returns how many members a sweep has, and how many run at once, such as "4 members, 2 at once", or how many
        steps a pipeline has; "" for other works."""
        if self.kind is WorkKind.PIPELINE:
            return f"{len(self.specs)} steps"
        if self.kind is not WorkKind.SWEEP:
            return ""
        number, at_once = size_of(self.options["parameters"]), self.options.get("at_once")
        size = "1 member" if number == 1 else f"{fixed(number)} members"
        return f"{size}, {fixed(at_once)} at once" if at_once else size


def size_of(parameters: Mapping[str, Any]) -> int:
    """Returns how many members a sweep with these parameters has."""
    if grid := parameters.get("grid"):
        return math.prod(len(values) for values in grid.values())
    return int(parameters.get("count") or len(parameters["rows"]))


@dataclass(frozen=True)
class Conversion:
    """The result of an import. If the report has a refused line, there are no works."""

    format: str
    label: str
    works: tuple[Work, ...]
    report: tuple[Line, ...]

    @property
    def refused(self) -> bool:
        return any(line.fate is Fate.REFUSED for line in self.report)


def without_fields(found: Conversion, fields: Collection[str], why: str) -> Conversion:
    """Returns the conversion without these fields of job specifications and of their roles. The report says that they
    are dropped; `why` is the consequence."""
    works = tuple(work.with_specs(lambda spec: _spec_without(spec, fields)) for work in found.works)
    lines = [
        Line(Fate.DROPPED, line.source or line.target, "", why)
        if OF_ROLE.sub("", line.target) in fields
        else line
        for line in found.report
    ]
    return replace(found, works=works, report=tuple(dict.fromkeys(lines)))


def _spec_without(spec: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    kept = {name: value for name, value in spec.items() if name not in fields}
    if "roles" in kept:
        kept["roles"] = [_spec_without(role, fields) for role in kept["roles"]]
    return kept


NOTHING = "Fairlot has nothing that corresponds to this field. It has no effect."
NOT_READ = "Nothing is imported, because other fields are refused. This field may not have been read."


class Report:
    """Collects the lines of a report, and knows which fields of the foreign text they cover."""

    def __init__(self) -> None:
        self._lines: dict[Line, None] = {}
        self._covered: set[str] = set()

    @property
    def lines(self) -> tuple[Line, ...]:
        return tuple(self._lines)

    @property
    def refused(self) -> bool:
        return any(line.fate is Fate.REFUSED for line in self._lines)

    def add(self, fate: Fate, source: str, target: str, text: str) -> None:
        """Adds a line. It covers the field `source` and all fields inside it."""
        self._covered.add(source)
        self._lines[Line(fate, source, target, text)] = None

    def mapped(self, source: str, target: str, text: str = "") -> None:
        self.add(Fate.MAPPED, source, target, text or "Taken over.")

    def defaulted(self, target: str, text: str, source: str = "") -> None:
        self.add(Fate.DEFAULTED, source, target, text)

    def approximated(self, source: str, target: str, text: str) -> None:
        self.add(Fate.APPROXIMATED, source, target, text)

    def dropped(self, source: str, text: str) -> None:
        self.add(Fate.DROPPED, source, "", text)

    def refused_at(self, source: str, text: str, target: str = "") -> None:
        self.add(Fate.REFUSED, source, target, text)

    def remark(self, fate: Fate, source: str, target: str, text: str) -> None:
        """Adds a line that covers nothing: the fields that it names still need a line that says what became of
        them."""
        self._lines[Line(fate, source, target, text)] = None

    def withdraw(self, source: str, target: str) -> None:
        """Removes the lines that say that `source` became `target`. The field stays covered."""
        self._lines = {line: None for line in self._lines if (line.source, line.target) != (source, target)}

    def covers(self, path: str) -> bool:
        """Returns whether a line says what became of the field `path`, or of a field that contains it."""
        return any(part in self._covered for part in (path, *containers_of(path)))

    def drop_the_rest(self, leaves: Iterable[str]) -> None:
        """Adds a line for each of `leaves`, which are paths of fields, that no other line covers."""
        text = NOT_READ if self.refused else NOTHING
        for path in leaves:
            if not self.covers(path):
                self.dropped(path, text)


def containers_of(path: str) -> list[str]:
    """Returns the paths of the fields that contain the field `path`: for a.b[0].c these are a.b[0], a.b and a."""
    found, quoted = [], False
    for at, char in enumerate(path):
        if char == '"' and (at == 0 or path[at - 1] != "\\"):
            quoted = not quoted
        elif not quoted and at and char in ".[":
            found.append(path[:at])
    return found[::-1]
