"""The files of earlier jobs that a job of a pipeline may read: their folders on this machine, at the same paths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scheduling.backends.base import Input
from scheduling.backends.local.files import JobFiles
from scheduling.backends.safe_folder import PARTS


def folders(root: Path, inputs: Sequence[Input]) -> list[Path]:
    """Returns the folders of the jobs `inputs` that another job may read. Raises ValueError, with a message for users,
    if one of them is missing.

    No link is followed. The folders belong to the portal's root, whose entries no job can replace.
    """
    found = []
    for one in inputs:
        for part in PARTS:
            path = JobFiles(root, one.job_id).folder / part
            if path.is_symlink() or not path.is_dir():
                raise ValueError(f"the files of job {one.job_id} are not on this machine any more")
            found.append(path)
    return found
