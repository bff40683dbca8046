"""What holds for the import of every format: nothing is lost, nothing raises, no credential passes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scheduling.importers.reading import Source, Unreadable, leaves
from scheduling.importers.registry import FORMATS, convert, is_own, recognise
from scheduling.importers.report import Conversion, Fate, WorkKind, containers_of
from scheduling.pipelines.definition import Definition
from scheduling.spec.job_spec import JobSpec

SAMPLES = sorted((Path(__file__).parent / "samples").iterdir())
TOKEN = "hf_" + "Ab3dE6gH9" * 3
WORDS = st.sampled_from(
    [
        "",
        "null",
        "yes",
        "0755",
        "22:30",
        "-1",
        "0",
        "1e9",
        "{{ x }}",
        "${X}",
        "[]",
        "{}",
        "a100",
        "/etc",
        "'",
        "|",
        "- x",
    ]
)


def check(found: Conversion) -> None:
    """Fails unless the result is one that the portal can show and submit."""
    assert bool(found.works) is not found.refused, found.report
    assert found.report
    for line in found.report:
        assert isinstance(line.fate, Fate)
        assert line.text.endswith((".", "?")), line
    for work in found.works:
        if work.kind is WorkKind.PIPELINE:
            assert Definition.parse(work.options["pipeline"]).name == work.name
        else:
            assert JobSpec.parse(dict(work.spec)).name == work.name
        json.dumps(dict(work.options))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_samples_are_recognised_and_converted(sample: Path) -> None:
    text = sample.read_text()
    known = recognise(text)
    assert known is not None
    assert sample.name.startswith(known.name)
    found = convert(text, known_generations=("A100-40GB", "A100-80GB", "H100", "V100"))
    assert found.works, found.report
    check(found)


@given(st.sampled_from(FORMATS), st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_any_text_has_a_result(known: Any, text: str) -> None:
    recognise(text)
    check(convert(text, name=known.name))


@given(st.sampled_from(SAMPLES), st.data())
def test_a_damaged_sample_has_a_result(sample: Path, data: st.DataObject) -> None:
    lines = sample.read_text().split("\n")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        words = lines[at].split(" ")
        match data.draw(st.integers(0, 3)):
            case 0:
                lines[at : at + 1] = []
            case 1:
                lines.insert(at, lines[at])
            case 2:
                words[data.draw(st.integers(0, len(words) - 1))] = data.draw(WORDS)
                lines[at] = " ".join(words)
            case _:
                words[-1:] = [data.draw(st.text(max_size=12))]
                lines[at] = " ".join(words)
        lines = lines or [""]
    check(convert("\n".join(lines), name=sample.name.split("-")[0]))


OF_DOCUMENTS = [sample for sample in SAMPLES if sample.suffix != ".sh"]


def changed(data: Any, draw: st.DataObject, value: Any) -> Any:
    """Puts the value at a drawn place of the data: into a mapping under a new key, or in place of a leaf."""
    places = list(_places(data))
    holder, key = places[draw.draw(st.integers(0, len(places) - 1))]
    holder[key] = value
    return data


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(data, dict):
        yield data, "someNewField"
        for key, value in data.items():
            yield data, key
            yield from _places(value)
    elif isinstance(data, list):
        for at, value in enumerate(data):
            yield data, at
            yield from _places(value)


@given(st.sampled_from(OF_DOCUMENTS), st.data())
def test_every_field_is_in_the_report(sample: Path, draw: st.DataObject) -> None:
    documents = [one for one in yaml.safe_load_all(sample.read_text()) if one is not None]
    value = draw.draw(
        st.recursive(
            WORDS | st.booleans() | st.integers(0, 9),
            lambda one: (
                st.lists(one, max_size=2) | st.dictionaries(st.sampled_from("abc.-"), one, max_size=2)
            ),
        )
    )
    text = yaml.dump_all([changed(documents[0], draw, value), *documents[1:]])
    name = sample.name.split("-")[0]
    found = convert(text, name=name)
    check(found)
    version = next(one.version for one in FORMATS if one.name == name)
    assert version is not None
    sources = {line.source for line in found.report}
    try:
        documents_read = Source(text).documents(version)
    except Unreadable:
        return
    for document in documents_read:
        for leaf in leaves(document.data, document.path):
            assert sources & {leaf, *containers_of(leaf)}, (leaf, found.report)


@given(st.sampled_from(OF_DOCUMENTS), st.data())
def test_a_credential_is_neither_in_the_result_nor_in_the_report(sample: Path, draw: st.DataObject) -> None:
    documents = [one for one in yaml.safe_load_all(sample.read_text()) if one is not None]
    secret = draw.draw(
        st.sampled_from([TOKEN, f"https://user:{TOKEN[3:]}@example.org/x", f"--token={TOKEN}"])
    )
    found = convert(
        yaml.dump_all([changed(documents[0], draw, secret), *documents[1:]]), name=sample.name.split("-")[0]
    )
    check(found)
    assert TOKEN[3:] not in str(found)


def test_a_specification_of_fairlot_is_not_foreign() -> None:
    text = JobSpec(name="x", command="python train.py", workers=2).to_yaml()
    assert is_own(Source(text))
    assert recognise(text) is None


def test_an_unknown_text_is_refused_with_the_formats_that_are_known() -> None:
    found = convert("some: text")
    assert found.refused
    assert "Slurm batch script" in found.report[0].text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("apiVersion: v1\nkind: Pod\nkind: Pod\n", "'kind' occurs twice"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: {{ .Release.Name }}}\n", "template"),
        ("apiVersion: v1\nkind: Pod\na: &a [x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
         "d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e]\n", "too"
                " many values"),
        ("apiVersion: v1\nkind: Pod\na: &a [*a]\n", "contains itself"),
        ("apiVersion: v1\nkind: Pod\na: " + "[" * 60 + "]" * 60, "nested too deeply"),
        ("apiVersion: v1\nkind: Pod\na: !!python/name:os.system x", "tag"),
        ('{"apiVersion": "v1", "kind": "Pod", "a": 1, "a": 2}', "'a' occurs twice"),
        ("apiVersion: v1\nkind: Pod\na: " + "x" * 140_000, "At most"),
    ],
)  # fmt: skip
def test_a_text_that_cannot_be_read_is_refused(text: str, says: str) -> None:
    found = convert(text, name="kubernetes")
    assert found.refused
    assert says in found.report[0].text
    assert not any(line.fate is not Fate.REFUSED for line in found.report)
