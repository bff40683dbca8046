"""Encodes snapshots, policy states and decisions as bytes, so that a round can be stored and repeated exactly."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from fairshare.model import Accounts, Advance, Cluster, Decision, Floats, Jobs, Settings, Snapshot, Trade

VERSION = 1
# Takes half the time of zlib's default level 6; records are a sixteenth larger.
COMPRESSION = 4
# Fields of earlier records, by old name, with their present names.
_RENAMED = {"draw": "ordering", "only_idle": "preemptible", "residence": "min_hold"}
_HEADER = "header"
_TRADES = "trades"


class UnreadableRecord(Exception):
    """Raised when bytes are not a record of the expected kind in the supported version."""


def encode(value: Snapshot | Decision) -> bytes:
    """Encodes a snapshot or decision as a compressed archive: its arrays, and a JSON header with all other fields.

    Equal values are encoded as equal bytes.
    """
    if isinstance(value, Snapshot):
        header = {
            "kind": "snapshot",
            "generations": value.cluster.generations,
            "settings": asdict(value.settings),
            "now": value.now,
        }
        parts: dict[str, Any] = {"cluster": value.cluster, "accounts": value.accounts, "jobs": value.jobs}
        if value.advance is not None:
            parts["advance"] = value.advance
        arrays = {
            f"{part}.{name}": array
            for part, holder in parts.items()
            for name, array in _arrays(holder).items()
        }
    else:
        header = {"kind": "decision", "ask_again": value.ask_again, "remark": value.remark}
        arrays = _arrays(value)
        shape = len(value.trades), len(Trade._fields)
        # Account and generation numbers are far below 2^53, so a float holds them exactly.
        arrays[_TRADES] = np.array(value.trades, dtype=np.float64).reshape(shape)
    return _archive(header, arrays)


def encode_state(state: Mapping[str, Floats]) -> bytes:
    """Encodes a policy's state, which consists of named arrays, as a compressed archive."""
    return _archive({"kind": "state"}, dict(state))


def decode_state(data: bytes) -> dict[str, Floats]:
    """Decodes a policy's state, which consists of named arrays, from the result of `encode_state`.

    Raises UnreadableRecord for any other bytes.
    """
    return _open(data, "state")[1]


def _archive(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> bytes:
    text = json.dumps({"version": VERSION, **header}).encode()
    buffer = io.BytesIO()
    # Does the same as `np.savez_compressed`, which offers no choice of the compression level.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION) as archive:
        for name, array in {_HEADER: np.frombuffer(text, np.uint8), **arrays}.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return buffer.getvalue()


def decode_snapshot(data: bytes) -> Snapshot:
    """Decodes a snapshot from the result of `encode`. Raises UnreadableRecord for any other bytes."""
    header, arrays = _open(data, "snapshot")
    advance = _part(arrays, "advance")
    return Snapshot(
        cluster=Cluster(generations=tuple(header["generations"]), **_part(arrays, "cluster")),
        accounts=Accounts(**_part(arrays, "accounts")),
        jobs=Jobs(**_by_generation(_part(arrays, "jobs"))),
        settings=Settings(**_renamed(header["settings"])),
        now=header.get("now", 0.0),
        advance=Advance(**advance) if advance else None,
    )


def _by_generation(jobs: dict[str, Any]) -> dict[str, Any]:
    """Converts the job arrays of an early record to the current format. Arrays in the current format are returned
    unchanged.

    In early records, `attained` (J,) has each job's total GPU-seconds. Now it has one value for each generation, (J,
    K). The total becomes the value of the first generation.
    """
    had = jobs.get("attained")
    if had is not None and had.ndim == 1:
        on_first = np.zeros_like(jobs["rate"])
        on_first[:, :1] = had[:, None]
        return jobs | {"attained": on_first}
    return jobs


def decode_decision(data: bytes) -> Decision:
    """Decodes a decision from the result of `encode`. Raises UnreadableRecord for any other bytes."""
    header, arrays = _open(data, "decision")
    whole = [name in {"seller", "buyer", "slow", "fast"} for name in Trade._fields]
    trades = tuple(
        Trade(*(int(x) if is_whole else x for x, is_whole in zip(row, whole, strict=True)))
        for row in arrays.pop(_TRADES).tolist()
    )
    return Decision(
        trades=trades, ask_again=header.get("ask_again"), remark=header.get("remark"), **_renamed(arrays)
    )


def _arrays(holder: Any) -> dict[str, Any]:
    """Returns those fields of a dataclass instance that are arrays, by field name."""
    values = {field.name: getattr(holder, field.name) for field in fields(holder)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def _part(arrays: dict[str, Any], part: str) -> dict[str, Any]:
    return _renamed(
        {name.partition(".")[2]: array for name, array in arrays.items() if name.startswith(f"{part}.")}
    )


def _renamed(named: Mapping[str, Any]) -> dict[str, Any]:
    return {_RENAMED.get(name, name): value for name, value in named.items()}


def _open(data: bytes, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(arrays.pop(_HEADER).tobytes())
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UnreadableRecord("the data is not the record of a round") from error
    if (header.get("version"), header.get("kind")) != (VERSION, kind):
        raise UnreadableRecord(f"the data is not a {kind} in format version {VERSION}")
    return header, arrays
