"""Template tags that render the rows of long lists.

They build the HTML directly, because a template takes several times as long for each row. They pass every text that
comes from users or from their programs through `escape`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from html import escape
from typing import TypeAlias

from django import template
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from accounting.core.wording import counted, duration, number
from portal import wording
from portal.cluster.gpu_map import AWAY, OTHER, Cell
from portal.jobs.columns import LABEL
from portal.jobs.filters import ListedJob
from portal.templatetags.fairlot import ago_at, as_sentence, chip, moment, reason_chip, state_chip
from scheduling.core.event_texts import text_of
from scheduling.models import Job, JobEvent

register = template.Library()
# words for kinds of cells whose key is no clear word
WORDS = {OTHER: "another team", AWAY: "unavailable"}


@register.simple_tag
def job_lines(jobs: Iterable[Job], *, whose: bool = False) -> SafeString:
    """Renders the jobs in the lists on the home page, one line for each job; with `whose`, with its owner and team."""
    now, address = timezone.now(), _job_address()
    return SafeString("\n".join(_job_line(job, address, now, whose=whose) for job in jobs))


def _job_line(job: Job, address: str, now: datetime, *, whose: bool) -> str:
    holds, wanted = job.now_on, job.wanted  # type: ignore[attr-defined]  # annotated
    earliest = getattr(job, "earliest", None)
    starts = ""
    if earliest and job.state in Job.WAITING:
        starts = _starts(earliest, job.starts_by, now)  # type: ignore[attr-defined]  # annotated
    now_on = f" · {escape(holds)}" if holds else ""
    of = f"{escape(job.owner.get_username())}, {escape(job.tenant.name)} · " if whose else ""
    return (
        f'<li id="line-{job.pk}"><a class="job-line-name break" href="{address}{job.pk}/">{escape(job.name)}</a>\n'
        f'<span class="job-line-end">{state_chip(job)}</span>\n'
        f'<span class="muted small">{of}{counted(wanted, "GPU")}{now_on} · '
        f"{ago_at(job.ended_at or job.created_at, now)}</span>\n"
        f'<span class="job-line-end job-line-why">{starts}{reason_chip(job)}</span></li>'
    )


@register.simple_tag
def job_rows(jobs: Iterable[ListedJob], columns: Sequence[str]) -> SafeString:
    """Renders the rows of a page of the job list, which has up to fifty jobs, with these columns."""
    now, address = timezone.now(), _job_address()
    cells = [_cell_of(key) for key in columns]
    return SafeString("".join(_job_row(job, address, now, cells) for job in jobs))


def _job_row(job: ListedJob, address: str, now: datetime, cells: Sequence[JobCell]) -> str:
    return (
        f'<tr id="job-{job.pk}"><td class="pick"><input type="checkbox" name="job" value="{job.pk}" form="selection" '
        f'aria-label="Select {escape(job.name)}"></td>'
        f"{''.join(cell(job, address, now) for cell in cells)}</tr>"
    )


# Renders one cell of a job from the job, the beginning of the URL of jobs, and the time.
JobCell: TypeAlias = Callable[[ListedJob, str, datetime], str]


def _name_cell(job: ListedJob, address: str, now: datetime) -> str:
    return (
        f'<th scope="row" class="job-name"><a href="{address}{job.pk}/">'
        f'{escape(job.name)}</a> <span class="muted small nowrap">#{job.pk}</span></th>'
    )


def _state_cell(job: ListedJob, address: str, now: datetime) -> str:
    preemptible = chip("preemptible", "accent") if job.preemptible else ""
    starts = _starts(job.earliest, job.starts_by, now) if job.earliest and job.state in Job.WAITING else ""
    return (
        f'<td data-label="State"><span class="row chips">{state_chip(job)}{reason_chip(job)}{preemptible}{starts}'
        "</span></td>"
    )


def _gpus_cell(job: ListedJob, address: str, now: datetime) -> str:
    now_on = f' <span class="muted">{escape(job.now_on)}</span>' if job.now_on else ""
    return f'<td data-label="GPUs" class="number"><span>{job.wanted}{now_on}</span></td>'


def _text_cell(label: str, text: str | None) -> str:
    return f'<td data-label="{escape(label)}" class="break">{escape(text or "")}</td>'


def _number_cell(label: str, value: object) -> str:
    return f'<td data-label="{label}" class="number">{"" if value is None else value}</td>'


def _time_cell(label: str, at: datetime | None, now: datetime) -> str:
    return f'<td data-label="{label}">{ago_at(at, now) if at else ""}</td>'


JOB_CELLS: dict[str, JobCell] = {
    "name": _name_cell,
    "state": _state_cell,
    "gpus": _gpus_cell,
    "team": lambda job, address, now: _text_cell("Team", job.team),
    "owner": lambda job, address, now: _text_cell("Owner", job.owner),
    "created": lambda job, address, now: _time_cell("Submitted", job.created_at, now),
    "ended": lambda job, address, now: _time_cell("Ended", job.ended_at, now),
    "started": lambda job, address, now: _time_cell("First started", job.first_started_at, now),
    "held": lambda job, address, now: _number_cell(
        "Time on GPUs", duration(job.held_for.total_seconds()) if job.held_for else None
    ),
    "generation": lambda job, address, now: _text_cell("GPU type", job.now_on),
    "kind": lambda job, address, now: _text_cell("Kind", Job.Kind(job.kind).label),
    "priority": lambda job, address, now: _number_cell("Priority", job.priority),
    "deadline": lambda job, address, now: _time_cell("Deadline", job.deadline, now),
    "time_limit": lambda job, address, now: _number_cell(
        "Time limit", duration(round(job.time_limit_hours * 3600)) if job.time_limit_hours else None
    ),
    "attempts": lambda job, address, now: _number_cell("Attempts", job.attempts),
    "failures": lambda job, address, now: _number_cell("Failures", job.failures),
    "exit": lambda job, address, now: _number_cell("Exit code", job.exit_code),
    "steps": lambda job, address, now: _number_cell(
        "Steps", None if job.steps is None else number(float(job.steps))
    ),
    "sweep": lambda job, address, now: _text_cell("Sweep", job.sweep),
    "pipeline": lambda job, address, now: _text_cell("Pipeline", job.pipeline),
    "cluster": lambda job, address, now: _text_cell("Cluster", job.cluster),
}


def _cell_of(key: str) -> JobCell:
    label = key.removeprefix(LABEL)
    return JOB_CELLS.get(key) or (lambda job, address, now: _text_cell(label, _label_of(job, label)))


def _label_of(job: ListedJob, key: str) -> str:
    """Returns the value of a label of a job; the key itself for a label without a value."""
    labels = job.labels or {}
    return (labels[key] or key) if key in labels else ""


def _starts(earliest: datetime, by: datetime | None, now: datetime) -> str:
    """Renders the interval in which a job is expected to start."""
    if by is None:
        when = f"starts {ago_at(earliest, now)} or later"
    elif is_near(by, now):
        when = "starts any moment"
    elif is_near(earliest, now):
        when = f"starts {ago_at(by, now)} or sooner"
    else:
        when = f"starts {ago_at(earliest, now)}, at the latest {ago_at(by, now)}"
    return f'<span class="muted small">{when}</span>'


def is_near(moment: datetime, now: datetime) -> bool:
    return moment <= now or wording.relative(moment, now) == "now"


@register.simple_tag
def event_lines(events: Iterable[JobEvent]) -> SafeString:
    """Renders the events in a job's history, up to a hundred of them."""
    now = timezone.now()
    return SafeString("".join(_event_line(event, now) for event in events))


def _event_line(event: JobEvent, now: datetime) -> str:
    attempt = f" · attempt {event.epoch}" if event.epoch else ""
    return (
        f'\n    <li id="event-{event.pk}" class="event event-{escape(event.kind)}">'
        f'<p class="break">{escape(as_sentence(text_of(event)))}</p>'
        f'<p class="muted small">{moment(event.at)} · {ago_at(event.at, now)}{attempt}</p></li>\n  '
    )


@register.simple_tag
def gpu_cells(cells: Iterable[Cell]) -> SafeString:
    """Renders the cells of a node on the GPU map.

    A cell is either a job with the adjacent GPUs that it holds, or a single GPU with its state, such as free or held by
    another team.
    """
    address = _job_address()
    return SafeString(
        "\n".join(
            _own_cell(cell, cell.job, address) if cell.job else _nameless_cell(cell.kind, cell.gpus)
            for cell in cells
        )
    )


def _own_cell(cell: Cell, job: Job, address: str) -> str:
    name, team = escape(job.name), escape(job.tenant.name)
    return (
        f'<li class="gpu gpu-{cell.kind} gpu-span-{cell.span} gpu-series-{cell.series}"'
        f' title="{cell.gpus}: {name}, {escape(job.owner.get_username())} of {team}">'
        f'<a href="{address}{job.pk}/"><span class="sr-only">{cell.gpus}, {team}: </span>'
        f'<span class="gpu-team" aria-hidden="true">{cell.team}</span>{name}</a></li>'
    )


@lru_cache(1024)
def _nameless_cell(kind: str, gpus: str) -> str:
    """Renders a cell of one GPU that names no job: a free or lost GPU, or a GPU of another team."""
    what = f"{gpus}: {WORDS.get(kind, kind)}"
    return f'<li class="gpu gpu-{kind} gpu-span-1" title="{what}"><span class="sr-only">{what}</span></li>'


def _job_address() -> str:
    """Returns the beginning of the URL of every job. The job's key and a slash must be appended."""
    return reverse("job", args=[0]).removesuffix("0/")
