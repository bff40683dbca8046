"""Describes calls of the API, and makes methods of the clients from these descriptions.

A `Call` is data: it says what to send and what type the answer has. `Fairlot` and `AsyncFairlot` send it. So each
operation is described only once, in operations.py, which is generated from the API's OpenAPI document.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, ParamSpec, TypeVar, overload
from urllib.parse import quote

if TYPE_CHECKING:
    from fairlot_client.client import AsyncFairlot, Fairlot

T = TypeVar("T")
P = ParamSpec("P")


class Unset:
    """The type of UNSET, the default of fields that a call leaves out."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()


@dataclass(frozen=True)
class Call(Generic[T]):
    """A call of the API whose answer has the type T."""

    method: str
    path: str  # below /api/v1, with the values filled in
    query: Mapping[str, object] = field(default_factory=dict)
    body: object = UNSET  # sent as JSON; bytes are sent unchanged
    # Whether the operation accepts an Idempotency-Key, and the key. The client makes a key if it is None.
    takes_key: bool = False
    key: str | None = None
    version: str | None = None  # sent as If-Match: the call changes nothing if the object has another version
    is_file: bool = False  # the answer is returned as bytes

    @property
    def may_repeat(self) -> bool:
        """Returns whether the call has the same effect if it is sent twice."""
        return self.takes_key or self.method in {"GET", "PUT", "DELETE"}


@dataclass(frozen=True)
class Pages(Generic[T]):
    """The call for the first page of a list, whose items have the type T. Other pages are called only when needed."""

    first: Call[Any]
    cursor: str  # the query parameter that receives the field `next` of the page before

    def after(self, page: Mapping[str, Any]) -> Call[Any] | None:
        """Returns the call for the page after `page`; None after the last page."""
        if page["next"] is None:
            return None
        return replace(self.first, query={**self.first.query, self.cursor: page["next"]})


def filled(path: str, **values: object) -> str:
    """Returns a path with its parameters filled in."""
    return path.format(**{name: quote(str(value), safe="") for name, value in values.items()})


def given(**values: object) -> dict[str, object]:
    """Returns the values that are set. A final _, which avoids a keyword of Python, is removed from their names."""
    return {
        name.removesuffix("_"): value
        for name, value in values.items()
        if value is not None and not isinstance(value, Unset)
    }


def set_fields(**values: object) -> dict[str, object]:
    """Returns the fields of a body without those that are UNSET. None stays: it becomes null."""
    return {name.removesuffix("_"): value for name, value in values.items() if not isinstance(value, Unset)}


class Event(NamedTuple):
    """An event of a stream. `data` is what its JSON says; `id` is the position after it, from which a stream continues.

    The name is empty for what the stream is about; `comment` says only that the stream is alive.
    """

    name: str
    data: Any
    id: str


class _Described(Generic[P]):
    """What the methods of both clients share: a name, a docstring and a signature, also for `help` and completion."""

    def __init__(self, describe: Callable[P, Any]) -> None:
        self.describe = describe
        self.__doc__ = describe.__doc__
        self._made: dict[tuple[bool, bool], dict[str, Any]] = {}

    def _method(self, client: Any, owner: type | None, send: Callable[[Any, Any], Any]) -> Any:
        """Returns a function that sends the described call by a client; without one, the client is its first
        argument."""
        if client is None:

            def method(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
                return send(client, self.describe(*args, **kwargs))
        else:

            def method(*args: P.args, **kwargs: P.kwargs) -> Any:  # type: ignore[misc]  # bound to the client
                return send(client, self.describe(*args, **kwargs))

        is_async = bool(getattr(owner or type(client), "is_async", False))
        shape = (client is None, is_async)
        if shape not in self._made:
            self._made[shape] = self._attributes(*shape)
        method.__dict__.update(self._made[shape])
        method.__name__, method.__doc__ = self.describe.__name__, self.__doc__
        method.__qualname__ = f"{(owner or type(client)).__name__}.{self.describe.__name__}"
        return method

    def _attributes(self, is_unbound: bool, is_async: bool) -> dict[str, Any]:
        found = inspect.signature(self.describe)
        first = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)] if is_unbound else []
        answer = str(found.return_annotation).partition("[")[2].removesuffix("]")
        signature = found.replace(
            parameters=[*first, *found.parameters.values()], return_annotation=self._returns(answer, is_async)
        )
        return {"__signature__": signature}

    def _returns(self, answer: str, is_async: bool) -> str:
        """Returns the annotation of what the method returns. `answer`: the type of the call's answer, or of an item."""
        raise NotImplementedError


class Method(_Described[P], Generic[P, T]):
    """A method of both clients, made from a function that describes the call."""

    def __init__(self, describe: Callable[P, Call[T]]) -> None:
        super().__init__(describe)

    @overload
    def __get__(self, client: Fairlot, owner: type | None = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncFairlot, owner: type | None = None) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, client: Any, owner: type | None = None) -> Any:
        return self._method(client, owner, lambda sender, call: sender.do(call))

    def _returns(self, answer: str, is_async: bool) -> str:
        return f"Awaitable[{answer}]" if is_async else answer


class PagedMethod(_Described[P], Generic[P, T]):
    """Like Method, for lists: the method returns an iterator, which calls further pages when it needs them."""

    def __init__(self, describe: Callable[P, Pages[T]]) -> None:
        super().__init__(describe)

    @overload
    def __get__(self, client: Fairlot, owner: type | None = None) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: AsyncFairlot, owner: type | None = None) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: Any, owner: type | None = None) -> Any:
        return self._method(client, owner, lambda sender, pages: sender.items(pages))

    def _returns(self, answer: str, is_async: bool) -> str:
        return f"AsyncIterator[{answer}]" if is_async else f"Iterator[{answer}]"


class StreamMethod(_Described[P]):
    """Like Method, for streams: the method returns an iterator over events, which waits for the next one."""

    def __init__(self, describe: Callable[P, Call[Event]]) -> None:
        super().__init__(describe)

    @overload
    def __get__(self, client: Fairlot, owner: type | None = None) -> Callable[P, Iterator[Event]]: ...
    @overload
    def __get__(
        self, client: AsyncFairlot, owner: type | None = None
    ) -> Callable[P, AsyncIterator[Event]]: ...
    def __get__(self, client: Any, owner: type | None = None) -> Any:
        return self._method(client, owner, lambda sender, call: sender.events(call))

    def _returns(self, answer: str, is_async: bool) -> str:
        return f"AsyncIterator[{answer}]" if is_async else f"Iterator[{answer}]"
