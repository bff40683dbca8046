"""Numbers in texts: only the digits 0 to 9 are accepted, and true is never 1."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from decimal import Decimal

MICRO = Decimal("0.000001")  # of a GPU-second, or of a unit of money
WHOLE = re.compile(r"[-+]?[0-9]{1,19}")
DECIMAL = re.compile(r"[-+]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][-+]?[0-9]{1,3})?")
# Numbers with more digits than these are refused.
LONG = re.compile(r"[-+]?[0-9]{20,}")
LONG_DECIMAL = re.compile(r"[-+]?(?=.*[0-9])[0-9]*\.?[0-9]*(?:[eE][-+]?[0-9]+)?")
IN_WORDS = "a whole number in the digits 0 to 9"
DECIMAL_IN_WORDS = "a number such as 2.50"


def read_whole(text: str) -> int | None:
    """Returns the integer in `text`, ignoring surrounding blanks; None for anything else."""
    text = text.strip(" ")
    return int(text) if WHOLE.fullmatch(text) else None


def why_not_whole(text: str) -> str:
    """Returns what is wrong with a text that `read_whole` does not accept."""
    return "is too large" if LONG.fullmatch(text.strip(" ")) else f"must be {IN_WORDS}"


def why_not_decimal(text: str) -> str:
    """Returns what is wrong with a text that `read_decimal` does not accept."""
    return (
        "is too large, or has too many digits"
        if LONG_DECIMAL.fullmatch(text.strip(" "))
        else f"must be {DECIMAL_IN_WORDS}"
    )


def whole_argument(text: str) -> int:
    """Returns the integer in a command's argument; raises ArgumentTypeError for anything else."""
    number = read_whole(text)
    if number is None:
        raise ArgumentTypeError(f"{text!r} {why_not_whole(text)}")
    return number


def read_decimal(text: str) -> Decimal | None:
    """Returns the decimal number in `text`, ignoring surrounding blanks; None for anything else."""
    text = text.strip(" ")
    return Decimal(text) if DECIMAL.fullmatch(text) else None


def read_key(text: str) -> int:
    """Returns the primary key in `text`; 0, which no row has, for anything else."""
    found = read_whole(text) if text.isalnum() else None
    return found if found is not None and found < 2**63 else 0
