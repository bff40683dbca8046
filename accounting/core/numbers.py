"""Parses numbers in text. Accepts only the digits 0 to 9, not digits of other scripts."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from decimal import Decimal

# The smallest GPU time (GPU-seconds) and the smallest amount of money that the ledger counts.
MICRO = Decimal("0.000001")
WHOLE = re.compile(r"[-+]?[0-9]{1,19}")
DECIMAL = re.compile(r"[-+]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][-+]?[0-9]{1,3})?")
# Texts that are numbers, but with too many digits.
LONG = re.compile(r"[-+]?[0-9]{20,}")
LONG_DECIMAL = re.compile(r"[-+]?(?=.*[0-9])[0-9]*\.?[0-9]*(?:[eE][-+]?[0-9]+)?")
IN_WORDS = "a whole number in digits (0 to 9)"
DECIMAL_IN_WORDS = "a number such as 2.50"


def read_whole(text: str) -> int | None:
    """Returns the integer in `text`, ignoring surrounding spaces.

    Returns None if `text` is not an integer, or has more than 19 digits.
    """
    text = text.strip(" ")
    return int(text) if WHOLE.fullmatch(text) else None


def why_not_whole(text: str) -> str:
    """Returns why `read_whole` rejects the text, as the end of a sentence, such as "is too large"."""
    return "is too large" if LONG.fullmatch(text.strip(" ")) else f"must be {IN_WORDS}"


def why_not_decimal(text: str) -> str:
    """Returns why `read_decimal` rejects the text, as the end of a sentence, such as "is too large, or has too many
    digits"."""
    return (
        "is too large, or has too many digits"
        if LONG_DECIMAL.fullmatch(text.strip(" "))
        else f"must be {DECIMAL_IN_WORDS}"
    )


def whole_argument(text: str) -> int:
    """Returns the integer in a command-line argument; raises ArgumentTypeError if the text is not a valid integer."""
    number = read_whole(text)
    if number is None:
        raise ArgumentTypeError(f"{text!r} {why_not_whole(text)}")
    return number


def read_decimal(text: str) -> Decimal | None:
    """Returns the decimal number in `text`; None if `text` is not a number or has too many digits.

    Ignores surrounding spaces.
    """
    text = text.strip(" ")
    return Decimal(text) if DECIMAL.fullmatch(text) else None


def read_key(text: str) -> int:
    """Returns the primary key in `text`; 0, which is never a primary key, if `text` does not contain a valid key."""
    found = read_whole(text) if text.isalnum() else None
    return found if found is not None and found < 2**63 else 0
