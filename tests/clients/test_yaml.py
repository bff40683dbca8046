"""YAML of the command line means what it means to the portal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlot_client.cli import yaml_core
from scheduling.spec import yaml_core as of_portal

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.just("\n"))
    | st.sampled_from(["no", "1:30", "010", "0x1", "~", "2026-11-25", "<<", "=", "1_0", "1e3", "- a", ""])
)
NESTED = st.recursive(SCALARS, lambda of: st.lists(of) | st.dictionaries(st.text("ab"), of), max_leaves=6)
DATA = st.dictionaries(st.text(st.characters(categories=["Ll", "Nd"])), NESTED)


@given(DATA)
def test_what_is_written_is_read_again_here_and_by_the_portal(data: dict[str, object]) -> None:
    text = yaml_core.write(data)
    assert yaml_core.read(text) == data
    assert of_portal.read(text) == data


@given(st.text("ab:-{}[]'\"#&*!|> 01.eEx+~\n\t", max_size=30))
def test_texts_are_read_as_the_portal_reads_them(text: str) -> None:
    try:
        mine = yaml_core.read(text)
    except yaml_core.NotYaml:
        return
    try:
        theirs = of_portal.read(text)
    except of_portal.NotYaml:
        return
    assert repr(mine) == repr(theirs)


@pytest.mark.parametrize(
    "text", ["a: 1\na: 2", "a: &x 1\nb: *x", "a: !!python/name:os.system", "1: a", "a: ["]
)
def test_what_is_doubtful_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(yaml_core.NotYaml, match=r"line [12]: "):
        yaml_core.read(text)


WORDS = [
    "no",
    "on",
    "Yes",
    "1:30",
    "010",
    "0o17",
    "0x1F",
    "1_0",
    "2026-11-25",
    "1e3",
    "+1",
    ".5",
    "5.",
    "~",
    "",
    "TRUE",
]


@pytest.mark.parametrize("word", WORDS)
def test_words_have_the_types_that_they_have_in_the_portal(word: str) -> None:
    mine, theirs = (module.read(f"a: {word}")["a"] for module in (yaml_core, of_portal))
    assert (type(mine), mine) == (type(theirs), theirs)
