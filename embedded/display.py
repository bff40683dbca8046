"""The output of `make up`: a block of status lines on a terminal; otherwise one printed line for each change."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True)
class Line:
    """Represents the status of one service, shown as one line."""

    name: str
    state: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name:<9} {self.state:<11} {self.detail}".rstrip()


class Display:
    """Represents the output of `make up`: messages that stay on the screen and, below them, one status line per
    service."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._redraws = self._stream.isatty()
        self._drawn = 0
        self._shown: dict[str, Line] = {}
        self._gone = False

    def say(self, message: str) -> None:
        self._write(self._erasure() + message + "\n" + self._block())

    def show(self, lines: Sequence[Line]) -> None:
        """Shows the status lines; does nothing if no line changed.

        On a terminal, redraws the whole block of status lines. Otherwise prints only the lines that changed.
        """
        changed = [line for line in lines if self._shown.get(line.name) != line]
        if not changed:
            return
        erasure = self._erasure()
        self._shown = {line.name: line for line in lines}
        if self._redraws:
            self._write(erasure + self._block())
        else:
            self._write("".join(f"{line}\n" for line in changed))

    def _erasure(self) -> str:
        up, self._drawn = self._drawn, 0
        return f"\x1b[{up}A\x1b[J" if up else ""

    def _block(self) -> str:
        if not self._redraws:
            return ""
        # a line that wraps would take two rows, and the cursor would go up too few rows
        width = shutil.get_terminal_size().columns - 1
        self._drawn = len(self._shown)
        return "".join(f"{str(line)[:width]}\n" for line in self._shown.values())

    def _write(self, text: str) -> None:
        if self._gone:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._gone = True  # the terminal was closed; the supervisor can still stop its services in order
