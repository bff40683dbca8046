"""Measures how much gangs on this machine use their GPUs: by NVML or, if NVML cannot measure the GPUs, by processor
time. The same looks give the samples of the gangs' metrics.

NVML cannot measure declared (virtual) GPUs or parts of GPUs. A gang on such GPUs counts as using them if it reports
progress or takes more than one percent of a processor. Otherwise the gang counts as idle.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from scheduling.backends import summaries
from scheduling.backends.base import Sample, Use
from scheduling.backends.local import gpus, processes
from scheduling.backends.local.files import JobFiles, read_json, reports_in
from scheduling.backends.local.pending_work import held_gpus, names_of_gpus
from scheduling.backends.metering import ANY, LONGEST_GAP, WINDOW, Meter

logger = logging.getLogger(__name__)

EVERY = 1.5  # seconds between samples; supervisors report processor time each second
WAITING = 0.01  # share of a processor that programs take while they only wait


@dataclass(frozen=True, slots=True)
class _Known:
    """A gang's processor time and progress so far, according to its supervisor's last heartbeat."""

    at: float  # seconds on the boot clock
    cpu: float  # processor seconds so far
    steps: float | None  # progress that the program reported

    def used_since(self, before: _Known) -> float:
        # The processor time of a process that was never reaped is lost, so a lower sum means that a process has ended.
        if self.steps != before.steps or self.cpu < before.cpu:
            return ANY
        return self.cpu - before.cpu


class UseMeter:
    """Measures the use of GPUs by repeated samples, all taken in the same process.

    Time before the first sample counts as not measured. A period of more than LONGEST_GAP seconds between two samples
    also counts as not measured.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sampled_at = 0.0
        self._by_gpus: Meter[str] = Meter()
        self._by_processors: Meter[str] = Meter(negligible=WAITING * WINDOW)
        self._uuids: dict[str, tuple[str, ...]] = {}  # UUIDs of GPUs, by the token of the gang
        self._gpu_names: dict[str, dict[str, str]] = {}  # by the token: NODE/INDEX of each GPU, by UUID
        self._windows = summaries.Windows()
        # Makes the numbers of windows differ from those before a restart of the machine, when the boot clock begins
        # again.
        self._booted = time.time() - _clock()
        self._beats: dict[str, _Known] = {}  # the last heartbeat of which the samples know
        self._sampled: dict[str, int] = {}  # time of each GPU's last sample on the driver's clock, by UUID
        self._known: dict[str, _Known] = {}
        # By token: the times of the first and the last of consecutive samples without a process on the GPUs.
        self._empty: dict[str, tuple[float, float]] = {}

    def sample(self) -> list[Use]:
        """Takes a sample of all running gangs and returns the resulting measurements.

        Returns an empty list if the last sample is less than EVERY seconds old.
        """
        now = _clock()
        if now - self._sampled_at < EVERY:
            return []
        self._sampled_at = now
        running = dict(self._running())
        self._forget_others(running)
        busy = self._used() if any(self._uuids.values()) else {}
        found = []
        for token, status in running.items():
            beat = self._beat(status)
            self._windows.add(token, now + self._booted, self._values(token, beat, busy or {}))
            found.append(self._sample_gang(token, beat, busy))
        return [use for use in found if use is not None]

    def samples(self) -> list[Sample]:
        """Returns the windows of the gangs' metrics that have ended since the last call."""
        now = _clock() + self._booted
        return [
            Sample(UUID(token), number, age=now - number * summaries.WINDOW, values=values)
            for token, number, values in self._windows.take(now)
        ]

    def _beat(self, status: dict[str, Any]) -> dict[str, Any]:
        """Returns the gang's last heartbeat; empty if there is none since this boot, or if it does not say what the
        gang uses."""
        beat = JobFiles(self._root, int(status["job_id"])).last_beat(status["epoch"])
        return beat if "cpu" in beat and beat["at"][0] == processes.boot_id() else {}

    def _values(
        self, token: str, beat: Mapping[str, Any], used: Mapping[str, gpus.Utilization]
    ) -> dict[str, float]:
        """Returns the values that this look adds to the gang's samples, by name (scheduling/metrics/names.py)."""
        values: dict[str, float] = {}
        for uuid, name in self._gpu_names[token].items():
            if (gpu := used.get(uuid)) is None:
                continue
            measured = {
                "gpu_utilisation": gpu.busy_percent,
                "gpu_sm": gpu.sm_percent,
                "gpu_memory": float(gpu.memory_used_bytes),
                "gpu_power": gpu.watts,
            }
            values |= {f"{what}@{name}": value for what, value in measured.items() if value is not None}
        if not beat:
            return values
        steps = beat.get("steps")
        known = _Known(float(beat["at"][1]), float(beat["cpu"]), None if steps is None else float(steps))
        before = self._beats.get(token)
        if before is not None and known.at == before.at:  # these values are counted already
            return values
        self._beats[token] = known
        if "memory" in beat:  # earlier releases did not write this key
            values["memory"] = float(beat["memory"])
        if before is not None and known.at > before.at:
            values["cpus"] = max(0.0, known.cpu - before.cpu) / (known.at - before.at)
            if known.steps is not None and before.steps is not None:
                values["steps_per_second"] = max(0.0, known.steps - before.steps) / (known.at - before.at)
        return values

    def _running(self) -> list[tuple[str, dict[str, Any]]]:
        found = []
        for path in reports_in(self._root):
            try:
                status = read_json(path)
                if status is None or status["phase"] != "running":
                    continue
                token = status["token"]
                if token not in self._uuids:
                    self._uuids[token], self._gpu_names[token] = _gpus(
                        JobFiles(self._root, int(status["job_id"])), token
                    )
                found.append((token, status))
            except (ValueError, KeyError, TypeError, OSError) as error:
                logger.warning("how much is used is not known for %s: %r", path.name, error)
        return found

    def _forget_others(self, running: Mapping[str, object]) -> None:
        self._uuids = {token: uuids for token, uuids in self._uuids.items() if token in running}
        self._gpu_names = {token: names for token, names in self._gpu_names.items() if token in running}
        self._known = {token: known for token, known in self._known.items() if token in running}
        self._beats = {token: known for token, known in self._beats.items() if token in running}
        self._empty = {token: empty for token, empty in self._empty.items() if token in running}
        self._by_gpus.keep(set(running))
        self._by_processors.keep(set(running))

    def _used(self) -> dict[str, gpus.Utilization] | None:
        """Returns, by UUID, the load of each GPU that reports one; None while the driver does not answer."""
        try:
            found = gpus.utilization(self._sampled)
        except gpus.NvmlError as error:
            logger.warning("%s", error)
            return None
        self._sampled = {one.uuid: one.sampled_at for one in found}
        return {one.uuid: one for one in found}

    def _sample_gang(
        self, token: str, beat: Mapping[str, Any], used: Mapping[str, gpus.Utilization] | None
    ) -> Use | None:
        uuids = self._uuids[token]
        if uuids and used is None:
            return None  # the driver does not answer now
        if uuids and used is not None and used.keys() >= set(uuids):
            now, some = _clock(), [used[uuid] for uuid in uuids]
            percents = [one.busy_percent for one in some]
            unused = self._by_gpus.sample(token, now, ANY if any(percents) else 0.0)
            # `processes` None means that the number is unknown, so a process may be there.
            is_empty = not any(percents) and all(one.processes == 0 for one in some)
            if not is_empty:
                self._empty.pop(token, None)
            processless = self._empty_for(token, now) if is_empty else 0.0
            found = _use(token, unused, sum(percents) / len(percents), by_gpus=True)
            return found and replace(found, processless_for=min(processless, found.unused_for))
        return self._sample_processors(token, beat)

    def _empty_for(self, token: str, now: float) -> float:
        """Records that a sample at the time `now` found the gang's GPUs empty: no load and no process. Returns for how
        many seconds they have been empty without interruption.

        Returns 0 if the last sample that found the GPUs empty is more than LONGEST_GAP seconds old, or if there is
        none.
        """
        since, last = self._empty.get(token, (now, now))
        if now - last > LONGEST_GAP:
            since = now
        self._empty[token] = since, now
        return now - since

    def _sample_processors(self, token: str, beat: Mapping[str, Any]) -> Use | None:
        if not beat:
            return None
        known = _Known(float(beat["at"][1]), float(beat["cpu"]), beat.get("steps"))
        before = self._known.get(token, known)
        self._known[token] = known
        unused = self._by_processors.sample(token, known.at, known.used_since(before))
        passed = known.at - before.at
        percent = 100 * max(0.0, known.cpu - before.cpu) / passed if passed > 0 else 0.0
        age = max(0.0, _clock() - known.at)
        return _use(token, unused, percent, by_gpus=False, age=age)


def _use(token: str, unused: float | None, percent: float, *, by_gpus: bool, age: float = 0.0) -> Use | None:
    if unused is None:
        return None
    return Use(token=UUID(token), unused_for=unused, percent=percent, by_gpus=by_gpus, age=age)


def _gpus(files: JobFiles, token: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Returns the UUIDs of the GPUs of the gang with this token, and NODE/INDEX of each GPU by its UUID.

    Both are empty if its GPUs were declared without UUIDs, or if a newer gang has replaced it.
    """
    gang = read_json(files.gang)
    if gang is None or gang["token"] != token:
        return (), {}
    return held_gpus(gang), names_of_gpus(gang)


def _clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
