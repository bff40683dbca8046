"""Collects what programs report by their steps. Each value counts once and belongs to one step.

A program names its steps (NAMES). What it prints in a line with a step, or in later lines without one, belongs to that
step; of several values of a metric at a step the last one counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from scheduling.metrics.thinning import LARGEST_STEP, Value

# Names under which programs report how far they are. Where a program reports several, the first one counts.
NAMES = ("step", "global_step", "steps", "iteration", "iter", "epoch")


@dataclass
class Pass:
    """The points that one attempt reported, by metric, and the first of their steps."""

    attempt: int
    first: float
    points: dict[str, dict[float, Value]] = field(default_factory=dict)

    def add(self, name: str, step: float, value: Value) -> None:
        self.points.setdefault(name, {})[step] = value


@dataclass
class Reported:
    """Collects what a part of a log or of event files says by step.

    `axis`, `step` and `attempt` are what was known before this part and then what is known after it: the name of the
    steps, the last step, and the attempt that reported it.
    """

    axis: str = ""
    step: float | None = None
    attempt: int = 0
    passes: list[Pass] = field(default_factory=list)

    @classmethod
    def after(cls, known: Mapping[str, Any]) -> Self:
        """Returns an empty collection for what follows `known`, the state in MetricStream.by_step."""
        return cls(known.get("axis", ""), known.get("step"), known.get("attempt", 0))

    @property
    def size(self) -> int:
        return sum(len(points) for one in self.passes for points in one.points.values())

    def add_line(self, values: Mapping[str, float], *, attempt: int, at: float) -> None:
        """Adds the metrics of one line, which the attempt printed at the time `at`."""
        axis = next((name for name in NAMES if name in values), "")
        if axis and (not self.axis or NAMES.index(axis) < NAMES.index(self.axis)):
            self.axis, self.step = axis, None
            self.passes.clear()  # steps and epochs share no axis
        if self.axis in values and abs(values[self.axis]) <= LARGEST_STEP:
            self.step, self.attempt = values[self.axis], max(attempt, self.attempt)
        elif attempt > self.attempt:
            return  # it has reported no step yet
        if self.step is None:
            return
        for name, value in values.items():
            if name != self.axis:
                self.add(name, self.step, Value(value, at))

    def add(self, name: str, step: float, value: Value) -> None:
        """Adds the value of a metric at a step."""
        if not self.passes or self.passes[-1].attempt < self.attempt:
            self.passes.append(Pass(self.attempt, step))
        self.passes[-1].add(name, step, value)
