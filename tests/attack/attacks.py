"""Registers attacks, and provides the portal that they attack."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

import tests.attack
from tests.proof.portal import RunningPortal

if TYPE_CHECKING:
    from tests.cluster.stage import Stage

CSRF = re.compile(r'name="csrfmiddlewaretoken" value="([^"]+)"')


class NotTried(Exception):
    """Raised if an attack is impossible on this portal, so that its result would prove nothing. The message says
    why."""


@dataclass(frozen=True)
class Attack:
    """A registered attack. Its function `run` raises AssertionError if the attack succeeds, or NotTried if it is
    impossible."""

    subject: str
    name: str
    run: Callable[[Target], None]
    needs: str  # "" for an attack on the portal, "cluster" for an attack on the Kubernetes of tests/cluster

    def __str__(self) -> str:
        return f"{self.subject}: {self.name}"


_attacks: list[Attack] = []


def attack(name: str, *, needs: str = "") -> Callable[[Callable[[Target], None]], Callable[[Target], None]]:
    """Returns a decorator that registers a function as the attack `name`. The name of the function's module is the
    attack's subject.

    `needs`: "" for an attack on the portal, "cluster" for an attack on the test cluster's Kubernetes.
    """

    def add(run: Callable[[Target], None]) -> Callable[[Target], None]:
        _attacks.append(Attack(run.__module__.rpartition(".")[2], name, run, needs))
        return run

    return add


def all_attacks() -> list[Attack]:
    """Imports all modules of this package and returns their attacks, ordered by subject."""
    for module in sorted(pkgutil.iter_modules(tests.attack.__path__), key=lambda module: module.name):
        if not module.name.startswith(("__", "test_")) and module.name != "conftest":
            importlib.import_module(f"tests.attack.{module.name}")
    return sorted(_attacks, key=lambda attack: attack.subject)


@dataclass
class Person:
    """A user who is signed in to the portal, with an HTTP client in place of a browser."""

    name: str
    http: httpx.Client

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        """Sends a POST request with a CSRF token and the portal's Origin, as a page of the portal would."""
        origin = {"Origin": str(self.http.base_url).rstrip("/"), "X-CSRFToken": self.csrf()}
        return self.http.post(path, headers=origin | options.pop("headers", {}), **options)

    def csrf(self) -> str:
        found = CSRF.search(self.http.get("/account/tokens/").text)
        assert found, f"{self.name} is not signed in"
        return found[1]

    def submit(self, team: str = "", **spec: Any) -> int:
        """Submits a job through the API and returns the job's ID."""
        body = {"spec": {"name": "attack"} | spec} | ({"team": team} if team else {})
        answer = self.post("/api/v1/jobs", json=body)
        assert answer.status_code in {200, 201}, answer.text
        return int(answer.json()["id"])

    def job(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/api/v1/jobs/{number}").json()
        return found

    def cancel(self, number: int) -> httpx.Response:
        return self.post(f"/api/v1/jobs/{number}/cancel")


@dataclass
class Target:
    """The portal under attack, with demo data: alice and bob are in one team, charlie is in another."""

    portal: RunningPortal
    _people: dict[str, Person] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    @property
    def url(self) -> str:
        return self.portal.url

    @property
    def var(self) -> Path:
        return self.portal.var

    @cached_property
    def cluster(self) -> Stage:
        """Returns the test setup for attacks on Kubernetes: a control plane with a team's namespace. The control plane
        has no connection to the portal. It starts on first use."""
        from tests.cluster.stage import own_stage  # noqa: PLC0415 - other attacks do without all that it imports

        return self._stack.enter_context(own_stage())

    def stranger(self, **options: Any) -> httpx.Client:
        """Returns an HTTP client that is not signed in."""
        return self._stack.enter_context(httpx.Client(base_url=self.url, timeout=60, **options))

    def person(self, name: str) -> Person:
        """Returns a user of the demo data, such as the admin ada or the operator olga. Signs in on first use and keeps
        the session."""
        if name not in self._people:
            self._people[name] = self.sign_in(name, self.portal.passwords[name])
        return self._people[name]

    def sign_in(self, name: str, password: str) -> Person:
        """Signs in with a new session, and returns the user."""
        http = self.stranger()
        form = CSRF.search(http.get("/account/login/").text)
        assert form
        data = {"username": name, "password": password, "csrfmiddlewaretoken": form[1]}
        answer = http.post("/account/login/", data=data, headers={"Origin": self.url})
        assert answer.status_code == 302, (
            f"{name} could not sign in: {answer.status_code} {answer.text[:500]}"
        )
        return Person(name, http)

    def close(self) -> None:
        self._stack.close()
