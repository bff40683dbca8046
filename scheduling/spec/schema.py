"""The JSON Schema of a job specification, for editors and other tools that check YAML.

Editors know draft 07 best, so the schema uses only keywords of draft 07. It is a first check: `JobSpec.parse` also
checks values against each other.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from scheduling.spec.job_spec import ACCEPTED, NEW_NAMES, JobSpec

PUBLISHED_AT = "/schemas/job/v1.json"
DRAFT = "http://json-schema.org/draft-07/schema#"
FILE = Path(__file__).parent / "schemas" / "job-v1.json"


def job_schema() -> dict[str, Any]:
    """Returns the schema, made from the model.

    Each field is described by what is accepted. Former names of fields are accepted, too.
    """
    made = _in_draft_07(JobSpec.model_json_schema(by_alias=True))
    properties = {
        name: {"description": _sentence(ACCEPTED[name]), **field} if name in ACCEPTED else field
        for name, field in made.pop("properties").items()
    }
    for old, new in NEW_NAMES.items():
        properties[old] = {
            **properties[new],
            "description": f"The former name of {new}, which the next version removes.",
        }
    return {
        "$schema": DRAFT,
        "$id": PUBLISHED_AT,
        "title": "Job specification of Fairlot",
        "type": made.pop("type"),
        "required": made.pop("required"),
        "additionalProperties": made.pop("additionalProperties"),
        "properties": properties,
        "definitions": made.pop("definitions"),
    }


def written() -> str:
    """Returns the schema as the text of the committed file."""
    return json.dumps(job_schema(), indent=2, ensure_ascii=False) + "\n"


@lru_cache(1)
def published() -> bytes:
    """Returns the committed file."""
    return FILE.read_bytes()


def _in_draft_07(value: Any) -> Any:
    """Returns a schema in the names of draft 07, without titles, which only repeat the names of fields."""
    if isinstance(value, list):
        return [_in_draft_07(one) for one in value]
    if not isinstance(value, dict):
        return f"#/definitions/{value.removeprefix('#/$defs/')}" if _is_reference(value) else value
    found = {}
    for key, inner in value.items():
        if key == "title" and isinstance(inner, str):
            continue
        found["definitions" if key == "$defs" else key] = inner if key == "default" else _in_draft_07(inner)
    return found


def _is_reference(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("#/$defs/")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
