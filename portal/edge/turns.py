"""A fair queue: clients take turns, and one client can have only a limited part of the turns at the same time."""

from __future__ import annotations

import asyncio

from portal.edge.clients import Client
from portal.edge.shares import Shares

Places = dict["asyncio.Future[None]", None]  # waiting requests in order of arrival


class Full(Exception):
    """Raised if a client's turn does not come in time."""


class Turns:
    """Lets at most `count` requests run at the same time. A request that runs has a turn; the others wait.

    A client is an address with a login. A free turn goes to the waiting addresses in rotation, and within an address to
    its logins in rotation. Two limits apply, but both allow at least one turn:

    - One login gets at most half of the turns.
    - One address gets at most about three quarters of the turns. If `count` is less than 4, it gets all turns, or all
      except one if `may_be_slow` says that requests may be slow.

    One instance belongs to one event loop.
    """

    def __init__(self, count: int, *, may_be_slow: bool = False) -> None:
        leaves = max(1, count // 4) if may_be_slow else count // 4
        # An address gets more turns than a login, because many people may share it. It does not get all
        # turns, because one person may have many logins.
        self._of_addresses = Shares(count, max(1, count - leaves))
        self._of_logins = Shares(count, max(1, count // 2))
        self._waiting: dict[str, dict[Client, Places]] = {}

    def may_begin(self, client: Client) -> bool:
        """Returns whether the client would get a turn without waiting."""
        return self._of_addresses.has(client.address) and self._of_logins.has(client)

    async def begin(self, client: Client, within: float) -> None:
        """Waits for the client's turn. The caller must call `end` when the turn is over.

        Raises Full if the turn does not come within `within` seconds.
        """
        if self.may_begin(client):
            self._take(client)
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client.address, {}).setdefault(client, {})[place] = None
        try:
            async with asyncio.timeout(within):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self.end(client)  # the turn came at the moment of cancellation
            else:
                self._leave(client, place)
            if isinstance(error, TimeoutError):
                raise Full from None
            raise

    def end(self, client: Client) -> None:
        """Ends a turn of the client, and lets waiting clients begin theirs."""
        self._give_back(client)
        while self._of_logins.has_free and self._begin_next():
            continue

    def _begin_next(self) -> bool:
        """Begins the turn of the first waiting client that is below its limits. Returns False if there is no such
        client."""
        for address, clients in self._waiting.items():
            if not self._of_addresses.has(address):
                continue
            for client, places in clients.items():
                if self._of_logins.has(client):
                    place = next(iter(places))
                    self._leave(client, place)
                    self._go_behind(client)
                    if not place.done():  # otherwise the waiting request is being cancelled
                        self._take(client)
                        place.set_result(None)
                    return True
        return False

    def _leave(self, client: Client, place: asyncio.Future[None]) -> None:
        clients = self._waiting.get(client.address, {})
        places = clients.get(client, {})
        places.pop(place, None)
        if not places:
            clients.pop(client, None)
        if not clients:
            self._waiting.pop(client.address, None)

    def _go_behind(self, client: Client) -> None:
        """Moves a client to the end of its address's rotation, and the address to the end of the rotation of
        addresses."""
        if clients := self._waiting.pop(client.address, None):
            if places := clients.pop(client, None):
                clients[client] = places
            self._waiting[client.address] = clients

    def _take(self, client: Client) -> None:
        self._of_addresses.take(client.address)
        self._of_logins.take(client)

    def _give_back(self, client: Client) -> None:
        self._of_addresses.give_back(client.address)
        self._of_logins.give_back(client)
