"""Finds job files of other systems among uploaded code, such as a Slurm script or a Kubernetes Job."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from pathlib import PurePosixPath

from scheduling.importers.registry import recognise
from scheduling.jobs.proposals import common_folder

SUFFIXES = {"", ".sbatch", ".slurm", ".batch", ".sh", ".bash", ".job", ".yaml", ".yml", ".json"}
MOST_FILES = 20  # that are looked at, and their bytes together
MOST_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A file of an upload that tells another system how to run a job.

    `label` is its format in plain words. `folder` contains all files of the upload; "" if that is the top. `is_alone`
    is whether the upload has no other file.
    """

    path: str
    label: str
    text: str
    folder: str
    is_alone: bool

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


def foreign_files_in(content: bytes) -> list[ForeignFile]:
    """Returns the job files directly in the folder that contains all files of the canonical archive `content`."""
    found = []
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        files = {PurePosixPath(one.name): one for one in archive if one.isreg()}
        folder = common_folder(list(files))
        names = [path for path in files if path.parent == folder and path.suffix.lower() in SUFFIXES]
        left = MOST_BYTES
        for path in names[:MOST_FILES]:
            left -= files[path].size
            file = archive.extractfile(files[path]) if left >= 0 else None
            text = _text(file.read()) if file else ""
            if known := recognise(text):
                at = "" if folder == PurePosixPath() else str(folder)
                found.append(ForeignFile(str(path), known.label, text, at, len(files) == 1))
    return found


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return ""
