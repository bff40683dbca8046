"""The interface between a request to a session's or service's host and the relays of HTTP and WebSockets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeAlias

from portal.sessions.visits import Admitted

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Connection(Protocol):
    """A request whose sender was admitted; `portal.sessions.proxy.Door` is one."""

    scope: Scope
    headers: list[tuple[bytes, bytes]]
    receive: Receive
    send: Send

    async def is_still(self, admitted: Admitted) -> bool:
        """Returns whether the sender may still be there, and the program still answers at the same address."""

    async def noted(self) -> None:
        """Records that a user uses the program."""
