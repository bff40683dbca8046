"""Names that version 1 of the API has renamed. Old names still work for one more version, and are marked as deprecated.

Each old name is declared once:

- an old field beside the new field, with `read_as` (request) or `answered_too` (response);
- an old value in the type of the field, with `OldValues`;
- an old path in OLD_PATHS.

In the OpenAPI document each old name has `deprecated`, and its new name under `x-renamed-to`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ninja import Field, Router
from ninja.schema import DjangoGetter
from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from accounting.core.old_names import contradictions, with_both_names

RENAMED_TO = "x-renamed-to"
# Old paths by the new path.
OLD_PATHS = {
    "/gpu-map": "/cluster",
    "/jobs/{int:job_id}/preemptible": "/jobs/{int:job_id}/sharing",
    "/clusters/{name}/standalone-pods": "/clusters/{name}/bare-pods",
}


def deprecated_for(new: str) -> dict[str, Any]:
    """Returns the OpenAPI properties for an old name whose new name is `new`.

    They are `deprecated`, `x-renamed-to`, and a description that states the new name.
    """
    return {"deprecated": True, RENAMED_TO: new, "description": f"Deprecated: use `{new}`."}


def read_as(new: str) -> Any:
    """Declares a request field under its old name. A value sent under the old name counts as the value of the field
    `new`."""
    return Field(None, exclude=True, json_schema_extra=deprecated_for(new))


def answered_too(new: str) -> Any:
    """Declares a response field under its old name. The response has the same value under the old name and the name
    `new`."""
    return Field(json_schema_extra=deprecated_for(new))


def with_old_properties(schema: dict[str, Any], new_names: Mapping[str, str]) -> dict[str, Any]:
    """Returns a copy of a JSON schema in which each renamed property also exists under its old, deprecated name."""
    properties = schema["properties"]
    olds = {old: properties[new] | deprecated_for(new) for old, new in new_names.items()}
    return schema | {"properties": properties | olds}


class WithOldNames(BaseModel):
    """A schema in which some fields also exist under an old name.

    A request that gives the old name and the new name different values is refused.
    """

    @model_validator(mode="before")
    @classmethod
    def _fill_both_names(cls, given: Any) -> Any:
        data = given._obj if isinstance(given, DjangoGetter) else given
        if not isinstance(data, dict):
            return given
        new_names = _new_names(cls)
        if wrong := contradictions(data, new_names):
            raise ValidationError.from_exception_data(
                cls.__name__, [_at(old, why) for old, why in wrong.items()]
            )
        return with_both_names(data, new_names)


@cache
def _new_names(model: type[BaseModel]) -> dict[str, str]:
    """Returns a mapping from the old to the new name of each renamed field of a schema."""
    extras = {name: field.json_schema_extra for name, field in model.model_fields.items()}
    return {
        name: str(extra[RENAMED_TO])
        for name, extra in extras.items()
        if isinstance(extra, dict) and RENAMED_TO in extra
    }


def _at(field: str, why: str) -> InitErrorDetails:
    return {"type": PydanticCustomError("old_name", "{why}", {"why": why}), "loc": (field,), "input": None}


@dataclass(frozen=True)
class OldValues:
    """Old values that a field still accepts, as pairs (old value, new value). A request with an old value is treated as
    if it had the new value."""

    new_values: tuple[tuple[str, str], ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        new_values = dict(self.new_values)

        def read(value: object) -> object:
            return new_values.get(value, value) if isinstance(value, str) else value

        return core_schema.no_info_before_validator_function(read, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        olds = [{"const": old, "type": "string"} | deprecated_for(new) for old, new in self.new_values]
        return {"anyOf": [handler(schema), *olds]}


def answer_at_old_paths(router: Router) -> None:
    """Makes the renamed operations of a router also available at their old paths."""
    for new, view in list(router.path_operations.items()):
        if (old := OLD_PATHS.get(new)) is None:
            continue
        router.path_operations[old] = at_old = view.clone()
        for operation in at_old.operations:
            operation.url_name = operation.operation_id = f"{operation.url_name}_at_old_path"
            said = deprecated_for(re.sub(r"\{[a-z]+:", "{", new))
            operation.deprecated, operation.description = said["deprecated"], said["description"]
            operation.openapi_extra = {RENAMED_TO: said[RENAMED_TO]} | (operation.openapi_extra or {})
