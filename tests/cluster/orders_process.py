"""A worker that does nothing but carry out the orders of one cluster: `python -m tests.cluster.orders_process ID`.

For who measures: as many at once as wanted, beside the process that watches. Ends with its standard input.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit, urlunsplit

PAUSE = 0.1  # seconds between two looks at an outbox that holds nothing that is due


def work(cluster_id: int) -> None:
    import django  # noqa: PLC0415 - the settings come first

    django.setup()
    from scheduling.actions import perform_operations  # noqa: PLC0415
    from scheduling.models import Cluster  # noqa: PLC0415

    cluster = Cluster.objects.get(pk=cluster_id)
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        perform_operations(cluster=cluster, log_limit_bytes=10_000_000)


@contextmanager
def at_work(cluster_id: int, count: int) -> Iterator[list[int]]:
    """So many of them, on the database that this process uses; their process numbers."""
    from django.db import connection  # noqa: PLC0415 - models need settings, which come later

    url = urlsplit(os.environ["DATABASE_URL"])
    database = urlunsplit(url._replace(path=f"/{connection.settings_dict['NAME']}"))
    argv = [sys.executable, "-m", "tests.cluster.orders_process", str(cluster_id)]
    pids = []
    with ExitStack() as stack:
        for _ in range(count):
            process = subprocess.Popen(
                argv, env={**os.environ, "DATABASE_URL": database}, stdin=subprocess.PIPE
            )
            assert process.stdin
            stack.callback(process.wait)
            stack.callback(process.stdin.close)
            pids.append(process.pid)
        yield pids


if __name__ == "__main__":
    work(int(sys.argv[1]))
