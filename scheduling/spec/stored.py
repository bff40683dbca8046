"""Loads stored pydantic models without validating them. A model stays readable even if the rules have changed since it
was stored."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel

M = TypeVar("M", bound=BaseModel)


def load(model: type[M], data: object) -> M:
    """Returns a model with the values in `data`, without applying the model's validators and bounds.

    Ignores unknown fields. A field that is missing or has a value of another type gets its default. A required field
    gets "" instead, because all required fields are texts.
    """
    given = data if isinstance(data, Mapping) else {}
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        usual = "" if field.is_required() else field.get_default(call_default_factory=True)
        values[name] = value_of(field.annotation, given[name], usual) if name in given else usual
    return model.model_construct(None, **values)


def value_of(kind: Any, value: object, usual: Any) -> Any:
    """Returns `value` if it has the type `kind`, otherwise `usual`, the default. Models inside `value` are loaded too,
    like in `load`."""
    try:
        return _typed(kind, value)
    except TypeError:
        return usual


def _typed(kind: Any, value: Any) -> Any:
    """Returns `value` if it has the type `kind`, otherwise raises TypeError.

    A bool does not count as a number. An int is converted if a float is expected.
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _typed(args[0], value)
    if origin in (Union, UnionType):
        for one in args:
            with suppress(TypeError):
                return _typed(one, value)
    elif origin is Literal:
        return _typed(type(args[0]), value)
    elif origin is list and isinstance(value, list):
        return [_typed(args[0], one) for one in value]
    elif origin is dict and isinstance(value, dict):
        return {_typed(args[0], key): _typed(args[1], one) for key, one in value.items()}
    elif isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, Mapping):
        return load(kind, value)
    elif kind is float and type(value) is int:
        return float(value)
    elif type(value) is kind:
        return value
    raise TypeError
