"""Makes a sweep of the search of an experiment of Determined: the searcher, and the hyperparameters that it sets."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from scheduling.importers import searches
from scheduling.importers.arrays import Array
from scheduling.importers.documents import drop_each, shown
from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.report import Fate, Report
from scheduling.spec.members import LONGEST_NAME, LONGEST_VALUE, MOST_MEMBERS, why_no_parameter

VARIABLE = "DET_HPARAMS"
PASSED = f"They are passed as JSON in the variable {VARIABLE}. The program must read them from there."
ONE_TRIAL = ("", "single", "custom")
EARLY_ENDING = ("adaptive_asha", "adaptive", "adaptive_simple", "async_halving", "asha", "sync_halving")
TYPES = {"const": {"val"}, "categorical": {"vals"}, "int": {"minval", "maxval"}, "double": {"minval", "maxval"},
         "log": {"minval", "maxval"}}  # fmt: skip
NO_LENGTH = "A trial ends when its program ends."
IN_SEARCHER = {
    **dict.fromkeys(("max_length", "time_metric", "max_time"), NO_LENGTH),
    "source_trial_id": "A trial begins anew. Let the program read a checkpoint from a volume.",
    "source_checkpoint_uuid": "A trial begins anew. Let the program read a checkpoint from a volume.",
    "max_concurrent_trials": "There is one trial.",
    "max_trials": "The number of trials follows from the hyperparameters.",
    "metric": "A job has no metric by which it is compared. Its page shows all that the program prints.",
    "smaller_is_better": "A job has no metric by which it is compared.",
}


@dataclass(frozen=True)
class Drawn:
    """A hyperparameter that a search sets: the parameter of the sweep, and whether its values are texts."""

    name: str
    is_text: bool


# JSON in parts: texts, and hyperparameters between them.
Parts: TypeAlias = "list[str | Drawn]"


@dataclass
class Space:
    """The hyperparameters of an experiment: the parameters of the sweep, and all of them as JSON."""

    kind: str  # of the sweep
    report: Report
    path: str  # of the hyperparameters
    taken: set[str]  # names that are in use
    parameters: dict[str, Any] = field(default_factory=dict)
    problems: bool = False

    def parts(self, fields: Fields) -> Iterator[str | Drawn]:
        """Yields the JSON of a mapping of hyperparameters."""
        yield "{"
        for at, name in enumerate(fields):
            yield f"{', ' if at else ''}{json.dumps(name, ensure_ascii=False)}: "
            value = fields.get(name)
            if not isinstance(value, dict):
                yield json.dumps(value, ensure_ascii=False, default=str)
                continue
            inner = fields.section(name)
            wanted = TYPES.get(str(value.get("type")))
            if wanted is None or not wanted & value.keys():
                yield from self.parts(inner)
            elif value["type"] == "const":
                yield json.dumps(value["val"], ensure_ascii=False, default=str)
            else:
                yield self._drawn(inner)
        yield "}"

    def _drawn(self, fields: Fields) -> Drawn | str:
        """Adds a parameter for a hyperparameter that the search sets."""
        found = _values(fields, self.kind)
        if not isinstance(found, str):
            name, (described, is_text) = self._name_of(fields.path), found
            self.parameters[name] = described
            self.report.mapped(fields.path, f"parameters.{name}", f"A parameter of the sweep, ${name}.")
            return Drawn(name, is_text)
        self.report.refused_at(fields.path, found, "parameters")
        self.problems = True
        return "null"

    def _name_of(self, path: str) -> str:
        plain = re.sub(r"\W+", "_", path.removeprefix(self.path), flags=re.ASCII).strip("_")
        for name in (plain[-LONGEST_NAME:], f"hp_{plain}"[:LONGEST_NAME]):
            if why_no_parameter(name) == "" and name not in self.taken:
                self.taken.add(name)
                return name
        name = f"hp_{len(self.taken)}"
        self.taken.add(name)
        return name


@dataclass(frozen=True)
class Search:
    """The sweep of a search, if it tries several sets of values, and what the command begins with."""

    array: Array | None = None
    begin: str = ""


def of_experiment(fields: Fields, draft: JobDraft) -> Search:
    """Returns the search of an experiment. Sets the hyperparameters of one that searches nothing."""
    report, searcher = draft.report, fields.section("searcher")
    name = searcher.text("name")
    kind = "grid" if name == "grid" else "random"
    section = fields.section("hyperparameters")
    space = Space(kind, report, section.path, set(draft.spec.get("variables", {})))
    parts = list(space.parts(section))
    if name not in (*ONE_TRIAL, *EARLY_ENDING, "grid", "random"):
        report.refused_at(
            searcher.at("name"), f"Fairlot does not know the search {shown(name)}.", "parameters"
        )
    array = _array(fields, space, draft)
    begin = ""
    if section and space.parameters:
        begin = f"export {VARIABLE}={_in_shell(parts)}\n"
        report.approximated(section.path, "command", PASSED)
    elif section:
        draft.variable(VARIABLE, "".join(map(str, parts)), section.path, PASSED, Fate.APPROXIMATED)
    drop_each(searcher, IN_SEARCHER)
    drop_each(searcher, dict.fromkeys(set(searcher) - {"name"}, searches.NO_EARLY_END))
    return Search(array, begin)


def _array(fields: Fields, space: Space, draft: JobDraft) -> Array | None:
    """Returns the members of a search; None if there is one trial, or if something is refused."""
    report, searcher = draft.report, fields.section("searcher")
    name, source = searcher.text("name"), searcher.at("name")
    if name in ONE_TRIAL and not space.parameters:
        if searcher:
            report.mapped(source, "", "The job is the only trial.")
        return None
    if space.problems:
        return None
    if space.kind == "grid":
        if not space.parameters:
            report.mapped(source, "", "No hyperparameter has several values, so there is one trial.")
            return None
        parameters: dict[str, Any] = {"kind": "grid", "grid": space.parameters}
    else:
        count = 1 if name in ONE_TRIAL else searcher.whole("max_trials")
        if count is None or not 1 <= count <= MOST_MEMBERS:
            report.refused_at(
                searcher.at("max_trials"),
                f"Write how many trials the search has, from 1 to {MOST_MEMBERS}.", "parameters.count",
            )  # fmt: skip
            return None
        parameters = {"kind": "random", "random": space.parameters, "count": count}
        if not space.parameters:
            parameters = {"kind": "array", "count": count}
        elif (seed := fields.section("reproducibility").whole("experiment_seed")) is not None:
            report.approximated(
                fields.section("reproducibility").at("experiment_seed"), "parameters.seed",
                "The seed of the sweep. It draws other values than Determined does.",
            )  # fmt: skip
            parameters |= {"seed": seed % 2**31}
        if name not in ONE_TRIAL:
            report.mapped(
                searcher.at("max_trials"), "parameters.count", "Each trial is a member of the sweep."
            )
    rules: dict[str, Any] = {}
    if metric := searcher.text("metric"):
        smaller = "smaller_is_better" not in searcher or searcher.flag("smaller_is_better")
        rules = searches.rules_of(report, metric, searcher.at("metric"), smaller=smaller)
        if "smaller_is_better" in searcher:
            report.mapped(searcher.at("smaller_is_better"), "goal")
    return Array(
        source,
        parameters,
        at_once=_at_once(fields, draft),
        said=searches.NO_EARLY_END if name in EARLY_ENDING else "Each trial is a member.",
        fate=Fate.APPROXIMATED if name in EARLY_ENDING else Fate.MAPPED,
        rules=rules,
    )


def _at_once(fields: Fields, draft: JobDraft) -> int | None:
    """Returns how many trials run at the same time; None for no limit."""
    searcher, resources, limits = fields.section("searcher"), fields.section("resources"), []
    if limit := searcher.whole("max_concurrent_trials"):
        limits.append(limit)
        draft.report.mapped(searcher.at("max_concurrent_trials"), "at_once")
    if slots := resources.whole("max_slots"):
        gpus = int(draft.spec.get("gpus_per_worker", 1)) * int(draft.spec.get("workers", 1))
        limits.append(max(1, slots // max(1, gpus)))
        draft.report.mapped(
            resources.at("max_slots"), "at_once", f"{limits[-1]} trials at once have {slots} GPUs."
        )
    return min(limits) if limits else None


def _values(fields: Fields, kind: str) -> tuple[Any, bool] | str:
    """Returns how a parameter of the sweep is described, and whether its values are texts. Returns a sentence if a
    sweep cannot have these values."""
    if fields.get("type") == "categorical":
        values, is_text = _as_values(fields.items("vals"))
        if not values or any(isinstance(one, str) and len(one) > LONGEST_VALUE for one in values):
            return f"A parameter of a sweep has at least one value, of up to {LONGEST_VALUE} characters."
        return (values if kind == "grid" else {"distribution": "choice", "values": values}), is_text
    ends = [_number(fields.get(name)) for name in ("minval", "maxval")]
    low, high = ends
    if low is None or high is None or low > high:
        return "Here minval and maxval are expected, the smaller one first."
    whole, log = fields.get("type") == "int", fields.get("type") == "log"
    base = _number(fields.get("base")) or 10
    if not searches.usable(
        low, high, *([searches.power(base, one) for one in ends if one is not None] if log else [])
    ):
        return "The values are not numbers from -1e15 to 1e15."
    if kind == "grid":
        count = fields.whole("count")
        if count is None or not 1 <= count <= MOST_MEMBERS:
            return f"Write in count how many values the grid has, from 1 to {MOST_MEMBERS}."
        tried: Sequence[float] = searches.spaced(low, high, count)
        if whole:
            tried = sorted({round(one) for one in tried})
        elif log:
            tried = [searches.power(base, one) for one in tried]
        return list(tried), False
    if log:
        return {
            "distribution": "log_uniform",
            "low": searches.power(base, low),
            "high": searches.power(base, high),
        }, False
    if whole:
        return {"distribution": "int", "low": int(low), "high": int(high)}, False
    return {"distribution": "uniform", "low": low, "high": high}, False


def _as_values(given: Sequence[Any]) -> tuple[list[str | int | float], bool]:
    """Returns values of a sweep, and whether they are texts. Other values than numbers become JSON, unless all are
    texts that mean themselves between quotes."""
    if all(isinstance(one, str) and json.dumps(one, ensure_ascii=False) == f'"{one}"' for one in given):
        return list(given), True
    return [
        one if isinstance(one, int | float) and not isinstance(one, bool) and searches.usable(one)
        else json.dumps(one, ensure_ascii=False, default=str)
        for one in given
    ], False  # fmt: skip


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def _in_shell(parts: Parts) -> str:
    """Returns a word of the shell whose value is the JSON of the parts."""
    words, literal = [], ""
    for part in parts:
        if isinstance(part, str):
            literal += part
            continue
        quote = '"' if part.is_text else ""
        words += [shlex.quote(literal + quote), f'"${part.name}"']
        literal = quote
    return "".join([*words, shlex.quote(literal)])
