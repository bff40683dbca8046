"""The interface `Connection`: a request to a session or service, as the modules that relay HTTP and WebSockets see
it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeAlias

from portal.sessions.visits import Admitted
from scheduling.services.traffic import Outcome

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Connection(Protocol):
    """A request from a sender who was admitted to a session or service. `portal.sessions.proxy.HostRequest` implements
    this protocol."""

    scope: Scope
    headers: list[tuple[bytes, bytes]]
    receive: Receive
    send: Send

    async def is_still(self, admitted: Admitted) -> bool:
        """Checks the sender again. Returns True if the sender may still use the program, and the program's address is
        still that in `admitted`."""

    def count(self, outcome: Outcome) -> None:
        """Counts the request to a service by how it ended. Called once, when the answer begins or fails."""

    async def noted(self) -> None:
        """Records that a user is using the program. This restarts the idle timeout of a session."""
