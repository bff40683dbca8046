"""A separate database in the state of an earlier version, because the tests' database must not be migrated back."""

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
    """Yields an executor for a database with these migrations and their dependencies, under the alias ALIAS."""
    name = f"{connections.settings['default']['NAME']}_upgraded"
    with connection.cursor() as cursor:
        cursor.execute(f'DROP DATABASE IF EXISTS "{name}"')
        cursor.execute(f'CREATE DATABASE "{name}"')
    connections.settings[ALIAS] = connections.settings["default"] | {"NAME": name}
    try:
        connections[ALIAS].connect()  # by name: tests may access no other database than theirs
        executor = MigrationExecutor(connections[ALIAS])
        executor.migrate(list(targets))
        yield executor
    finally:
        connections[ALIAS].close()
        del connections[ALIAS], connections.settings[ALIAS]
        with connection.cursor() as cursor:
            cursor.execute(f'DROP DATABASE "{name}"')


def rows_of(executor: MigrationExecutor, state: tuple[str, str]) -> Callable[..., Any]:
    """Returns a function that creates rows in the form of `state`: of a room's model, with these fields."""
    apps = executor.loader.project_state([state]).apps

    def make(room: str, model: str, **fields: object) -> Any:
        return apps.get_model(room, model).objects.using(ALIAS).create(**fields)

    return make


def small_cluster(make: Callable[..., Any]) -> dict[str, Any]:
    """Returns the rows that a job of any version refers to."""
    return {
        "cluster": make("scheduling", "Cluster", name="lab"),
        "tenant": make("accounting", "Tenant", name="Astro", slug="astro", path="1/"),
        "owner": make("accounting", "User", username="bob"),
    }


def manage(*command: str, returncode: int = 0) -> str:
    """Returns the output of `manage.py` in that database; the command must exit with this code."""
    url = urlsplit(os.environ["DATABASE_URL"])
    name = f"/{connections.settings[ALIAS]['NAME']}"
    env = os.environ | {"DATABASE_URL": urlunsplit(url._replace(path=name))}
    done = subprocess.run(
        [sys.executable, "manage.py", *command], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == returncode, done.stdout + done.stderr
    return done.stdout + (done.stderr if returncode else "")
