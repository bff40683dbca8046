"""Replaces the references in a JSON schema by their targets, so that the schema can be embedded in another schema."""

from __future__ import annotations

from typing import Any


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema with each `$ref` replaced by the schema in `$defs` to which it refers. The references must
    have no cycle."""
    parts = schema.get("$defs", {})

    def resolved(value: Any) -> Any:
        if isinstance(value, list):
            return [resolved(one) for one in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return resolved(parts[value["$ref"].removeprefix("#/$defs/")])
        return {key: resolved(one) for key, one in value.items() if key != "$defs"}

    whole: dict[str, Any] = resolved(schema)
    return whole
