"""Numbers and booleans are parsed strictly, in request bodies, queries, forms and environment variables."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, get_args, get_origin

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.exceptions import ValidationError as WrongField
from django.core.management import CommandError, call_command
from django.test import Client
from pydantic import BaseModel, ValidationError

from accounting.core.errors import Refused
from accounting.core.numbers import read_decimal, read_key, read_whole
from portal.api.api import api
from portal.forms.budget import Percentages
from portal.forms.fields import Exact, Whole
from portal.schedules.timing import Timing
from portal.settings import env
from portal.submit.fields import NUMBERS, Fields
from scheduling.spec.job_spec import SpecError
from tests.portal.scene import Scene

Place = tuple[str | int, ...]
NO_WHOLE = ["", "true", "1_0", "１０", "٣", "0x10", "1e3", "1.0", "1:30", "--1", "1 0", "ten", "²", "1\n2"]
NO_DECIMAL = [
    "",
    "true",
    "1_0.0",
    "１.5",
    "٣",
    "0x10",
    "1:30",
    "nan",
    "inf",
    "-Infinity",
    "1,5",
    ".",
    "sNaN",
    "1e",
    "1e9999",
]
# JSON values that are refused, by type of the field.
NO_DATA: dict[type, list[Any]] = {
    int: [True, False, "5", "yes", 5.5, 5.0, "１", [5], {}, 10**40],
    float: [True, "5", "yes", "１", [5], 10**400],
    Decimal: [True, False, "yes", "１", "٣", "1_0", "0x1", "NaN", "inf", [5], 10**40],
    bool: ["true", "yes", "on", 1, 0, 1.0, []],
}
# Texts in a query that are refused, by type of the field.
NO_TEXT = {int: NO_WHOLE, bool: ["yes", "on", "1", "0", "True", "t", ""]}


def fields_of(source: str) -> list[tuple[type[BaseModel], Place, type]]:
    """Returns (model, path to the field, type) for each number and boolean in the API's request bodies or queries.

    `source`: "body" or "query".
    """
    found = {}
    for _, router in api._routers:
        for path in router.path_operations.values():
            for operation in path.operations:
                for model in operation.models:
                    if model.__ninja_param_source__ == source:
                        for place, kind in _of(model):
                            where = repr((model.model_fields[str(place[0])].annotation, place))
                            found[where] = (model, place, kind)
    return list(found.values())


def _of(model: type[BaseModel]) -> Iterator[tuple[Place, type]]:
    for name, field in model.model_fields.items():
        kinds = [field.annotation]
        for kind in kinds:
            kinds += get_args(kind)
        here: Place = (field.alias or name, 0) if list in map(get_origin, kinds) else (field.alias or name,)
        inner = next((one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)), None)
        if inner is not None:
            yield from (((*here, *place), kind) for place, kind in _of(inner))
        elif kind := next((one for one in NO_DATA if one in kinds), None):
            yield here, kind


def shown(one: object) -> str:
    return ".".join(map(str, one)) if isinstance(one, tuple) else ""


BODIES, QUERIES = fields_of("body"), fields_of("query")


def refuses(model: type[BaseModel], place: Place, value: Any) -> bool:
    data = value
    for step in reversed(place):
        data = [data] if step == 0 else {step: data}
    try:
        model.model_validate(data)
    except ValidationError as error:
        return place in {item["loc"][: len(place)] for item in error.errors()}
    return False


def test_the_calls_are_found() -> None:
    sent = {place[-1] for _, place, _ in BODIES}
    assert {
        "tickets",
        "amount",
        "catch_up_seconds",
        "replicas",
        "idle_timeout_minutes",
        "even_if_never",
        "paused",
    } - sent <= {"paused"}
    assert {"limit", "before", "after", "offset", "preemptible"} <= {place[-1] for _, place, _ in QUERIES}


@pytest.mark.parametrize(("model", "place", "kind"), BODIES, ids=shown)
def test_a_body_has_numbers_and_switches_as_such(model: type[BaseModel], place: Place, kind: type) -> None:
    assert [value for value in NO_DATA[kind] if not refuses(model, place, value)] == []


@pytest.mark.parametrize(("model", "place", "kind"), QUERIES, ids=shown)
def test_a_query_has_them_in_ascii(model: type[BaseModel], place: Place, kind: type) -> None:
    assert [text for text in NO_TEXT[kind] if not refuses(model, place, text)] == []
    assert not refuses(model, place, "true" if kind is bool else "7")


@pytest.mark.parametrize("text", NO_WHOLE)
def test_a_form_has_whole_numbers_in_ascii(text: str) -> None:
    assert read_whole(text) is None
    assert read_key(text) == 0
    with pytest.raises(WrongField, match="whole number in digits"):
        Whole("n").clean(text)


@pytest.mark.parametrize("text", NO_DECIMAL)
def test_a_form_has_decimals_in_ascii(text: str) -> None:
    with pytest.raises(WrongField, match=r"number such as 2\.50|too large"):
        Exact("n").clean(text)
    if text != "1e9999":
        assert read_decimal(text) is None


def test_forms_read_what_people_write() -> None:
    for text, number in {"5": 5, " 5 ": 5, "-5": -5, "+5": 5, "010": 10}.items():
        assert Whole("n").clean(text) == number
    for text, number in {"2.50": "2.50", ".5": "0.5", "-1": "-1", "1e3": "1000", "3.": "3"}.items():
        assert Exact("n").clean(text) == Decimal(number)


@pytest.mark.parametrize("field", sorted(NUMBERS))
@pytest.mark.parametrize("text", [text for text in NO_WHOLE if text and text not in {"1.0", "1e3"}])
def test_the_job_form_names_the_field(field: str, text: str) -> None:
    with pytest.raises(SpecError) as refused:
        Fields(name="n", command="c", **{field: text}).to_spec()
    assert field in refused.value.problems


def test_other_forms_take_the_same_numbers() -> None:
    for text in ("１", "1_0", "nan", "inf", "0x1", ""):
        with pytest.raises(Refused) as refused:
            Timing(expression="0 12 * * *", time_zone="UTC", catch_up_hours=text).read()
        assert refused.value.field == "catch_up_hours"
    for text in ("８０", "80, ٣", "1_0"):
        with pytest.raises(WrongField):
            Percentages("").clean(text)


def test_rules_of_a_service_in_the_api_are_numbers(scene: Scene, client: Client) -> None:
    bearer = {"HTTP_AUTHORIZATION": f"Bearer {scene.secret}", "content_type": "application/json"}
    service = f"/api/v1/services/{scene.service.pk}"
    for body, field in (
        ({"replicas": True}, "replicas"),
        ({"replicas": "2"}, "replicas"),
        ({"stopped": "yes"}, "stopped"),
    ):
        answer = client.patch(service, body, **bearer)
        assert (answer.status_code, field in answer.json()["problems"]) == (422, True)
    answer = client.get("/api/v1/jobs?limit=１０", **bearer)
    assert answer.status_code == 422
    assert "digits (0 to 9)" in answer.json()["problems"]["limit"]


@pytest.mark.parametrize("text", ["1_0", "１", "0x1", "1.0", "ten"])
def test_a_setting_that_is_no_number_stops_the_start(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("FAIRLOT_SMTP_PORT", text)
    with pytest.raises(ImproperlyConfigured, match="FAIRLOT_SMTP_PORT must be a whole number"):
        env.int("FAIRLOT_SMTP_PORT", 587)
    monkeypatch.setenv("FAIRLOT_SMTP_PORT", "")
    assert env.int("FAIRLOT_SMTP_PORT", 587) == 587
    monkeypatch.setenv("FAIRLOT_SMTP_PORT", "25")
    assert env.int("FAIRLOT_SMTP_PORT", 587) == 25


def test_a_setting_that_is_no_switch_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUG", "ture")
    with pytest.raises(ImproperlyConfigured, match="DEBUG must be true or false, not 'ture'"):
        env.bool("DEBUG", False)
    for text, value in {"True": True, "1": True, "off": False, "": False}.items():
        monkeypatch.setenv("DEBUG", text)
        assert env.bool("DEBUG", False) is value


@pytest.mark.parametrize("text", [text for text in NO_WHOLE if text])
def test_a_command_has_whole_numbers_in_ascii(text: str) -> None:
    with pytest.raises(CommandError, match="whole number in digits"):
        call_command("import_trace", "trace.csv", "--name", "x", f"--nodes={text}")
