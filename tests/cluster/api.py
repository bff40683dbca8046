"""The API client that the tests themselves use: JSON over HTTPS. It raises an exception if the API server refuses a
request."""

from __future__ import annotations

import functools
import json
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import yaml

Object = dict[str, Any]
Operations = Sequence[Mapping[str, Any]]

JOBS = "/apis/batch/v1/namespaces/{}/jobs"
PODS = "/api/v1/namespaces/{}/pods"
NODES = "/api/v1/nodes"


class Refused(Exception):
    """Raised if the API server answers with an HTTP status of 400 or more. `reason` and `message` come from the API
    server."""

    def __init__(self, answer: httpx.Response) -> None:
        self.code = answer.status_code
        try:
            self.status: Object = answer.json()
        except json.JSONDecodeError:
            self.status = {"message": answer.text}
        self.reason = str(self.status.get("reason", ""))
        self.message = str(self.status.get("message", ""))
        super().__init__(f"{answer.request.method} {answer.request.url.path}: {self.code} {self.message}")


class Api:
    """A client with the credentials of a kubeconfig that has one user. Many threads may share a client."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.http = httpx.Client(
            base_url=cluster["server"],
            headers={"Authorization": f"Bearer {user['token']}"},
            verify=ssl.create_default_context(cafile=cluster["certificate-authority"]),
            timeout=30,
            trust_env=False,  # a proxy could not reach this machine's loopback address
            limits=httpx.Limits(max_connections=32, max_keepalive_connections=32),
        )

    def close(self) -> None:
        self.http.close()

    def get(self, path: str, **query: Any) -> Object:
        return self._answer("GET", path, params=query)

    def items(self, path: str, **query: Any) -> list[Object]:
        """Returns all objects of the list at `path`, read page by page."""
        found: list[Object] = []
        while True:
            page = self.get(path, limit=500, **query)
            found += page["items"]
            if not (token := page["metadata"].get("continue")):
                return found
            query["continue"] = token

    def create(self, path: str, content: Object) -> Object:
        return self._answer("POST", path, json=content)

    def create_all(self, path: str, contents: Iterable[Object]) -> list[Object]:
        """Creates the objects with parallel requests, as many at a time as the API server accepts from one client
        without queueing."""
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(lambda content: self.create(path, content), contents))

    def patch(self, path: str, operations: Operations) -> Object:
        """Applies a JSON Patch (RFC 6902), all operations or none, and returns the object.

        Raises Refused if a `test` operation fails.
        """
        return self._patch(path, "json-patch", list(operations))

    def merge(self, path: str, content: Object) -> Object:
        """Applies a JSON Merge Patch (RFC 7386) and returns the object."""
        return self._patch(path, "merge-patch", content)

    def replace(self, path: str, content: Object) -> Object:
        """Replaces the object and returns the stored object. Raises Refused with HTTP status 409 if the given version
        is outdated."""
        return self._answer("PUT", path, json=content)

    def delete(self, path: str, **options: Any) -> Object:
        return self._answer("DELETE", path, json=options or None)

    def apply(self, manifests: str | Path) -> list[Object]:
        """Creates or changes the objects of manifests (YAML with one or more documents), and returns them."""
        text = manifests.read_text() if isinstance(manifests, Path) else manifests
        return [self.apply_one(document) for document in yaml.safe_load_all(text) if document]

    def apply_one(self, document: Object) -> Object:
        answer = self.http.patch(
            self.path_of(document),
            params={"fieldManager": "tests", "force": "true"},
            content=json.dumps(document),
            headers={"Content-Type": "application/apply-patch+yaml"},
        )
        return self._checked(answer)

    def path_of(self, document: Object) -> str:
        """Returns the API path of the object in a manifest."""
        group = document["apiVersion"]
        base = f"/api/{group}" if "/" not in group else f"/apis/{group}"
        resource = self._resources(base)[document["kind"]]
        if resource["namespaced"]:
            base += f"/namespaces/{document['metadata'].get('namespace', 'default')}"
        return f"{base}/{resource['name']}/{document['metadata']['name']}"

    def watch(self, path: str, *, seconds: float, **query: Any) -> Iterator[Object]:
        """Yields watch events for `seconds` seconds. The watch starts now, or at `resourceVersion` if the query
        contains it."""
        asked = {"watch": "true", "timeoutSeconds": str(int(seconds)), **query}
        with self.http.stream("GET", path, params=asked, timeout=seconds + 5) as answer:
            if answer.is_error:
                answer.read()
            self._raise_refusal(answer)
            for line in answer.iter_lines():
                yield json.loads(line)

    @functools.cache  # noqa: B019 - a handful of users, as long as the cluster
    def _resources(self, base: str) -> dict[str, Object]:
        return {entry["kind"]: entry for entry in self.get(base)["resources"] if "/" not in entry["name"]}

    def _patch(self, path: str, kind: str, content: Any) -> Object:
        headers = {"Content-Type": f"application/{kind}+json"}
        return self._checked(self.http.patch(path, content=json.dumps(content), headers=headers))

    def _answer(self, method: str, path: str, **arguments: Any) -> Object:
        return self._checked(self.http.request(method, path, **arguments))

    def _checked(self, answer: httpx.Response) -> Object:
        self._raise_refusal(answer)
        parsed: Object = answer.json()
        return parsed

    @staticmethod
    def _raise_refusal(answer: httpx.Response) -> None:
        if answer.is_error:
            raise Refused(answer)
