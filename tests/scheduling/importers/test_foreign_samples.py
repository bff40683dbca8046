"""Which format a text has, and that nothing confidential passes."""

from __future__ import annotations

import copy

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scheduling.importers.reading import Source, Yaml, leaves, read_documents
from scheduling.importers.registry import FORMATS, convert
from scheduling.importers.report import containers_of
from tests.scheduling.importers.foreign_samples import ACCEPTED, CONFIDENTIAL, REFUSED, SAMPLES, format_of
from tests.scheduling.importers.test_every_format import check


@pytest.mark.parametrize("name", SAMPLES)
def test_each_sample_is_recognised_as_its_own_format_only(name: str) -> None:
    assert [one.name for one in FORMATS if one.recognise(Source(SAMPLES[name]))] == [format_of(name)]


def test_each_format_has_a_sample() -> None:
    assert {format_of(name) for name in ACCEPTED} == {one.name for one in FORMATS}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_sample_has_a_line_for_each_of_its_fields(name: str) -> None:
    found = convert(REFUSED[name])
    assert found.refused
    check(found)
    covered = {line.source for line in found.report}
    for document in read_documents(REFUSED[name], Yaml.V1_2):
        for path in leaves(document.data, document.path):
            assert covered.intersection((path, *containers_of(path))), path


@pytest.mark.parametrize("name", [name for name, text in SAMPLES.items() if CONFIDENTIAL in text])
def test_confidential_values_appear_nowhere(name: str) -> None:
    assert CONFIDENTIAL not in repr(convert(SAMPLES[name]))


@given(st.sampled_from([name for name, text in SAMPLES.items() if CONFIDENTIAL in text]), st.data())
def test_confidential_values_appear_nowhere_after_a_change(name: str, data: st.DataObject) -> None:
    lines = SAMPLES[name].split("\n")
    del lines[data.draw(st.integers(0, len(lines) - 1))]
    assert CONFIDENTIAL not in repr(convert("\n".join(lines), name=format_of(name)))


def test_samples_are_valid_yaml_for_other_readers_too() -> None:
    for name, text in SAMPLES.items():
        if format_of(name) != "slurm":
            assert list(yaml.load_all(text, Loader=yaml.BaseLoader)), name


STRANGE = [
    None, True, 0, -1, 10**12, 1.5, "", "nan", "1e99", "{{ x }}", "${X}", "<% $p.x %>", "A100:8", "80GB", "a=b", ":",
    "1..", [], {}, [1, "a"], {"a": 1}, [[1]], [None], {"name": None}, {"value": {"a": 1}},
]  # fmt: skip


@given(st.sampled_from([name for name in SAMPLES if format_of(name) != "slurm"]), st.data())
def test_a_value_of_another_type_anywhere_has_a_result(name: str, data: st.DataObject) -> None:
    documents = [one for one in yaml.load_all(SAMPLES[name], Loader=yaml.BaseLoader) if one is not None]
    for _ in range(data.draw(st.integers(1, 4))):
        holder = documents[0]
        while isinstance(holder, dict | list) and holder:
            key = data.draw(
                st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder)))
            )
            if isinstance(holder[key], dict | list) and holder[key] and data.draw(st.integers(0, 3)):
                holder = holder[key]
            else:
                holder[key] = copy.deepcopy(data.draw(st.sampled_from(STRANGE)))
                break
    text = yaml.safe_dump_all(documents)
    check(convert(text, name=format_of(name)))
    check(convert(text))
