"""Tests that Fairlot's reflector stays up to date although the API server crashes, hangs, forgets versions or refuses
requests."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.api import Object, Unauthorized
from scheduling.backends.kubernetes.reflector import Reflector
from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

MAPS = "/api/v1/namespaces/{}/configmaps"
MINE = "reflected=yes"
CROWD = 10


class Names:
    """A copy of the cluster's ConfigMaps that a reflector keeps up to date: it maps their names to their values."""

    def __init__(self) -> None:
        self.value: dict[str, str] = {}
        self.times_heard = 0
        self.age = 0.0  # of the last list when it arrived, in seconds

    def heard(self) -> None:
        self.times_heard += 1

    def replace(self, objects: Sequence[Object], age: float = 0.0) -> None:
        self.value, self.age = {}, age
        for thing in objects:
            self.put(thing)

    def put(self, thing: Object) -> None:
        self.value[thing["metadata"]["name"]] = thing["data"]["value"]

    def remove(self, thing: Object) -> None:
        del self.value[thing["metadata"]["name"]]


class Watcher:
    """A reflector in a separate thread, as in the watch process."""

    def __init__(self, kubeconfig: Path, namespace: str, **settings: Any) -> None:
        self.names = Names()
        self.api = OwnApi(yaml.safe_load(kubeconfig.read_text()))
        self.reflector = Reflector(
            self.api,
            MAPS.format(namespace),
            self.names,
            query={"labelSelector": MINE},
            chance=random.Random(1),
            **settings,
        )
        self.trouble: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.reflector.run()
        except Unauthorized as error:
            self.trouble = error

    def knows(self, expected: dict[str, str]) -> None:
        wait_for(
            lambda: self.names.value == expected,
            what=lambda: f"{expected}; it knows {self.names.value}",
        )


Watching = Callable[..., Any]


@pytest.fixture
def watching(plane: ControlPlane, namespace: str) -> Watching:
    @contextmanager
    def begin(
        kubeconfig: Path | None = None, version: str | None = None, **settings: Any
    ) -> Iterator[Watcher]:
        watcher = Watcher(kubeconfig or plane.kubeconfig("test-admin"), namespace, **settings)
        watcher.reflector._version = version
        watcher.thread.start()
        try:
            yield watcher
        finally:
            watcher.reflector.stop()
            watcher.thread.join(10)
            watcher.api.close()
            assert not watcher.thread.is_alive(), "it stops when it is told"

    return begin


@pytest.fixture
def maps(admin: Api, namespace: str) -> Maps:
    return Maps(admin, namespace)


class Maps:
    """ConfigMaps that a test creates, changes and deletes, and their expected values."""

    def __init__(self, admin: Api, namespace: str) -> None:
        self.admin, self.path = admin, MAPS.format(namespace)
        self.expected: dict[str, str] = {}
        self.numbers = itertools.count(CROWD)
        for number in range(CROWD):
            self.create(f"map-{number}")

    def create(self, name: str) -> None:
        labels = dict([MINE.split("=")])
        self.admin.create(self.path, {"metadata": {"name": name, "labels": labels}, "data": {"value": "new"}})
        self.expected[name] = "new"

    def change(self, name: str, value: str) -> None:
        self.admin.merge(f"{self.path}/{name}", {"data": {"value": value}})
        self.expected[name] = value

    def delete(self, name: str) -> None:
        self.admin.delete(f"{self.path}/{name}")
        del self.expected[name]

    def notify(self) -> None:
        """Creates one ConfigMap, changes another and deletes a third."""
        number = next(self.numbers)
        self.create(f"later-{number}")
        self.change("map-0", f"value {number}")
        self.delete(max(self.expected))


def test_a_watch_that_lasts_to_its_end_proves_that_nothing_happened(watching: Watching) -> None:
    with watching(watch_seconds=(1, 1)) as watcher:
        wait_for(lambda: watcher.reflector.lists == 1, what="the first list")
        wait_for(lambda: watcher.names.times_heard > 3, what="it is heard of though nothing happens")
        assert watcher.reflector.lists == 1


def test_it_lists_page_by_page_and_follows_what_changes(watching: Watching, maps: Maps) -> None:
    with watching(page=3) as watcher:
        watcher.knows(maps.expected)
        assert watcher.names.age > 0, "it was true when the first page was asked for"
        for _ in range(3):
            maps.notify()
        maps.delete("map-5")
        watcher.knows(maps.expected)
        assert watcher.reflector.lists == 1


def test_it_continues_where_a_watch_ended_without_a_new_list(watching: Watching, maps: Maps) -> None:
    with watching(watch_seconds=(1, 1)) as watcher:
        for _ in range(3):
            before = watcher.reflector.watches
            wait_for(lambda before=before: watcher.reflector.watches > before, what="another watch")
            maps.notify()
            watcher.knows(maps.expected)
        assert watcher.reflector.lists == 1


def test_it_catches_up_after_the_api_server_crashed(
    plane: ControlPlane, watching: Watching, maps: Maps
) -> None:
    with watching() as watcher:
        watcher.knows(maps.expected)
        plane.apiserver.kill()
        plane.apiserver.start()
        maps.notify()
        watcher.knows(maps.expected)


def test_a_silent_connection_is_given_up(
    plane: ControlPlane, watching: Watching, maps: Maps, caplog: pytest.LogCaptureFixture
) -> None:
    with watching(watch_seconds=(1, 1), silence_beyond=0.5) as watcher:
        watcher.knows(maps.expected)
        plane.apiserver.freeze()
        try:
            wait_for(lambda: "timed out" in caplog.text.lower(), what="it noticed")
        finally:
            plane.apiserver.thaw()
        maps.notify()
        watcher.knows(maps.expected)


def test_objects_are_listed_again_when_the_api_server_has_forgotten_the_version(
    watching: Watching, maps: Maps
) -> None:
    with watching(version="1") as watcher:
        watcher.knows(maps.expected)
        assert watcher.reflector.lists == 1


def test_it_waits_for_its_rights(
    plane: ControlPlane,
    watching: Watching,
    maps: Maps,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    maps.admin.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "watcher"}})
    user = f"system:serviceaccount:{namespace}:watcher"
    with watching(plane.kubeconfig(user)) as watcher:
        wait_for(lambda: "403" in caplog.text, what="a refusal")
        assert watcher.names.value == {}
        maps.admin.apply(RIGHTS.format(namespace=namespace))
        watcher.knows(maps.expected)


def test_a_wrong_token_ends_it(plane: ControlPlane, watching: Watching, tmp_path: Path) -> None:
    config = yaml.safe_load(plane.kubeconfig("test-admin").read_text())
    config["users"][0]["user"]["token"] = "nobody's"
    wrong = tmp_path / "kubeconfig"
    wrong.write_text(yaml.safe_dump(config))
    with watching(wrong) as watcher:
        watcher.thread.join(20)
        assert isinstance(watcher.trouble, Unauthorized)


RIGHTS = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: watcher, namespace: {namespace}}}
rules:
  - {{apiGroups: [""], resources: [configmaps], verbs: [list, watch]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: watcher, namespace: {namespace}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: watcher}}
subjects:
  - {{kind: ServiceAccount, name: watcher, namespace: {namespace}}}
"""
