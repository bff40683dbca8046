"""A small client for one API server: JSON over HTTPS, with an exception class per kind of refusal.

The official client reads the kubeconfig and manages the connections. Its model classes are not used, because
building them costs more than parsing the JSON.
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
# Bytes that a watch may deliver at once. No object that an API server stores is larger.
PIECE = 1 << 16
PAGE = 500
# Connections kept open: those of the watches, and of threads that write at the same time.
MOST_CONNECTIONS = 32


class Unreachable(Exception):
    """There was no answer or a broken one, so it is unknown whether a request took effect."""


class Refused(Exception):
    """The API server answered with a status of 300 or more. `reason` and `message` are its own words."""

    def __init__(self, code: int, status: Mapping[str, Any], retry_after: float = 0.0) -> None:
        self.code, self.retry_after = code, retry_after
        self.reason, self.message = str(status.get("reason", "")), str(status.get("message", ""))
        super().__init__(f"{code} {self.reason}: {self.message}")


class Gone(Refused):
    """410: the requested version is older than what the API server remembers."""


class Missing(Refused):
    """404: the object does not exist."""


class Taken(Refused):
    """409, AlreadyExists: an object with this name exists."""


class Changed(Refused):
    """409, Conflict: the object does not, or no longer, match the request's preconditions."""


class Invalid(Refused):
    """422: a `test` of a JSON Patch failed, or the object would be invalid."""


class Unauthorized(Refused):
    """401: the API server does not, or no longer, accept the token."""


class Api:
    """A client for one user of one cluster, as a kubeconfig names them. Must not be shared across a fork."""

    def __init__(self, kubeconfig: Mapping[str, Any]) -> None:
        """Raises kubernetes.config.ConfigException when the kubeconfig is incomplete."""
        configuration = Configuration()
        load_kube_config_from_dict(dict(kubeconfig), client_configuration=configuration, persist_config=False)
        configuration.retries = False  # the caller decides whether a request may be repeated
        configuration.connection_pool_maxsize = MOST_CONNECTIONS
        self._configuration = configuration
        self._rest = ApiClient(configuration=configuration).rest_client

    def close(self) -> None:
        self._rest.close()

    def get(self, path: str, **query: Any) -> Object:
        """Returns the object or list at `path`. Raises Refused or Unreachable, like all methods."""
        with self._answer("GET", path, query) as answer:
            return _parsed(_body(answer))

    def list_all(self, path: str, *, page: int = PAGE, **query: Any) -> tuple[list[Object], str]:
        """Returns all objects at `path`, read page by page, and the resourceVersion of that state."""
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
        """Applies a JSON Patch (RFC 6902), all operations or none, and returns the object."""
        return self._write("PATCH", path, list(operations), "application/json-patch+json")

    def apply(self, path: str, thing: Object) -> Object:
        """Applies the object on the server side: creates it, or sets the fields that are given here.

        Removes fields that Fairlot set before and does not give any more. Keeps the fields of others.
        """
        query = {"fieldManager": "fairlot", "force": "true"}
        return self._write("PATCH", path, thing, "application/apply-patch+yaml", query)

    def replace(self, path: str, thing: Object) -> Object:
        """Replaces the whole object at `path` and returns it. Raises Missing when there is none."""
        return self._write("PUT", path, thing, "application/json")

    def delete(
        self, path: str, *, uid: str, version: str | None = None, grace_seconds: int | None = None
    ) -> Object:
        """Deletes the object with this uid and what it owns. Raises Changed when another object has the name by now.

        With `version`, the object must still have this resourceVersion. `grace_seconds` replaces the grace period of
        a pod.
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
        """Opens a watch on `path`. Reading it raises Unreachable after `read_seconds` of silence."""
        with self._answer("GET", path, {"watch": "true", **query}, read_seconds=read_seconds) as answer:
            yield Stream(answer)

    @contextmanager
    def text(self, path: str, *, read_seconds: float, **query: Any) -> Iterator[Text]:
        """Opens a text at `path`, such as a log. Reading it raises Unreachable after `read_seconds` of silence."""
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
            if answer.status >= 300:  # a redirect is not followed, because the token must not go elsewhere
                raise _refusal(answer)
            yield answer
        except BaseException:
            answer.close()  # the next request must not read the rest of this answer
            raise
        else:
            answer.release_conn()

    def _credentials(self) -> dict[str, str]:
        """Returns the header with the token. Refreshes a token that changes from the kubeconfig's source."""
        token = self._configuration.get_api_key_with_prefix("authorization", "BearerToken")
        return {"Authorization": token} if token else {}


class Text:
    """A response that is read in pieces as they arrive."""

    def __init__(self, answer: urllib3.HTTPResponse) -> None:
        self._answer = answer

    def pieces(self) -> Iterator[bytes]:
        """Yields pieces until the API server ends the response or `cut` is called."""
        try:
            yield from self._answer.stream(PIECE, decode_content=True)
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(str(error)) from error

    def cut(self) -> None:
        """Ends the response. Called from another thread than the reader's."""
        with suppress(OSError, RuntimeError, ValueError):  # the response has already ended
            self._answer.shutdown()


class Stream(Text):
    """A watch, of which each line is an event."""

    def __iter__(self) -> Iterator[Object]:
        """Yields events until the API server ends the watch or `cut` is called."""
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
    except Unreachable:  # the error page of a proxy
        status = {"message": body[:200].decode(errors="replace")}
    kinds = {401: Unauthorized, 404: Missing, 410: Gone, 422: Invalid}
    kind = kinds.get(answer.status, Refused)
    if answer.status == 409:
        kind = {"AlreadyExists": Taken, "Conflict": Changed}.get(status.get("reason", ""), kind)
    said = answer.headers.get("Retry-After", "")
    return kind(answer.status, status, float(said) if said.isdigit() else 0.0)
