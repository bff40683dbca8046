"""Finds objects by id or name, also for the completion of the shell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import click
from click.shell_completion import CompletionItem

from fairlot_client.cli.app import App, NoneSeen, app_of

ENDED = {"succeeded", "failed", "cancelled"}
MOST_COMPLETED = 50
# Where the command that lists objects of a kind is not `fairlot KIND list`.
LISTED_BY = {"job": "fairlot list", "template": "fairlot templates list"}


def job_id_of(app: App, text: str) -> int:
    """Returns the id of a job that is given by its id or name.

    If several jobs have the name, the one that has not ended is meant, otherwise the newest. Raises UsageError if
    several have not ended, and NoneSeen if the user sees none.
    """
    if text.isdecimal():
        return int(text)
    named = [job for job in islice(app.client.list_jobs(q=text, page_size=200), 200) if job["name"] == text]
    return _only(named, text, "job", lambda job: job["state"] not in ENDED)


def rank_of(app: App, job: int, worker: str) -> int:
    """Returns the rank of a worker that is given by its role and its number in the role, such as ps/0.

    Raises NoneSeen if the job has no such worker.
    """
    names = [name.replace(" ", "/") for name in app.client.get_job(job)["worker_names"]]
    if worker not in names:
        raise NoneSeen(f'Job {job} has no worker "{worker}". It has: {", ".join(names)}.')
    return names.index(worker)


def service_id_of(app: App, text: str) -> int:
    return _by_name(text, "service", app.client.list_services, lambda one: one["removed_at"] is None)


def session_id_of(app: App, text: str) -> int:
    return _by_name(text, "session", app.client.list_sessions, lambda one: one["state"] not in ENDED)


def schedule_id_of(app: App, text: str) -> int:
    return _by_name(text, "schedule", app.client.list_schedules, lambda one: one["deleted_at"] is None)


def sweep_id_of(app: App, text: str) -> int:
    return _by_name(text, "sweep", app.client.list_sweeps, lambda one: one["ended_at"] is None)


def pipeline_id_of(app: App, text: str) -> int:
    return _by_name(text, "pipeline", app.client.list_pipelines, lambda one: one["ended_at"] is None)


def template_id_of(app: App, text: str) -> int:
    """Returns the id of a template that is given by its id or name."""
    return _by_name(text, "template", lambda: app.client.list_templates(q=text), lambda one: True)


def _by_name(
    text: str, what: str, listed: Callable[[], Iterable[Mapping[str, Any]]], is_alive: Callable[[Any], bool]
) -> int:
    if text.isdecimal():
        return int(text)
    return _only([one for one in listed() if one["name"] == text], text, what, is_alive)


def _only(named: list[Any], text: str, what: str, is_alive: Callable[[Any], bool]) -> int:
    alive = [one for one in named if is_alive(one)]
    if len(alive) > 1:
        ids = ", ".join(str(one["id"]) for one in alive)
        raise click.UsageError(f'Several {what}s have the name "{text}". Give one of the ids: {ids}.')
    if not named:
        command = LISTED_BY.get(what, f"fairlot {what} list")
        raise NoneSeen(f'You see no {what} with the name "{text}". Names and ids: {command}.')
    return int((alive or named)[0]["id"])


def argument(kind: str, **options: Any) -> Callable[[Any], Any]:
    """Returns an argument for the id or name of a job, service, session, schedule, sweep, pipeline or template, with
    completion."""
    return click.argument(kind, shell_complete=_completer(kind.rstrip("s")), **options)


def _completer(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    def complete(context: click.Context, _: click.Parameter, start: str) -> list[CompletionItem]:
        try:
            client = app_of(context).quick_client()
            lists: dict[str, Callable[..., Iterable[Any]]] = {
                "job": client.list_jobs,
                "service": client.list_services,
                "session": client.list_sessions,
                "schedule": client.list_schedules,
                "sweep": client.list_sweeps,
                "pipeline": client.list_pipelines,
                "template": client.list_templates,
            }
            found = list(islice(lists[kind](page_size=MOST_COMPLETED), MOST_COMPLETED))
        except Exception:
            return []
        by_id = [CompletionItem(str(one["id"]), help=_help(one)) for one in found]
        by_name = [CompletionItem(name) for name in dict.fromkeys(one["name"] for one in found)]
        return [item for item in [*by_id, *by_name] if str(item.value).startswith(start)]

    return complete


def _help(one: Mapping[str, Any]) -> str:
    state = one.get("state") or one.get("status") or ""
    return f"{one['name']} {state}".strip()
