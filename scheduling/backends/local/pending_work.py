"""Waits until GPUs have finished the work in their queues after the processes on them were stopped.

SIGSTOP stops a process but not its GPU, which first finishes the work in its queue. Training programs queue about a
second of work ahead. Until that work is done, it slows down the next job on the GPU.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported at run time only in `is_over`
    from scheduling.backends.local.gpus import Utilization

logger = logging.getLogger(__name__)

# Seconds; some kernels never end, such as collectives that wait for kernels of stopped processes.
LONGEST = 5.0
EVERY = 0.1  # seconds; a call to the driver takes some hundredths of a second


def held_gpus(gang: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the UUIDs of the GPUs that a gang holds. Empty if the gang's GPUs were declared without UUIDs.

    `gang` is the content of gang.json.
    """
    # The first entry is the node's name.
    named = [name for worker in gang["workers"] for name in worker["gpus"][1:]]
    return tuple(name for name in named if isinstance(name, str))


def names_of_gpus(gang: Mapping[str, Any]) -> dict[str, str]:
    """Returns NODE/INDEX of each GPU that a gang holds, by the GPU's UUID. Empty if they were declared without UUIDs.

    `gang` is the content of gang.json.
    """
    found: dict[str, str] = {}
    for worker in gang["workers"]:
        node, *rest = worker["gpus"]
        uuids = [one for one in rest if isinstance(one, str)]
        found |= {uuid: f"{node}/{index}" for index, uuid in zip(rest, uuids, strict=False)}
    return found


class PendingWork:
    """The work that a gang's GPUs still have to finish after the gang's processes were stopped."""

    def __init__(self, gang: Mapping[str, Any]) -> None:
        self._uuids = held_gpus(gang)
        self._latest = _clock() + LONGEST
        self._asks_at = 0.0
        self._answer: Future[list[Utilization]] | None = None

    def is_over(self) -> bool:
        """Returns whether the GPUs have finished their work. Also returns True if their load cannot be measured, and
        after LONGEST seconds.

        The caller stops all processes and then repeats this call until it returns True. No call waits for the driver.
        """
        now = _clock()
        if not self._uuids or now >= self._latest:
            return True
        from scheduling.backends.local import gpus  # noqa: PLC0415 - most gangs of most machines need no NVML

        if self._answer is None and now >= self._asks_at:
            # A later call reads the answer.
            self._asks_at, self._answer = now + EVERY, gpus.in_background(gpus.utilization)
        if self._answer is None or not self._answer.done():
            return False
        answer, self._answer = self._answer, None
        try:
            return not any(one.busy_percent for one in answer.result() if one.uuid in self._uuids)
        except gpus.NvmlError as error:
            logger.warning("%s", error)
            return True


def _clock() -> float:
    return time.monotonic()
