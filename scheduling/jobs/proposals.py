"""Proposes what a job with uploaded code is called, runs and installs, from the files of the upload."""

from __future__ import annotations

import io
import shlex
import tarfile
from dataclasses import dataclass
from pathlib import PurePosixPath

from scheduling.spec.requirements import LONGEST, normalised

SUFFIXES = (".tar.gz", ".tgz", ".zip", ".tar", ".py", ".sh", ".sbatch", ".slurm", ".yaml", ".yml")
ENTRIES = ("train.py", "main.py", "run.sh")
REQUIREMENTS = "requirements.txt"
LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class Proposals:
    """Values of a job specification. A field is empty if the files propose nothing for it."""

    name: str = ""
    command: str = ""
    requirements: str = ""


def proposals_of(content: bytes, sent_as: str = "") -> Proposals:
    """Returns what the canonical archive `content` of an upload proposes.

    `sent_as` is the name of the archive, folder or only file that was sent; "" if there is none. If all files lie in
    one folder, the files directly in that folder count as those at the top.
    """
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        files = {PurePosixPath(one.name): one for one in archive if one.isreg()}
        folder = common_folder(list(files))
        top = {path.name for path in files if path.parent == folder}
        entry = _entry(top)
        listed = files.get(folder / REQUIREMENTS)
        file = archive.extractfile(listed) if listed and listed.size <= 4 * LONGEST else None
        requirements = _requirements(file.read()) if file else ""
    return Proposals(
        name=_name(sent_as) or _name(folder.name) or _name(entry),
        command=_command(folder, entry),
        requirements=requirements,
    )


def common_folder(paths: list[PurePosixPath]) -> PurePosixPath:
    """Returns the deepest folder that contains all files."""
    folder = paths[0].parent
    while any(not path.is_relative_to(folder) for path in paths):
        folder = folder.parent
    return folder


def _entry(names: set[str]) -> str:
    """Returns the only file that is obviously meant to be run, or "" if there is no such file or there are several."""
    found = [name for name in ENTRIES if name in names] or [name for name in names if name.endswith(".py")]
    return found[0] if len(found) == 1 else ""


def _command(folder: PurePosixPath, entry: str) -> str:
    if not entry:
        return ""
    run = f"{'bash' if entry.endswith('.sh') else 'python'} {shlex.quote(entry)}"
    return run if folder == PurePosixPath() else f"cd {shlex.quote(str(folder))} && {run}"


def _requirements(content: bytes) -> str:
    """Returns the text of a requirements file; "" if it lists nothing, or is no text that a job may have."""
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n").strip()
    except UnicodeDecodeError:
        return ""
    return text if normalised(text) and len(text) <= LONGEST and "\0" not in text else ""


def _name(sent_as: str) -> str:
    """Returns the name of a file or folder without its suffix, if a job can have this name; otherwise ""."""
    name = PurePosixPath(sent_as).name
    suffix = next((one for one in SUFFIXES if name.lower().endswith(one)), "")
    name = name[: len(name) - len(suffix)][:LONGEST_NAME].strip()
    return name if name.isprintable() else ""
