"""One API server as Fairlot speaks to it: JSON over HTTPS, with refusals that say what they are.

The official client reads the kubeconfig and holds the connections; its models are left aside, for
they cost more than the JSON that they are made from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias
from urllib.parse import urlencode

import urllib3
from kubernetes.client import ApiClient, ApiException, Configuration
from kubernetes.config import load_kube_config_from_dict

Object: TypeAlias = dict[str, Any]

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
# What a watch may hand over at once; a larger object would be none that an API server stores.
PIECE = 1 << 16
PAGE = 500
# That are kept: those of four watches, and of threads that write at the same time.
MOST_CONNECTIONS = 32


class Unreachable(Exception):
    """No answer, or one that broke off: whether a request took effect is unknown."""


class Refused(Exception):
    """The API server answered, with 300 or more. `code` is HTTP's; `reason` and `message` its own words."""

    def __init__(self, code: int, status: Mapping[str, Any], retry_after: float = 0.0) -> None:
        self.code, self.retry_after = code, retry_after
        self.reason, self.message = str(status.get("reason", "")), str(status.get("message", ""))
        super().__init__(f"{code} {self.reason}: {self.message}")


class Gone(Refused):
    """410: what was asked for is older than what the API server remembers."""


class Missing(Refused):
    """404: there is no such object."""


class Taken(Refused):
    """409, already exists: an object of this name is there."""


class Changed(Refused):
    """409, conflict: the object is not, or no longer, as the request says that it is."""


class Invalid(Refused):
    """422: a `test` of a JSON-Patch failed, or the object would not be what its kind must be."""


class Unauthorized(Refused):
    """401: the token is not, or no longer, one of this API server's."""


class Api:
    """One user of one cluster, as a kubeconfig names them. Not to be shared across a fork."""

    def __init__(self, kubeconfig: Mapping[str, Any]) -> None:
        """Raises kubernetes.config.ConfigException when the kubeconfig is incomplete."""
        configuration = Configuration()
        load_kube_config_from_dict(dict(kubeconfig), client_configuration=configuration, persist_config=False)
        configuration.retries = False  # who asks decides whether it may be asked twice
        configuration.connection_pool_maxsize = MOST_CONNECTIONS
        self._configuration = configuration
        self._rest = ApiClient(configuration=configuration).rest_client

    def close(self) -> None:
        self._rest.close()

    def get(self, path: str, **query: Any) -> Object:
        """The object or list at `path`. Raises Refused or Unreachable."""
        with self._answer("GET", path, query) as answer:
            return _parsed(_body(answer))

    def list_all(self, path: str, *, page: int = PAGE, **query: Any) -> tuple[list[Object], str]:
        """All objects at `path`, got page by page, and the version at which that was true."""
        found: list[Object] = []
        asked = {**query, "limit": page}
        while True:
            piece = self.get(path, **asked)
            found += piece["items"]
            if not (token := piece["metadata"].get("continue")):
                return found, str(piece["metadata"]["resourceVersion"])
            asked["continue"] = token

    def create(self, path: str, thing: Object) -> Object:
        """A new object in the collection at `path`."""
        return self._write("POST", path, thing, "application/json")

    def patch(self, path: str, operations: Sequence[Mapping[str, object]]) -> Object:
        """JSON-Patch (RFC 6902): all operations or none."""
        return self._write("PATCH", path, list(operations), "application/json-patch+json")

    def apply(self, path: str, thing: Object) -> Object:
        """Server-side apply: the object at `path`, made or changed so that its fields named here are as here.

        Fields of ours that are no longer named go; those of others stay.
        """
        query = {"fieldManager": "fairlot", "force": "true"}
        return self._write("PATCH", path, thing, "application/apply-patch+yaml", query)

    def replace(self, path: str, thing: Object) -> Object:
        """The object at `path` as a whole, whatever was there; Missing when nothing was."""
        return self._write("PUT", path, thing, "application/json")

    def delete(
        self, path: str, *, uid: str, version: str | None = None, grace_seconds: int | None = None
    ) -> Object:
        """The object with this uid, and what it owns; Changed when it is another one by now.

        `version` is the resourceVersion that it must still have. `grace_seconds` is for pods: how long they may
        take to stop, instead of their own grace.
        """
        conditions = {"uid": uid} if version is None else {"uid": uid, "resourceVersion": version}
        options: Object = {"propagationPolicy": "Background", "preconditions": conditions}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return self._write("DELETE", path, options, "application/json")

    def _write(
        self, method: str, path: str, content: Any, kind: str, query: Mapping[str, Any] | None = None
    ) -> Object:
        with self._answer(method, path, query or {}, content=content, kind=kind) as answer:
            return _parsed(_body(answer))

    @contextmanager
    def watch(self, path: str, *, read_seconds: float, **query: Any) -> Iterator[Stream]:
        """The changes at `path`; silence of `read_seconds` raises Unreachable."""
        with self._answer("GET", path, {"watch": "true", **query}, read_seconds=read_seconds) as answer:
            yield Stream(answer)

    @contextmanager
    def text(self, path: str, *, read_seconds: float, **query: Any) -> Iterator[Text]:
        """What is told at `path` as it comes, such as a log; silence of `read_seconds` raises Unreachable."""
        with self._answer("GET", path, query, read_seconds=read_seconds) as answer:
            yield Text(answer)

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        *,
        read_seconds: float = READ_SECONDS,
        content: Any = None,
        kind: str = "application/json",
    ) -> Iterator[urllib3.HTTPResponse]:
        url = f"{self._configuration.host}{path}"
        if query:
            url += f"?{urlencode(query)}"
        headers = {"Accept": "application/json", "Content-Type": kind, **self._credentials()}
        timeouts = (CONNECT_SECONDS, read_seconds)
        try:
            answer: urllib3.HTTPResponse = self._rest.request(
                method, url, headers=headers, body=content, _request_timeout=timeouts
            ).response
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(str(error)) from error
        except ApiException as error:  # a broken TLS connection
            raise Unreachable(str(error.reason)) from error
        try:
            if answer.status >= 300:  # where a redirect leads, our token must not go
                raise _refusal(answer)
            yield answer
        except BaseException:
            answer.close()  # what is left of it must not be read by the next
            raise
        else:
            answer.release_conn()

    def _credentials(self) -> dict[str, str]:
        """Asks the kubeconfig's source for a fresh token where it has one that changes."""
        token = self._configuration.get_api_key_with_prefix("authorization", "BearerToken")
        return {"Authorization": token} if token else {}


class Text:
    """An answer in pieces, as they come."""

    def __init__(self, answer: urllib3.HTTPResponse) -> None:
        self._answer = answer

    def pieces(self) -> Iterator[bytes]:
        """Ends when the API server ends it, or when `cut`."""
        try:
            yield from self._answer.stream(PIECE, decode_content=True)
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(str(error)) from error

    def cut(self) -> None:
        """From another thread: whoever reads comes to an end."""
        with suppress(OSError, RuntimeError, ValueError):  # it has come to an end by itself
            self._answer.shutdown()


class Stream(Text):
    """The lines of a watch, each an event."""

    def __iter__(self) -> Iterator[Object]:
        """Ends when the API server ends it, or when `cut`."""
        rest = b""
        for piece in self.pieces():
            *lines, rest = (rest + piece).split(b"\n")
            yield from (_parsed(line) for line in lines if line.strip())
        if rest.strip():
            raise Unreachable("the last event broke off")


def _body(answer: urllib3.HTTPResponse) -> bytes:
    try:
        return answer.read()
    except urllib3.exceptions.HTTPError as error:
        raise Unreachable(str(error)) from error


def _parsed(data: bytes) -> Object:
    try:
        parsed = json.loads(data)
    except ValueError as error:
        raise Unreachable("an answer that is no JSON") from error
    if not isinstance(parsed, dict):
        raise Unreachable("an answer that is no object")
    return parsed


def _refusal(answer: urllib3.HTTPResponse) -> Refused:
    body = _body(answer)
    try:
        status = _parsed(body)
    except Unreachable:  # a proxy's own page
        status = {"message": body[:200].decode(errors="replace")}
    kinds = {401: Unauthorized, 404: Missing, 410: Gone, 422: Invalid}
    kind = kinds.get(answer.status, Refused)
    if answer.status == 409:
        kind = {"AlreadyExists": Taken, "Conflict": Changed}.get(status.get("reason", ""), kind)
    said = answer.headers.get("Retry-After", "")
    return kind(answer.status, status, float(said) if said.isdigit() else 0.0)
