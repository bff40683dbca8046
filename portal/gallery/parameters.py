"""The rows in which a template's parameters are typed, and the YAML that says the same for experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from portal.forms.fields import Choice, Switch, Text, plain
from portal.forms.form import Form
from portal.submit.fields import read_number
from scheduling.spec import yaml_core
from scheduling.spec.templates import MOST_PARAMETERS, Parameter

TYPES = [
    ("text", "Text"), ("number", "Number"), ("choice", "Choice"), ("boolean", "Yes or no"),
    ("generation", "GPU type"), ("volume", "Volume"), ("secret", "Secret"),
]  # fmt: skip
Row = dict[str, str]  # the typed texts of a row, by field; a switch that is off is missing


class ParameterForm(Form):
    """The fields of one parameter."""

    name = Text("Name", maxlength=40, is_code=True, required=False)
    type = Choice("Type", TYPES)
    default = Text("Default", maxlength=500, required=False, autocomplete="off")
    description = Text("Description", maxlength=300, required=False, autocomplete="off")
    min = Text("At least", required=False, inputmode="decimal", autocomplete="off")
    max = Text("At most", required=False, inputmode="decimal", autocomplete="off")
    whole = Switch("Whole numbers only")
    choices = Text("Choices, one on each line", rows=3, required=False, is_code=True)
    optional = Switch("May stay empty")

    def __init__(self, place: int, row: Row) -> None:
        self.prefix = f"p{place}"
        super().__init__(f"parameter-{place}")
        self.data, self.is_bound = {self.add_prefix(name): text for name, text in row.items()}, True

    @property
    def basics(self) -> list[Any]:
        return [self[name] for name in ("name", "type", "default")]

    @property
    def rest(self) -> list[Any]:
        return [self[name] for name in ("whole", "choices", "optional")]

    @property
    def bounds(self) -> list[Any]:
        return [self[name] for name in ("min", "max")]

    @property
    def shows_rest(self) -> bool:
        """Returns whether a field is set or refused that is folded otherwise."""
        return (
            any(one.errors or one.data for one in [*self.bounds, *self.rest]) or self["type"].data == "choice"
        )


def posted_rows(data: Mapping[str, str]) -> list[Row]:
    """Returns the rows of a posted form, without those in which nothing is typed."""
    places = [place for place in range(MOST_PARAMETERS) if f"p{place}-name" in data]
    rows = [
        {name: text for name in ParameterForm.base_fields if (text := data.get(f"p{place}-{name}", ""))}
        for place in places
    ]
    return [row for row in rows if set(row) - {"type"}]


def rows_of(parameters: Any) -> list[Row] | None:
    """Returns parameters as rows; None if rows cannot say what is in this data, for example unknown fields."""
    if not isinstance(parameters, list) or len(parameters) > MOST_PARAMETERS:
        return None
    rows = []
    for one in parameters:
        if not isinstance(one, dict) or not set(one) <= set(Parameter.model_fields):
            return None
        texts = {name: _text_of(value) for name, value in one.items() if name not in ("required", "whole")}
        if None in texts.values() or not {
            *map(type, (one.get("required", True), one.get("whole", False)))
        } <= {bool}:
            return None
        row = {name: text for name, text in texts.items() if text}
        row |= {"whole": "on"} if one.get("whole") else {}
        rows.append(row | ({} if one.get("required", True) else {"optional": "on"}))
    return rows


def _text_of(value: Any) -> str | None:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case int() | float():
            text = plain(value)
            return text if read_number(text, float) == value else None  # 1e-99 has too many digits
        case str():
            return value
        case list() if all(isinstance(one, str) and "\n" not in one for one in value):
            return "\n".join(value)
    return None


def parameters_of_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns the data of parameters, as YAML has it. Texts that are no numbers stay texts, and are refused later."""
    return [_parameter(row) for row in rows]


def _parameter(row: Row) -> dict[str, Any]:
    kind = row.get("type", "")
    found: dict[str, Any] = {"name": row.get("name", "").strip(), "type": kind}
    for name in ("default", "min", "max"):
        if text := row.get(name, "").strip():
            found[name] = _value(text, "number" if name != "default" else kind)
    if row.get("whole"):
        found["whole"] = True
    if choices := [line.strip() for line in row.get("choices", "").splitlines() if line.strip()]:
        found["choices"] = choices
    if row.get("optional"):
        found["required"] = False
    if description := row.get("description", "").strip():
        found["description"] = description
    return found


def _value(text: str, kind: str) -> Any:
    if kind == "boolean":
        return {"true": True, "false": False}.get(text, text)
    if kind != "number":
        return text
    whole = read_number(text)
    return whole if isinstance(whole, int) else read_number(text, float)


def yaml_of_rows(rows: Sequence[Row]) -> str:
    return yaml_core.write(parameters_of_rows(rows)) if rows else ""
