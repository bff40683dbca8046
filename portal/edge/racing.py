"""Waits for the first of several awaitables to end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


async def first_of(*works: Awaitable[object]) -> None:
    """Waits until one of the awaitables ends. Then cancels the others, and waits until they have also ended.

    If several of them failed, raises the error of the one that comes first in the arguments.
    """
    tasks = [asyncio.create_task(_whole(work)) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [end for end in ends if isinstance(end, Exception)]
    try:
        if errors:
            raise errors[0]
    finally:
        # the error's traceback would otherwise refer to the error itself and keep the connection open
        del errors, ends, task, tasks


async def _whole(work: Awaitable[object]) -> None:
    """Wraps an awaitable in a coroutine, because `asyncio.create_task` accepts only coroutines.

    The awaitables from the web server may be of other types.
    """
    await work
