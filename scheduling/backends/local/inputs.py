"""The files of earlier jobs that a job may read or copies: their folders on this machine, at the same paths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scheduling.backends.base import FilesToCopy, Input
from scheduling.backends.local.files import JobFiles
from scheduling.backends.safe_folder import PARTS


def folders(root: Path, inputs: Sequence[Input]) -> list[Path]:
    """Returns the folders of the jobs `inputs` that another job may read. Raises ValueError, with a message for users,
    if one of them is missing.

    No link is followed. The folders belong to the portal's root, whose entries no job can replace.
    """
    return [_folder(root, one.job_id, part) for one in inputs for part in PARTS]


def folders_to_copy(root: Path, copy: FilesToCopy, files: JobFiles) -> list[tuple[str, str]]:
    """Returns pairs of folders: one of the earlier job, and the one of the job `files` that gets a copy of it.

    Raises ValueError like `folders`.
    """
    parts = ("checkpoint", "work", *(["home"] if copy.with_home else []))
    return [(str(_folder(root, copy.job_id, part)), str(files.folder / part)) for part in parts]


def _folder(root: Path, job_id: int, part: str) -> Path:
    path = JobFiles(root, job_id).folder / part
    if path.is_symlink() or not path.is_dir():
        raise ValueError(f"the files of job {job_id} are not on this machine any more")
    return path
