"""Makes a sweep of a converted job that another system runs many times: the tasks of an array, or the trials of a
search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accounting.core.wording import fixed
from scheduling.importers.report import Fate, Report, Work, WorkKind, size_of
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.spec.members import INDEX, INDEX_VARIABLE, LARGEST, MOST_MEMBERS, MOST_PARAMETERS
from scheduling.spec.placeholders import escape

SHELL_INDEX = f'"${INDEX_VARIABLE}"'  # a member's number, in a shell script
NO_PORT = "Members of a sweep answer at no port."
SET_BY_SWEEP = "The sweep sets this variable for each member."


def number_or_text(text: str) -> str | int | float:
    """Returns the number that the text is, if it is written as programs write numbers; otherwise the text."""
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if repr(number) == text and abs(number) <= LARGEST:
            return number
    return text


@dataclass(frozen=True)
class Array:
    """The members of an array or search.

    - `source`: the field of the foreign text that describes them.
    - `parameters`: the same as the API of sweeps takes it.
    - `at_once`: how many run at the same time; None for no limit.
    - `said`: what else the report says about them; `fate`: whether that needs attention.
    - `rules`: other options of the sweep, such as the metric that it compares.
    """

    source: str
    parameters: Mapping[str, Any]
    at_once: int | None = None
    said: str = ""
    fate: Fate = Fate.MAPPED
    rules: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def counted(
        cls,
        source: str,
        count: int,
        *,
        at_once: int | None = None,
        said: str = "",
        fate: Fate = Fate.MAPPED,
    ) -> Array:
        """Returns an array of `count` members that differ in their index."""
        return cls(source, {"kind": "array", "count": count}, at_once, said, fate)

    @classmethod
    def listed(
        cls, source: str, rows: Sequence[Mapping[str, Any]], *, at_once: int | None = None, said: str = ""
    ) -> Array:
        """Returns an array with a member for each of `rows`, which have the values of its parameters."""
        return cls(source, {"kind": "list", "rows": [dict(row) for row in rows]}, at_once, said)

    @property
    def size(self) -> int:
        return size_of(self.parameters)

    @property
    def names(self) -> list[str]:
        """Returns the names of the parameters."""
        rows = self.parameters.get("rows") or [{}]
        return list(self.parameters.get("grid") or self.parameters.get("random") or rows[0])

    @property
    def options(self) -> dict[str, Any]:
        """Returns the options of the sweep. A limit that all members keep is left out."""
        limit = self.at_once if self.at_once is not None and self.at_once < self.size else None
        bound = {} if limit is None or limit < 1 else {"at_once": limit}
        return {"parameters": dict(self.parameters)} | bound | dict(self.rules)

    def sweeps_of(self, works: Sequence[Work], report: Report) -> list[Work]:
        """Returns a sweep for each of the works, which are jobs; none if the report has a refused line afterwards."""
        if self.size > MOST_MEMBERS:
            report.refused_at(
                self.source,
                f"A sweep has at most {fixed(MOST_MEMBERS)} members. Import a part of the array at a time.",
            )
            return []
        if len(self.names) > MOST_PARAMETERS:
            report.refused_at(
                self.source,
                f"A sweep has at most {MOST_PARAMETERS} parameters, and this has {len(self.names)}.",
            )
            return []
        return [sweep for work in works for sweep in self._sweep_of(work, report)]

    def _sweep_of(self, work: Work, report: Report) -> list[Work]:
        names = [*self.names, INDEX]
        spec = dict(work.spec) | {"command": escape(work.spec["command"], names)}
        if "roles" in spec:
            spec["roles"] = [
                {**role, "command": escape(role["command"], names)} if role.get("command") else role
                for role in spec["roles"]
            ]
        if spec.pop("port", None) is not None:
            report.remark(Fate.DROPPED, "", "port", NO_PORT)
        for part in ("variables", "secrets"):
            given = spec.get(part, {})
            for name in given.keys() & {*names, INDEX_VARIABLE}:
                report.remark(Fate.DROPPED, "", f"{part}.{name}", SET_BY_SWEEP)
            if given:
                spec[part] = {name: given[name] for name in given if name not in {*names, INDEX_VARIABLE}}
        try:
            JobSpec.parse(spec)
        except SpecError as error:
            for path, text in error.problems.items():
                report.refused_at(self.source, f"{path} {text}.".strip(), path)
            return []
        sweep = Work(WorkKind.SWEEP, spec, self.options)
        report.add(self.fate, self.source, "parameters", f"A sweep of {sweep.members}. {self.said}".strip())
        return [sweep]
