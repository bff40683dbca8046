"""Commands for sessions, services and schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from fairlot_client.cli import finding
from fairlot_client.cli.app import App, talk, with_app
from fairlot_client.cli.arguments import chosen
from fairlot_client.cli.code import spec_with_code
from fairlot_client.cli.commands.metrics import sparkline
from fairlot_client.cli.output import (
    Column,
    limit_options,
    list_options,
    output_option,
    plural,
    points_option,
    show_created,
    show_done,
    show_one,
    show_rows,
    taken,
    watchable,
    when,
)
from fairlot_client.cli.spec import job_options

if TYPE_CHECKING:
    from fairlot_client.answers import Traffic

WORDS = {"allow_interspersed_args": False}
SHORTEST, LONGEST = 0.5, 5.0  # seconds between two looks


@click.group()
def session() -> None:
    """Work interactively on GPUs, for example in a notebook."""


def _reserved(it: Any) -> str:
    """Returns a line for each reservation of another team that takes GPUs of a service or session."""
    return "\n".join(
        f"{', '.join(one['nodes'])} ({', '.join(one['jobs'])}): may be stopped from {when('stops_at')(one)}"
        f" until {when('ends_at')(one)}"
        for one in it.get("reserved_ahead", [])
    )


SESSIONS: list[Column] = [
    ("ID", "id"), ("NAME", "name"), ("STATE", "state"), ("READY", "ready"), ("TEAM", "team"), ("OWNER", "owner"),
    ("ENDS", when("ends_at")), ("REASON", "reason"),
]  # fmt: skip
SESSION: list[Column] = [
    ("id", "id"), ("name", "name"), ("state", "state"), ("ready", "ready"), ("why", "sentence"), ("team", "team"),
    ("owner", "owner"), ("cluster", "cluster"), ("idle timeout (minutes)", "idle_timeout_minutes"),
    ("stops if unused", when("idle_ends_at")), ("time limit (hours)", "time_limit_hours"), ("ends", when("ends_at")),
    ("reserved by others", _reserved),
    ("end", "end_message"), ("last lines", lambda it: "\n".join(it["last_lines"])),
]  # fmt: skip


@session.command("list")
@list_options
@click.option("--ended", is_flag=True, help="Also sessions that have ended.")
@watchable
@with_app
def list_sessions(app: App, limit: int, everything: bool, ended: bool, **options: Any) -> None:
    """List sessions, newest first or as --sort says."""
    found = app.client.list_sessions(**chosen(options))
    wanted = (one for one in found if ended or one["state"] not in finding.ENDED)
    show_rows(app, taken(wanted, limit, everything), SESSIONS)


@session.command("show")
@finding.argument("session")
@watchable
@with_app
def show_session(app: App, session: str) -> None:
    """Show a session, given by its id or name."""
    show_one(app, app.client.get_session(finding.session_id_of(app, session)), SESSION)


@session.command("open", context_settings=WORDS)
@job_options
@click.option("--kind", type=click.Choice(["notebook", "vscode"]), help="What starts if there is no command.")
@click.option("--idle-minutes", type=int, help="Minutes without use after which the session is stopped.")
@click.option("--hours", type=int, help="Hours after which the session is stopped.")
@click.option(
    "--files-from", help="An ended session, by id or name, whose files are copied into the new one."
)
@click.option("--no-wait", is_flag=True, help="Do not wait until the session answers.")
@output_option
@with_app
def open_session(
    app: App, *, file: Any, command: Any, even_if_never: bool, no_wait: bool, idle_minutes: int | None,
    hours: int | None, kind: str | None, files_from: str | None, **options: Any,
) -> None:  # fmt: skip
    """Start a session, wait until it answers, and print the address of its page.

    Takes the arguments of `fairlot submit`; the program must answer at a port. With --kind, it needs no command:
    JupyterLab or VS Code starts, which the image or environment must contain.

    \b
    fairlot session open --gpus 1 --kind vscode
    fairlot session open --gpus 1 --port 8888 -- jupyter lab --port 8888
    """
    spec, place = spec_with_code(
        app, file=file, command=command, options=options, may_be_incomplete=kind is not None
    )
    limits: dict[str, Any] = chosen(
        {"kind": kind, "idle_timeout_minutes": idle_minutes, "time_limit_hours": hours}
    )
    if files_from is not None:
        limits["files_from"] = finding.session_id_of(app, files_from)
    made = app.client.start_session(spec=spec, even_if_never=even_if_never, **place, **limits)
    talk(f'Started session {made["id"]} "{made["name"]}".')
    _show_begun(app, made, no_wait=no_wait)


@session.command("again")
@finding.argument("session")
@click.option("--without-files", is_flag=True, help="Do not copy the files of the ended session.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the session answers.")
@output_option
@with_app
def start_again(app: App, session: str, without_files: bool, no_wait: bool) -> None:
    """Start an ended session again, with the same settings and a copy of its files."""
    number = finding.session_id_of(app, session)
    earlier, job = app.client.get_session(number), app.client.get_job(number)
    made = app.client.start_session(
        spec=job["spec"],
        team=earlier["team"],
        cluster=earlier["cluster"],
        kind=earlier["kind"],
        idle_timeout_minutes=earlier["idle_timeout_minutes"],
        time_limit_hours=earlier["time_limit_hours"],
        files_from=None if without_files else number,
    )
    talk(f'Started session {made["id"]} "{made["name"]}".')
    _show_begun(app, made, no_wait=no_wait)


def _show_begun(app: App, made: Any, *, no_wait: bool) -> None:
    """Waits until a session answers, and prints the address of its page."""
    pause, said = SHORTEST, ""
    while not (no_wait or made["ready"] or made["state"] in finding.ENDED):
        if made["sentence"] != said:
            said = made["sentence"]
            talk(said)
        app.pause(pause)
        pause = min(LONGEST, pause * 1.5)
        made = app.client.get_session(made["id"])
    if made["state"] in finding.ENDED:
        raise click.ClickException(f"Session {made['id']} has ended: {made['end_message'] or made['state']}")
    if app.output == "table":
        click.echo(f"{app.client.url}/sessions/{made['id']}/")
    else:
        show_one(app, made, SESSION)


@session.command("keep")
@finding.argument("session")
@output_option
@with_app
def keep_session(app: App, session: str) -> None:
    """Restart the idle timeout of a session."""
    made = app.client.keep_session(finding.session_id_of(app, session))
    show_done(app, f"Session {made['id']} is kept.", made)


@session.command("stop")
@finding.argument("session")
@with_app
def stop_session(app: App, session: str) -> None:
    """Stop a session."""
    found = finding.session_id_of(app, session)
    app.client.stop_session(found)
    talk(f"Stopped session {found}.")


@click.group()
def service() -> None:
    """Keep replicas of a server running."""


SERVICES: list[Column] = [
    ("ID", "id"), ("NAME", "name"), ("STATUS", "status"), ("READY", lambda it: f"{it['ready']}/{it['replicas']}"),
    ("REVISION", "revision"), ("TEAM", "team"), ("OWNER", "owner"), ("URL", "url"),
]  # fmt: skip
SERVICE: list[Column] = [
    ("id", "id"), ("name", "name"), ("status", "status"), ("trouble", "trouble"), ("url", "url"),
    ("ready", lambda it: f"{it['ready']} of {it['replicas']}"), ("revision", "revision"),
    ("next try", when("next_try_at")), ("rollout fails", lambda it: _gives_up(it, it.get("rolls_back_to"))),
    ("team", "team"),
    ("owner", "owner"), ("cluster", "cluster"), ("created", when("created_at")),
    ("replicas", lambda it: "\n".join(
        f"job {one['job_id']} {one['state']}{' ready' if one['ready'] else ''} {one['reason'] or one['why_not_ready']}"
        for one in it.get("members", []))),
    ("reserved by others", _reserved),
    ("last failure", lambda it: _failure(it.get("last_failure"))),
]  # fmt: skip


def _gives_up(found: Any, back_to: int | None) -> str:
    """Returns when the rollout counts as failed, and what happens then."""
    at = when("gives_up_at")(found)
    then = f", then rolls back to revision {back_to}" if back_to else ""
    return f"{at}{then}" if at else ""


def _failure(found: Any) -> str:
    """Returns which replica failed, how it ended, and the last lines of its log."""
    if not found:
        return ""
    how = f"job {found['job_id']} {found['name']}, revision {found['revision']}: {found['end_message']}"
    return "\n".join([how, *found["last_lines"]])


@service.command("list")
@list_options
@watchable
@with_app
def list_services(app: App, limit: int, everything: bool, **options: Any) -> None:
    """List services, newest first or as --sort says."""
    found = app.client.list_services(**chosen(options))
    show_rows(app, taken(found, limit, everything), SERVICES)


@service.command("show")
@finding.argument("service")
@watchable
@with_app
def show_service(app: App, service: str) -> None:
    """Show a service, given by its id or name, and its replicas."""
    show_one(app, app.client.get_service(finding.service_id_of(app, service)), SERVICE)


@service.command("create", context_settings=WORDS)
@job_options
@click.option("--replicas", type=int, help="Number of replicas.")
@output_option
@with_app
def create_service(
    app: App, *, file: Any, command: Any, even_if_never: bool, replicas: int | None, **options: Any
) -> None:
    """Create a service. Takes the arguments of `fairlot submit`; the program must answer at a port."""
    spec, place = spec_with_code(app, file=file, command=command, options=options)
    made = app.client.create_service(
        spec=spec, even_if_never=even_if_never, **place, **chosen({"replicas": replicas})
    )
    show_created(app, f'Created service {made["id"]} "{made["name"]}".', made)


@service.command("scale")
@finding.argument("service")
@click.argument("replicas", type=int)
@output_option
@with_app
def scale(app: App, service: str, replicas: int) -> None:
    """Change the number of replicas of a service."""
    made = app.client.change_service(finding.service_id_of(app, service), replicas=replicas)
    show_done(app, f"Service {made['id']} has {plural(made['replicas'], 'replica')} from now on.", made)


@service.command("update")
@finding.argument("service")
@job_options
@output_option
@with_app
def update_service(
    app: App, *, service: str, file: Any, command: Any, even_if_never: bool, **options: Any
) -> None:
    """Roll out a new revision of a service.

    Takes the arguments of `fairlot submit`; a COMMAND stands after --. Without -f and COMMAND, options replace fields
    of the present revision.
    """
    found = finding.service_id_of(app, service)
    base: dict[str, Any] = {}
    present = app.client.get_service(found)
    if not file and not command:
        base = max(present["revisions"], key=lambda one: one["number"])["spec"]
    spec, _ = spec_with_code(
        app, file=file, command=command, options=options, base=base, team=present["team"]
    )
    made = app.client.change_service(found, spec=spec)
    show_done(app, f"Service {made['id']} rolls out revision {made['revision']}.", made)


@service.command("rollback")
@finding.argument("service")
@click.argument("revision", type=int)
@output_option
@with_app
def rollback(app: App, service: str, revision: int) -> None:
    """Return a service to an earlier revision."""
    made = app.client.roll_back_service(finding.service_id_of(app, service), revision=revision)
    show_done(app, f"Service {made['id']} rolls out revision {made['revision']}.", made)


@service.command("stop")
@finding.argument("service")
@output_option
@with_app
def stop_service(app: App, service: str) -> None:
    """Stop all replicas of a service, and keep the service."""
    made = app.client.change_service(finding.service_id_of(app, service), stopped=True)
    show_done(app, f"Service {made['id']} is stopped.", made)


@service.command("start")
@finding.argument("service")
@output_option
@with_app
def start_service(app: App, service: str) -> None:
    """Start a stopped service again."""
    made = app.client.change_service(finding.service_id_of(app, service), stopped=False)
    show_done(app, f"Service {made['id']} is started.", made)


@service.command("remove")
@finding.argument("service")
@with_app
def remove_service(app: App, service: str) -> None:
    """Remove a service and stop its replicas."""
    found = finding.service_id_of(app, service)
    app.client.remove_service(found)
    talk(f"Removed service {found}.")


@service.command("events")
@finding.argument("service")
@limit_options
@watchable
@with_app
def service_events(app: App, service: str, limit: int, everything: bool) -> None:
    """List what happened to a service, newest first."""
    found = app.client.list_service_events(finding.service_id_of(app, service))
    show_rows(app, taken(found, limit, everything), [("TIME", when("at")), ("EVENT", "text")])


@service.command("logs")
@finding.argument("service")
@click.option("-f", "--follow", is_flag=True, help="Go on until the service is removed.")
@click.option("--recent", is_flag=True, help="Begin with the last lines, about 64 KiB.")
@click.option(
    "-t", "--timestamps", is_flag=True, help="Begin each line with the time at which it was written."
)
@with_app
def service_logs(app: App, service: str, *, follow: bool, recent: bool, timestamps: bool) -> None:
    """Write the logs of all replicas of a service to stdout, merged by time.

    Each line begins with the name of its replica. Replicas that ended in the last 24 hours belong to them.

    \b
    fairlot service logs -f chat
    fairlot service logs chat --recent -t
    """
    found, after, pause, said = finding.service_id_of(app, service), "", SHORTEST, list[str]()
    while True:
        answer = app.client.read_service_log_lines(found, after=after, recent=recent and not after)
        for line in answer["items"]:
            time = f"{line['at'] or '-':<32} " if timestamps else ""
            click.echo(f"{time}{line['replica']}| {line['text']}", nl=not line["text"].endswith("\n"))
        for problem in answer["problems"]:
            if problem not in said:
                talk(problem)
        said, after = answer["problems"], answer["next"]
        if answer["complete"]:
            return
        if answer["items"]:
            pause = SHORTEST
        elif not follow:
            return
        else:
            app.pause(pause)
            pause = min(LONGEST, pause * 1.5)


METRICS: list[Column] = [
    ("METRIC", "name"), ("WHOLE", "whole"), ("LAST", "last"), ("HIGHEST", "highest"), ("OVER TIME", "line"),
]  # fmt: skip
FIGURES: dict[str, tuple[str, Callable[[Any], float | None], float, str]] = {
    "requests": ("requests/s", lambda it: it["requests_per_second"], 1.0, ""),
    "p50": ("latency p50", lambda it: it["p50_seconds"], 1000.0, " ms"),
    "p95": ("latency p95", lambda it: it["p95_seconds"], 1000.0, " ms"),
    "4xx": ("client errors (4xx)", lambda it: it["client_errors"] / max(it["requests"], 1), 100.0, " %"),
    "5xx": ("server errors (5xx)", lambda it: it["server_errors"] / max(it["requests"], 1), 100.0, " %"),
    "no replica": ("no replica ready", lambda it: it["no_replica"] / max(it["requests"], 1), 100.0, " %"),
    "unreachable": ("replica unreachable", lambda it: it["no_answer"] / max(it["requests"], 1), 100.0, " %"),
    "timed out": ("timed out", lambda it: it["timed_out"] / max(it["requests"], 1), 100.0, " %"),
}  # fmt: skip


@service.command("metrics")
@finding.argument("service")
@click.option(
    "--from", "from_", help="Begin of the period, such as 2026-03-01T12:00:00Z; by default an hour ago."
)
@click.option("--to", help="End of the period.")
@points_option
@watchable
@with_app
def service_metrics(app: App, service: str, *, points: int, **period: str | None) -> None:
    """Show the requests per second, latency and failed requests of a service.

    \b
    fairlot service metrics chat
    fairlot service metrics 7 --from 2026-03-01T00:00Z --points 500 -o json
    """
    answer = app.client.get_service_traffic(
        finding.service_id_of(app, service), most_points=points, **chosen(period)
    )
    if app.output != "table":
        show_one(app, answer, [])
        return
    show_rows(app, [_figure(answer, name) for name in FIGURES], METRICS, name="name")
    talk(f"{answer['whole']['requests']} requests. {answer['not_counted']}")


def _figure(answer: Traffic, name: str) -> dict[str, str]:
    """Returns a row of the table: a figure of the whole period, of its last point, the highest one, and all points."""
    label, value_of, factor, unit = FIGURES[name]

    def text(value: float | None) -> str:
        return "" if value is None else f"{value * factor:.4g}{unit}"

    known = [value for one in answer["points"] if (value := value_of(one)) is not None]
    whole = value_of(answer["whole"]) if answer["points"] else None
    return {
        "name": label,
        "whole": text(whole),
        "last": text(known[-1] if known else None),
        "highest": text(max(known, default=None)),
        "line": sparkline([{"mean": value} for value in known]),
    }


@click.group()
def schedule() -> None:
    """Run jobs at set times."""


SCHEDULES: list[Column] = [
    ("ID", "id"), ("NAME", "name"), ("WHEN", "expression"), ("ZONE", "time_zone"), ("NEXT", when("next_due_at")),
    ("TEAM", "team"), ("OWNER", "owner"), ("PAUSED", "paused_reason"),
]  # fmt: skip
SCHEDULE: list[Column] = [
    ("id", "id"), ("name", "name"), ("when", "expression"), ("means", "words"), ("zone", "time_zone"),
    ("notes", lambda it: "\n".join(it.get("notes", []))), ("next", when("next_due_at")),
    ("paused", when("paused_at")), ("why paused", "paused_reason"), ("missed runs", "missed"),
    ("overlap", "overlap"), ("team", "team"), ("owner", "owner"), ("cluster", "cluster"),
    ("command", lambda it: it["spec"].get("command")),
]  # fmt: skip
RUNS: list[Column] = [
    ("ID", "id"), ("DUE", when("due_at")), ("OUTCOME", "outcome"), ("JOB", "job_id"), ("BY", "asked_by"),
    ("TEXT", "text"),
]  # fmt: skip


@schedule.command("list")
@list_options
@watchable
@with_app
def list_schedules(app: App, limit: int, everything: bool, **options: Any) -> None:
    """List schedules, newest first or as --sort says."""
    found = app.client.list_schedules(**chosen(options))
    show_rows(app, taken(found, limit, everything), SCHEDULES)


@schedule.command("show")
@finding.argument("schedule")
@watchable
@with_app
def show_schedule(app: App, schedule: str) -> None:
    """Show a schedule, given by its id or name."""
    show_one(app, app.client.get_schedule(finding.schedule_id_of(app, schedule)), SCHEDULE)


@schedule.command("create", context_settings=WORDS)
@click.option(
    "--when", "expression", required=True, help="Cron expression or ISO 8601 repeat, such as '30 2 * * *'."
)
@click.option("--zone", "time_zone", help="Time zone, such as Europe/Berlin; by default UTC.")
@click.option("--missed", type=click.Choice(["skip", "once", "all"]), help="What happens to missed runs.")
@click.option(
    "--overlap",
    type=click.Choice(["allow", "forbid", "replace"]),
    help="What happens if an earlier run goes on.",
)
@click.option("--paused", is_flag=True, help="Create it paused: it starts no runs until it is resumed.")
@job_options
@output_option
@with_app
def create_schedule(
    app: App, *, file: Any, command: Any, even_if_never: bool, expression: str, time_zone: str | None,
    missed: Any, overlap: Any, paused: bool, **options: Any,
) -> None:  # fmt: skip
    """Submit a job at set times. Takes the arguments of `fairlot submit`.

    \b
    fairlot schedule create --when '30 2 * * MON-FRI' --zone Europe/Berlin -- python nightly.py
    """
    if even_if_never:
        raise click.UsageError(
            "A schedule does not accept --even-if-never: jobs that can never run are refused."
        )
    spec, place = spec_with_code(app, file=file, command=command, options=options)
    terms = chosen({"time_zone": time_zone, "missed": missed, "overlap": overlap, "paused": paused or None})
    made = app.client.create_schedule(spec=spec, expression=expression, **place, **terms)
    show_created(app, f'Created schedule {made["id"]} "{made["name"]}".', made)


@schedule.command("pause")
@finding.argument("schedule")
@output_option
@with_app
def pause(app: App, schedule: str) -> None:
    """Pause a schedule."""
    made = app.client.pause_schedule(finding.schedule_id_of(app, schedule))
    show_done(app, f"Schedule {made['id']} is paused.", made)


@schedule.command("resume")
@finding.argument("schedule")
@output_option
@with_app
def resume(app: App, schedule: str) -> None:
    """Resume a paused schedule."""
    made = app.client.resume_schedule(finding.schedule_id_of(app, schedule))
    show_done(app, f"Schedule {made['id']} is resumed.", made)


@schedule.command("run")
@finding.argument("schedule")
@output_option
@with_app
def run_schedule(app: App, schedule: str) -> None:
    """Run a schedule now, and print the id of the job."""
    made = app.client.run_schedule(finding.schedule_id_of(app, schedule))
    talk(f"The run was {made['outcome']}. {made['text']}".strip())
    if app.output != "table":
        show_one(app, made, [])
    elif made["job_id"] is not None:
        click.echo(made["job_id"])


@schedule.command("runs")
@finding.argument("schedule")
@limit_options
@watchable
@with_app
def list_runs(app: App, schedule: str, limit: int, everything: bool) -> None:
    """List the runs of a schedule, newest first."""
    found = app.client.list_schedule_runs(finding.schedule_id_of(app, schedule))
    show_rows(app, taken(found, limit, everything), RUNS)


@schedule.command("delete")
@finding.argument("schedule")
@with_app
def delete_schedule(app: App, schedule: str) -> None:
    """Delete a schedule. Its jobs stay."""
    found = finding.schedule_id_of(app, schedule)
    app.client.delete_schedule(found)
    talk(f"Deleted schedule {found}.")
