"""Commands that show the clusters, and those of operators for nodes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from fairlot_client.cli.app import App, talk, with_app
from fairlot_client.cli.arguments import chosen
from fairlot_client.cli.output import (
    Column,
    hours,
    output_option,
    plural,
    show_done,
    show_one,
    show_rows,
    watchable,
    when,
)

HOLDING = ("starting", "running", "stopping", "cancelling")


@click.command()
@click.option("--cluster", help="Only this cluster.")
@click.option("--generation", "--gpu", help="Only this GPU type.")
@click.option("--team", help="Only this team and the teams below it.")
@click.option("--node", help="Only nodes whose names contain this text.")
@click.option(
    "--by",
    type=click.Choice(["team", "owner", "job"]),
    default="owner",
    show_default=True,
    help="What each row stands for.",
)
@click.option(
    "--period",
    type=click.Choice(["now", "day", "week"]),
    default="now",
    show_default=True,
    help="Who holds GPUs now, or who used the most GPU time in the last 24 hours or 7 days.",
)
@watchable
@with_app
def top(app: App, by: str, period: str, **narrow: str | None) -> None:
    """Show who holds which GPUs now, or who used the most, largest first.

    GPUs of jobs that you may not see are counted as "others". GPU time and costs are what the ledger has booked.
    """
    if period != "now":
        _consumers(app, by, period, narrow)
    elif by == "job":
        _by_job(app, narrow)
    else:
        _holders(app, by, narrow)


def _holders(app: App, by: str, narrow: dict[str, str | None]) -> None:
    found = app.client.list_holders(by="team" if by == "team" else "user", **chosen(narrow))
    rows: list[dict[str, Any]] = [
        {"team": one["team"] or "others", "owner": one["user"], **held}
        for one in found["holders"]
        for held in one["by_generation"]
    ]
    rows.sort(key=lambda row: -row["gpus"])
    if not (narrow["team"] or narrow["node"]):
        rows += [
            {"team": "free", "owner": None, "generation": one["generation"], "gpus": one["free"]}
            for one in found["generations"]
        ]
    columns: list[Column] = [
        ("GPU TYPE", "generation"), ("GPUS", "gpus"), ("IDLE", "idle_gpus"), ("JOBS", "jobs"), ("TEAM", "team"),
    ]  # fmt: skip
    last: Column = ("ENTITLED", _entitled) if by == "team" else ("OWNER", "owner")
    show_rows(app, rows, [*columns, last], name="team")


def _entitled(row: Any) -> str:
    entitled = row.get("entitled")
    return "" if entitled is None else f"{entitled:.1f}"


def _consumers(app: App, by: str, period: str, narrow: dict[str, str | None]) -> None:
    if by == "job" or narrow["cluster"] or narrow["node"]:
        raise click.UsageError("--period day and week cannot be used with --by job, --cluster or --node.")
    asked: dict[str, Any] = {"by": "team" if by == "team" else "user", "period": period, "limit": 200}
    found = app.client.list_consumers(**asked, **chosen(narrow))
    columns: list[Column] = [
        ("TEAM", "team"), *([] if by == "team" else [("OWNER", "user")]), ("GPU-HOURS", hours("gpu_seconds")),
        ("IDLE", hours("idle_gpu_seconds")), ("COST", "cost"), ("CURRENCY", "currency"),
    ]  # fmt: skip
    show_rows(app, found["consumers"], columns, name="team")


def _by_job(app: App, narrow: dict[str, str | None]) -> None:
    """Shows the jobs that hold GPUs, from the GPU map."""
    asked = chosen({"team": narrow["team"]})
    jobs = {
        job["id"]: job
        for state in HOLDING
        for job in app.client.list_jobs(state=state, page_size=200, **asked)
    }
    held: Counter[tuple[str, ...]] = Counter()
    for one in app.client.gpu_map():
        if narrow["cluster"] not in {None, one["name"]}:
            continue
        for node in one["nodes"]:
            if (
                narrow["generation"] not in {None, node["generation"]}
                or (narrow["node"] or "") not in node["name"]
            ):
                continue
            for allocation in node["allocations"]:
                job = jobs.get(allocation["job"])
                if job is not None:
                    key = (one["name"], node["generation"], allocation["team"], job["owner"], str(job["id"]))
                    held[key] += len(allocation["gpu_indices"])
    names = ("cluster", "generation", "team", "owner", "job")
    rows = [{**dict(zip(names, key, strict=True)), "gpus": gpus} for key, gpus in held.most_common()]
    columns: list[Column] = [
        ("CLUSTER", "cluster"), ("GPU TYPE", "generation"), ("GPUS", "gpus"), ("TEAM", "team"), ("OWNER", "owner"),
        ("JOB", "job"),
    ]  # fmt: skip
    show_rows(app, rows, columns, name="job")


@click.group()
def node() -> None:
    """Show nodes, and take them out of use."""


@node.command("list")
@click.option("--cluster", help="Only nodes of this cluster.")
@watchable
@with_app
def list_nodes(app: App, cluster: str | None) -> None:
    """List the nodes of all clusters with their GPUs."""
    rows = [
        {"cluster": one["name"], "free": _free(row), **row}
        for one in app.client.gpu_map()
        if cluster in {None, one["name"]}
        for row in one["nodes"]
    ]
    columns: list[Column] = [
        ("CLUSTER", "cluster"), ("NODE", "name"), ("GPU TYPE", "generation"), ("GPUS", "gpus"), ("FREE", "free"),
        ("STATE", "state"), ("REASON", "state_reason"),
    ]  # fmt: skip
    show_rows(app, rows, columns, name="name")


def _free(node: Any) -> int:
    used = sum(len(one["gpu_indices"]) for one in node["allocations"])
    return int(node["gpus"] - used - node["gpus_of_others"])


DRAINED: list[Column] = [
    ("node", "name"), ("state", "state"), ("reason", "state_reason"), ("deadline", when("drain_deadline")),
    ("jobs", lambda it: "\n".join(f"{job['job']} {job['name']} ({job['gpus']} GPUs)" for job in it["jobs"])),
    ("other jobs", "hidden_jobs"),
]  # fmt: skip


@node.command()
@click.argument("cluster")
@click.argument("name")
@watchable
@with_app
def show(app: App, cluster: str, name: str) -> None:
    """Show a node, and which jobs must end before it is drained."""
    show_one(app, app.client.get_drain(cluster, name), DRAINED, name="name")


def _talk_of_what_is_left(left: Any) -> None:
    if not left["keeps_nodes"]:
        talk("Warning: no node of the cluster stays in use, so no job can start or continue.")
    for one in left["stuck"] if left["keeps_nodes"] else ():
        talk(
            f"Warning: the job {one['job']} {one['name']} ({one['gpus']} GPUs) could continue on no other node."
        )
    for one in left["capacity"]:
        talk(f"{one['generation']}: {one['before']} GPUs in use now, {one['after']} after the drain.")
    for one in left["services"]:
        talk(
            f"The service {one['service']} has {one['lost']} of its {plural(one['wanted'], 'replica')} there."
        )
    for one in left["reservations"]:
        talk(
            f"The reservation {one['name']} of {one['team']} has {one['gpus']} GPUs there from {one['begins']}."
        )
    for one in left["waiting"]:
        talk(f"The waiting job {one['job']} {one['name']} ({one['gpus']} GPUs) could start on no other node.")
    if left["more_waiting"]:
        talk(f"{left['more_waiting']} more waiting jobs could start on no other node.")


@node.command()
@click.argument("cluster")
@click.argument("names", metavar="NODE...", nargs=-1, required=True)
@click.option("--reason", required=True, help="Why; users see it.")
@click.option(
    "--mode",
    type=click.Choice(["finish", "deadline", "now"]),
    help="Wait until jobs end (the default), stop them at --deadline, or stop them now.",
)
@click.option("--deadline", help="Time at which jobs are stopped, such as 2026-12-01T08:00Z.")
@click.option("--dry-run", is_flag=True, help="Only show the jobs that it would affect.")
@output_option
@with_app
def drain(app: App, cluster: str, names: tuple[str, ...], dry_run: bool, **options: Any) -> None:
    """Take nodes out of use. For operators."""
    done = app.client.drain_nodes(cluster, nodes=list(names), dry_run=dry_run, **chosen(options))
    if dry_run:
        show_rows(app, done["jobs"], AFFECTED, name="job")
        if done["hidden_jobs"]:
            talk(f"{done['hidden_jobs']} more jobs are not visible to you.")
        _talk_of_what_is_left(done["left"])
        return
    states = ", ".join(f"{one['name']} is {one['state']}" for one in done["nodes"])
    jobs = len(done["jobs"]) + done["hidden_jobs"]
    show_done(app, f"{states}; {jobs} {'job is' if jobs == 1 else 'jobs are'} there.", done)


AFFECTED: list[Column] = [
    ("JOB", "job"), ("NAME", "name"), ("KIND", "kind"), ("TEAM", "team"), ("OWNER", "owner"), ("GPUS", "gpus"),
    ("ELSEWHERE", "gpus_elsewhere"), ("ENDS", when("ends")),
]  # fmt: skip


@node.command()
@click.argument("cluster")
@click.argument("names", metavar="NODE...", nargs=-1, required=True)
@output_option
@with_app
def undrain(app: App, cluster: str, names: tuple[str, ...]) -> None:
    """Return nodes to use. For operators."""
    done = app.client.return_nodes(cluster, nodes=list(names))
    show_done(app, ", ".join(f"{one['name']} is {one['state']}" for one in done["nodes"]) + ".", done)


@click.group()
def cluster() -> None:
    """Show and check clusters. For operators."""


@cluster.command("list")
@output_option
@with_app
def list_clusters(app: App) -> None:
    """List the attached clusters."""
    columns: list[Column] = [("NAME", "name"), ("BACKEND", "backend"), ("DETACHED", when("detached_at"))]
    show_rows(app, app.client.list_clusters(), columns, name="name")


@cluster.command("check")
@click.argument("name")
@output_option
@with_app
def check_cluster(app: App, name: str) -> None:
    """Check now whether Fairlot reaches a cluster and has the rights that it needs."""
    made = app.client.check_cluster(name)
    show_done(app, f"Checked {name}.", made, name="name")


@cluster.command("settings")
@click.argument("name")
@output_option
@with_app
def show_settings(app: App, name: str) -> None:
    """Show the scheduling settings of a cluster."""
    if app.output == "table":
        app.output = "yaml"
    show_one(app, app.client.get_cluster_settings(name), [])


SETTING_CHANGES: list[Column] = [
    ("SETTING", "name"), ("NOW", "before"), ("NEW", "after"), ("WHAT FOLLOWS", "effect"),
]  # fmt: skip


@cluster.command("set")
@click.argument("name")
@click.option("--ordering", type=click.Choice(["stride", "lottery"]), help="How gangs are picked.")
@click.option(
    "--slicing",
    type=click.Choice(["checkpoint", "freeze", "auto"]),
    help="What happens to a gang whose turn is over.",
)
@click.option("--quantum", "quantum_seconds", type=float, help="Seconds between two rounds.")
@click.option("--min-hold", "min_hold_seconds", type=float, help="For so many seconds a gang keeps new GPUs.")
@click.option("--notice", "notice_seconds", type=float, help="Seconds of warning for replicas and sessions.")
@click.option(
    "--overhead-limit", type=float, help="Largest part of the time to spend on switching, such as 0.05."
)
@click.option("--cpu-per-gpu", type=float, help="CPUs per GPU of jobs that ask for none.")
@click.option("--memory-per-gpu", type=float, help="GiB per GPU of jobs that ask for none.")
@click.option("--cpu-limit-per-gpu", type=float, help="The most CPUs per GPU that a job may ask for.")
@click.option("--memory-limit-per-gpu", type=float, help="The most GiB per GPU that a job may ask for.")
@click.option("--trading/--no-trading", default=None, help="Whether time is traded between GPU types.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@output_option
@with_app
def change_settings(app: App, name: str, dry_run: bool, **options: Any) -> None:
    """Change scheduling settings of a cluster, from the next round on. For admins."""
    done = app.client.change_cluster_settings(name, dry_run=dry_run, **chosen(options))
    if dry_run or app.output != "table":
        show_rows(app, done["changes"], SETTING_CHANGES, name="name")
        return
    show_done(app, f"Changed {len(done['changes'])} settings of {name}.", done)


@cluster.command("policy")
@click.argument("name")
@output_option
@with_app
def show_policy(app: App, name: str) -> None:
    """Show the scheduling policy of a cluster."""
    if app.output == "table":
        app.output = "yaml"
    show_one(app, app.client.get_policy(name), [])
