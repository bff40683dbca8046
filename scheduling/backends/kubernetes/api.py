"""A small client for one API server: JSON over HTTPS, with an exception class for each kind of error status.

It uses the official Python client only to read the kubeconfig and to manage connections. It does not use that client's
model classes, because building model objects costs more than parsing the JSON.
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
# The most bytes that a watch delivers at once. No object that an API server stores is larger.
PIECE = 1 << 16
PAGE = 500
# Connections kept open: for the watches, and for threads that write at the same time.
MOST_CONNECTIONS = 32


class Unreachable(Exception):
    """Raised when the API server sent no answer or a broken one, so that the effect of the request is unknown."""


class Refused(Exception):
    """Raised when the API server answers with an HTTP status of 300 or more. `reason` and `message` come from the
    answer."""

    def __init__(self, code: int, status: Mapping[str, Any], retry_after: float = 0.0) -> None:
        self.code, self.retry_after = code, retry_after
        self.reason, self.message = str(status.get("reason", "")), str(status.get("message", ""))
        super().__init__(f"{code} {self.reason}: {self.message}")


class Gone(Refused):
    """HTTP status 410: the requested resourceVersion is too old; the API server no longer stores it."""


class Missing(Refused):
    """HTTP status 404: the object does not exist."""


class Taken(Refused):
    """HTTP status 409 with reason AlreadyExists: an object with this name already exists."""


class Changed(Refused):
    """HTTP status 409 with reason Conflict: the object does not match the request's preconditions, such as its UID."""


class Invalid(Refused):
    """HTTP status 422: a `test` operation of a JSON Patch failed, or the resulting object would be invalid."""


class Unauthorized(Refused):
    """HTTP status 401: the API server does not accept the credentials, for example because they have expired."""


class Api:
    """A client of one API server. The kubeconfig must name exactly one user and one cluster.

    A client must not be shared across a fork.
    """

    def __init__(self, kubeconfig: Mapping[str, Any]) -> None:
        """Configures the client from a kubeconfig. Raises kubernetes.config.ConfigException if the kubeconfig is
        incomplete."""
        configuration = Configuration()
        load_kube_config_from_dict(dict(kubeconfig), client_configuration=configuration, persist_config=False)
        configuration.retries = False  # the caller decides whether a request may be repeated
        configuration.connection_pool_maxsize = MOST_CONNECTIONS
        self._configuration = configuration
        self._rest = ApiClient(configuration=configuration).rest_client

    def close(self) -> None:
        self._rest.close()

    def get(self, path: str, **query: Any) -> Object:
        """Returns the object or list at `path`. Raises Refused or Unreachable, as all methods of this class do."""
        with self._answer("GET", path, query) as answer:
            return _parsed(_body(answer))

    def list_all(self, path: str, *, page: int = PAGE, **query: Any) -> tuple[list[Object], str]:
        """Returns a pair: all objects in the collection at `path`, and the resourceVersion of the list.

        Reads at most `page` objects with each request.
        """
        found: list[Object] = []
        asked = {**query, "limit": page}
        while True:
            piece = self.get(path, **asked)
            found += piece["items"]
            if not (token := piece["metadata"].get("continue")):
                return found, str(piece["metadata"]["resourceVersion"])
            asked["continue"] = token

    def create(self, path: str, thing: Object) -> Object:
        """Creates an object in the collection at `path` and returns it."""
        return self._write("POST", path, thing, "application/json")

    def patch(self, path: str, operations: Sequence[Mapping[str, object]]) -> Object:
        """Applies a JSON Patch (RFC 6902) and returns the changed object. Applies either all operations or none."""
        return self._write("PATCH", path, list(operations), "application/json-patch+json")

    def apply(self, path: str, thing: Object) -> Object:
        """Creates or updates the object `thing` by server-side apply, and returns the object that the API server
        stored.

        Removes the fields that Fairlot set earlier and that `thing` no longer contains. Keeps fields that other clients
        set.
        """
        query = {"fieldManager": "fairlot", "force": "true"}
        return self._write("PATCH", path, thing, "application/apply-patch+yaml", query)

    def replace(self, path: str, thing: Object) -> Object:
        """Replaces the whole object at `path` and returns it. Raises Missing if no object exists there."""
        return self._write("PUT", path, thing, "application/json")

    def delete(
        self, path: str, *, uid: str, version: str | None = None, grace_seconds: int | None = None
    ) -> Object:
        """Deletes the object at `path` and the objects that it owns. `grace_seconds` replaces a pod's grace period.

        Raises Changed if the object's UID is not `uid`. If `version` is given, also raises Changed if the object's
        resourceVersion is not `version`.
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
        """Opens a watch on `path`, for use in a `with` statement.

        Reading the stream raises Unreachable if no data arrives for `read_seconds`.
        """
        with self._answer("GET", path, {"watch": "true", **query}, read_seconds=read_seconds) as answer:
            yield Stream(answer)

    @contextmanager
    def text(self, path: str, *, read_seconds: float, **query: Any) -> Iterator[Text]:
        """Opens a text resource at `path`, such as a pod's log, for use in a `with` statement.

        Reading the text raises Unreachable if no data arrives for `read_seconds`.
        """
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
            if answer.status >= 300:  # redirects are refused, because the token must not go to another server
                raise _refusal(answer)
            yield answer
        except BaseException:
            answer.close()  # so that the next request does not read the rest of this answer
            raise
        else:
            answer.release_conn()

    def _credentials(self) -> dict[str, str]:
        """Returns the Authorization header with the current token; an empty dictionary if the kubeconfig has no token.

        Every request needs a new call, because the official client may refresh the token.
        """
        token = self._configuration.get_api_key_with_prefix("authorization", "BearerToken")
        return {"Authorization": token} if token else {}


class Text:
    """A streamed text response, such as a log, that is read in pieces as they arrive."""

    def __init__(self, answer: urllib3.HTTPResponse) -> None:
        self._answer = answer

    def pieces(self) -> Iterator[bytes]:
        """Yields the response's bytes in pieces until the API server ends the response or another thread calls `cut`.

        Raises Unreachable if the connection breaks.
        """
        try:
            yield from self._answer.stream(PIECE, decode_content=True)
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(str(error)) from error

    def cut(self) -> None:
        """Ends the response. A thread other than the one that reads the response may call this method."""
        with suppress(OSError, RuntimeError, ValueError):  # the response has already ended
            self._answer.shutdown()


class Stream(Text):
    """The response of a watch. Each line is one event."""

    def __iter__(self) -> Iterator[Object]:
        """Yields events as parsed JSON objects until the API server ends the watch or another thread calls `cut`."""
        rest = b""
        for piece in self.pieces():
            *lines, rest = (rest + piece).split(b"\n")
            yield from (_parsed(line) for line in lines if line.strip())
        if rest.strip():
            raise Unreachable("the connection to the API server broke while an event was sent")


def _body(answer: urllib3.HTTPResponse) -> bytes:
    try:
        return answer.read()
    except urllib3.exceptions.HTTPError as error:
        raise Unreachable(str(error)) from error


def _parsed(data: bytes) -> Object:
    try:
        parsed = json.loads(data)
    except ValueError as error:
        raise Unreachable("the API server's answer is not JSON") from error
    if not isinstance(parsed, dict):
        raise Unreachable("the API server's answer is not a JSON object")
    return parsed


def _refusal(answer: urllib3.HTTPResponse) -> Refused:
    body = _body(answer)
    try:
        status = _parsed(body)
    except Unreachable:  # the answer is not JSON, for example the error page of a proxy
        status = {"message": body[:200].decode(errors="replace")}
    kinds = {401: Unauthorized, 404: Missing, 410: Gone, 422: Invalid}
    kind = kinds.get(answer.status, Refused)
    if answer.status == 409:
        kind = {"AlreadyExists": Taken, "Conflict": Changed}.get(status.get("reason", ""), kind)
    said = answer.headers.get("Retry-After", "")
    return kind(answer.status, status, float(said) if said.isdigit() else 0.0)
