"""Keeps a process running when its standard output or standard error goes to a disk that is full."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from typing import Any

NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


class Dropping(io.FileIO):
    """A file that silently drops output if the disk is full, so that a process keeps running when its log cannot be
    written."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return memoryview(data).nbytes


def outlive_full_disks() -> None:
    """Replaces sys.stdout and sys.stderr with streams that drop output if the disk is full.

    Leaves a stream unchanged if it is a terminal or a pipe.
    """
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is not getattr(sys, f"__{name}__") or not _is_file(number):
            continue
        kept: Any = Dropping(number, "w", closefd=False)  # unbuffered, as with PYTHONUNBUFFERED
        text = io.TextIOWrapper(kept, encoding="utf-8", errors="backslashreplace", write_through=True)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def _is_file(number: int) -> bool:
    try:
        mode = os.fstat(number).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not os.isatty(number))
