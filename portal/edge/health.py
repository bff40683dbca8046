"""Checks the health of the portal: the database, Redis, the disks to which web processes write, and the ledger's hash
chain."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import tempfile
from collections.abc import MutableMapping
from enum import Enum
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import Error, connection
from redis import Redis as Client
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from accounting.core.clock import now_from_database
from accounting.ledger.hash_chain import why_stopped
from portal.edge import full_disks
from portal.edge.answers import Send
from portal.edge.questions import Probe, SharedCheck
from scheduling.core.safe_streams import NO_SPACE

# The longest time in seconds for the whole answer, whichever service does not respond.
WITHIN_SECONDS = 2.0
LEAST_FREE = 1024 * 1024  # bytes


class Health:
    """Runs health checks and answers any number of callers. One instance belongs to one event loop."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        # Callers share one answer per question: a connection or a write for each caller would use up connections, and a
        # network disk may hang.
        self._redis = SharedCheck(ask_redis, fresh=1.0)
        self._disks = SharedCheck(disks, fresh=5.0)
        self._ledger = SharedCheck(ledger, fresh=60.0)

    def close(self) -> None:
        """Shuts down the threads that run the checks."""
        for question in (self.probe.question, self._redis, self._disks, self._ledger):
            question.close()

    async def answer(self, scope: MutableMapping[str, Any], send: Send) -> None:
        """Answers a request to /healthz, without using one of the threads for pages."""
        if scope["method"] in {"GET", "HEAD"}:
            status, report = await self.examine()
            body = json.dumps(report).encode()
        else:
            status, body = 405, b""
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
        ]
        headers += [(b"allow", b"GET, HEAD")] if status == 405 else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def examine(self) -> tuple[int, dict[str, Any]]:
        """Returns the HTTP status and the report. The status is 503 if the database or Redis does not work, otherwise
        200.

        If a disk is full, or the ledger's hash chain is not up to date, the status is still 200, because requests that
        only read still work.
        """
        database, redis, found, ledger = await asyncio.gather(
            self.probe.works(WITHIN_SECONDS),
            self._redis.ask(WITHIN_SECONDS),
            self._disks.ask(WITHIN_SECONDS),
            self._ledger.ask(WITHIN_SECONDS),
        )
        known = dict(found) if found else {"jobs": "does not answer", "temporary": "does not answer"}
        known["database"] = database_disk(self.probe)
        if redis is Redis.DISK_FULL:
            known["redis"] = "full"
        sealed = ledger or "ok"  # without an answer in time, the state of the database tells the reason
        well = database and redis is Redis.OK
        word = "failing" if not well else "degraded" if {*known.values(), sealed} != {"ok"} else "ok"
        named = {"database": database, "redis": redis is Redis.OK}
        report = {"status": word} | {name: "ok" if good else "failing" for name, good in named.items()}
        return (200 if well else 503), report | {"disks": known, "ledger": sealed}


class Redis(Enum):
    """The result of the health check of Redis: it works, its disk is full, or it fails."""

    OK = "ok"
    DISK_FULL = "disk full"  # Redis answers, but accepts no messages
    FAILING = "failing"


def ask_redis() -> Redis:
    client = Client.from_url(
        settings.REDIS_URL,
        socket_timeout=WITHIN_SECONDS / 2,
        socket_connect_timeout=WITHIN_SECONDS / 2,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        with client:
            return Redis.OK if client.ping() else Redis.FAILING
    except ResponseError as error:
        # A Redis server that persists its data answers MISCONF when it cannot write to its disk.
        return Redis.DISK_FULL if "MISCONF" in str(error) else Redis.FAILING
    except (RedisError, OSError):
        return Redis.FAILING


def ledger() -> str:
    """Returns "not sealed" if new rows are no longer added to the ledger's hash chains, otherwise "ok".

    The page Admin → Scheduling shows the reason. If the database fails, also returns "ok", because the health report
    shows the database's state separately.
    """
    try:
        return "not sealed" if why_stopped(now_from_database()) else "ok"
    except Error:  # the report has the state of the database separately
        return "ok"
    finally:
        connection.close()


def disks() -> dict[str, str]:
    """Returns the state of each folder to which web processes write, by name.

    A state is "ok", "full", "not writable" or "not readable".
    """
    folders = {"jobs": settings.FAIRLOT_JOBS_DIR, "temporary": Path(tempfile.gettempdir())}
    return {name: state_of(folder) for name, folder in folders.items()}


def database_disk(probe: Probe) -> str:
    """Returns the state of the database's disk.

    - If a write failed a short time ago because the disk was full, returns "full".
    - Otherwise, if the database's folder is known and on this machine, returns the result of `free_space_of`.
    - Otherwise returns "ok".

    `probe` is the database check, whose last result contains the path of the folder.
    """
    if full_disks.database_was_full():
        return "full"
    found = probe.question.last
    return free_space_of(Path(found.folder)) if found and found.folder else "ok"


def state_of(folder: Path) -> str:
    """Tests a folder by writing a small file. Returns "ok", "full", "not writable" or "not readable"; "ok" for a
    missing folder."""
    if not folder.exists():
        return "ok"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        return "full" if error.errno in NO_SPACE else "not writable"
    return free_space_of(folder)


def free_space_of(folder: Path) -> str:
    """Returns the state of the folder's disk:

    - "full" if fewer than LEAST_FREE bytes are free;
    - "not readable" if the disk fails;
    - "ok" in all other cases, and also if the folder is missing or inaccessible.
    """
    try:
        space = os.statvfs(folder)
    except OSError as error:
        return "ok" if error.errno in {errno.ENOENT, errno.EACCES} else "not readable"
    return "full" if space.f_blocks and space.f_bavail * space.f_frsize < LEAST_FREE else "ok"
