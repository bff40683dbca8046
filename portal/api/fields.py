"""Types of fields that schemas of several subjects share."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

from ninja import Field, Query
from pydantic import AfterValidator, BeforeValidator, Strict

from accounting.core.numbers import DECIMAL, DECIMAL_IN_WORDS, WHOLE, why_not_decimal, why_not_whole
from accounting.core.wording import in_millionths


def _in_digits(value: object) -> object:
    """Raises ValueError for a text that is not a whole number in the digits 0 to 9."""
    if isinstance(value, str) and not WHOLE.fullmatch(value):
        raise ValueError(why_not_whole(value))
    return value


def _true_or_false(value: object) -> object:
    """Raises ValueError for a text that is neither `true` nor `false`."""
    if isinstance(value, str) and value not in {"true", "false"}:
        raise ValueError(f'must be true or false, not "{value[:40]}"')
    return value


def _amount(value: object) -> object:
    """Raises ValueError for true, false, and texts that are not numbers."""
    if isinstance(value, bool):
        raise ValueError(f"must be {DECIMAL_IN_WORDS}")
    if isinstance(value, str) and not DECIMAL.fullmatch(value):
        raise ValueError(why_not_decimal(value))
    return value


# Values must fit into their database columns; actions check what they mean. In a body, true and texts are not numbers,
# but amounts may be texts, because answers have them as texts.
Whole = Annotated[int, Strict(), Field(ge=-(2**31), le=2**31 - 1)]
Key = Annotated[int, Strict(), Field(ge=1, le=2**63 - 1)]
Number = Annotated[float, Strict(), Field(ge=-1e12, le=1e12, allow_inf_nan=False)]
Amount = Annotated[Decimal, BeforeValidator(_amount), Field(ge=-(10**12), le=10**12)]
Flag = Annotated[bool, Strict()]
# Values of a query, which are all texts.
IN_DIGITS = BeforeValidator(_in_digits)
AskedWhole = Annotated[int, IN_DIGITS, Field(ge=0, le=2**63 - 1)]
AskedFlag = Annotated[bool, BeforeValidator(_true_or_false)]
# Amounts of an answer, rounded to the millionths that the ledger counts.
Figure = Annotated[Decimal, AfterValidator(in_millionths)]
FileFormat = Literal["json", "csv", "xlsx", "pdf"]
Line = Annotated[str, Field(max_length=500)]
Words = Annotated[str, Field(max_length=4000)]
# Types of single query parameters: a key, and the rows of a page. Query comes first, or a default is not possible.
AskedKey = Annotated[int, Query(ge=0, le=2**63 - 1), IN_DIGITS]
PageSize = Annotated[int, Query(ge=1, le=200), IN_DIGITS]
