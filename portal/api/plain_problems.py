"""Converts pydantic's errors to sentences that say what is wrong, which values are accepted, and which value was
given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accounting.core.wording import shown

TIME = "a time with its zone, such as 2026-11-21T08:00:00Z"
# The accepted values by the type of pydantic's error. Placeholders are names from the error's context.
ACCEPTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "a mapping of fields",
    "model_attributes_type": "a mapping of fields",
    "model_type": "a mapping of fields",
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "datetime_type": TIME,
    "datetime_parsing": TIME,
    "datetime_from_date_parsing": TIME,
    "timezone_aware": TIME,
}
# Sentences for wrong lengths and missing fields, by the type of pydantic's error.
LENGTHS = {
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "too_long": "must have at most {max_length} items, not {actual_length}",
    "too_short": "must have at least {min_length} items, not {actual_length}",
    "missing": "is missing",
}
NAMES_OF_TYPES = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "a mapping",
}


def plain_problem(items: Sequence[Mapping[str, Any]]) -> str:
    """Returns the problem of one field as a sentence. `items` are pydantic's errors for this field.

    If the field accepts several types, pydantic reports one error for each type.
    """
    if any(item["type"] not in ACCEPTED for item in items):
        return "; ".join(dict.fromkeys(_sentence(item) for item in items))
    accepted = dict.fromkeys(ACCEPTED[item["type"]].format_map(item.get("ctx", {})) for item in items)
    return f"must be {' or '.join(accepted).replace(chr(39), '')}, not {_shown(items[-1])}"


def _sentence(item: Mapping[str, Any]) -> str:
    if item["type"] in LENGTHS:
        return LENGTHS[item["type"]].format_map(item.get("ctx", {}))
    if item["type"] in ACCEPTED:
        return plain_problem([item])
    return str(item["msg"]).removeprefix("Value error, ")


def _shown(item: Mapping[str, Any]) -> str:
    """Returns the offending value as text, cut to 40 characters.

    If the field expects a text, returns only the type of the value, because the text may be a secret.
    """
    value = item.get("input")
    if item["type"] == "string_type":
        return NAMES_OF_TYPES.get(type(value), "null")
    return shown(value)
