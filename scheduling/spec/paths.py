"""Where secrets and volumes are mounted in a job's containers.

Each gang's supervisor imports this when it starts, so it uses nothing but the standard library.
"""

from __future__ import annotations

from pathlib import PurePosixPath

# Default folders.
SECRETS, VOLUMES = "/secrets", "/volumes"


def is_in(path: str, folder: str) -> bool:
    """Returns whether `path` is `folder` or lies in it."""
    return PurePosixPath(path).is_relative_to(folder)
