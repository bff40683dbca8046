"""Commands for jobs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fairlot_client.cli import finding, following
from fairlot_client.cli.app import INTERRUPTED, OF_RUN, App, talk, with_app
from fairlot_client.cli.code import spec_with_code
from fairlot_client.cli.commands.imports import create_all, foreign_works, specs_of
from fairlot_client.cli.output import (
    Column,
    between,
    limit_options,
    money,
    output_option,
    plural,
    show_created,
    show_done,
    show_one,
    show_rows,
    taken,
    watchable,
    when,
)
from fairlot_client.cli.spec import (
    HOURS,
    PAIR,
    foreign_text,
    job_options,
    place_of,
    read_options,
    spec_options,
)
from fairlot_client.errors import FairlotError

if TYPE_CHECKING:
    from fairlot_client.answers import JobInFull

WORDS = {"ignore_unknown_options": False, "allow_interspersed_args": False}
STATES = [
    "queued", "starting", "running", "stopping", "suspended", "cancelling", "succeeded", "failed", "cancelled",
]  # fmt: skip
# The columns that `fairlot list --columns` takes, by the words that the portal uses for them.
LISTED: dict[str, Column] = {
    "id": ("ID", "id"), "name": ("NAME", "name"), "state": ("STATE", "state"), "gpus": ("GPUS", "gpus"),
    "team": ("TEAM", "team"), "owner": ("OWNER", "owner"), "created": ("SUBMITTED", when("created_at")),
    "reason": ("REASON", "reason"), "started": ("STARTED", when("first_started_at")),
    "ended": ("ENDED", when("ended_at")), "kind": ("KIND", "kind"), "priority": ("PRIORITY", "priority"),
    "failures": ("FAILURES", "failures"), "exit": ("EXIT", "exit_code"), "steps": ("STEPS", "steps_done"),
    "cluster": ("CLUSTER", "cluster"), "labels": ("LABELS", "labels"), "workers": ("WORKERS", "workers"),
}  # fmt: skip
COLUMNS = [LISTED[key] for key in ("id", "name", "state", "gpus", "team", "owner", "created", "reason")]


def ran_on(job: Mapping[str, Any]) -> list[str]:
    """Returns the GPU types on which a job has run."""
    return list(dict.fromkeys(one["generation"] for one in job["cost"]["generations"]))


def gpu_hours(job: Mapping[str, Any]) -> str:
    """Returns the GPU time of a job until now; "" if it never held GPUs."""
    return f"{float(job['cost']['gpu_seconds']) / 3600:.2f}" if job["cost"]["generations"] else ""


def cost_in_words(job: Mapping[str, Any]) -> str:
    """Returns the cost of a job until now; "" if it never held GPUs."""
    return ", ".join(money(f"{float(cost):.2f}", currency) for currency, cost in job["cost"]["costs"].items())


def steps(job: Mapping[str, Any]) -> str:
    """Returns the steps that a job has reported, without decimals that say nothing."""
    return f"{float(job['steps_done']):.15g}" if job["steps_done"] is not None else ""


def time_limit(job: Mapping[str, Any]) -> str:
    hours = job["spec"].get("time_limit_hours")
    return "" if hours is None else f"{hours:g} h on GPUs"


FIELDS: list[Column] = [
    ("id", "id"), ("name", "name"), ("state", "state"), ("reason", "reason"), ("team", "team"), ("owner", "owner"),
    ("cluster", "cluster"), ("workers", "workers"), ("GPUs", "gpus"),
    ("GPU types", lambda job: job["spec"].get("generations") or "every type"), ("ran on", ran_on),
    ("GPU-hours", gpu_hours), ("cost", cost_in_words),
    ("environment", lambda job: job["spec"].get("environment")), ("priority", "priority"),
    ("preemptible", "preemptible"), ("labels", "labels"), ("submitted", when("created_at")),
    ("started", when("first_started_at")),
    ("time limit", time_limit), ("stops at", when("stops_at")), ("ended", when("ended_at")), ("end", "end_message"),
    ("exit code", "exit_code"), ("meaning", "exit_meaning"), ("failures", lambda job: job["failures"] or None),
    ("steps", steps),
    ("command", lambda job: job["spec"].get("command")), ("last lines", lambda job: "\n".join(job["last_lines"])),
]  # fmt: skip
PIPELINE: list[Column] = [("id", "id"), ("name", "name"), ("state", "state"), ("team", "team")]
EVENTS: list[Column] = [("TIME", when("at")), ("ATTEMPT", "attempt"), ("EVENT", "text")]


def submitted(
    app: App, *, file: Any, command: tuple[str, ...], even_if_never: bool, **options: Any
) -> JobInFull:
    """Submits the job that the arguments describe, and returns it."""
    spec, place = spec_with_code(app, file=file, command=command, options=options)
    return app.client.submit_job(spec=spec, even_if_never=even_if_never, **place)


def submitted_to_run(app: App, *, file: Any, command: tuple[str, ...], **options: Any) -> JobInFull:
    """Like `submitted`, also for a file of another system. Raises UsageError if that describes more than one job."""
    text, file, command = foreign_text(file, command, options)
    works = foreign_works(app, text, place_of(options)) if text else None
    if works is None:
        return submitted(app, file=file, command=command, **options)
    if len(works) != 1 or works[0]["kind"] != "job":
        kinds = ", ".join(f"a {work['kind']}" for work in works)
        raise click.UsageError(f"The file becomes {kinds}. This command follows one job: use fairlot submit.")
    even_if_never = options["even_if_never"]
    return app.client.submit_job(spec=works[0]["spec"], even_if_never=even_if_never, **place_of(options))


@click.command(context_settings=WORDS)
@job_options
@click.option("--check", is_flag=True, help="Only show whether the job could run, when, and its cost.")
@click.option("--template", help="Id or name of a template, whose parameters -P sets.")
@click.option(
    "-P", "--param", "params", type=PAIR, multiple=True, help="Value of a template's parameter: lr=0.1."
)
@click.option(
    "--draft", is_flag=True, help="Keep the job as a draft, which may be incomplete, and print its id."
)
@click.option(
    "--needs",
    type=int,
    multiple=True,
    help="Id of a job that must succeed first. Submits a pipeline of one step.",
)
@output_option
@with_app
def submit(
    app: App,
    *,
    check: bool,
    draft: bool,
    needs: tuple[int, ...],
    template: str | None,
    params: tuple[tuple[str, str], ...],
    **options: Any,
) -> None:
    """Submit a job, and print its id.

    COMMAND is a command that the job runs, or a file on this machine: a Python file is uploaded, a shell script is sent
    as text, and YAML is a job specification, as after -f. Lines `#FAIRLOT --workers 2` at the head of a script contain
    options. Options stand before COMMAND, and replace fields of a specification. A file of another system, such as a
    Slurm script or a Kubernetes Job, is converted: `fairlot convert` shows how.

    \b
    fairlot submit train.py --epochs 90
    fairlot submit --gpus 2 --code . -- python train.py --epochs 90
    fairlot submit train.sh
    fairlot submit job.yaml
    fairlot submit train.sbatch
    fairlot submit --template Baseline -P lr=0.1
    """
    if template or params:
        if check or draft or needs or not template:
            raise click.UsageError("-P needs --template, and neither goes with --check, --draft or --needs.")
        tell_submitted(app, from_template(app, template, params, **options))
        return
    if not (draft or needs):
        text, options["file"], options["command"] = foreign_text(
            options.pop("file"), options.pop("command"), options
        )
        if text and (works := foreign_works(app, text, place_of(options))) is not None:
            if check:
                show_foreign_check(
                    app, works, even_if_never=options["even_if_never"], place=place_of(options)
                )
            else:
                create_all(app, works, place_of(options))
            return
    if check:
        show_check(app, **options)
        return
    if draft:
        if needs:
            raise click.UsageError("--draft and --needs cannot be combined.")
        keep_draft(app, **options)
        return
    if needs:
        submit_after(app, needs, **options)
        return
    tell_submitted(app, submitted(app, **options))


def from_template(
    app: App,
    template: str,
    params: tuple[tuple[str, str], ...],
    *,
    team: str | None,
    cluster: str | None,
    even_if_never: bool,
    **others: Any,
) -> JobInFull:
    """Submits a job from a template. Raises UsageError for options of a job, which the template sets itself."""
    if any(value not in (None, (), False) for value in others.values()):
        raise click.UsageError(
            "With --template, give only -P, --team, --cluster and --even-if-never: the template sets all else."
        )
    place = place_of({"team": team, "cluster": cluster})
    number = finding.template_id_of(app, template)
    return app.client.submit_template(number, values=dict(params), even_if_never=even_if_never, **place)


def tell_submitted(app: App, job: JobInFull) -> None:
    """Prints the id of a job that was submitted, and says how to follow it."""
    show_created(
        app,
        f'Submitted job {job["id"]} "{job["name"]}" for {job["team"]}. Follow it: fairlot logs -f {job["id"]}',
        job,
    )


def keep_draft(app: App, *, file: Any, command: tuple[str, ...], even_if_never: bool, **options: Any) -> None:
    """Keeps a job as a draft, and prints the draft's id."""
    spec, place = spec_with_code(app, file=file, command=command, options=options, may_be_incomplete=True)
    made = app.client.create_draft(spec=spec, **place)
    show_created(app, f"Kept draft {made['id']}. Submit it: fairlot drafts submit {made['id']}", made)


def submit_after(
    app: App,
    needs: tuple[int, ...],
    *,
    file: Any,
    command: tuple[str, ...],
    even_if_never: bool,
    **options: Any,
) -> None:
    """Creates the pipeline of one step for a job that needs other jobs, and prints its id."""
    spec, place = spec_with_code(app, file=file, command=command, options=options)
    made = app.client.create_pipeline(spec=spec, needs=list(needs), even_if_never=even_if_never, **place)
    jobs = " and ".join(map(str, needs))
    show_created(
        app,
        f"Pipeline {made['id']} submits the job once {jobs} succeeded: fairlot pipeline show {made['id']}",
        made,
    )


VERDICT: list[Column] = [
    ("verdict", "verdict"),
    ("why", lambda it: "\n".join(it["sentences"])),
    ("starts in", lambda it: it["expected_start_seconds"] and between(it["expected_start_seconds"])),
    (
        "cost per hour",
        lambda it: [
            f"{money(cost, it['currencies'].get(name, it['currency']))} on {name}"
            for name, cost in it["cost_per_hour"].items()
        ],
    ),
]


def show_check(app: App, *, file: Any, command: tuple[str, ...], even_if_never: bool, **options: Any) -> None:
    spec, place = spec_with_code(app, file=file, command=command, options=options)
    answer = app.client.check_job(spec=spec, even_if_never=even_if_never, **place)
    show_one(app, answer, VERDICT, name="verdict")


def show_foreign_check(app: App, works: list[Any], *, even_if_never: bool, place: dict[str, Any]) -> None:
    """Shows for each job of a converted file whether it could run, when, and its cost; of a sweep for one member."""
    answers = []
    for work in works:
        talk(f"{work['name']} becomes a {work['kind']}.")
        for name, spec in specs_of(work).items():
            answer = app.client.check_job(spec=spec, even_if_never=even_if_never, **place)
            called = f"{name}, one member" if work["kind"] == "sweep" else name
            answers.append({"job": called, **answer})
    if app.output == "table" or len(answers) == 1:
        for one in answers:
            show_one(app, one, [("job", "job"), *VERDICT], name="verdict")
    else:
        show_rows(app, answers, VERDICT, name="verdict")


@click.command(context_settings=WORDS)
@job_options
@with_app
def run(app: App, **options: Any) -> None:
    """Submit a job, follow its log, and end with its exit code.

    Takes the arguments of `fairlot submit`. Ctrl-C asks whether to cancel the job or to leave it running. Without a
    terminal, it leaves the job running. If Fairlot itself fails, the exit code is 125.
    """
    try:
        job = submitted_to_run(app, **options)
        talk(f'Submitted job {job["id"]} "{job["name"]}" for {job["team"]}.')
        code = follow(app, job["id"])
    except FairlotError as error:
        talk(f"Error: {error}")
        code = OF_RUN
    click.get_current_context().exit(code)


def follow(app: App, job: int) -> int:
    """Follows a job until it ends, and returns the exit code of `run`."""
    interrupted = False
    while True:
        try:
            following.follow_log(app, job, rank=0)
            ended = following.wait_for_end(app, job)
            talk(following.sentence_of(ended))
            return INTERRUPTED if interrupted else following.exit_code_of_job(ended)
        except KeyboardInterrupt:
            if interrupted or not wants_to_cancel(app, job):
                talk(f"Job {job} goes on. Follow it: fairlot logs -f {job}")
                return INTERRUPTED
            app.client.cancel_job(job)
            interrupted = True


def wants_to_cancel(app: App, job: int) -> bool:
    """Asks what to do with a job after Ctrl-C. Without a terminal, the job is left running."""
    if not app.is_interactive():
        return False
    try:
        answer = click.prompt(
            f"\nCancel job {job}, or detach and leave it running?",
            type=click.Choice(["cancel", "detach"]),
            default="detach",
            err=True,
        )
    except click.Abort:  # Ctrl-C again
        return False
    return bool(answer == "cancel")


@click.command("list")
@click.option("-s", "--state", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("-t", "--team", help="Only jobs of this team.")
@click.option("-u", "--owner", help="Only jobs of this user.")
@click.option("-m", "--mine", is_flag=True, help="Only your own jobs.")
@click.option("-q", "--search", "q", help="Only jobs whose name contains this text.")
@click.option("-l", "--label", help="Only jobs with this label: KEY=VALUE, or KEY.")
@click.option("--kind", type=click.Choice(["training", "session", "replica"]), help="Only jobs of this kind.")
@click.option(
    "--preemptible/--not-preemptible", default=None, help="Only jobs that are, or are not, preemptible."
)
@click.option(
    "-g", "--generation", metavar="TYPE", help="Only jobs that ask for this GPU type or have held it."
)
@click.option("--view", help="Only jobs of this saved view, given by its name or id, in its order.")
@click.option(
    "--sort",
    metavar="COLUMN",
    help="Sort by this column, such as name, gpus, ended or label:KEY; -COLUMN for descending order.",
)
@click.option(
    "--columns",
    metavar="COLUMN,...",
    callback=lambda _context, _option, text: columns_of(text),
    help=f"Columns of the table: {', '.join(LISTED)}, or label:KEY.",
)
@click.option(
    "--group-by",
    metavar="WHAT",
    help="Show jobs and GPUs by team, owner, state, sweep or label:KEY instead of each job.",
)
@limit_options
@watchable
@with_app
def list_jobs(
    app: App,
    *,
    mine: bool,
    owner: str | None,
    columns: list[Column],
    group_by: str | None,
    limit: int,
    everything: bool,
    **filters: Any,
) -> None:
    """List the jobs of your teams, newest first or as --sort says."""
    owner = app.client.me()["username"] if mine else owner
    if group_by:
        if filters.pop("sort"):
            raise click.UsageError(
                "--sort orders jobs, and groups begin with the largest. Leave out one of them."
            )
        groups = app.client.list_job_groups(by=group_by, owner=owner, **filters)
        show_rows(app, taken(groups, limit, everything), GROUPS, name="value")
        return
    jobs = app.client.list_jobs(owner=owner, page_size=min(200, limit + 1), **filters)
    show_rows(app, taken(jobs, limit, everything), columns)


def columns_of(text: str | None) -> list[Column]:
    """Returns the columns that the text names, separated by commas; the usual ones for None."""
    if text is None:
        return COLUMNS
    found: list[Column] = []
    for key in text.split(","):
        label = key.removeprefix("label:")
        if label and label != key:
            found.append((label.upper(), partial(label_of, label)))
        elif key in LISTED:
            found.append(LISTED[key])
        else:
            raise click.BadParameter(
                f'there is no column "{key}". Choose some of: {", ".join(LISTED)}, label:KEY.'
            )
    return found


def label_of(key: str, job: Mapping[str, Any]) -> str | None:
    """Returns the value of a label of a job; the key itself for a label without a value."""
    value = job["labels"].get(key)
    return key if value == "" else value


GROUPS: list[Column] = [
    ("GROUP", "label"), ("JOBS", "jobs"), ("GPUS", "gpus"), ("IN USE", "held_gpus"),
]  # fmt: skip
VIEWS: list[Column] = [
    ("ID", "id"), ("NAME", "name"), ("OWNER", "owner"), ("TEAM", "team"), ("FIRST", "is_default"), ("QUERY", "query"),
]  # fmt: skip


@click.group()
def view() -> None:
    """Saved views of lists: of jobs, sweeps, pipelines, services, schedules and sessions."""


OF_LIST = click.option(
    "--of",
    "listed",
    type=click.Choice(["jobs", "sweeps", "pipelines", "services", "schedules", "sessions"]),
    default="jobs",
    show_default=True,
    help="The list.",
)


@view.command("list")
@OF_LIST
@output_option
@with_app
def list_views(app: App, listed: Any) -> None:
    """List your views and those of your teams. Use one: fairlot list --view NAME."""
    show_rows(app, app.client.list_views(list=listed), VIEWS)


@view.command("save")
@click.argument("name")
@click.argument("query")
@click.option("-t", "--team", default="", help="Share the view with this team, which you manage.")
@click.option("--first", "is_default", is_flag=True, help="The list in the portal opens with this view.")
@OF_LIST
@output_option
@with_app
def save_view(app: App, name: str, query: str, *, listed: Any, **sharing: Any) -> None:
    """Save filters and order under a name, in place of your view of this name.

    QUERY is what the address of the list in the portal has after the question mark.

    \b
    fairlot view save large 'state=waiting&sort=-gpus'
    """
    saved = app.client.save_view(name=name, query=query, list=listed, **sharing)
    command = "list" if listed == "jobs" else f"{listed.removesuffix('s')} list"
    show_done(app, f'Saved the view "{saved["name"]}". Use it: fairlot {command} --view {saved["id"]}', saved)


@view.command("remove")
@click.argument("view_id", type=int)
@with_app
def remove_view(app: App, view_id: int) -> None:
    """Remove a view."""
    app.client.remove_view(view_id)
    show_done(app, f"Removed the view {view_id}.")


WAITING = ("queued", "suspended")


@click.command()
@finding.argument("job")
@watchable
@with_app
def show(app: App, job: str) -> None:
    """Show a job, given by its id or name."""
    found = app.client.get_job(finding.job_id_of(app, job))
    answer = {**found, "cost": app.client.get_job_cost(found["id"])}
    if answer["state"] not in WAITING:
        show_one(app, answer, FIELDS)
        return
    told = app.client.explain_job(found["id"])
    times = {"not_before": told["not_before"], "starts_by": told["starts_by"]}
    show_one(app, {**answer, **times}, [*FIELDS, ("expected start", expected_start)])


def expected_start(row: Mapping[str, Any]) -> str:
    """Returns the interval in which a waiting job is expected to start; "" if it is unknown."""
    earliest, latest = when("not_before")(row), when("starts_by")(row)
    return f"{earliest} to {latest}" if latest else f"{earliest} or later" if earliest else ""


def repeated_work(row: Mapping[str, Any]) -> str:
    """Returns what the job did again after suspensions, and its cost; "" if it did nothing again."""
    found = row["repeated_work"]
    if not found:
        return ""
    costs = ", ".join(money(cost, currency) for currency, cost in sorted(found["costs"].items()))
    return f"{found['sentence']} ({costs})." if costs else f"{found['sentence']}."


def place_in_queue(it: Any) -> str:
    """Returns the place of a waiting job in the queue, and a line for each named job ahead; "" if it has no place."""
    place = it.get("queue")  # a server before this field sends none
    if not place:
        return ""
    lines = [
        f"{one['id']} {one['name']} ({one['owner']}, {plural(one['gpus'], 'GPU')})" for one in place["ahead"]
    ]
    if more := place["ahead_known"] - len(place["ahead"]):
        lines.append(f"{more} more")
    if place["ahead_others"]:
        lines.append(f"{place['ahead_others']} of other teams ({plural(place['ahead_others_gpus'], 'GPU')})")
    return "\n".join([place["sentence"], *(f"ahead: {line}" for line in lines)])


@click.command()
@finding.argument("job")
@watchable
@with_app
def why(app: App, job: str) -> None:
    """Say why a job waits, what would let it start, and when it is expected to start and end."""
    answer = app.client.explain_job(finding.job_id_of(app, job))
    fields: list[Column] = [
        ("state", "state"),
        ("why", "sentence"),
        ("detail", lambda it: "\n".join(it["detail"])),
        ("queue", place_in_queue),
        ("repeated", repeated_work),
        ("helps", lambda it: "\n".join(it["unblock"])),
        ("you can", lambda it: "\n".join(f"{one['label']}: {one['effect']}" for one in it["remedies"])),
        ("expected start", expected_start),
        ("ends by", when("ends_by")),
        ("stops at", when("stops_at")),
        ("deadline", when("deadline")),
        ("late", lambda it: it["is_late"] or None),
    ]
    show_one(app, answer, fields, name="state")


@click.command()
@finding.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("-r", "--rank", type=click.IntRange(0), help="Rank of the worker.  [default: 0]")
@click.option(
    "-a", "--all", "everyone", is_flag=True, help="All workers merged by time; lines begin with the rank."
)
@click.option(
    "-t", "--timestamps", is_flag=True, help="Begin each line with the time at which it was written."
)
@click.option("--grep", metavar="TEXT", help="Only lines that contain TEXT. Case does not count.")
@click.option("--regex", is_flag=True, help="Take TEXT as a regular expression (RE2).")
@click.option(
    "-C",
    "--context",
    type=click.IntRange(0, 20),
    default=0,
    help="Lines to show before and after each match.",
)
@click.option("-w", "--worker", help="Worker of a job with roles, such as ps/0, instead of a rank.")
@with_app
def logs(
    app: App,
    job: str,
    *,
    follow: bool,
    rank: int | None,
    worker: str | None,
    everyone: bool,
    timestamps: bool,
    grep: str | None,
    regex: bool,
    context: int,
) -> None:
    """Write the log of a job to stdout.

    With --grep, exit code 1 means that no line was found.
    """
    if everyone and (rank is not None or worker is not None):
        raise click.UsageError("--all excludes --rank and --worker.")
    if grep is None and (regex or context):
        raise click.UsageError("--regex and --context need --grep TEXT.")
    if grep is not None and follow:
        raise click.UsageError("--grep searches what is there; leave out --follow.")
    found = finding.job_id_of(app, job)
    if worker is not None:
        rank = finding.rank_of(app, found, worker)
    ranks = (0, None) if everyone else (rank or 0, rank or 0)
    show = following.LineWriter(with_rank=everyone, with_time=timestamps)
    if grep is not None:
        if not following.write_matches(app, found, show, q=grep, regex=regex, context=context, ranks=ranks):
            click.get_current_context().exit(1)
    elif everyone or timestamps:
        following.write_lines(app, found, show, follow=follow, ranks=ranks)
    elif follow:
        following.follow_log(app, found, rank or 0)
    else:
        following.write_log(app, found, rank or 0)


@click.command()
@finding.argument("job")
@limit_options
@watchable
@with_app
def events(app: App, job: str, limit: int, everything: bool) -> None:
    """List what happened to a job, oldest first."""
    found = app.client.list_job_events(finding.job_id_of(app, job), page_size=200)
    show_rows(app, taken(found, limit, everything), EVENTS)


@click.command()
@finding.argument("jobs", nargs=-1, required=True)
@output_option
@with_app
def cancel(app: App, jobs: tuple[str, ...]) -> None:
    """Cancel one or several jobs."""
    ids = [finding.job_id_of(app, job) for job in jobs]
    cancelled = [app.client.cancel_job(job) for job in ids]
    for job in cancelled:
        if job["state"] in {"cancelling", "cancelled"}:
            show_done(app, f"Cancelled job {job['id']}.", job)
        else:
            show_done(app, f"Job {job['id']} had already ended: it {job['state']}.", job)


@click.command()
@finding.argument("job")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@spec_options
@click.option("--even-if-never", is_flag=True, help="Queue the job even if it can never run here now.")
@output_option
@with_app
def clone(app: App, job: str, command: tuple[str, ...], even_if_never: bool, **options: Any) -> None:
    """Submit a job like JOB, with options that replace fields of its specification.

    COMMAND, after --, replaces its command. Without --name, the clone gets a free name, such as "train 2".

    \b
    fairlot clone train --env LR=0.2
    fairlot clone 17 --name longer -- python train.py --epochs 90
    """
    old = app.client.get_job(finding.job_id_of(app, job))
    spec, place = read_options(file=None, command=command, options=options, base=old["spec"])
    changes = {field: value for field, value in spec.items() if value != old["spec"].get(field)}
    made = app.client.clone_job(old["id"], changes=changes, even_if_never=even_if_never, **place)
    show_created(
        app,
        f'Submitted job {made["id"]} "{made["name"]}" like job {old["id"]}. Follow it: fairlot logs -f {made["id"]}',
        made,
    )


@click.command()
@finding.argument("job")
@click.option("--off", is_flag=True, help="Let the job take part in the fair share again.")
@output_option
@with_app
def preemptible(app: App, job: str, off: bool) -> None:
    """Make a job preemptible: it then runs only on GPUs that nobody else wants."""
    made = app.client.set_job_preemptible(finding.job_id_of(app, job), preemptible=not off)
    show_done(app, f"Job {made['id']} is {'not ' if off else ''}preemptible.", made)


@click.command()
@finding.argument("job")
@click.option("-p", "--priority", type=int, help="Priority among your jobs, from -100 to 100.")
@click.option("-l", "--label", type=PAIR, multiple=True, help="Labels; they replace those of the job.")
@click.option("--gpu-type", multiple=True, help="Accepted GPU types, while the job waits.")
@click.option("--any-gpu-type", is_flag=True, help="Accept every GPU type.")
@click.option("--max-workers", type=int, help="Most workers of an elastic job.")
@click.option("--expected-hours", type=float, help="Expected run time.")
@click.option("--deadline-hours", type=float, help="Hours from the submit until the job should have ended.")
@click.option(
    "--time-limit",
    "time_limit_hours",
    type=HOURS,
    help="Longest time on GPUs, after which the job stops: 90m, 36h or 2d.",
)
@click.option("--no-time-limit", is_flag=True, help="Remove the time limit of the job.")
@output_option
@with_app
def edit(
    app: App,
    job: str,
    label: tuple[tuple[str, str], ...],
    gpu_type: tuple[str, ...],
    any_gpu_type: bool,
    **given: Any,
) -> None:
    """Change fields of a job. Once it has ended, only its labels can be changed."""
    no_time_limit = given.pop("no_time_limit")
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if label:
        changes["labels"] = dict(label)
    if gpu_type or any_gpu_type:
        changes["generations"] = list(gpu_type)
    if no_time_limit:
        changes["time_limit_hours"] = None
    if not changes:
        raise click.UsageError("Give at least one option, such as --priority 10.")
    made = app.client.change_job(finding.job_id_of(app, job), **changes)
    show_done(app, f"Changed job {made['id']}.", made)
