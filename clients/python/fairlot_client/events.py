"""Reads server-sent events, and connects again where a stream broke off.

Source: WHATWG HTML Living Standard, section 9.2, Server-sent events.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx2

from fairlot_client.calls import Call, Event
from fairlot_client.errors import ConnectionFailed
from fairlot_client.exchange import LATER, Pause, answer_of, pause_before, request_of

BYE = "bye"  # the portal asks to connect again
LAST = {"end", "problem"}  # after these, nothing comes


@dataclass
class Parser:
    """Makes events of the lines of a stream."""

    _name: str = ""
    _data: list[str] = field(default_factory=list)
    _id: str = ""

    def feed(self, line: str) -> Event | None:
        """Returns the event that `line` completes, or an event `comment` for a comment; None for other lines."""
        if line.startswith(":"):
            return Event("comment", None, self._id)
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            match name:
                case "event":
                    self._name = value
                case "data":
                    self._data.append(value)
                case "id":
                    self._id = value
            return None
        if not self._data:
            self._name = ""
            return None
        event = Event(self._name, _read("\n".join(self._data)), self._id)
        self._name, self._data = "", []
        return event


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # a word, such as the data of `bye`
        return text


class Streaming:
    """Decides when a stream is opened again, and from which position. It sends nothing itself."""

    def __init__(self, call: Call[Event], *, url: str, headers: dict[str, str], retries: int) -> None:
        self._call, self._url, self._headers, self._retries = call, url, headers, retries
        self._position = ""
        self._failures = 0
        self._was_heard = False

    def request(self) -> httpx2.Request:
        """Returns the request that opens the stream after the last event that was read."""
        after = {"Last-Event-ID": self._position} if self._position else {}
        return request_of(self._call, self._url, self._headers | {"Accept": "text/event-stream"} | after)

    def read(self, parser: Parser, line: str) -> Event | None:
        """Returns the event that a line completes, and remembers its position."""
        event = parser.feed(line)
        if event is not None:
            self._failures, self._was_heard = 0, True
            self._position = event.id or self._position
        return event

    def refused(self, response: httpx2.Response) -> Pause:
        """Returns the pause before the stream is opened again. Raises ApiError if it must not be."""
        if response.status_code not in LATER or self._failures >= self._retries:
            answer_of(self._call, response)
        return self._again(response)

    def broke_off(self, error: httpx2.TransportError) -> Pause:
        """Returns the pause before the stream is opened again. Raises ConnectionFailed after too many failures, and if
        no event ever came: something between the portal and here may hold streams back."""
        if not self._was_heard or self._failures >= self._retries:
            raise ConnectionFailed(
                f"{self._url} cannot be reached: {error or type(error).__name__}"
            ) from error
        return self._again(error)

    def _again(self, reply: httpx2.Response | httpx2.TransportError) -> Pause:
        self._failures += 1
        return Pause(pause_before(self._failures - 1, reply))
