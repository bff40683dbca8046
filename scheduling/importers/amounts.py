"""Reads amounts of memory, numbers of CPUs and durations as other systems write them."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from scheduling.importers.credentials import redacted

# Powers of ten and of two by the letter of a unit.
DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
BINARY = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
AMOUNT = re.compile(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", re.ASCII)
UNIT = re.compile(r"([kmgtp]?)(i?)(b?)(?:ytes?)?", re.IGNORECASE)
QUANTITY = re.compile(
    r"\+?(\d{1,15}(?:\.\d{0,9})?|\.\d{1,9})(?:[eE]\+?(\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII
)
SUFFIXES = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")}
SUFFIXES |= {letter: Decimal(10) ** (3 * at) for at, letter in enumerate("kMGTPE", 1)}
SUFFIXES |= {f"{letter}i": Decimal(2) ** (10 * at) for at, letter in enumerate("KMGTPE", 1)}
DURATION_PART = re.compile(
    r"(\d{1,9}(?:\.\d{1,6})?)\s*(milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|w)",
    re.ASCII | re.IGNORECASE,
)
SECONDS = {"ms": 0.001, "mi": 60, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MOST_SECONDS = 10**10


NO_AMOUNT = "This is no amount, such as 8 for processors or 64GB for memory. Write the amount."


class NoAmount(ValueError):
    """Raised when an amount cannot be read. The message is a sentence."""


def quantity(text: str) -> Decimal:
    """Returns a quantity of Kubernetes, such as "500m", "64Gi" or "1e3". Raises NoAmount."""
    found = QUANTITY.fullmatch(text.strip())
    if not found:
        raise NoAmount(f"{redacted(text)[:40]!r} is not a quantity of Kubernetes, such as 64Gi or 500m.")
    number, exponent, suffix = found.groups()
    try:
        return Decimal(number) * (
            Decimal(10) ** int(exponent) if exponent else SUFFIXES.get(suffix or "", Decimal(1))
        )
    except InvalidOperation:
        raise NoAmount(
            f"{redacted(text)[:40]!r} is not a quantity of Kubernetes, such as 64Gi or 500m."
        ) from None


def size(text: str, *, bare: str = "", binary: bool = False) -> int:
    """Returns an amount of memory in bytes: "64GB", "64 GiB", "512M", "64g".

    `bare` is the unit of a number without one, such as "MB"; without it such a number is refused. If `binary` is true,
    K, M and G without an i are powers of 1024, as in Slurm. Raises NoAmount, also for an amount that is in bits.
    """
    found = AMOUNT.fullmatch(text)
    unit = UNIT.fullmatch(found[2] or bare) if found else None
    if not found or not unit or not (found[2] or bare):
        raise NoAmount(
            f"{redacted(text)[:40]!r} is not an amount of memory with a unit, such as 64GB or 64GiB."
        )
    powers = BINARY if binary or unit[2] else DECIMAL
    return int(Decimal(found[1]) * powers[unit[1].lower()])


def as_amount(number: int) -> str:
    """Returns an amount of memory in bytes as a job spec writes it: "64Gi", "10G", or rounded up to whole Mi."""
    if number <= 0:
        raise NoAmount("The amount of memory must be more than 0.")
    for unit, power in (
        ("Ti", 2**40),
        ("T", 10**12),
        ("Gi", 2**30),
        ("G", 10**9),
        ("Mi", 2**20),
        ("M", 10**6),
    ):
        if number % power == 0:
            return f"{number // power}{unit}"
    return f"{-(-number // 2**20)}Mi"


def seconds(text: str, *, bare: float | None = None) -> float:
    """Returns a duration in seconds: "1h30m", "90s", "2 days".

    `bare` is the number of seconds in the unit of a number without one; if it is None, such a number is refused. Raises
    NoAmount.
    """
    said = text.strip()
    if bare is not None and re.fullmatch(r"\d{1,10}(\.\d{1,6})?", said, re.ASCII):
        return float(said) * bare
    parts = DURATION_PART.findall(said)
    if not parts or DURATION_PART.sub("", said).strip(" ,"):
        raise NoAmount(f"{redacted(text)[:40]!r} is not a duration, such as 90s, 30m or 1h30m.")
    total = sum(float(number) * _unit_seconds(unit.lower()) for number, unit in parts)
    if total > MOST_SECONDS:
        raise NoAmount(f"{redacted(text)[:40]!r} is too long.")
    return total


def _unit_seconds(unit: str) -> float:
    return SECONDS["ms"] if unit.startswith(("ms", "milli")) else SECONDS[unit[0]]
