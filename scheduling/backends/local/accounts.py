"""The account of a team's user, as a job sees it: copies of /etc/passwd and /etc/group with one more line.

The machine has no account for a team's UID, so programs that ask for the name of their user would fail. The copies
belong to the portal and are mounted over the machine's files in the job's namespaces (sandbox.py), so the machine's own
files do not change. Passwords are in neither.
"""

from __future__ import annotations

import os
from pathlib import Path

from scheduling.backends import opening
from scheduling.backends.local.files import JobFiles

PLACES = {"passwd": "/etc/passwd", "group": "/etc/group"}
LONGEST = 32  # letters of a name, as useradd allows
LARGEST = 2**20  # bytes of a file; larger ones are not copied


def name_of(team: str, uid: int) -> str:
    """Returns the name of a team's user. `team` is the team's slug; empty if it is not known."""
    return f"team-{team}"[:LONGEST].rstrip("-") if team else f"uid{uid}"


def write(files: JobFiles, *, name: str, uid: int) -> dict[str, str]:
    """Writes the copies for a job. Returns the path of each copy, by the path of the file that it stands for.

    Leaves out files that this machine does not have. Raises OSError if the disk refuses.
    """
    own = {
        "passwd": f"{name}:x:{uid}:{uid}::{files.folder / 'home'}:/bin/bash\n",
        "group": f"{name}:x:{uid}:\n",
    }
    found = {}
    with files.opened(files.folder) as folder:
        for kind, place in PLACES.items():
            if (text := _read(Path(place))) is None:
                continue
            if text and not text.endswith("\n"):
                text += "\n"
            # An account of the machine may have the name. Then the UID keeps one that tells nobody wrong.
            line = own[kind] if f"\n{name}:" not in f"\n{text}" else own[kind].replace(name, f"uid{uid}", 1)
            opening.replace_file(kind, (text + line).encode(), folder=folder)
            os.chmod(kind, 0o644, dir_fd=folder)
            found[place] = str(files.folder / kind)
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text() if path.stat().st_size <= LARGEST else None
    except (OSError, ValueError):
        return None
