"""Tests which names and data Fairlot accepts and which it rejects."""

import pytest

from accounting import actions
from accounting.core.errors import Refused
from accounting.core.texts import DEEPEST, MOST_VALUES, not_storable, one_line, why_no_name
from accounting.models import Tenant
from scheduling.spec.job_spec import JobSpec, SpecError
from tests.make import Cast

READABLE = (
    "alice",
    "Team 7 (night) – A/B",
    "Grüße",
    "cafe\u0301",
    "日本語 チーム",
    "אסטרו",
    "می\u200cخواهم",  # a non-joiner between Arabic letters
    "क्\u200dष",  # a joiner after a virama
    "👩\u200d💻 models",
    "❤\ufe0f",
)
UNREADABLE = {
    "only zero-width": "\u200b\u200b",
    "only joiners": "\u200d\u200c",
    "only a filler": "\u3164",
    "only a blank pattern": "\u2800",
    "only combining marks": "\u0301",
    "only spaces": "\u3000 ",
    "reversed": "gnp.\u202egol",
    "isolated": "\u2067team\u2069",
    "a mark of direction": "team\u200f",
    "a joiner between Latin letters": "ali\u200dce",
    "a soft hyphen": "ali\u00adce",
    "a byte order mark": "\ufeffalice",
    "tags": "alice\U000e0061",
    "a filler inside": "ali\u115fce",
    "next line": "a\u0085b",
    "line separator": "a\u2028b",
    "paragraph separator": "a\u2029b",
    "vertical tab": "a\vb",
    "file separator": "a\x1cb",
    "no-break space": "a\xa0b",
    "private use": "a\ue000",
    "space at its end": "alice ",
    "empty": "",
}


@pytest.mark.parametrize("name", READABLE)
def test_a_name_of_any_script_is_accepted(name: str) -> None:
    assert why_no_name(name) == ""


@pytest.mark.parametrize("name", UNREADABLE.values(), ids=UNREADABLE)
def test_a_name_that_cannot_be_read_is_refused_in_words(name: str) -> None:
    assert "accepted: visible characters" in why_no_name(name)


def test_each_action_that_gives_a_name_checks_it(cast: Cast) -> None:
    bad = "x\u202ey"
    tries = {
        "name": [
            lambda: actions.create_tenant(actor=cast.ada, name=bad, parent=None),
            lambda: actions.rename_tenant(actor=cast.ada, tenant=cast.astro, name=bad),
            lambda: actions.create_generation(actor=cast.ada, name=bad),
        ],
        "username": [lambda: actions.create_user(actor=cast.ada, username="\u3164")],
        "first_name": [lambda: actions.create_user(actor=cast.ada, username="eve", first_name=bad)],
    }
    for field, calls in tries.items():
        for call in calls:
            with pytest.raises(Refused, match=r"visible characters|letters \(a–z") as refused:
                call()
            assert refused.value.field == field
    assert not Tenant.objects.filter(name__contains="\u202e").exists()


@pytest.mark.parametrize("name", ["\u200b", "gnp.\u202egol", "a\u2028b"])
def test_a_spec_that_was_stored_before_keeps_its_name(name: str) -> None:
    stored = {"name": name, "command": "true"}
    with pytest.raises(SpecError, match="visible characters"):
        JobSpec.parse(stored)
    assert JobSpec.stored(stored).name == name


def test_one_line_keeps_no_character_at_which_lines_break() -> None:
    breaks = "".join(char for char in map(chr, range(0x110000)) if len(f"a{char}b".splitlines()) > 1)
    assert "\u0085" in breaks
    assert one_line(f"a{breaks}b\tc") == "a b c"
    for char in breaks:
        assert one_line(f"a{char}b") == "a b"


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ("a\0", ()),
        ({"spec": {"name": ["x", "\ud800"]}}, ("spec", "name", "1")),
        ({"a": {"\0": 1}}, ("a",)),
        ({"n": 2**63}, ("n",)),
        ({"n": -(2**63) - 1}, ("n",)),
        ({"n": float("nan")}, ("n",)),
        ({"n": [float("inf")]}, ("n", "0")),
    ],
)
def test_the_place_of_what_cannot_be_stored_is_named(data: object, place: tuple[str, ...]) -> None:
    found = not_storable(data)
    assert found is not None
    assert found[0] == place


def test_data_has_a_bounded_number_of_values() -> None:
    data: dict[str, object] = {"a": [0] * (MOST_VALUES - 2), "b": 1}
    assert not_storable(data) is None
    assert not_storable({"b": data}) == (("b",), "must not contain more than 200\xa0000 values")


def test_data_nested_without_end_is_refused_without_recursion() -> None:
    data: object = "x"
    for _ in range(100_000):
        data = {"a": data}
    found = not_storable(data)
    assert found is not None
    assert str(DEEPEST) in found[1]
    assert not_storable({"a": [True, 2**63 - 1, -(2**63), 1.5, None, "😀"]}) is None
