"""Where in its containers a job finds what it brings from outside.

Read by each gang's supervisor when it starts, so it needs nothing but the standard library.
"""

from __future__ import annotations

from pathlib import PurePosixPath

# Where things lie when nothing else is said.
SECRETS, VOLUMES = "/secrets", "/volumes"


def is_in(path: str, folder: str) -> bool:
    """Whether `path` is `folder`, or lies in it."""
    return PurePosixPath(path).is_relative_to(folder)
