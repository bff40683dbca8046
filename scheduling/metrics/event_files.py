"""Reads the scalars in TensorBoard's event files. The files are hostile input: programs of users write them.

An event file is a sequence of records (TFRecord): the length as 8 bytes, a checksum of the length, the data, and a
checksum of the data. The data of a record is a protobuf message `Event` (tensorflow/core/util/event.proto and
tensorflow/core/framework/summary.proto). Only the few fields that scalars need are read; everything else is skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

LONGEST_RECORD = 64 * 1024  # bytes; longer records, such as pictures, are skipped
HEADER, FOOTER = 12, 4  # bytes around the data of a record
MOST_VALUES = 1000  # of one record
FLOAT, DOUBLE = 1, 2  # DataType of a tensor


class Damaged(ValueError):
    """Raised if bytes do not have the format of an event file."""


class Scalar(NamedTuple):
    """A value of the tag `tag` that the program wrote at `wall_time`, in seconds since 1970 by its own clock, for the
    step `step`; 0 if it named none."""

    wall_time: float
    tag: str
    value: float
    step: int = 0


@dataclass
class Part:
    """What a part of a file contains. `used` bytes of it consist of whole records; `skipped` further bytes behind them
    belong to a record that is too long to be read."""

    scalars: list[Scalar] = field(default_factory=list)
    used: int = 0
    skipped: int = 0


def read_part(data: bytes) -> Part:
    """Returns the scalars of all whole records at the beginning of `data`. Raises Damaged if it has no record there.

    Records with damaged contents have no scalars. The checksum of the data is not compared, because no wrong content
    can do harm here.
    """
    part = Part()
    while len(data) - part.used >= HEADER:
        header = data[part.used : part.used + HEADER]
        length, checksum = struct.unpack("<QI", header)
        if checksum != masked_crc(header[:8]) or length >= 2**40:
            raise Damaged("the length of a record has a wrong checksum")
        end = part.used + HEADER + length + FOOTER
        if length > LONGEST_RECORD:
            part.skipped = max(0, end - len(data))
            part.used = min(end, len(data))
            continue
        if end > len(data):
            break
        with suppress(Damaged):  # the next record begins where the length says
            part.scalars += _event(data[part.used + HEADER : end - FOOTER])
        part.used = end
    return part


def _event(data: bytes) -> list[Scalar]:
    wall_time, step, found = 0.0, 0, list[tuple[str, float]]()
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes) and len(value) == 8:
            (wall_time,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            step = (value + 2**63) % 2**64 - 2**63  # written as an unsigned number
        elif number == 5 and isinstance(value, bytes):
            for inner, content in _fields(value):
                if inner == 1 and isinstance(content, bytes) and len(found) < MOST_VALUES:
                    found += _value(content)
    return [Scalar(wall_time, tag, value, step) for tag, value in found]


def _value(data: bytes) -> Iterator[tuple[str, float]]:
    """Yields the tag and the value of a `Summary.Value`, if it is a scalar."""
    tag, found = "", None
    for number, value in _fields(data):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            tag = value.decode("utf-8", "replace")
        elif number == 2 and len(value) == 4:
            (found,) = struct.unpack("<f", value)
        elif number == 8:
            found = _tensor(value)
    if found is not None and tag:
        yield tag, found


def _tensor(data: bytes) -> float | None:
    """Returns the value of a tensor with one number; None for other tensors, such as histograms."""
    kind, content = 0, b""
    for number, value in _fields(data):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number in {4, 5, 6} and isinstance(value, bytes):
            content += value[:9]  # two numbers have more than 8 bytes, and then the length is wrong
    form = {(FLOAT, 4): "<f", (DOUBLE, 8): "<d"}.get((kind, len(content)))
    return float(struct.unpack(form, content)[0]) if form else None


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the number and the value of each field of a protobuf message. Fixed numbers are yielded as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        else:
            length = {1: 8, 5: 4}.get(kind, -1)
        if length < 0 or at + length > len(data):
            raise Damaged("a field has a wrong length")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Damaged("a number does not end")


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_TABLE = _crc_table()


def masked_crc(data: bytes) -> int:
    """Returns the checksum of TFRecord: CRC-32C, rotated and with a constant added."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
