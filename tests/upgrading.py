"""A separate database with the schema of an earlier version, for tests of migrations.

The database is separate because the tests' database must not be migrated back.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from django.db import connection, connections
from django.db.backends.utils import CursorWrapper
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader

ALIAS = "upgraded"
STEP = 8  # migrations between two kept databases


@contextmanager
def database_as_of(targets: Sequence[tuple[str, str]]) -> Iterator[MigrationExecutor]:
    """Creates a database, migrates it to `targets`, yields the migration executor, and drops the database at the end.

    `targets` are pairs (app, migration). Django knows the database by the alias ALIAS.
    """
    name = f"{connections.settings['default']['NAME']}_upgraded"
    connections.settings[ALIAS] = connections.settings["default"] | {"NAME": name}
    try:
        with _one_process_at_a_time() as cursor:
            _create(cursor, name, list(targets))
        yield _executor()
    finally:
        connections[ALIAS].close()
        del connections[ALIAS], connections.settings[ALIAS]
        with connection.cursor() as cursor:
            cursor.execute(f'DROP DATABASE IF EXISTS "{name}"')


@contextmanager
def _one_process_at_a_time() -> Iterator[CursorWrapper]:
    """Yields a cursor of PostgreSQL's default database. While one process of the test run executes the `with` block,
    the other processes wait."""
    with connection._nodb_cursor() as cursor:  # an advisory lock counts in one database only
        cursor.execute("SELECT pg_advisory_lock(2)")  # until the connection is closed
        yield cursor


def _create(cursor: CursorWrapper, name: str, targets: list[tuple[str, str]]) -> None:
    """Creates the database `name` and migrates it to `targets`.

    Starts from a copy of an earlier database of this test run, if one has some of these migrations. Keeps further
    copies for later databases.
    """
    graph = MigrationLoader(None).graph
    plan = list(dict.fromkeys(node for target in targets for node in graph.forwards_plan(target)))
    cursor.execute("SELECT datname FROM pg_database")
    present = {found for (found,) in cursor.fetchall()}
    done = next((count for count in range(len(plan), 0, -1) if kept_name(plan[:count]) in present), 0)
    cursor.execute(f'DROP DATABASE IF EXISTS "{name}"')
    cursor.execute(f'CREATE DATABASE "{name}"' + (f' TEMPLATE "{kept_name(plan[:done])}"' if done else ""))
    while done < len(plan):
        executor = _executor()
        step = executor.migration_plan(targets)[: STEP - done % STEP]
        executor.migrate(targets, plan=step)
        connections[ALIAS].close()  # a database can be copied only while nobody is connected
        done += len(step)
        cursor.execute(f'CREATE DATABASE "{kept_name(plan[:done])}" TEMPLATE "{name}"')


def _executor() -> MigrationExecutor:
    # connects explicitly, because pytest-django forbids queries to any database but the test database
    connections[ALIAS].connect()
    return MigrationExecutor(connections[ALIAS])


def kept_name(nodes: Sequence[tuple[str, str]] = ()) -> str:
    """Returns the name of the copy that this test run keeps of a database with exactly the migrations `nodes`.

    Without `nodes`, returns the prefix of all such names.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    return f"kept_{run}_" + (hashlib.sha256(repr(sorted(nodes)).encode()).hexdigest()[:12] if nodes else "")


def drop_kept() -> None:
    """Drops all copies of databases that this test run has kept."""
    with _one_process_at_a_time() as cursor:
        cursor.execute("SELECT datname FROM pg_database WHERE starts_with(datname, %s)", [kept_name()])
        for (name,) in cursor.fetchall():
            cursor.execute(f'DROP DATABASE IF EXISTS "{name}"')


def rows_of(executor: MigrationExecutor, state: tuple[str, str]) -> Callable[..., Any]:
    """Returns a function `make(room, model, **fields)` that creates a row in the separate database.

    `room` is the Django app. The model has the fields that it had at the migration `state`.
    """
    apps = executor.loader.project_state([state]).apps

    def make(room: str, model: str, **fields: object) -> Any:
        return apps.get_model(room, model).objects.using(ALIAS).create(**fields)

    return make


def small_cluster(make: Callable[..., Any]) -> dict[str, Any]:
    """Creates a cluster, a team and a user with `make` (see `rows_of`). Returns them as fields for creating a job.

    The keys are `cluster`, `tenant` and `owner`. The model Job has these fields at every migration that the tests use.
    """
    return {
        "cluster": make("scheduling", "Cluster", name="lab"),
        "tenant": make("accounting", "Tenant", name="Astro", slug="astro", path="1/"),
        "owner": make("accounting", "User", username="bob"),
    }


def manage(*command: str, returncode: int = 0) -> str:
    """Runs `manage.py` with the arguments `command` on the separate database, and returns its output. Fails unless its
    exit code is `returncode`.

    If `returncode` is not 0, the output includes standard error.
    """
    url = urlsplit(os.environ["DATABASE_URL"])
    name = f"/{connections.settings[ALIAS]['NAME']}"
    env = os.environ | {"DATABASE_URL": urlunsplit(url._replace(path=name))}
    # The system checks would import all pages, which takes longer than most commands.
    argv = [sys.executable, "manage.py", *command, "--skip-checks"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == returncode, done.stdout + done.stderr
    return done.stdout + (done.stderr if returncode else "")
