"""Packs and uploads the code that `--code` names."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import click

from fairlot_client.cli.app import App, talk
from fairlot_client.cli.local_files import is_python, left_behind, opened, refuse_unknown, text_of
from fairlot_client.cli.output import plural
from fairlot_client.cli.spec import directives_of, joined, read_options, require_command, script_of

# Folders that programs make again, or that are no code.
SKIPPED = {
    ".git",
    ".hg",
    ".svn",
    ".venv",
    "venv",
    "__pycache__",
    "node_modules",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
}
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")


def spec_with_code(
    app: App,
    *,
    file: Any,
    command: tuple[str, ...],
    options: dict[str, Any],
    base: dict[str, Any] | None = None,
    team: str | None = None,
    uploads: bool = True,
    may_be_incomplete: bool = False,
    parameters: Collection[str] = (),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the specification and the place that the arguments describe, like `read_options`.

    A command that is a file here is read as that file: YAML as by -f; of Python, the file is uploaded, too. Uploads the
    code that --code names, unless `uploads` is False: for the team in the arguments, or else for `team`. Says, or asks
    at a terminal, if the command names files here that the job would lack.
    """
    path, repository, ref = (options.pop(name) for name in ("code", "git", "ref"))
    installs = not options.pop("no_requirements")
    if path and repository:
        raise click.UsageError("--code and --git cannot be combined.")
    if not installs and options.get("requirements"):
        raise click.UsageError("-r and --no-requirements cannot be combined.")
    file, command = opened(file, command)
    directives: dict[str, Any] = {}
    runs = ""  # the command, if it was made from the name of a file
    if is_python(command, path):
        directives = directives_of(text_of(command[0]) or "", command[0])
        if not (path or repository):
            path, command = Path(command[0]), (Path(command[0]).name, *command[1:])
        command = ("python", *command)
        runs = joined(command, parameters)
    elif not (path or repository) and script_of(command) is None:
        refuse_unknown(command)
    incomplete = may_be_incomplete or bool(path and uploads)
    spec, place = read_options(
        file=file,
        command=command,
        options=options,
        base=base,
        directives=directives,
        may_be_incomplete=incomplete,
        parameters=parameters,
    )
    if not (path or repository):
        path = folder_to_bring(app, spec)
    if path and uploads:
        upload = uploaded(app, path, place.get("team") or team)
        spec["code"] = {"upload": upload["digest"]}
        take_proposals(spec, upload["proposals"], installs=installs)
        if not may_be_incomplete:
            require_command(spec)
    if repository:
        spec["code"] = {"git": repository} | ({"ref": ref} if ref else {})
    if runs:
        talk(f"The job runs: {runs}")
    return spec, place


def uploaded(app: App, path: Path, team: str | None) -> Mapping[str, Any]:
    """Uploads the file or folder at `path`, says so, and returns the answer."""
    content, name = packed(path), path.resolve().name
    upload = app.client.upload_code(content=content, team=team, name=name)
    what = f"the file {path}" if path.is_file() else f"{plural(upload['files'], 'file')} of {path.resolve()}"
    talk(f"Uploaded {what}.")
    return upload


def folder_to_bring(app: App, spec: Mapping[str, Any]) -> Path | None:
    """Returns the current folder if the command needs files of it, and the person wants to upload it.

    Without a terminal, only says which files the job will lack. A job with code, volumes or its own working directory
    may find them there.
    """
    if any(spec.get(field) for field in ("code", "volumes", "working_directory")):
        return None
    names = left_behind(str(spec.get("command") or ""))
    if not names:
        return None
    are = "is a file" if len(names) == 1 else "are files"
    talk(f"{' and '.join(names)} {are} here. A job gets files only with --code or --git.")
    here = Path()
    if not app.is_interactive():
        talk("To bring this folder: fairlot submit --code . -- COMMAND")
        return None
    return here if click.confirm(f"Upload the folder {here.resolve()} with the job?", err=True) else None


def take_proposals(spec: dict[str, Any], proposals: Mapping[str, object], *, installs: bool = True) -> None:
    """Completes a specification by what the portal proposes for the uploaded files, as the browser's form does.

    With a command, only the packages are taken; without `installs`, everything but the packages.
    """
    fields = ["name", "command"] if not spec.get("command") else []
    fields += ["requirements"] if installs else []
    found = {name: proposals[name] for name in fields if proposals[name] and not spec.get(name)}
    if found.get("command"):
        talk(f"The job runs: {found['command']}")
    if found.get("requirements"):
        talk("It installs the packages of requirements.txt first. Add --no-requirements to install none.")
    spec.update(found)


def packed(path: Path) -> bytes:
    """Returns the archive at `path` unchanged, or a tar.gz archive of the file or folder there.

    Leaves out folders such as .git and .venv. Raises UsageError if there is nothing to pack.
    """
    if path.is_file() and path.name.endswith(ARCHIVES):
        return path.read_bytes()
    files = [path] if path.is_file() else _files_in(path)
    if not files:
        raise click.UsageError(f"{path} contains no files.")
    import tarfile  # noqa: PLC0415 - the program must start quickly

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for file in files:
            archive.add(
                file, file.name if path.is_file() else file.relative_to(path).as_posix(), recursive=False
            )
    return buffer.getvalue()


def _files_in(folder: Path) -> list[Path]:
    """Returns the files in a folder and in folders below it. Links are packed as links, which the portal refuses."""
    found = []
    for place in sorted(folder.rglob("*")):
        if not SKIPPED.isdisjoint(place.relative_to(folder).parts):
            continue
        if place.is_symlink() or not place.is_dir():
            found.append(place)
    return found
