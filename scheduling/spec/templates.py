"""Templates of job specifications: typed parameters, and the pure function that puts their values into a specification.

A template is the data of a specification, in which texts contain `{name}`. Values are put into single texts of this
data, never into YAML, so that no value can add or change another field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Self, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from accounting.core.numbers import DECIMAL_IN_WORDS, read_decimal, read_whole
from accounting.core.texts import BREAKS, not_storable
from accounting.core.wording import shown
from scheduling.spec import yaml_core
from scheduling.spec.job_spec import LONGEST_YAML, JobSpec, SpecError
from scheduling.spec.placeholders import insert, names_in, render, text_of, why_not_in_command
from scheduling.spec.refused_values import RefusedAt, path_of

MOST_PARAMETERS = 20
LONGEST_VALUE = 500  # characters
LARGEST = 10**15
# Fields in which a value would be read as more than one text: as options of pip, patterns, or other people's code.
WITHOUT_PLACEHOLDERS = ("version", "requirements", "code", "progress_pattern", "readiness_path")
COMMANDS = {"command", "roles.command"}

Value: TypeAlias = "str | int | float | bool | None"
Values: TypeAlias = Mapping[str, Value]
_LEFT_OUT = object()


class Parameter(BaseModel):
    """A parameter of a template. Its value may be left empty only if it is not `required`."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, str_strip_whitespace=True, strict=True, allow_inf_nan=False
    )

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
    type: Literal["text", "number", "choice", "boolean", "generation", "volume", "secret"]
    description: Annotated[str, Field(max_length=300)] = ""
    required: bool = True
    default: str | int | float | bool | None = None
    whole: bool = False  # of numbers
    min: float | None = None
    max: float | None = None
    choices: Annotated[list[str], Field(max_length=100)] = []

    @field_validator("choices")
    @classmethod
    def _are_different_texts(cls, choices: list[str]) -> list[str]:
        for at, choice in enumerate(choices):
            if why := _why_no_text(choice):
                raise RefusedAt((at,), why)
            if choice in choices[:at]:
                raise RefusedAt((at,), f"the list contains {choice} twice")
        return choices

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Self:
        if self.type == "choice" and not self.choices:
            raise RefusedAt(("choices",), "a choice needs a list of choices")
        if self.type != "choice" and self.choices:
            raise RefusedAt(("choices",), "only a choice has choices")
        if self.type != "number" and (self.whole or self.min is not None or self.max is not None):
            raise RefusedAt(("type",), "only a number has min, max and whole")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise RefusedAt(("min",), "must not be greater than max")
        if self.default is not None and (why := self.read(self.default)[1]):
            raise RefusedAt(("default",), why)
        return self

    def read(self, given: object) -> tuple[Value, str]:
        """Converts a value that a user gave, as text or of the right type. Returns the value, and what is wrong with it
        ("" if nothing)."""
        if given is None or given == "":
            return None, "is required" if self.required else ""
        if self.type == "number":
            return self._number(given)
        if self.type == "boolean":
            value = {"true": True, "false": False}.get(given) if isinstance(given, str) else given
            return (value, "") if isinstance(value, bool) else (None, "must be true or false")
        if not isinstance(given, str):
            return None, f"must be a text, not {shown(given)}"
        if self.type == "choice" and given not in self.choices:
            return None, f"must be one of {', '.join(self.choices)}"
        return given, _why_no_text(given)

    def _number(self, given: object) -> tuple[Value, str]:
        number = given
        if isinstance(given, str):
            exact = read_whole(given) if self.whole else read_decimal(given)
            number = exact if exact is None or self.whole else float(exact)
        if isinstance(number, bool) or not isinstance(number, int | float):
            return None, "must be a whole number" if self.whole else f"must be {DECIMAL_IN_WORDS}"
        if self.whole and number != int(number):
            return None, "must be a whole number"
        least = -LARGEST if self.min is None else self.min
        most = LARGEST if self.max is None else self.max
        if not least <= number <= most:
            return None, f"must be a number from {least:g} to {most:g}"
        return (int(number) if number == int(number) else number), ""

    @property
    def sample(self) -> Value:
        """Returns a value with which the template can be checked and shown before a user has chosen one."""
        if self.default is not None:
            return self.read(self.default)[0]
        match self.type:
            case "number":
                least, most = self.min, self.max
                if (least is None or least <= 1) and (most is None or most >= 1):
                    return 1
                return self.read(least if least is not None else most)[0]
            case "boolean":
                return False
            case "choice":
                return self.choices[0]
        return self.name.replace("_", "-")


def _typed_fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yields the fields of numbers and switches, by path without positions."""
    for name, field in model.model_fields.items():
        for kind in _kinds(field.annotation):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _typed_fields(kind, f"{prefix}{name}.")
            elif kind in (int, float, bool):
                yield prefix + name


def _kinds(annotation: Any) -> Iterator[Any]:
    """Yields the types that a field, or an item of its list, may have. Values of mappings are texts."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _kinds(args[0])
    elif origin in (Union, UnionType, list):
        for one in args:
            yield from _kinds(one)
    elif origin is None:
        yield annotation


# Fields that take the value of a parameter itself. All others take it as text.
TYPED = frozenset(_typed_fields(JobSpec))


def read_parameters(data: Any) -> tuple[Parameter, ...]:
    """Validates a list of parameters. Raises SpecError with each problem, by a path such as `parameters.0.min`."""
    if not isinstance(data, list | tuple):
        raise SpecError({"parameters": "must be a list of parameters, each with a name and a type"})
    if len(data) > MOST_PARAMETERS:
        raise SpecError({"parameters": f"must be at most {MOST_PARAMETERS}, not {len(data)}"})
    if flaw := not_storable(list(data)):
        raise SpecError({"parameters": f"{'.'.join(flaw[0])} {flaw[1]}"})
    found: list[Parameter] = []
    problems: dict[str, str] = {}
    for at, one in enumerate(data):
        try:
            found.append(Parameter.model_validate(one))
        except ValidationError as error:
            for item in error.errors(include_url=False):
                says = str(item["ctx"]["error"]) if item["type"] == "value_error" else item["msg"]
                problems.setdefault(".".join(("parameters", str(at), *path_of(item))), says)
            continue
        if found[-1].name in [parameter.name for parameter in found[:-1]]:
            problems[f"parameters.{at}.name"] = f"{found[-1].name} is the name of an earlier parameter"
    if problems:
        raise SpecError(problems)
    return tuple(found)


def read_template(text: str) -> dict[str, Any]:
    """Reads the specification of a template from YAML, without checking its fields. Raises SpecError if this is no
    mapping."""
    if len(text) > LONGEST_YAML:
        raise SpecError({"yaml": f"must have at most {LONGEST_YAML} characters"})
    try:
        data = yaml_core.read(text)
    except yaml_core.NotYaml as error:
        raise SpecError({"yaml": str(error)}) from None
    if not isinstance(data, dict):
        raise SpecError({"yaml": "must have the fields of a job specification, such as name and command"})
    return data


def check_template(spec: Mapping[str, Any], parameters: Sequence[Parameter]) -> JobSpec:
    """Returns the specification of a template with sample values.

    Raises SpecError if it is invalid, if a parameter is not used, or if one stands where a value could be read as more
    than a text.
    """
    if flaw := not_storable(dict(spec)):
        raise SpecError({".".join(flaw[0]): flaw[1]})
    names = [parameter.name for parameter in parameters]
    problems: dict[str, str] = {}
    used: set[str] = set()
    for path, text in _texts(spec):
        field = _field(path)
        named = names_in(text, names)
        used |= named
        if named and path[0] in WITHOUT_PLACEHOLDERS:
            problems[".".join(path)] = f"must not contain {{{min(named)}}}: this field has no parameters"
        elif field in COMMANDS and (why := why_not_in_command(text, names)):
            problems[".".join(path)] = why
    for path in _braces(spec, names):
        problems[".".join(path[:-1])] = f"put {{{path[-1]}}} in quotes: '{{{path[-1]}}}'"
    unused = [name for name in names if name not in used]
    if unused and not problems:
        problems["parameters"] = (
            f"{', '.join(unused)} is not used: write {{{unused[0]}}} in the specification"
        )
    if problems:
        raise SpecError(problems)
    return JobSpec.parse(fill(spec, {parameter.name: parameter.sample for parameter in parameters}))


def read_values(parameters: Sequence[Parameter], given: Mapping[str, object]) -> dict[str, Value]:
    """Converts the values that a user gave. A parameter that is not in `given` has its default.

    Raises SpecError, by the name of the parameter, for each wrong or missing value, and for unknown names.
    """
    known = {parameter.name: parameter for parameter in parameters}
    problems = {
        name: f"is not a parameter of this template; accepted: {', '.join(known) or 'none'}"
        for name in given
        if name not in known
    }
    values: dict[str, Value] = {}
    for name, parameter in known.items():
        values[name], why = parameter.read(given.get(name, parameter.default))
        if why:
            problems[name] = why
    if problems:
        raise SpecError(problems)
    return values


def fill(spec: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """Returns the specification with the values in place of `{name}`.

    In commands, values are quoted for the shell. A text that consists of one `{name}` becomes the value itself in
    fields of numbers and switches. Without a value, such a field, or such an item of a list, is left out; elsewhere the
    value is an empty text.
    """
    filled = _fill(dict(spec), values, ())
    return dict(filled)


def _fill(node: Any, values: Values, path: tuple[str, ...]) -> Any:
    match node:
        case str() if path and path[0] not in WITHOUT_PLACEHOLDERS:
            return _fill_text(node, values, path)
        case dict():
            found = {name: _fill(one, values, (*path, str(name))) for name, one in node.items()}
            return {name: one for name, one in found.items() if one is not _LEFT_OUT}
        case list():
            items = [(one, _fill(one, values, (*path, str(at)))) for at, one in enumerate(node)]
            return [new for one, new in items if new is not _LEFT_OUT and not _lost_a_field(one, new)]
    return node


def _fill_text(text: str, values: Values, path: tuple[str, ...]) -> Any:
    texts = {name: "" if value is None else text_of(value) for name, value in values.items()}
    field = _field(path)
    if field in COMMANDS:
        return render(text, texts)
    name = text.strip()[1:-1]
    if name in values and text.strip() == f"{{{name}}}":
        if values[name] is None:
            return _LEFT_OUT
        return values[name] if field in TYPED else texts[name]
    return insert(text, texts)


def _lost_a_field(before: Any, after: Any) -> bool:
    return isinstance(before, dict) and len(after) < len(before)


def _field(path: tuple[str, ...]) -> str:
    """Returns a path without positions in lists."""
    return ".".join(step for step in path if not step.isdigit())


def _texts(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields each text in the data with its path. Keys are no texts: they are never filled."""
    match node:
        case str() if path:
            yield path, node
        case Mapping():
            for name, one in node.items():
                yield from _texts(one, (*path, str(name)))
        case list():
            for at, one in enumerate(node):
                yield from _texts(one, (*path, str(at)))


def _braces(node: Any, names: Sequence[str], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the paths of `{name}` without quotes, which YAML reads as a mapping with one key."""
    match node:
        case Mapping():
            for name, one in node.items():
                if one is None and len(node) == 1 and name in names and path:
                    yield (*path, str(name))
                yield from _braces(one, names, (*path, str(name)))
        case list():
            for at, one in enumerate(node):
                yield from _braces(one, names, (*path, str(at)))


def _why_no_text(text: str) -> str:
    if len(text) > LONGEST_VALUE:
        return f"must have at most {LONGEST_VALUE} characters"
    if BREAKS.search(text):
        return "must be on one line, without control characters"
    if flaw := not_storable(text):
        return flaw[1]
    return ""
