"""Imports of foreign files on the pages and in the API: the report in the order of importance, and the works."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from accounting.core.name_order import by_name
from accounting.core.numbers import read_whole
from accounting.core.wording import counted
from accounting.models import Generation
from scheduling.clusters.backend_factory import environments_of
from scheduling.importers.registry import convert, recognise
from scheduling.importers.report import Conversion, Fate, Line, Work, WorkKind, without_fields
from scheduling.jobs.resources import ONLY_IN_CONTAINERS
from scheduling.models import Cluster

ORDER = (Fate.REFUSED, Fate.DROPPED, Fate.APPROXIMATED, Fate.DEFAULTED, Fate.MAPPED)
# By fate, the tone of its chip.
TONES = {Fate.REFUSED: "bad", Fate.DROPPED: "warn", Fate.APPROXIMATED: "info", Fate.DEFAULTED: "neutral",
         Fate.MAPPED: "good"}  # fmt: skip
QUIET = {Fate.DEFAULTED, Fate.MAPPED}
MOST_WORKS = 100
TAKE = "take-"
NO_CONTAINERS = (
    "Jobs of this cluster are processes on the portal's machine, not containers, so this has no effect there."
)


OWN_ENVIRONMENTS = (
    "Jobs of this cluster are processes on the portal's machine, not containers, so there are no images. Choose one of"
    " its environments that has what the program needs: {own}."
)


@dataclass(frozen=True)
class Row:
    """A line of the report as the page shows it."""

    fate: str
    tone: str
    source: str
    target: str
    text: str


@dataclass(frozen=True)
class Import:
    """A foreign text that was recognised: its works and its report.

    `taken` is the position of the work that the form shows; None if the user has to choose one, or if there is none.
    """

    text: str
    label: str
    works: Sequence[Work]
    lines: Sequence[Line]
    taken: int | None = None

    @classmethod
    def read(cls, text: str, cluster: Cluster | None, taken: int | None = None) -> Self | None:
        """Converts a text for a job in `cluster`. Returns None if its format is not recognised.

        A single job is taken at once. `taken` is the position of the work that the user has chosen.
        """
        known = recognise(text)
        if known is None:
            return None
        found = convert_for(cluster, text, known.name)
        if taken is None and [work.kind for work in found.works] == [WorkKind.JOB]:
            taken = 0
        if taken is not None and taken >= len(found.works):
            taken = None
        return cls(text, known.label, found.works, worst_first(found.report), taken)

    @property
    def work(self) -> Work | None:
        return None if self.taken is None else self.works[self.taken]

    @property
    def refused(self) -> bool:
        return not self.works

    @property
    def choices(self) -> Sequence[tuple[str, Work, bool]]:
        """Returns the value of the button, the work, and whether the form shows it. Empty if the only work is taken."""
        if len(self.works) == 1 and self.taken == 0:
            return []
        return [(f"{TAKE}{at}", work, at == self.taken) for at, work in enumerate(self.works[:MOST_WORKS])]

    @property
    def options(self) -> Mapping[str, Any]:
        """Returns the options of the service, schedule, sweep or pipeline that the form shows; empty for a job."""
        return self.work.options if self.work else {}

    @property
    def loud(self) -> Sequence[Row]:
        """Returns the rows that need attention: refused, dropped and approximated fields."""
        return [_row(line) for line in self.lines if line.fate not in QUIET]

    @property
    def quiet(self) -> Sequence[Row]:
        return [_row(line) for line in self.lines if line.fate in QUIET]

    @property
    def sentence(self) -> str:
        """Returns what was found, or what to do, in a sentence."""
        if self.refused:
            return "The text cannot be imported as it is now. Change what is refused, and paste it again."
        if len(self.works) == 1 and self.taken == 0:
            kind = self.works[0].kind.value
            return f"The form and the YAML show the converted {kind}. Read the report, then submit."
        if len(self.works) == 1:
            return f"{only(self.works[0])} Create it with the button."
        kinds = {kind: sum(work.kind is kind for work in self.works) for kind in WorkKind}
        found = ", ".join(counted(number, kind.value) for kind, number in kinds.items() if number)
        return f"The text describes {found}. Choose the one to create; you can come back for the others."


def convert_for(cluster: Cluster | None, text: str, name: str = "") -> Conversion:
    """Converts a text of the format `name`; "" if the format is to be recognised. Fields that jobs in `cluster` cannot
    have are dropped; None stands for an unknown cluster."""
    found = convert(text, name=name, known_generations=known_generations())
    is_local = cluster is not None and cluster.backend == Cluster.Backend.LOCAL
    if not is_local:
        return found
    own = (cluster and environments_of(cluster)) or ()
    named = {name for work in found.works for spec in work.specs for name in _environments(spec)}
    if named - set(own):
        found = without_fields(found, ("environment",), OWN_ENVIRONMENTS.format(own=", ".join(own)))
    return without_fields(found, ONLY_IN_CONTAINERS, NO_CONTAINERS)


def _environments(spec: Mapping[str, Any]) -> list[str]:
    """Returns the environments that a job specification and its roles name."""
    named = [spec.get("environment"), *(role.get("environment") for role in spec.get("roles", ()))]
    return [name for name in named if name]


def known_generations() -> list[str]:
    """Returns the GPU types of all attached clusters."""
    found = Generation.objects.filter(nodes__cluster__detached_at=None, nodes__gpus__gt=0)
    return list(found.order_by(*by_name("name")).values_list("name", flat=True).distinct())


def worst_first(lines: Iterable[Line]) -> Sequence[Line]:
    """Returns the lines of a report: those that need attention first, in the order of the text otherwise."""
    return sorted(lines, key=lambda line: ORDER.index(line.fate))


def only(work: Work) -> str:
    """Returns the sentence that says what the only work is, which is no job."""
    return (
        f"The text describes a {work.kind.value}{f' of {work.members}' if work.members else ''}, not a job."
    )


def position_of(asked: str | None) -> int | None:
    """Returns the position of the work that a button asks for; None for other buttons."""
    if not asked or not asked.startswith(TAKE):
        return None
    position = read_whole(asked.removeprefix(TAKE))
    return None if position is None or position < 0 else position


def _row(line: Line) -> Row:
    return Row(line.fate.value, TONES[line.fate], line.source, line.target, line.text)
