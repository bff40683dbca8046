"""A gang's secrets as files on this machine, which the team's user can read while the gang exists.

    <root>/<job>/secrets/<epoch>/environment.json    variables; deleted once the workers have them
    <root>/<job>/secrets/<epoch>/files/<path>/<key>  one file per key of a secret folder

In an attempt, FAIRLOT_SECRETS_DIR contains the path of the attempt's folder `files`.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from scheduling.backends import opening
from scheduling.backends.local import removal
from scheduling.backends.local.files import JobFiles
from scheduling.spec.paths import SECRETS, is_in

if TYPE_CHECKING:  # a supervisor imports this module, and starts faster without base.py
    from scheduling.backends.base import Secrets

logger = logging.getLogger(__name__)


def write(files: JobFiles, epoch: int, secrets: Secrets) -> None:
    """Writes the secret files for the attempt `epoch`. First deletes files that an earlier call wrote for that attempt.

    Raises OSError if the files cannot be written, for example because the disk is full.
    """
    if not secrets:
        return
    with _secrets_of(files) as folder:
        removal.clear(str(epoch), folder)
    attempt = _folder(files, epoch)
    if secrets.variables:
        with files.opened(attempt, make=True) as folder:
            _write("environment.json", json.dumps(dict(secrets.variables)), folder)
    for one in secrets.folders:
        place = files_of(files, epoch) / Path(one.path).relative_to(SECRETS)
        with files.opened(place, make=True) as folder:
            for key, text in one.files.items():
                _write(key, text, folder)


def check(secrets: Secrets) -> None:
    """Raises ValueError, with a message for users, if a secret folder has a path that is not possible on this machine.

    Users may choose the paths, but on this machine all secret folders must be inside one fixed folder.
    """
    for one in secrets.folders:
        if not is_in(one.path, SECRETS) or one.path == SECRETS:
            raise ValueError(
                f"files of secrets must be below {SECRETS} ($FAIRLOT_SECRETS_DIR) on this machine, not at {one.path}"
            )


def files_of(files: JobFiles, epoch: int) -> Path:
    """Returns the folder with the secret files of an attempt."""
    return _folder(files, epoch) / "files"


def take_variables(files: JobFiles, epoch: int) -> dict[str, str]:
    """Returns an attempt's secret variables; an empty dictionary if it has none.

    Deletes their file, so that from then on only the attempt's processes have the values.
    """
    try:
        with files.opened(_folder(files, epoch)) as folder:
            text = opening.read_file("environment.json", folder=folder, limit=opening.LONGEST_JSON)
            os.unlink("environment.json", dir_fd=folder)
    except FileNotFoundError:
        return {}
    found: dict[str, str] = json.loads(text)
    return found


def delete(files: JobFiles, epoch: int) -> None:
    """Deletes the job's secrets of this and earlier attempts.

    Files that cannot be deleted now remain until the job's folder is deleted.
    """
    try:
        with files.opened(files.folder / "secrets") as folder:
            for attempt in opening.names_in(folder):
                number = attempt.partition(".")[0]
                if number.isascii() and number.isdecimal() and int(number) <= epoch:
                    removal.clear(number, folder)
    except FileNotFoundError:
        return
    except OSError as error:  # the job put a link in place of the folder, or the disk refuses
        logger.warning("secrets of job %s stay for now: %s", files.job_id, opening.why(error))


def _folder(files: JobFiles, epoch: int) -> Path:
    return files.folder / "secrets" / str(epoch)


@contextmanager
def _secrets_of(files: JobFiles) -> Iterator[int]:
    """Opens the job's `secrets` folder for the `with` block, and yields its file descriptor.

    Creates a missing folder. If the job has replaced the folder by something else, such as a link, removes that first.
    """
    with files.opened(files.folder) as folder:
        try:
            is_folder = stat.S_ISDIR(os.stat("secrets", dir_fd=folder, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            is_folder = True
        if not is_folder:
            opening.remove_file("secrets", folder=folder)
    with files.opened(files.folder / "secrets", make=True) as folder:
        yield folder


def _write(name: str, text: str, folder: int) -> None:
    fd = opening.open_file(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder=folder)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
