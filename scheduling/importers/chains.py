"""Makes a pipeline of converted jobs of which some need the end of others."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from scheduling.importers.report import Fate, Report, Work, WorkKind

MOST_STEPS = 100
LONGEST = 40  # of the name of a step
HOW_TO_NEED = (
    "To let the job wait for jobs of Fairlot, name them in the field Needs jobs of the form, or with fairlot submit"
    " --needs."
)
NO_FILES = "Steps pass on no files: the programs read and write where they did before."


@dataclass(frozen=True)
class Link:
    """A job of a chain: what the foreign text calls it, and the names of the jobs that it needs.

    `when`: which end of these it needs: success, failure or always.
    """

    name: str
    work: Work
    needs: Collection[str] = field(default_factory=tuple)
    when: str = "success"


def pipeline_of(name: str, links: Sequence[Link], source: str, report: Report) -> list[Work]:
    """Returns the pipeline whose steps are the jobs, in an order in which none comes before what it needs.

    Refuses jobs that need unknown ones, or each other.
    """
    if len(links) > MOST_STEPS:
        report.refused_at(
            source, f"A pipeline has at most {MOST_STEPS} steps. Import a part of it at a time."
        )
        return []
    steps = _names(links)
    if len(steps) < len(links):
        report.refused_at(
            source, "Two jobs have the same name, so it is not clear which one is needed.", "needs"
        )
        return []
    for link in links:
        if unknown := next((one for one in link.needs if one not in steps), None):
            report.refused_at(
                source, f"{link.name[:60]} needs {unknown[:60]}, which is not in the text.", "needs"
            )
            return []
    done: list[str] = []
    while len(done) < len(links):
        ready = [one for one in links if one.name not in done and set(one.needs) <= set(done)]
        if not ready:
            report.refused_at(source, "The jobs need each other in a circle.", "needs")
            return []
        done += [one.name for one in ready]
    found = {}
    for link in sorted(links, key=lambda one: done.index(one.name)):
        needs = [
            {"step": steps[one], "files": False} | ({} if link.when == "success" else {"when": link.when})
            for one in link.needs
        ]
        found[steps[link.name]] = dict(link.work.spec) | ({"needs": needs} if needs else {})
    report.remark(Fate.MAPPED, source, "needs", f"A pipeline of {len(links)} steps. {NO_FILES}")
    return [Work(WorkKind.PIPELINE, {}, {"pipeline": {"name": name, "steps": found}})]


def _names(links: Sequence[Link]) -> Mapping[str, str]:
    """Returns the name of each step, by that of its job."""
    found: dict[str, str] = {}
    for link in links:
        plain = re.sub(r"[^a-z0-9]+", "-", link.name.lower()).strip("-")
        if not plain[:1].isalpha() or re.fullmatch(r"job-\d+", plain, re.ASCII):
            plain = f"step-{plain}".strip("-")
        name, number = plain[:LONGEST].strip("-"), 1
        while name in found.values():
            number += 1
            name = f"{plain[: LONGEST - 4].strip('-')}-{number}"
        found[link.name] = name
    return found
