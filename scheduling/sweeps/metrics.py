"""Finds the metrics that a program has printed, in the last part of its log."""

from __future__ import annotations

import math
import re

READ = 64 * 1024  # bytes of the log's end
MOST_METRICS = 50
LONGEST_NAME = 40
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,39}")
# `name=value` with white space or a comma on both sides, so that parts of addresses and paths are no metrics. The value
# is a number in decimal notation, nan or inf.
METRIC = re.compile(
    r"(?<![^\s,;(\[{])(?P<name>[A-Za-z_][A-Za-z0-9_./-]{0,39})="
    r"(?P<value>[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?|[-+]?(?:nan|inf)(?:inity)?)(?![^\s,;)\]}])",
    re.ASCII | re.IGNORECASE,
)


def read_metrics(data: bytes, *, is_whole: bool) -> dict[str, float]:
    """Returns the last value of each metric in the log, in the order of these values.

    - `data`: the end of the log.
    - `is_whole`: whether `data` is the whole log. Otherwise its first line may be cut, and is not read.

    A metric whose last value is not finite is left out, because an earlier value would mislead. Returns at most
    MOST_METRICS metrics, the last ones.
    """
    text = data.decode("utf-8", "replace")
    if not is_whole:
        text = text.partition("\n")[2]
    found: dict[str, float] = {}
    for match in METRIC.finditer(text):
        found.pop(match["name"], None)
        found[match["name"]] = float(match["value"])
    finite = [(name, value) for name, value in found.items() if math.isfinite(value)]
    return dict(finite[-MOST_METRICS:])
