"""The clients: `Fairlot` for ordinary programs, and `AsyncFairlot` for asyncio.

Both have the same methods, which operations.py describes. The methods of AsyncFairlot are awaited, and its lists are
read with `async for`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar

import httpx2

from fairlot_client import polling
from fairlot_client.answers import JobInFull
from fairlot_client.calls import Call, Event, Pages
from fairlot_client.errors import ConnectionFailed
from fairlot_client.events import BYE, LAST, Parser, Streaming
from fairlot_client.exchange import Pause, answer_of, exchange, request_of
from fairlot_client.operations import Operations
from fairlot_client.version import VERSION

T = TypeVar("T")


class _Client(Operations):
    def __init__(self, url: str, token: str, *, retries: int) -> None:
        self.url = url.rstrip("/")
        self._headers = {"User-Agent": f"fairlot/{VERSION}"}
        if token:  # a program that logs in has none yet, and HTTP refuses a header that ends in a space
            self._headers["Authorization"] = f"Bearer {token}"
        self._retries = retries

    def _exchange(self, call: Call[T]) -> Any:
        return exchange(call, url=self.url, headers=self._headers, retries=self._retries)

    def _streaming(self, call: Call[Event]) -> Streaming:
        return Streaming(call, url=self.url, headers=self._headers, retries=self._retries)


class Fairlot(_Client):
    """A client of the portal at `url`, which calls the API with `token`.

    It repeats a call up to `retries` times if the portal is busy or cannot be reached, but only calls that may be
    repeated. Errors are raised as FairlotError.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout: float = 30,
        retries: int = 4,
        transport: httpx2.BaseTransport | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(url, token, retries=retries)
        self._http = httpx2.Client(timeout=timeout, transport=transport)
        self._pause = pause

    def do(self, call: Call[T]) -> T:
        """Sends a call and returns its answer. Raises FairlotError if it fails."""
        steps = self._exchange(call)
        step = next(steps)
        while True:
            try:
                if isinstance(step, Pause):
                    self._pause(step.seconds)
                    step = steps.send(None)
                else:
                    step = steps.send(self._send(step))
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    def save(self, call: Call[bytes], to: BinaryIO) -> int:
        """Writes the file that a call returns to `to`, piece by piece, and returns the number of bytes.

        Raises FairlotError if the call fails, also if the answer breaks off.
        """
        request = request_of(call, self.url, self._headers)
        try:
            response = self._http.send(request, stream=True)
            try:
                if response.is_error or response.is_redirect:
                    response.read()
                    answer_of(call, response)
                return sum(to.write(piece) for piece in response.iter_bytes())
            finally:
                response.close()
        except httpx2.TransportError as error:
            raise ConnectionFailed(f"The download broke off: {error or type(error).__name__}") from error

    def items(self, pages: Pages[T]) -> Iterator[T]:
        """Yields the items of all pages of a list."""
        call: Call[Any] | None = pages.first
        while call:
            page = self.do(call)
            yield from page["items"]
            call = pages.after(page)

    def events(self, call: Call[Event]) -> Iterator[Event]:
        """Yields the events of a stream, until it has ended. Opens it again where it broke off.

        Raises FairlotError if it cannot be opened.
        """
        streaming = self._streaming(call)
        while True:
            try:
                response = self._http.send(streaming.request(), stream=True)
                try:
                    if response.is_success:
                        parser = Parser()
                        for line in response.iter_lines():
                            event = streaming.read(parser, line)
                            if event is None:
                                continue
                            if event.name == BYE:
                                break
                            yield event
                            if event.name in LAST:
                                return
                        else:
                            raise httpx2.RemoteProtocolError("The stream ended early.")
                        continue
                    response.read()
                    pause = streaming.refused(response)
                finally:
                    response.close()
            except httpx2.TransportError as error:
                pause = streaming.broke_off(error)
            self._pause(pause.seconds)

    def wait_for_job(self, job_id: int, timeout: float | None = None) -> JobInFull:
        """Returns the job once it has ended.

        Raises TimedOut if it has not ended after `timeout` seconds, and FairlotError if a call fails.
        """
        steps = polling.until_ended(job_id, timeout)
        step = next(steps)
        while True:
            try:
                step = steps.send(self._answer(step))
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    def follow_log(self, job_id: int, rank: int = 0) -> Iterator[str]:
        """Yields the log of a worker, piece by piece as it grows, until the job has ended and the log is complete."""
        steps = polling.pieces_of_log(job_id, rank)
        step = next(steps)
        while not isinstance(step, polling.End):
            if isinstance(step, str):
                yield step
                step = next(steps)
            else:
                step = steps.send(self._answer(step))

    def _answer(self, step: Call[Any] | Pause) -> Any:
        return self._pause(step.seconds) if isinstance(step, Pause) else self.do(step)

    def _send(self, request: httpx2.Request) -> httpx2.Response | httpx2.TransportError:
        try:
            return self._http.send(request)
        except httpx2.TransportError as error:
            return error

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncFairlot(_Client):
    """Like Fairlot, for asyncio."""

    is_async = True

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout: float = 30,
        retries: int = 4,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url, token, retries=retries)
        self._http = httpx2.AsyncClient(timeout=timeout, transport=transport)

    async def do(self, call: Call[T]) -> T:
        """Sends a call and returns its answer. Raises FairlotError if it fails."""
        steps = self._exchange(call)
        step = next(steps)
        while True:
            try:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    step = steps.send(None)
                else:
                    step = steps.send(await self._send(step))
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    async def items(self, pages: Pages[T]) -> AsyncIterator[T]:
        """Yields the items of all pages of a list."""
        call: Call[Any] | None = pages.first
        while call:
            page = await self.do(call)
            for item in page["items"]:
                yield item
            call = pages.after(page)

    async def events(self, call: Call[Event]) -> AsyncIterator[Event]:
        """Yields the events of a stream, as `Fairlot.events` does."""
        streaming = self._streaming(call)
        while True:
            try:
                response = await self._http.send(streaming.request(), stream=True)
                try:
                    if response.is_success:
                        parser = Parser()
                        async for line in response.aiter_lines():
                            event = streaming.read(parser, line)
                            if event is None:
                                continue
                            if event.name == BYE:
                                break
                            yield event
                            if event.name in LAST:
                                return
                        else:
                            raise httpx2.RemoteProtocolError("The stream ended early.")
                        continue
                    await response.aread()
                    pause = streaming.refused(response)
                finally:
                    await response.aclose()
            except httpx2.TransportError as error:
                pause = streaming.broke_off(error)
            await asyncio.sleep(pause.seconds)

    async def wait_for_job(self, job_id: int, timeout: float | None = None) -> JobInFull:  # noqa: ASYNC109 - as Fairlot
        """Returns the job once it has ended.

        Raises TimedOut if it has not ended after `timeout` seconds, and FairlotError if a call fails.
        """
        steps = polling.until_ended(job_id, timeout)
        step = next(steps)
        while True:
            try:
                step = steps.send(await self._answer(step))
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    async def follow_log(self, job_id: int, rank: int = 0) -> AsyncIterator[str]:
        """Yields the log of a worker, piece by piece as it grows, until the job has ended and the log is complete."""
        steps = polling.pieces_of_log(job_id, rank)
        step = next(steps)
        while not isinstance(step, polling.End):
            if isinstance(step, str):
                yield step
                step = next(steps)
            else:
                step = steps.send(await self._answer(step))

    async def _answer(self, step: Call[Any] | Pause) -> Any:
        return await asyncio.sleep(step.seconds) if isinstance(step, Pause) else await self.do(step)

    async def _send(self, request: httpx2.Request) -> httpx2.Response | httpx2.TransportError:
        try:
            return await self._http.send(request)
        except httpx2.TransportError as error:
            return error

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
