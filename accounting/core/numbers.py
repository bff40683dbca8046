"""Numbers as people and programs write them: with the digits 0 to 9 alone, and never true for 1."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from decimal import Decimal

MICRO = Decimal("0.000001")  # of a GPU-second, or of a unit of money
WHOLE = re.compile(r"[-+]?[0-9]{1,19}")
DECIMAL = re.compile(r"[-+]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][-+]?[0-9]{1,3})?")
# Numbers of more digits than these.
LONG = re.compile(r"[-+]?[0-9]{20,}")
LONG_DECIMAL = re.compile(r"[-+]?(?=.*[0-9])[0-9]*\.?[0-9]*(?:[eE][-+]?[0-9]+)?")
IN_WORDS = "a whole number in the digits 0 to 9"
DECIMAL_IN_WORDS = "a number such as 2.50"


def read_whole(text: str) -> int | None:
    """The whole number that `text` is, blanks around it left out; None for anything else."""
    text = text.strip(" ")
    return int(text) if WHOLE.fullmatch(text) else None


def why_not_whole(text: str) -> str:
    """What is wrong with a text that `read_whole` does not take."""
    return "is too large" if LONG.fullmatch(text.strip(" ")) else f"must be {IN_WORDS}"


def why_not_decimal(text: str) -> str:
    """What is wrong with a text that `read_decimal` does not take."""
    return (
        "is too large, or has too many digits"
        if LONG_DECIMAL.fullmatch(text.strip(" "))
        else f"must be {DECIMAL_IN_WORDS}"
    )


def whole_argument(text: str) -> int:
    """The whole number that an argument of a command is."""
    number = read_whole(text)
    if number is None:
        raise ArgumentTypeError(f"{text!r} {why_not_whole(text)}")
    return number


def read_decimal(text: str) -> Decimal | None:
    """The number with a point that `text` is, blanks around it left out; None for anything else."""
    text = text.strip(" ")
    return Decimal(text) if DECIMAL.fullmatch(text) else None


def read_key(text: str) -> int:
    """The key of a row that `text` is; 0, which no row has, for anything else."""
    found = read_whole(text) if text.isalnum() else None
    return found if found is not None and found < 2**63 else 0
