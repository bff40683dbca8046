"""Texts with mistakes: their format is recognised although, and they are refused with the reason at its line."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.importers.reading import Source, read_roughly
from scheduling.importers.registry import FORMATS, convert, is_own, recognise
from tests.scheduling.importers.foreign_samples import SAMPLES, format_of

DOCUMENTS = [name for name in SAMPLES if format_of(name) != "slurm"]
KEY = re.compile(
    r"(?:^[- \t]*|[{,]\s*)\"?([A-Za-z_]\w*)\"?:[ \t]+([^\s\[{|>&#\"'-][^\n#,}\]\"]*?|\"[^\"\n]*\")(?=\s*[,}\]]|$)",
    re.MULTILINE,
)


def twice(text: str, key: re.Match[str]) -> tuple[str, int]:
    """Returns the text with a key a second time, and the line of the second."""
    line, begin = text.count("\n", 0, key.start(1)) + 1, key.start(1) - (text[key.start(1) - 1] == '"')
    again = text[begin : key.end()]
    if "{" in key[0] or "," in key[0] or text.lstrip()[:1] in {"{", "["}:
        return f"{text[: key.end()]}, {again}{text[key.end() :]}", line
    indent = key.start(1) - text.rfind("\n", 0, key.start(1)) - 1
    return f"{text[: key.end()]}\n{' ' * indent}{again}{text[key.end() :]}", line + 1


def instead(text: str, key: re.Match[str], value: str) -> tuple[str, int]:
    return text[: key.start(2)] + value + text[key.end(2) :], text.count("\n", 0, key.start(2)) + 1


def mistakes(text: str, at: int) -> list[tuple[str, int, str]]:
    """Returns (text, line, reason) for each kind of mistake at one of the keys of a sample."""
    keys = [one for one in KEY.finditer(text) if one[1] not in {"type", "kind", "apiVersion"}]
    key = keys[at % len(keys)]
    return [
        (*twice(text, key), "occurs twice"),
        (*instead(text, key, "{{ .Values.some }}"), "template"),
        (*instead(text, key, "{{ registry }}/some: {{ x }}"), "template"),
        (*instead(text, key, "!!python/object some"), "YAML tag"),
    ]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_sample_with_a_mistake_is_refused_with_the_reason_at_its_line(name: str) -> None:
    for at in range(0, 39, 13):
        for text, line, reason in mistakes(SAMPLES[name], at):
            found = convert(text)
            (said,) = found.report
            assert (said.source, reason in said.text) == (f"line {line}", True), (said, text)
            if at == 0:
                assert found.format == format_of(name), text


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ('{"id": "/a", "cmd": "x", "instances": 1}\n{"id": "/b", "cmd": "x"}', "line 2", "follow each other"),
        ('{"id": "/a", "cmd": "x", "instances": 1,\n "id": "/b"}', "line 2", "'id' occurs twice"),
        ('{"a": 1e999, "id": 2}', "", "too large"),
        ("type: task\ncommands: [\nimage: x\nnodes: 2\n", "line 4", "not valid YAML"),
        ("resources:\n  cpus: 'a\nrun: x\nsetup: y\n", "line 5", "not valid YAML"),
        ("a: b: c\nd: '{{ e }}'\n", "line 1", "not valid YAML"),
        ("a: '{{ e }}'\nb: c: d\n", "line 2", "not valid YAML"),
        ("x: {{ a }}{{ b }}\n{% if c %}\nd: 1\n{% endif %}\n", "line 1", "template"),
        ("d: 1\n{% if c %}\ne: 1\n{% endif %}\n", "line 2", "template"),
        ("a: 1\n" + "b: " + "x" * 140_000, "", "At most"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused_with_the_reason(text: str, where: str, says: str) -> None:
    (said,) = convert(text).report
    assert (said.source, says in said.text) == (where, True), said


def test_a_script_without_directives_is_an_unknown_format() -> None:
    assert "was not recognised" in convert("#!/bin/sh\necho a: b: c\n").report[0].text


@pytest.mark.parametrize(
    "text",
    ["name: x\ncommand: a\nname: y\n", "name: {{ x }}\ncommand: a\n", "name: x\ncommand: [\nworkers: 2\n"],
)
def test_a_specification_of_fairlot_with_a_mistake_is_not_foreign(text: str) -> None:
    assert is_own(Source(text))
    assert recognise(text) is None
    assert "was not recognised" not in convert(text).report[0].text


@given(
    st.lists(
        st.sampled_from(["a: 1", "b: [x]", "c: {d: 2}", "e: |\n  f: [", "g: !!x y"]), min_size=1, unique=True
    ),
    st.sampled_from(["h: [", "h: '", "h: {{ x }}/y: z", "h: a: b", "h: *i", "h: &x", "h:\n\t- x", "a: 2"]),
    st.data(),
)
def test_the_keys_beside_a_mistake_are_found(lines: list[str], mistake: str, data: st.DataObject) -> None:
    broken = list(lines)
    broken.insert(data.draw(st.integers(0, len(lines))), mistake)
    (found,) = read_roughly("\n".join(broken))
    assert {line[0] for line in lines} <= found.keys()


@given(
    st.text()
    | st.lists(st.sampled_from(["a:", "- ", "{", "}", "[", "\n", "---", "{{", "}}", "%", "'", " b"])).map(
        "".join
    )
)
def test_any_text_is_read_roughly(text: str) -> None:
    assert isinstance(read_roughly(text), list)
    for one in FORMATS:
        assert one.recognise(Source(text)) in {True, False}
