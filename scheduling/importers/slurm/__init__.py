"""Imports Slurm batch scripts: the #SBATCH options, and what the script itself expects of Slurm."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.importers.draft import JobDraft
from scheduling.importers.reading import Source
from scheduling.importers.report import Report, Work
from scheduling.importers.slurm.arrays import Tasks
from scheduling.importers.slurm.directives import BatchScript, end_of_header
from scheduling.importers.slurm.resources import Request
from scheduling.importers.slurm.script import put_command
from scheduling.importers.slurm.settings import put_settings


def recognise(source: Source) -> bool:
    """Returns whether the text has an #SBATCH line before its first command."""
    lines = source.text.split("\n")
    return any(line.startswith("#SBATCH") for line in lines[: end_of_header(lines)])


def convert(source: Source, report: Report, known: Sequence[str]) -> list[Work]:
    """Returns a job, or for an array a sweep."""
    script = BatchScript.read(source.text, report)
    if script is None:
        return []
    draft = JobDraft(report, known_generations=known)
    request = Request.read(script, draft)
    put_settings(script, draft)
    tasks = Tasks.read(script, report)
    put_command(script, request, draft, tasks)
    draft.default("name", "slurm-job", "The script has no --job-name.")
    works = draft.finish()
    if tasks is not None:
        works = tasks.works_of(works, report)
    script.drop_the_rest()
    return works
