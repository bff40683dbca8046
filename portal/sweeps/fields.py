"""The fields of the sweep form beside the job specification: the texts as typed, and what they mean."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from django.http import QueryDict

from accounting.core.numbers import DECIMAL_IN_WORDS, read_decimal, read_whole
from portal.sweeps.texts import read_parameters, write_parameters
from scheduling.models import Sweep
from scheduling.spec.job_spec import SpecError
from scheduling.sweeps.actions import Rules
from scheduling.sweeps.parameters import LARGEST_SEED, Parameters

NAMES = ("kind", "parameters", "count", "seed", "at_once", "metric", "goal", "stop_at", "median_after")
KINDS = (
    ("grid", "Grid: each combination of values"),
    ("random", "Random: values drawn from ranges"),
    ("list", "List: one CSV row for each member"),
    ("array", "Array: members that differ only in their index"),
)
# By kind, the numbers that it uses. What was typed into a field of another kind stays in the form, and is not read.
NUMBERS = {"random": ("count", "seed"), "array": ("count",)}
FAIR_TEXT = 100
SWEEP = "sweep"  # the name of these fields in the content of a draft


@dataclass(frozen=True)
class SweepFields:
    """The text of each field, as typed."""

    kind: str = "grid"
    parameters: str = ""
    count: str = ""
    seed: str = ""
    at_once: str = ""
    metric: str = ""
    goal: str = Sweep.Goal.MIN
    stop_at: str = ""
    stop_cancels: bool = False
    median_after: str = ""
    problems: dict[str, str] = field(default_factory=dict)

    @classmethod
    def new(cls) -> Self:
        return cls(seed=str(secrets.randbelow(LARGEST_SEED + 1)))

    @classmethod
    def from_post(cls, post: QueryDict) -> Self:
        texts: dict[str, Any] = {
            name: post.get(name, "").strip()[:FAIR_TEXT] for name in NAMES if name != "parameters"
        }
        typed = post.get("parameters", "").replace("\r\n", "\n")
        return cls(**texts, parameters=typed, stop_cancels=post.get("stop_cancels") == "on")

    @classmethod
    def of(cls, sweep: Sweep) -> Self:
        described = Parameters.stored(sweep.parameters, sweep.names)
        numbers = {"count": described.count, "seed": described.seed, "at_once": sweep.at_once}
        numbers["median_after"] = sweep.median_after
        texts: dict[str, Any] = {name: str(number) for name, number in numbers.items() if number is not None}
        stop_at = "" if sweep.stop_at is None else repr(sweep.stop_at)
        return replace(
            cls.new(),
            kind=described.kind,
            parameters=write_parameters(described),
            **texts,
            metric=sweep.metric,
            goal=sweep.goal,
            stop_at=stop_at,
            stop_cancels=sweep.stop_cancels,
        )

    @classmethod
    def imported(cls, options: Mapping[str, Any]) -> Self:
        """Returns the fields for the options of an imported sweep, which have the names of the API."""
        described = Parameters(**options["parameters"])
        numbers = {"count": described.count, "seed": described.seed, "at_once": options.get("at_once")}
        numbers |= {"stop_at": options.get("stop_at")}
        texts: dict[str, Any] = {name: str(number) for name, number in numbers.items() if number is not None}
        texts |= {name: options[name] for name in ("metric", "goal") if name in options}
        return replace(cls.new(), kind=described.kind, parameters=write_parameters(described), **texts)

    @classmethod
    def kept(cls, stored: Any) -> Self:
        """Returns the fields that `to_dict` wrote into a draft."""
        texts = stored if isinstance(stored, dict) else {}
        return cls(**{f.name: texts[f.name] for f in fields(cls) if f.name in texts})

    def to_dict(self) -> dict[str, Any]:
        """Returns the texts as typed, for a draft."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "problems"}

    def read(self) -> tuple[Parameters, Rules]:
        """Converts the texts. Raises SpecError, with each invalid field."""
        problems: dict[str, str] = {}
        numbers: dict[str, int | None] = {"count": None, "seed": None, "median_after": None}
        for name in (*NUMBERS.get(self.kind, ()), "at_once", "median_after"):
            text = getattr(self, name)
            numbers[name] = read_whole(text) if text else None
            if text and numbers[name] is None:
                problems[name] = "must be a whole number"
        stop_at = read_decimal(self.stop_at) if self.stop_at else None
        if self.stop_at and stop_at is None:
            problems["stop_at"] = f"must be a number: {DECIMAL_IN_WORDS}"
        rules = Rules(
            at_once=numbers["at_once"],
            metric=self.metric,
            goal=self.goal,
            stop_at=None if stop_at is None else float(stop_at),
            stop_cancels=self.stop_cancels,
            median_after=numbers["median_after"],
        )
        parameters = Parameters(self.kind)
        try:
            parameters = read_parameters(
                self.kind, self.parameters, count=numbers["count"], seed=numbers["seed"]
            )
            parameters.check()
        except SpecError as error:
            problems = error.problems | problems
        try:
            rules.check()
        except SpecError as error:
            problems = error.problems | problems
        if problems:
            raise SpecError(problems)
        return parameters, rules

    def with_problems(self, error: SpecError) -> Self:
        return replace(self, problems={name: text for name, text in error.problems.items() if name in NAMES})
