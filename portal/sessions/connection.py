"""The interface through which the relays of HTTP and WebSockets see a request to a session or service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeAlias

from portal.sessions.visits import Admitted

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Connection(Protocol):
    """A request whose sender was admitted. `portal.sessions.proxy.Door` implements this protocol."""

    scope: Scope
    headers: list[tuple[bytes, bytes]]
    receive: Receive
    send: Send

    async def is_still(self, admitted: Admitted) -> bool:
        """Returns whether the sender may still use the program, and the program still listens at the same address."""

    async def noted(self) -> None:
        """Records that a user is using the program. For a session, this restarts the idle timeout."""
