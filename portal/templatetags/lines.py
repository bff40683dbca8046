"""Lines of lists that have many: a template takes several times as long for each.

Every text that people wrote goes through `escape`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from html import escape

from django import template
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from portal.cluster.floor import OTHER, Cell
from portal.templatetags.fairlot import ago_at, reason_chip, state_chip
from scheduling.models import Job

register = template.Library()


@register.simple_tag
def job_lines(jobs: Iterable[Job]) -> SafeString:
    """The home page's jobs."""
    now, address = timezone.now(), _job_address()
    return SafeString("\n".join(_job_line(job, address, now) for job in jobs))


def _job_line(job: Job, address: str, now: datetime) -> str:
    now_on = f" · {escape(job.now_on)}" if job.now_on else ""
    return (
        f'<li id="line-{job.pk}"><a class="job-line-name break" href="{address}{job.pk}/">{escape(job.name)}</a>\n'
        f'<span class="job-line-end">{state_chip(job)}</span>\n'
        f'<span class="muted small">{job.wanted} GPU{"" if job.wanted == 1 else "s"}{now_on} · '
        f"{ago_at(job.ended_at or job.created_at, now)}</span>\n"
        f'<span class="job-line-end job-line-why">{reason_chip(job)}</span></li>'
    )


@register.simple_tag
def gpu_cells(cells: Iterable[Cell], *, with_team: bool) -> SafeString:
    """The GPUs of a node, by who holds them."""
    address = _job_address()
    return SafeString(
        "\n".join(
            _own_cell(cell, cell.job, address, with_team=with_team)
            if cell.job
            else _nameless_cell(cell.kind, cell.gpus)
            for cell in cells
        )
    )


def _own_cell(cell: Cell, job: Job, address: str, *, with_team: bool) -> str:
    name = escape(job.name)
    team = f" of {escape(job.tenant.name)}" if with_team else ""
    return (
        f'<li class="gpu gpu-{cell.kind} gpu-span-{cell.span} gpu-series-{cell.series}"'
        f' title="{cell.gpus}: {name}, {escape(job.owner.get_username())}{team}">'
        f'<a href="{address}{job.pk}/"><span class="sr-only">{cell.gpus}: </span>{name}</a></li>'
    )


@lru_cache(1024)
def _nameless_cell(kind: str, gpus: str) -> str:
    """Always of one GPU."""
    what = f"{gpus}: {'another team' if kind == OTHER else kind}"
    return f'<li class="gpu gpu-{kind} gpu-span-1" title="{what}"><span class="sr-only">{what}</span></li>'


def _job_address() -> str:
    """Where the addresses of jobs begin; their numbers and a slash end them."""
    return reverse("job", args=[0]).removesuffix("0/")
