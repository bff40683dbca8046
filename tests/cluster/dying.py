"""Runs workers and watchers of one cluster that are killed with SIGKILL at a given step: `python -m tests.cluster.dying
ID`.

A step is a database statement or a request to the API server. Each line on standard input names a process and the step
at which it is killed: `work 12`, `watch 7`, or `work -` for no kill.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

if TYPE_CHECKING:
    from scheduling.models import Cluster

READY = "ready"


class Dying:
    """Runs processes that are killed at a given step, one process at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def work(self, step: int | None = None) -> bool:
        """Runs a worker that carries out the orders in the outbox. Returns whether the worker was killed at `step`."""
        return self._do("work", step)

    def watch(self, step: int | None = None) -> bool:
        """Runs a watcher that reconciles and then observes once. Returns whether the watcher was killed at `step`."""
        return self._do("watch", step)

    def _do(self, what: str, step: int | None) -> bool:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{what} {'-' if step is None else step}\n")
        self._process.stdin.flush()
        how = self._process.stdout.readline().strip()
        assert how in {"killed", "lived"}, f"{what} at step {step}: {how or 'it has ended'}"
        return how == "killed"


@contextmanager
def dying(cluster_id: int) -> Iterator[Dying]:
    """Yields a Dying object whose processes use the same database as this process."""
    from django.conf import settings  # noqa: PLC0415 - which come later

    from tests.cluster.orders_process import database_url  # noqa: PLC0415 - as settings do

    environment = {**os.environ, "DATABASE_URL": database_url()}
    environment["FAIRLOT_JOBS_DIR"] = str(settings.FAIRLOT_JOBS_DIR)
    argv = [sys.executable, "-m", "tests.cluster.dying", str(cluster_id)]
    with subprocess.Popen(
        argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline().strip() == READY, "it ended at its start"
        yield Dying(process)
        assert process.stdin
        process.stdin.close()


def main(cluster_id: int) -> None:
    import django  # noqa: PLC0415 - the settings come first

    django.setup()
    import scheduling.clusters.attached  # noqa: PLC0415 - so that those who are forked find it there
    import scheduling.execution.reconcile  # noqa: F401, PLC0415

    _say(READY)
    for line in sys.stdin:
        what, step = line.split()
        # A fork takes milliseconds, while Django needs seconds to start. This process itself uses no database.
        child = os.fork()
        if not child:
            _live_and_die(cluster_id, what, None if step == "-" else int(step))
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            _say("killed")
        else:
            _say("lived" if status == 0 else f"ended with status {status}")


def _live_and_die(cluster_id: int, what: str, step: int | None) -> None:
    from scheduling.models import Cluster  # noqa: PLC0415
    from tests.cluster.mortal import Fate, MortalApi  # noqa: PLC0415

    fate = MortalApi.fate = Fate(die=lambda: os.kill(os.getpid(), signal.SIGKILL))
    try:
        with (
            patch("scheduling.clusters.attached.Limited", MortalApi),
            fate.over_statements(),
        ):
            cluster = Cluster.objects.get(pk=cluster_id)
            fate.left = step
            _work(cluster) if what == "work" else _watch(cluster)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _work(cluster: Cluster) -> None:
    from scheduling.execution.operations import perform_operations  # noqa: PLC0415

    perform_operations(cluster=cluster, log_limit_bytes=10_000)


def _watch(cluster: Cluster) -> None:
    """Starts watching the cluster, with the same calls as `manage.py watch`, and observes once."""
    from scheduling.clusters.backend_factory import backend_for  # noqa: PLC0415
    from scheduling.execution.reconcile import follow, reconcile  # noqa: PLC0415

    backend = backend_for(cluster)
    changes = backend.changes(timeout=0.1)
    next(changes)
    reconcile(cluster)
    next(changes)
    follow(cluster, backend)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
