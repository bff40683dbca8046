"""Packs the code that `--code` names, for its upload."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import click

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


def packed(path: Path) -> bytes:
    """Returns the archive at `path` unchanged, or a tar.gz archive of the file or folder there.

    Leaves out folders such as .git and .venv. Raises UsageError if there is nothing to pack.
    """
    if path.is_file() and path.name.endswith(ARCHIVES):
        return path.read_bytes()
    files = [path] if path.is_file() else _files_in(path)
    if not files:
        raise click.UsageError(f"{path} contains no files.")
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
