"""Runs several awaitables until the first one ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


async def first_of(*works: Awaitable[object]) -> None:
    """Waits for the first to end, cancels the others, and raises the errors."""
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
        del errors, ends, task, tasks  # an error that refers to itself would keep the connection open


async def _whole(work: Awaitable[object]) -> None:
    """Wraps an awaitable of the server, which need not be a future, for a task."""
    await work
