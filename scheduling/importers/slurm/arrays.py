"""Arrays of jobs: their tasks become the members of a sweep."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from accounting.core.wording import fixed
from scheduling.importers.arrays import SHELL_INDEX, Array
from scheduling.importers.report import Fate, Report, Work
from scheduling.importers.slurm.directives import BatchScript
from scheduling.spec.members import INDEX_VARIABLE, MOST_MEMBERS

RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?(?::(\d{1,9}))?", re.ASCII)
AT_ONCE = re.compile(r"[1-9]\d{0,8}", re.ASCII)
TASK = "SLURM_ARRAY_TASK_ID"


@dataclass(frozen=True)
class Tasks:
    """The tasks of an array: their numbers, of which there is at least one, and how many run at once."""

    numbers: list[int]
    at_once: int | None
    source: str

    @classmethod
    def read(cls, script: BatchScript, report: Report) -> Tasks | None:
        """Returns the tasks of a script. Returns None if it has no array, or an array that the report refuses."""
        if "array" not in script:
            return None
        source = script.source("array")
        listed, percent, at_once = (part.strip() for part in script.value("array").partition("%"))
        tasks = numbers(listed)
        if not tasks:
            report.refused_at(source, "This is not a list of task numbers, such as 0-9 or 1,3,5-7:2.")
        elif percent and not AT_ONCE.fullmatch(at_once):
            report.refused_at(
                source, "After % a number is expected: how many tasks run at once, such as 0-9%2."
            )
        elif len(tasks) > MOST_MEMBERS:
            report.refused_at(
                source,
                f"The array has more than {fixed(MOST_MEMBERS)} tasks, which is the most that a sweep has. Import a"
                f" part of it at a time, for example --array={tasks[0]}-{tasks[MOST_MEMBERS - 1]}.",
            )
        else:
            return cls(tasks, int(at_once) if at_once else None, source)
        return None

    @property
    def step(self) -> int:
        """Returns the distance of the tasks; 0 if it is not always the same."""
        steps = {later - earlier for earlier, later in pairwise(self.numbers)}
        return steps.pop() if len(steps) == 1 else 0

    @property
    def exports(self) -> dict[str, str]:
        """Returns the shell text of the task's number, if it follows from the index of the member."""
        if not self.step:
            return {}
        first = self.numbers[0]
        terms = [str(first)] if first else []
        terms.append(INDEX_VARIABLE if self.step == 1 else f"{INDEX_VARIABLE} * {self.step}")
        return {TASK: SHELL_INDEX if terms == [INDEX_VARIABLE] else f'"$(({" + ".join(terms)}))"'}

    @property
    def variables(self) -> dict[str, str]:
        """Returns the variables that all tasks have in common, and the number of an only task."""
        alone = {TASK: str(self.numbers[0])} if len(self.numbers) == 1 else {}
        return alone | {
            "SLURM_ARRAY_TASK_COUNT": str(len(self.numbers)),
            "SLURM_ARRAY_TASK_MIN": str(self.numbers[0]),
            "SLURM_ARRAY_TASK_MAX": str(self.numbers[-1]),
            "SLURM_ARRAY_TASK_STEP": str(self.step or 1),
        }

    def works_of(self, works: list[Work], report: Report) -> list[Work]:
        """Returns a sweep for each of the works, or the work itself if there is only one task."""
        if len(self.numbers) == 1:
            report.mapped(
                self.source, f"variables.{TASK}", f"The only task has the number {self.numbers[0]}."
            )
            return works
        at_once = self.at_once
        if not self.step:
            rows = [{TASK: number} for number in self.numbers]
            array = Array.listed(self.source, rows, at_once=at_once, said=f"Each has its own {TASK}.")
        else:
            first = self.numbers[0]
            same = first == 0 and self.step == 1
            said = f"{TASK} is the member's index." if same else f"Member 0 is task {first}, member 1 is task"
            said = said if same else f"{said} {self.numbers[1]}, and so on."
            fate = Fate.MAPPED if same else Fate.APPROXIMATED  # whoever looks for a task must know its member
            array = Array.counted(self.source, len(self.numbers), at_once=at_once, said=said, fate=fate)
        return array.sweeps_of(works, report)


def numbers(listed: str) -> list[int]:
    """Returns the task numbers in an array's list, at most one more than MOST_MEMBERS.

    Returns an empty list if the text is not such a list.
    """
    found: dict[int, None] = {}
    for part in listed.split(","):
        said = RANGE.fullmatch(part.strip())
        if not said or int(said[3] or 1) == 0:
            return []
        for number in range(int(said[1]), int(said[2] or said[1]) + 1, int(said[3] or 1)):
            found[number] = None
            if len(found) > MOST_MEMBERS:
                return sorted(found)
    return sorted(found)
