"""The folders at which secrets and volumes are mounted in a job's containers, and the names of unfinished checkpoints.

Every supervisor of a local job imports this module when it starts. To keep that fast, the module imports only the
standard library.
"""

from __future__ import annotations

from pathlib import PurePosixPath

# Folders in which secrets and volumes are mounted by default.
SECRETS, VOLUMES = "/secrets", "/volumes"
# Endings of names under which programs write a checkpoint before they rename it.
UNFINISHED = (".tmp", ".partial")


def is_in(path: str, folder: str) -> bool:
    """Returns whether `path` equals `folder` or lies inside it."""
    return PurePosixPath(path).is_relative_to(folder)
