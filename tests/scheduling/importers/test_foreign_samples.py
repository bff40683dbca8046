"""Which format a text has, and that nothing confidential passes."""

from __future__ import annotations

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
