"""Runs the program of reader pods as a process, as a kubelet would: with the command and the variables of the pod."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scheduling.backends.kubernetes import reader_program
from scheduling.backends.kubernetes.reader_pods import Reader
from tests.waiting import wait_for

SECRET = "only the portal knows it"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def variables(folder: Path, port: int, idle_seconds: float = 600) -> dict[str, str]:
    return {
        "PORT": str(port),
        "FAIRLOT_READER_FOLDER": str(folder),
        "FAIRLOT_READER_IDLE_SECONDS": str(idle_seconds),
        "FAIRLOT_READER_DIGEST": hashlib.sha256(SECRET.encode()).hexdigest(),
    }


@contextmanager
def program(command: Sequence[str], given: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the command with these variables alone, and waits until it answers."""
    with subprocess.Popen(command, env={"PATH": os.environ["PATH"], **given}) as process:
        try:
            wait_for(lambda: process.poll() is not None or answers(int(given["PORT"])), what="an answer")
            yield process
        finally:
            process.terminate()


@contextmanager
def reader_of(folder: Path) -> Iterator[Reader]:
    """Runs the program for a folder of a job, and yields the way to it."""
    given = variables(folder, free_port())
    with program([sys.executable, "-I", "-c", reader_program.script()], given):
        yield Reader(f"127.0.0.1:{given['PORT']}", SECRET)
