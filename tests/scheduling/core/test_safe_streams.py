"""A program continues when its log cannot be written because the disk is full."""

import subprocess
import sys

PROGRAM = """
import sys
from scheduling.core.safe_streams import outlive_full_disks
{how}
try:
    print("to standard output", flush=True)
    print("to standard error", file=sys.stderr, flush=True)
except OSError:
    sys.exit(3)
"""


def run(how: str, out: str) -> int:
    with open(out, "wb") as sink:
        argv = [sys.executable, "-c", PROGRAM.format(how=how)]
        return subprocess.run(argv, stdout=sink, stderr=sink, check=False).returncode


def test_what_there_is_no_room_for_is_dropped() -> None:
    assert run("", "/dev/full") != 0
    assert run("outlive_full_disks()", "/dev/full") == 0


def test_what_there_is_room_for_is_written(tmp_path) -> None:
    assert run("outlive_full_disks()", str(tmp_path / "log")) == 0
    assert (tmp_path / "log").read_text() == "to standard output\nto standard error\n"
