"""The newest output of a terminal, so that a user who comes back sees more than an empty screen.

It is in anonymous memory (memfd) that the supervisor makes and the portal writes to while it carries the output. It is
in no file and no log, and ends with the shell. A program of the job cannot reach it.
"""

from __future__ import annotations

import os
import struct

KEPT = 256 * 1024  # bytes of output
CUT_WITHIN = 4096  # bytes, in which a cut begins at a line
HEAD = struct.Struct("<Q")  # the number of bytes that were ever added


def create() -> Scrollback:
    fd = os.memfd_create("scrollback")
    os.truncate(fd, HEAD.size + KEPT)
    return Scrollback(fd)


class Scrollback:
    """The last KEPT bytes of output. One process adds to it at a time."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def add(self, data: bytes) -> None:
        total, newest = self._total(), data[-KEPT:]
        place = (total + len(data) - len(newest)) % KEPT
        first = newest[: KEPT - place]  # up to the end of the memory; the rest from its beginning
        os.pwrite(self.fd, first, HEAD.size + place)
        os.pwrite(self.fd, newest[len(first) :], HEAD.size)
        os.pwrite(self.fd, HEAD.pack(total + len(data)), 0)

    def read(self) -> bytes:
        """Returns the output that is kept, the oldest first. If older output was dropped, begins with a whole line
        where there is one."""
        total = self._total()
        kept = os.pread(self.fd, KEPT, HEAD.size)
        if total <= KEPT:
            return kept[:total]
        place = total % KEPT
        kept = kept[place:] + kept[:place]
        line = kept.find(b"\n", 0, CUT_WITHIN)
        return kept[line + 1 :]

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def _total(self) -> int:
        total: int = HEAD.unpack(os.pread(self.fd, HEAD.size, 0))[0]
        return total
