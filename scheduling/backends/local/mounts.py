"""Determines which folders of which file systems are visible below a path, also through mounts.

Callers use this to find out whether two paths show the same files. The paths alone do not show this, because a bind
mount can show the same folder at a second path that is not a symbolic link.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

# Types of kernel file systems, which show the machine's processes and devices wherever they are mounted.
OF_THE_KERNEL = frozenset(
    {"proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "nsfs", "bpf", "configfs", "mqueue"}
    | {"debugfs", "tracefs", "securityfs", "efivarfs", "pstore", "fusectl", "binfmt_misc", "rpc_pipefs"}
)


@dataclass(frozen=True, slots=True)
class Part:
    """A folder of a file system, and the path at which this process sees it."""

    kind: str
    device: str
    root: Path  # path within the file system
    point: Path  # path where this process sees it

    def overlaps(self, other: Part) -> bool:
        """Returns whether the two parts are the same folder of a file system, or one lies inside the other."""
        return self.device == other.device and (
            self.root.is_relative_to(other.root) or other.root.is_relative_to(self.root)
        )


def parts(places: Iterable[Path]) -> list[Part]:
    """Returns the parts of file systems that are visible in the folders `places`.

    This includes file systems that are mounted below these folders. The paths in `places` must not be symbolic links.
    Raises OSError if the table of mounts or a path cannot be read.
    """
    with ExitStack() as stack:
        fds = []
        for place in places:
            fd = os.open(place, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
            stack.callback(os.close, fd)
            fds += [(place, fd)]
        known = _mounted()
        found = []
        for place, fd in fds:
            said = Path(f"/proc/self/fdinfo/{fd}").read_text()
            own = known[int(re.findall(r"^mnt_id:\s*(\d+)", said, re.MULTILINE | re.ASCII)[0])]
            found.append(replace(own, root=own.root / place.relative_to(own.point), point=place))
            found += [one for one in known.values() if one.point != place and one.point.is_relative_to(place)]
        return found


def _mounted() -> dict[int, Part]:
    found = {}
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        left, _, right = line.partition(b" - ")
        number, _, device, root, point, *_ = left.split(b" ")
        found[int(number)] = Part(right.split(b" ")[0].decode(), device.decode(), _path(root), _path(point))
    return found


def _path(written: bytes) -> Path:
    """Decodes a path in /proc/self/mountinfo, which writes spaces and some other characters as octal escapes."""
    return Path(os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), written)))
