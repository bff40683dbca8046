"""The generated part of the client: it has a method for every operation of the API, and is up to date."""

from __future__ import annotations

import copy
import inspect

import pytest

import fairlot_generator
from fairlot_client.calls import Method, PagedMethod, StreamMethod
from fairlot_client.operations import Operations
from portal.api.api import api


def test_every_operation_of_the_api_has_a_method() -> None:
    operations = fairlot_generator.operations_of(api.get_openapi_schema())
    assert len(operations) > 90
    assert operations.keys() - fairlot_generator.NAMES.keys() == set(), (
        "add them to NAMES, then run `make client`"
    )
    methods = {
        name for name, one in vars(Operations).items() if isinstance(one, Method | PagedMethod | StreamMethod)
    }
    assert set(fairlot_generator.NAMES.values()) <= methods
    assert len(set(fairlot_generator.NAMES.values())) == len(fairlot_generator.NAMES)


def test_what_was_generated_is_current() -> None:
    for name, text in fairlot_generator.files_of(api.get_openapi_schema()).items():
        assert (fairlot_generator.FOLDER / name).read_text() == text, "run `make client`"


def test_an_operation_without_a_method_and_a_method_without_an_operation_are_named() -> None:
    document = copy.deepcopy(api.get_openapi_schema())
    document["paths"]["/api/v1/moons"] = {"get": {"parameters": [], "responses": {}}}
    with pytest.raises(ValueError, match=r"lacks these operations: GET /moons"):
        fairlot_generator.files_of(document)
    del document["paths"]["/api/v1/moons"], document["paths"]["/api/v1/me"]
    with pytest.raises(ValueError, match=r"operations that the API lacks: GET /me"):
        fairlot_generator.files_of(document)


def test_every_parameter_and_field_that_is_not_deprecated_is_an_argument() -> None:
    document = api.get_openapi_schema()
    schemas = document["components"]["schemas"]
    for key, operation in fairlot_generator.operations_of(document).items():
        method = vars(Operations)[fairlot_generator.NAMES[key]]
        arguments = len(inspect.signature(method.describe).parameters)
        wanted = [one for one in operation["parameters"] if not one.get("deprecated")]
        files = "format" in {one["name"] for one in wanted}
        content = operation.get("requestBody", {}).get("content", {})
        body = content.get("application/json", {}).get("schema", {})
        body = schemas[body["$ref"].rpartition("/")[2]] if "$ref" in body else body
        fields = [one for one in body.get("properties", {}).values() if not one.get("deprecated")]
        is_one = body.get("type") == "array" or content.keys() - {"application/json"}
        assert arguments == len(wanted) - files + (1 if is_one else len(fields)), key
