"""Commands for the files of jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from fairlot_client.cli import finding
from fairlot_client.cli.app import App, talk, with_app
from fairlot_client.cli.code import packed
from fairlot_client.cli.output import (
    Column,
    limit_options,
    output_option,
    plural,
    show_created,
    show_done,
    show_rows,
    taken,
    watchable,
)

FILES: list[Column] = [("NAME", "name"), ("KIND", "kind"), ("BYTES", "size"), ("CHANGED", "changed_at")]
RESULTS: list[Column] = [("FILE", "path"), ("BYTES", "size"), ("CHANGED", "changed_at")]
STORAGE: list[Column] = [
    ("JOB", "job"), ("NAME", "name"), ("STATE", "state"), ("TEAM", "team"), ("OWNER", "owner"), ("BYTES", "bytes"),
]  # fmt: skip


@click.group()
def files() -> None:
    """Upload code, and list, download and delete the files of jobs."""


@files.command("list")
@finding.argument("job")
@click.argument("path", default="")
@watchable
@with_app
def list_files(app: App, job: str, path: str) -> None:
    """List a folder of a job: work, checkpoint, or a folder in them."""
    found, after = [], ""
    number = finding.job_id_of(app, job)
    while True:
        page = app.client.list_job_files(number, path=path.strip("/"), after=after)
        found += page["items"]
        after = page["next"] or ""
        if not after:
            break
    show_rows(app, found, FILES, name="name")


@files.command("put")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("-t", "--team", help="Team whose jobs use the files. Not needed if you are in only one.")
@output_option
@with_app
def put(app: App, path: Path, team: str | None) -> None:
    """Upload a file, folder or archive as code for jobs, and print its digest.

    Job specifications name it as `code: {upload: DIGEST}`, also in sweeps, schedules and the steps of pipelines. The
    same files have the same digest and are kept once. `fairlot submit --code` does this for one job.
    """
    made = app.client.upload_code(content=packed(path), team=team, name=path.resolve().name)
    show_created(
        app,
        f"Uploaded {plural(made['files'], 'file')} of {path.resolve()}. Use them: code: {{upload: {made['digest']}}}",
        made,
        key="digest",
    )


@files.command("results")
@finding.argument("job")
@watchable
@with_app
def results(app: App, job: str) -> None:
    """List the files that a job wrote or changed, newest first."""
    found: Any = app.client.list_job_results(finding.job_id_of(app, job), limit=1000)
    show_rows(app, found["items"], RESULTS, name="path")
    if found["count"] > len(found["items"]):
        talk(f"These are the newest {len(found['items'])} of {found['count']} files.")
    if not found["is_complete"]:
        talk("The job has more files than Fairlot looks at, so results may be missing here.")


@files.command("get")
@finding.argument("job")
@click.argument("path", required=False)
@click.argument("to", required=False, type=click.Path(path_type=Path))
@click.option("--results", is_flag=True, help="All files that the job wrote or changed, as a zip archive.")
@with_app
def get(app: App, job: str, path: str | None, to: Path | None, results: bool) -> None:
    """Download the file PATH of a job to the file TO; - is stdout.

    By default, the file gets its own name in the current folder. A path that ends with / is a folder: it is downloaded
    as a zip archive. With --results, TO comes in place of PATH.
    """
    from fairlot_client.operations import (  # noqa: PLC0415 - see main.py
        download_job_files,
        download_job_results,
        read_job_file,
    )

    if results and to is not None:
        raise click.UsageError("--results takes no path. Write only where the archive goes.")
    if not results and path is None:
        raise click.UsageError("Write the path of a file, or --results for all that the job wrote.")
    number, plain = finding.job_id_of(app, job), "" if results else str(path).strip("/")
    name = plain.rpartition("/")[2] or f"job-{number}"
    if results:
        to, name = Path(path) if path else None, f"job-{number}-results.zip"
        call = download_job_results(number)
    elif str(path).endswith("/"):
        name, call = f"{name}.zip", download_job_files(number, path=plain)
    else:
        call = read_job_file(number, path=plain)
    to = to or Path(name)
    if str(to) == "-":
        app.client.save(call, sys.stdout.buffer)
        return
    if to.is_dir():
        to /= name
    # Written beside its place first, so that an interrupted download leaves no half file of that name.
    part = to.with_name(f"{to.name}.part")
    with part.open("wb") as out:
        count = app.client.save(call, out)
    part.replace(to)
    talk(f"Wrote {count} bytes to {to}.")


@files.command("delete")
@finding.argument("job")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
@with_app
def delete(app: App, job: str, yes: bool) -> None:
    """Delete the log and all files of an ended job. This cannot be undone."""
    number = finding.job_id_of(app, job)
    if not yes and not (
        app.is_interactive() and click.confirm(f"Delete all files of job {number}?", err=True)
    ):
        raise click.UsageError("Nothing was deleted. Confirm with --yes.")
    answer: Any = app.client.delete_job_files(number)
    show_done(app, f"The files of job {number} are being deleted.", answer)


@click.command()
@click.option("-t", "--team", help="Only jobs of this team.")
@limit_options
@watchable
@with_app
def storage(app: App, team: str | None, limit: int, everything: bool) -> None:
    """List how much disk space the files of jobs take, biggest first."""
    show_rows(app, taken(app.client.list_storage(team=team), limit, everything), STORAGE, name="job")
