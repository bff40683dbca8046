"""A gang's secrets on this machine: files that the user of its team can read as long as the gang exists.

<root>/<job>/secrets/<epoch>/environment.json    variables; deleted once the workers have them
<root>/<job>/secrets/<epoch>/files/<path>/<key>  files; FAIRLOT_SECRETS_DIR of that attempt leads here
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
    """Writes the secrets for the attempt `epoch`, and deletes older files of that attempt. Raises OSError if the disk
    refuses."""
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
    """Raises ValueError with words for users if a secret folder's path is impossible on this machine."""
    for one in secrets.folders:
        if not is_in(one.path, SECRETS) or one.path == SECRETS:
            raise ValueError(
                f"files of secrets must be below {SECRETS} ($FAIRLOT_SECRETS_DIR) on this machine, not at {one.path}"
            )


def files_of(files: JobFiles, epoch: int) -> Path:
    """Returns the folder with the secret files of an attempt."""
    return _folder(files, epoch) / "files"


def take_variables(files: JobFiles, epoch: int) -> dict[str, str]:
    """Returns the secret variables of an attempt, and deletes their file, so that only the attempt's processes have
    them.

    Returns an empty dict without variables.
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
    """Deletes the secrets of this and earlier attempts. Files that cannot be deleted now stay until the job's folder
    goes."""
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
    """Opens the job's `secrets` folder for the block. First removes anything else that the job has put in its place."""
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
