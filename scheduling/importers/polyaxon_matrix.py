"""The values that a matrix of Polyaxon tries: those of lists and ranges, and those that it draws at random."""

from __future__ import annotations

import math
from typing import Any

from scheduling.importers import searches
from scheduling.importers.arrays import Array, number_or_text
from scheduling.importers.documents import drop_each, shown
from scheduling.importers.fields import Fields
from scheduling.importers.report import Fate, Report
from scheduling.spec.members import MOST_MEMBERS

LISTED = "choice, range, linspace, logspace or geomspace"
DRAWN = "uniform, quniform, loguniform"
# By kind of values, the names of its numbers.
NUMBERS = {
    "range": ("start", "stop", "step"), "linspace": ("start", "stop", "num"),
    "logspace": ("start", "stop", "num", "base"), "geomspace": ("start", "stop", "num"),
    "uniform": ("low", "high"), "quniform": ("low", "high", "q"), "loguniform": ("low", "high"),
}  # fmt: skip
NO_SEARCH = "Fairlot does not do this search. Use a grid, or random with numRuns."
LEFT_OUT = {
    "tuner": searches.NO_EARLY_END, "utilityFunction": searches.NO_EARLY_END,
    "algorithm": searches.NO_EARLY_END, "earlyStopping": "Members end by themselves. Enter in Stop at when the sweep"
    " stops.",
}  # fmt: skip


def listed(one: Fields) -> list[str]:
    """Returns the values of an input that are listed or in a range; [] for others and for too many."""
    kind = one.text("kind")
    if kind == "choice" and isinstance(one.get("value"), list):
        return one.texts("value")
    numbers = _numbers(one)
    if kind not in {"range", "linspace", "logspace", "geomspace"} or len(numbers) < 3:
        return []
    start, stop, third = numbers[:3]
    if kind == "range":
        count = math.ceil((stop - start) / third - 1e-9) if third else 0
        return [f"{start + at * third:.12g}" for at in range(count)] if 0 < count <= MOST_MEMBERS else []
    if not 1 <= third <= MOST_MEMBERS or (kind == "geomspace" and (start <= 0 or stop <= 0)):
        return []
    if kind == "geomspace":
        start, stop = math.log10(start), math.log10(stop)
    tried = searches.spaced(start, stop, int(third))
    if kind != "linspace":
        tried = [searches.power(numbers[3] if len(numbers) > 3 else 10, one) for one in tried]
    return [f"{one:.12g}" for one in tried] if searches.usable(*tried) else []


def array_of(matrix: Fields, report: Report, *, at_once: int | None) -> Array | None:
    """Returns the members of a matrix that draws values at random. Refuses one that Fairlot cannot draw."""
    kind, params = matrix.text("kind"), matrix.section("params")
    count, counted_at = matrix.whole("numRuns"), "numRuns"
    if kind == "bayes":
        further = matrix.whole("maxIterations")
        begun = matrix.whole("numInitialRuns")
        count, counted_at = None if further is None or begun is None else further + begun, "maxIterations"
    elif kind == "hyperband":
        count, counted_at = _of_hyperband(matrix), "maxIterations"
    elif kind not in {"random", "hyperopt"}:
        report.refused_at(matrix.at("kind"), NO_SEARCH, "parameters")
        return None
    if count is None or not 1 <= count <= MOST_MEMBERS:
        report.refused_at(
            matrix.at(counted_at),
            f"Write how many runs there are, from 1 to {MOST_MEMBERS}.",
            "parameters.count",
        )
        return None
    if kind == "hyperband":
        _explain_hyperband(matrix, count, report)
    else:
        report.mapped(matrix.at(counted_at), "parameters.count", f"The sweep has {count} members.")
    if kind == "bayes":
        report.mapped(matrix.at("numInitialRuns"), "parameters.count", f"The sweep has {count} members.")
    drawn = {name: _distribution(params.section(name), report) for name in params}
    if not drawn or None in drawn.values():
        return None
    parameters: dict[str, Any] = {"kind": "random", "random": drawn, "count": count}
    if (seed := matrix.whole("seed")) is not None:
        parameters["seed"] = seed % 2**31
        report.approximated(
            matrix.at("seed"),
            "parameters.seed",
            "The seed of the sweep. It draws other values than Polyaxon does.",
        )
    metric = matrix.section("metric")
    rules = {}
    if metric.text("name"):
        smaller = metric.text("optimization") != "maximize"
        rules = searches.rules_of(report, metric.text("name"), metric.path, smaller=smaller)
    drop_each(matrix, LEFT_OUT)
    return Array(
        matrix.path, parameters, at_once,
        said="Each input of the matrix is a parameter, which the command reads as a variable."
        + ("" if kind == "random" else f" {searches.NO_EARLY_END}"),
        fate=Fate.MAPPED if kind == "random" else Fate.APPROXIMATED, rules=rules,
    )  # fmt: skip


def _of_hyperband(matrix: Fields) -> int | None:
    """Returns how many runs to the end need as much work as a search by Hyperband does.

    Li et al., Hyperband (JMLR 2018), algorithm 1: s_max + 1 brackets, each with the budget of s_max + 1 whole runs.
    """
    most, eta = matrix.whole("maxIterations"), matrix.whole("eta", 3)
    if most is None or eta is None or not 1 <= most <= 10**9 or eta < 2:
        return None
    brackets = 1
    while eta**brackets <= most:
        brackets += 1
    return int(brackets**2)


def _explain_hyperband(matrix: Fields, count: int, report: Report) -> None:
    report.approximated(
        matrix.at("maxIterations"), "parameters.count",
        f"Hyperband tries more values, most of them briefly. The sweep has {count} members, which run to the end: this"
        " is the same work.",
    )  # fmt: skip
    for name in ("eta", "resource"):
        if name in matrix:
            report.approximated(
                matrix.at(name), "parameters.count", "The number of members follows from this."
            )
    if "resume" in matrix:
        report.dropped(matrix.at("resume"), "Each member runs to the end without a break.")


def fixed_of(matrix: Fields, report: Report) -> dict[str, str]:
    """Returns the input that a search by Hyperband sets to the length of a run; {} for others. Each member runs to the
    end, so it has the largest value."""
    name, most = matrix.section("resource").text("name"), matrix.whole("maxIterations")
    if matrix.text("kind") != "hyperband" or not name or most is None:
        return {}
    report.remark(
        Fate.APPROXIMATED, matrix.at("resource"), "command", f"Each member runs with {shown(name)} = {most}."
    )
    return {name: str(most)}


def _distribution(one: Fields, report: Report) -> dict[str, Any] | None:
    """Returns the distribution of an input, as sweeps write it. Refuses others."""
    kind, numbers = one.text("kind"), _numbers(one)
    if values := listed(one):
        return {"distribution": "choice", "values": [number_or_text(text) for text in values]}
    if kind in {"uniform", "quniform", "loguniform"} and len(numbers) >= 2 and numbers[0] <= numbers[1]:
        low, high = numbers[:2]
        if kind == "loguniform":
            low, high = searches.power(math.e, low), searches.power(math.e, high)
        if kind == "quniform" and len(numbers) == 3 and numbers[2] > 0:
            size = numbers[2]
            first, last = round(low / size), round(high / size)
            if last - first < MOST_MEMBERS:
                report.approximated(
                    one.path, "parameters", "Each of the rounded values is drawn equally often, also the first and the"
                    " last one.",
                )  # fmt: skip
                steps = [f"{at * size:.12g}" for at in range(first, last + 1)]
                return {"distribution": "choice", "values": [number_or_text(text) for text in steps]}
        elif kind != "quniform" and searches.usable(low, high):
            return {
                "distribution": "log_uniform" if kind == "loguniform" else "uniform",
                "low": low,
                "high": high,
            }
    report.refused_at(
        one.path,
        f"A sweep cannot draw {shown(kind) or 'these'} values. Use {LISTED}, or {DRAWN}.",
        "parameters",
    )
    return None


def _numbers(one: Fields) -> list[float]:
    """Returns the numbers of a range or distribution, written as a:b:c, as a list or as a mapping; [] for others."""
    value, names = one.get("value"), NUMBERS.get(one.text("kind"), ())
    if isinstance(value, dict):
        given = [value[name] for name in names if name in value]
    else:
        given = value if isinstance(value, list) else str(value).split(":")
    try:
        found = [float(str(number)) for number in given]
    except ValueError:
        return []
    return found if all(math.isfinite(number) for number in found) else []
