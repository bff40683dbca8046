"""A worker process that only carries out the start and stop orders of one cluster.

`python -m tests.cluster.orders_process ID` starts one. Benchmarks run several beside the process that watches the
cluster. The process ends when its standard input closes.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit, urlunsplit

AT_WORK = "at work"
PAUSE = 0.1  # seconds until the outbox is read again when no order was due


def work(cluster_id: int) -> None:
    import django  # noqa: PLC0415 - the settings come first

    django.setup()
    from scheduling.execution.operations import perform_operations  # noqa: PLC0415
    from scheduling.models import Cluster  # noqa: PLC0415

    cluster = Cluster.objects.get(pk=cluster_id)
    # The first call imports modules that are otherwise imported during the measurement.
    perform_operations(cluster=cluster, log_limit_bytes=10_000_000)
    sys.stdout.write(f"{AT_WORK}\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        perform_operations(cluster=cluster, log_limit_bytes=10_000_000)


@contextmanager
def at_work(cluster_id: int, count: int) -> Iterator[list[int]]:
    """Starts `count` workers that use the database of this process. Yields their pids once all are ready."""
    argv = [sys.executable, "-m", "tests.cluster.orders_process", str(cluster_id)]
    environment = {**os.environ, "DATABASE_URL": database_url()}
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(count)
        ]
        for process in processes:
            assert process.stdout
            assert process.stdout.readline().strip() == AT_WORK, "a worker ended at its start"
        yield [process.pid for process in processes]


def database_url() -> str:
    """Returns the URL of this process's database. In tests it differs from the URL in the settings."""
    from django.db import connection  # noqa: PLC0415 - models need settings, which come later

    url = urlsplit(os.environ["DATABASE_URL"])
    return urlunsplit(url._replace(path=f"/{connection.settings_dict['NAME']}"))


if __name__ == "__main__":
    work(int(sys.argv[1]))
