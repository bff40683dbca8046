"""Parses JSON bodies, and refuses values that no database column can hold."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from django.http import HttpRequest
from ninja.parser import Parser

from accounting.core.texts import not_storable

LONGEST = 200  # characters of a field's path that an error shows


class NotStorable(Exception):
    """Raised for request data that no database column can hold. `problems` maps the name of each wrong field to its
    problem."""

    def __init__(self, problems: dict[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {why}" for name, why in problems.items()))
        self.problems = problems


class CheckedParser(Parser):
    """Parses JSON bodies. Raises NotStorable, with the name of the field, for a value that no database column can
    hold."""

    def parse_body(self, request: HttpRequest) -> Any:
        data = json.loads(request.body, parse_constant=_no_number)
        if flaw := not_storable(data):
            place, why = flaw
            raise NotStorable({".".join(place)[:LONGEST] or "body": why})
        return data


def why_no_json(error: BaseException) -> str:
    """Returns a sentence that explains why a request body could not be parsed as JSON."""
    if isinstance(error, json.JSONDecodeError):
        return f"The body is not JSON: {error.msg} in line {error.lineno}, column {error.colno}."
    if isinstance(error, UnicodeDecodeError):
        return "The body is not UTF-8. Encode it as UTF-8."
    if isinstance(error, RecursionError):
        return "The JSON body is nested too deeply. Use fewer levels of nesting."
    return "The body is not JSON. Send a JSON document."


def _no_number(name: str) -> NoReturn:
    raise NotStorable({"body": f"contains {name}, which is not a JSON number"})
