"""Every name of a file has one printable text, and each text leads to one name in the folder, or to none."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.backends.file_names import BadPath, name_of, names_of, text_of

NAMES = (
    st.binary(min_size=1, max_size=40)
    .filter(lambda name: name not in {b".", b".."})
    .map(lambda name: name.replace(b"/", b"_").replace(b"\0", b"_"))
)


@given(NAMES)
def test_the_text_of_a_name_is_printable_and_leads_back_to_it(name: bytes) -> None:
    text = text_of(os.fsdecode(name))
    assert text.isprintable()
    assert "/" not in text
    assert os.fsencode(name_of(text)) == name


@given(st.text(max_size=60))
def test_no_text_leads_out_of_its_folder(text: str) -> None:
    try:
        names = names_of(text)
    except BadPath:
        return
    for name in map(os.fsencode, names):
        assert name not in {b"", b".", b".."}
        assert b"/" not in name
        assert b"\0" not in name
        assert len(name) <= 255


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "work/../../2", "work//x", "work/", "..", ".", "work/\0", r"work/\x00", r"work/\x2e\x2e", r"a\x2fb",
     "\\", r"\x4", "\ud800", "a" * 256, "/".join("a" * 101), "a/" * 2100],
)  # fmt: skip
def test_these_paths_are_refused(path: str) -> None:
    with pytest.raises(BadPath):
        names_of(path)


def test_ordinary_names_are_their_own_text() -> None:
    for name in ("weights.pt", "Größe ½.csv", "模型", ".hidden", "a:b", "-rf", "%2e%2e"):
        assert text_of(name) == name
    assert text_of("a\nb\\c\udcff\u202e") == r"a\x0ab\\c\xff\xe2\x80\xae"
