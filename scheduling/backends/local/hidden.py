"""A gang's secrets on this machine: files that only the portal's user can read, as long as the gang is there.

<root>/<job>/secrets/<epoch>/environment.json    variables; gone once the workers have them
<root>/<job>/secrets/<epoch>/files/<path>/<key>  what FAIRLOT_SECRETS_DIR of that turn leads to
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from scheduling.backends.base import Secrets
from scheduling.backends.local.files import JobFiles, read_json
from scheduling.brought import SECRETS, is_in


def put(files: JobFiles, epoch: int, secrets: Secrets) -> None:
    """Writes them for one turn, instead of what is there of it. OSError when the disk refuses."""
    if not secrets:
        return
    folder = _folder(files, epoch)
    _make(folder.parent)
    _remove(folder)
    folder.mkdir(mode=0o700)
    if secrets.variables:
        _write(folder / "environment.json", json.dumps(dict(secrets.variables)))
    for one in secrets.folders:
        place = files_of(files, epoch) / Path(one.path).relative_to(SECRETS)
        place.mkdir(mode=0o700, parents=True)
        for key, text in one.files.items():
            _write(place / key, text)


def check(secrets: Secrets) -> None:
    """ValueError in plain words for what cannot be had here."""
    for one in secrets.folders:
        if not is_in(one.path, SECRETS) or one.path == SECRETS:
            raise ValueError(
                f"files of secrets lie below {SECRETS} on this machine, which is $FAIRLOT_SECRETS_DIR there, "
                f"and not at {one.path}"
            )


def files_of(files: JobFiles, epoch: int) -> Path:
    """Where the files of secrets of a turn are."""
    return _folder(files, epoch) / "files"


def take_variables(files: JobFiles, epoch: int) -> dict[str, str]:
    """The variables of a turn, which then are nowhere but in its processes."""
    path = _folder(files, epoch) / "environment.json"
    found: dict[str, str] = read_json(path) or {}
    path.unlink(missing_ok=True)
    return found


def forget(files: JobFiles, epoch: int) -> None:
    """Deletes what is there of this turn and of those before it."""
    folder = files.folder / "secrets"
    if folder.is_symlink() or not folder.is_dir():
        return
    for turn in folder.iterdir():
        if turn.name.isdecimal() and int(turn.name) <= epoch:
            _remove(turn)


def _folder(files: JobFiles, epoch: int) -> Path:
    return files.folder / "secrets" / str(epoch)


def _make(folder: Path) -> None:
    """The folder itself, whatever the job has put in its place meanwhile."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        folder.unlink()
    folder.mkdir(mode=0o700, exist_ok=True)


def _remove(folder: Path) -> None:
    """Links are deleted and never followed; what the job closed to us stays until its whole folder goes."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
