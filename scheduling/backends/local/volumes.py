"""Volumes of local jobs: symbolic links in the job's folder that point to folders of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from scheduling.backends.base import Mount
from scheduling.backends.local import removal
from scheduling.backends.local.files import JobFiles
from scheduling.backends.local.isolation import HostPaths
from scheduling.spec.paths import VOLUMES, is_in


def check(mounts: Sequence[Mount], places: HostPaths, *, read_only: bool) -> None:
    """Raises ValueError, with a message for users, if one of the mounts is not possible on this machine.

    `places` contains the folders of this machine that jobs must not see. `read_only` says whether this machine can keep
    jobs from writing to a read-only volume.
    """
    for one in mounts:
        if not is_in(one.path, VOLUMES) or one.path == VOLUMES:
            raise ValueError(
                f"volumes must be below {VOLUMES} ($FAIRLOT_VOLUMES_DIR) on this machine, not at {one.path}"
            )
        if one.read_only and not read_only:
            raise ValueError(f"the volume {one.name} cannot be mounted read-only on this machine")
        if not Path(one.source).is_dir():
            raise ValueError(f"the folder of the volume {one.name} does not exist")
        # Checked again, because the rule or the settings may have changed since an admin granted the volume.
        if why := places.why_no_volume(Path(one.source)):
            raise ValueError(f"the volume {one.name} is refused: {why}")


def place(files: JobFiles) -> Path:
    """Returns the folder that contains the symbolic links to a job's volumes."""
    return files.folder / "volumes"


def link(files: JobFiles, mounts: Sequence[Mount]) -> None:
    """Replaces the symbolic links to the job's volumes. Raises OSError if the links cannot be written."""
    with files.opened(files.folder) as folder:
        removal.clear("volumes", folder)  # deletes the links themselves and follows none
    for one in mounts:
        path = place(files) / Path(one.path).relative_to(VOLUMES)
        with files.opened(path.parent, make=True) as folder:
            os.symlink(one.source, path.name, target_is_directory=True, dir_fd=folder)
