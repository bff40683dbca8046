"""Finds the metrics that a program prints as `name=value`, in parts of its log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from scheduling.backends.summaries import Summary, is_usable, merged, of_value
from scheduling.metrics.reported import Reported
from scheduling.spec.members import LONGEST_METRIC

READ = 64 * 1024  # bytes of the log's end that `read_metrics` is given
MOST_METRICS = 50
# `name=value` with white space or a comma on both sides, so that parts of addresses and paths are no metrics. The value
# is a number in decimal notation, nan or inf.
METRIC = re.compile(
    r"(?<![^\s,;(\[{])(?P<name>[A-Za-z_][A-Za-z0-9_./-]*)="
    r"(?P<value>[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?|[-+]?(?:nan|inf)(?:inity)?)(?![^\s,;)\]}])",
    re.ASCII | re.IGNORECASE,
)


def _printed(text: str) -> Iterator[tuple[str, float]]:
    for match in METRIC.finditer(text):
        yield match["name"], float(match["value"])


def read_metrics(data: bytes, *, is_whole: bool) -> dict[str, float]:
    """Returns the last value of each metric in the log, in the order of these values.

    - `data`: the end of the log.
    - `is_whole`: whether `data` is the whole log. Otherwise its first line may be cut, and is not read.

    A metric whose last value cannot be stored, such as NaN, is left out, because an earlier value would mislead.
    Returns at most MOST_METRICS metrics, the last ones.
    """
    text = data.decode("utf-8", "replace")
    if not is_whole:
        text = text.partition("\n")[2]
    found: dict[str, float] = {}
    for name, value in _printed(text):
        if len(name) <= LONGEST_METRIC:
            found.pop(name, None)
            found[name] = value
    usable = [(name, value) for name, value in found.items() if is_usable(value)]
    return dict(usable[-MOST_METRICS:])


@dataclass
class Printed:
    """What a part of a log says: a summary of each metric, and how much cannot be stored (recording.py)."""

    values: dict[str, Summary] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)

    def leave_out(self, word: str, count: int = 1) -> None:
        self.left_out[word] = self.left_out.get(word, 0) + count

    def add(self, name: str, value: float) -> bool:
        """Adds a value, and returns whether it can be stored."""
        if len(name) > LONGEST_METRIC:
            self.leave_out("long_names")
        elif not is_usable(value):
            self.leave_out("not_numbers")
        else:
            self.values[name] = merged(self.values.get(name), of_value(value))
            return True
        return False


class Line(NamedTuple):
    """A line of a log: when it was written, and by which attempt."""

    data: bytes
    at: datetime
    attempt: int


def sum_up(lines: Iterable[Line], by_step: Reported) -> Printed:
    """Returns the metrics in whole lines, and adds them to `by_step`."""
    found = Printed()
    for line in lines:
        if b"=" not in line.data:
            continue
        printed = _printed(line.data.decode("utf-8", "replace"))
        if values := {name: value for name, value in printed if found.add(name, value)}:
            by_step.add_line(values, attempt=line.attempt, at=line.at.timestamp())
    return found


def whole_lines(data: bytes) -> bytes:
    """Returns `data` up to the end of its last line. A carriage return also ends a line, as in progress bars."""
    return data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1]
