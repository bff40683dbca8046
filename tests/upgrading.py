"""A separate database with the schema of an earlier version, for tests of migrations.

The database is separate because the tests' database must not be migrated back.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from django.db import connection, connections
from django.db.migrations.executor import MigrationExecutor

ALIAS = "upgraded"


@contextmanager
def database_as_of(targets: Sequence[tuple[str, str]]) -> Iterator[MigrationExecutor]:
    """Creates a database, migrates it to `targets`, yields the migration executor, and drops the database at the end.

    `targets` are pairs (app, migration). Django knows the database by the alias ALIAS.
    """
    name = f"{connections.settings['default']['NAME']}_upgraded"
    with connection.cursor() as cursor:
        cursor.execute(f'DROP DATABASE IF EXISTS "{name}"')
        cursor.execute(f'CREATE DATABASE "{name}"')
    connections.settings[ALIAS] = connections.settings["default"] | {"NAME": name}
    try:
        # connects explicitly, because pytest-django forbids queries to any database but the test database
        connections[ALIAS].connect()
        executor = MigrationExecutor(connections[ALIAS])
        executor.migrate(list(targets))
        yield executor
    finally:
        connections[ALIAS].close()
        del connections[ALIAS], connections.settings[ALIAS]
        with connection.cursor() as cursor:
            cursor.execute(f'DROP DATABASE "{name}"')


def rows_of(executor: MigrationExecutor, state: tuple[str, str]) -> Callable[..., Any]:
    """Returns a function `make(room, model, **fields)` that creates a row of a model as it was at the migration
    `state`."""
    apps = executor.loader.project_state([state]).apps

    def make(room: str, model: str, **fields: object) -> Any:
        return apps.get_model(room, model).objects.using(ALIAS).create(**fields)

    return make


def small_cluster(make: Callable[..., Any]) -> dict[str, Any]:
    """Creates a cluster, a team and a user, to which a job of any version refers, and returns them by the names of the
    job's fields."""
    return {
        "cluster": make("scheduling", "Cluster", name="lab"),
        "tenant": make("accounting", "Tenant", name="Astro", slug="astro", path="1/"),
        "owner": make("accounting", "User", username="bob"),
    }


def manage(*command: str, returncode: int = 0) -> str:
    """Runs `manage.py` on that separate database and returns its output; fails unless it exits with `returncode`.

    The output includes standard error if `returncode` is not 0.
    """
    url = urlsplit(os.environ["DATABASE_URL"])
    name = f"/{connections.settings[ALIAS]['NAME']}"
    env = os.environ | {"DATABASE_URL": urlunsplit(url._replace(path=name))}
    done = subprocess.run(
        [sys.executable, "manage.py", *command], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == returncode, done.stdout + done.stderr
    return done.stdout + (done.stderr if returncode else "")
