"""Finds the checkpoint from which a job's next attempt resumes."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from fnmatch import fnmatchcase

from scheduling.backends import opening
from scheduling.backends.local.files import JobFiles
from scheduling.spec.paths import UNFINISHED


def newest(files: JobFiles, pattern: str) -> str:
    """Returns the name of the newest complete checkpoint in the job's checkpoint folder; "" if there is none.

    A checkpoint is a file or folder whose name matches `pattern` and has none of the endings UNFINISHED. If the pattern
    has a second part, as in `ckpt-*/DONE`, it is a folder that contains a file of this name. The newest checkpoint has
    the latest modification time: that of the marking file, if there is one.

    The folder belongs to the job, so its entries may be anything and may change meanwhile. Links are left out.
    """
    name_pattern, _, marker = pattern.partition("/")
    found = []
    with suppress(OSError), files.opened(files.checkpoints) as folder:
        for name in opening.names_in(folder):
            if not fnmatchcase(name, name_pattern) or name.endswith(UNFINISHED) or not name.isprintable():
                continue
            with suppress(OSError):  # the program removed it meanwhile, or it is no folder
                if (written := _written_at(name, marker, folder)) is not None:
                    found.append((written, name))
    return max(found, default=(0, ""))[1]


def _written_at(name: str, marker: str, folder: int) -> int | None:
    """Returns the time in nanoseconds at which the checkpoint `name` in the open folder was completed; None if it is
    not complete. Raises OSError if it cannot be read."""
    if not marker:
        entry = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return entry.st_mtime_ns if stat.S_ISREG(entry.st_mode) or stat.S_ISDIR(entry.st_mode) else None
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with opening.opened(os.open(name, flags, dir_fd=folder)) as inside:
        entry = os.stat(marker, dir_fd=inside, follow_symlinks=False)
    return entry.st_mtime_ns if stat.S_ISREG(entry.st_mode) else None
