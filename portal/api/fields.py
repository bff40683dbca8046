"""Types of request fields that several schema modules share."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

from ninja import Field, Header, Query
from pydantic import AfterValidator, BeforeValidator, Strict

from accounting.core.numbers import DECIMAL, DECIMAL_IN_WORDS, WHOLE, why_not_decimal, why_not_whole
from accounting.core.wording import in_millionths


def _in_digits(value: object) -> object:
    """Returns `value` unchanged. Raises ValueError for a text that is not a whole number written in the digits 0 to
    9."""
    if isinstance(value, str) and not WHOLE.fullmatch(value):
        raise ValueError(why_not_whole(value))
    return value


def _true_or_false(value: object) -> object:
    """Returns `value` unchanged. Raises ValueError for a text that is neither "true" nor "false"."""
    if isinstance(value, str) and value not in {"true", "false"}:
        raise ValueError(f'must be true or false, not "{value[:40]}"')
    return value


def _amount(value: object) -> object:
    """Returns `value` unchanged. Raises ValueError for a boolean, and for a text that is not a number."""
    if isinstance(value, bool):
        raise ValueError(f"must be {DECIMAL_IN_WORDS}")
    if isinstance(value, str) and not DECIMAL.fullmatch(value):
        raise ValueError(why_not_decimal(value))
    return value


# Bounds make values fit into their database columns; the actions check the meaning. In a JSON body, `true` and texts
# are not accepted as numbers. Only amounts may be texts, because answers show amounts as texts.
Whole = Annotated[int, Strict(), Field(ge=-(2**31), le=2**31 - 1)]
Key = Annotated[int, Strict(), Field(ge=1, le=2**63 - 1)]
Number = Annotated[float, Strict(), Field(ge=-1e12, le=1e12, allow_inf_nan=False)]
Amount = Annotated[Decimal, BeforeValidator(_amount), Field(ge=-(10**12), le=10**12)]
Flag = Annotated[bool, Strict()]
# Types for values in a URL query, where every value is a text.
IN_DIGITS = BeforeValidator(_in_digits)
AskedWhole = Annotated[int, IN_DIGITS, Field(ge=0, le=2**63 - 1)]
AskedFlag = Annotated[bool, BeforeValidator(_true_or_false)]
# Amounts in an answer, rounded to millionths, the unit in which the ledger counts.
Figure = Annotated[Decimal, AfterValidator(in_millionths)]
FileFormat = Literal["json", "csv", "xlsx", "pdf"]
Line = Annotated[str, Field(max_length=500)]
Words = Annotated[str, Field(max_length=4000)]
# Types of single query parameters: a key, the number of rows of a page, and true or false. `Query` comes first, because
# otherwise a parameter could not have a default.
AskedKey = Annotated[int, Query(ge=0, le=2**63 - 1), IN_DIGITS]
PageSize = Annotated[int, Query(ge=1, le=200), IN_DIGITS]
AskedSwitch = Annotated[bool, Query(), BeforeValidator(_true_or_false)]
# The header with which a call that creates something can be repeated; empty without one.
IdempotencyKey = Annotated[str, Header(alias="Idempotency-Key", max_length=80)]
