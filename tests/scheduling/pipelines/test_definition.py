"""A definition is read from YAML, refused by name where it is wrong, and written back without loss."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.pipelines.definition import FOR_ALL, Definition, Need, cycle_in, sketch, with_uploads
from scheduling.spec.job_spec import LONGEST_YAML, JobSpec, SpecError
from scheduling.spec.yaml_core import NotYaml, write

WRITTEN = """
version: 1
name: digits
defaults: {workers: 2, generations: [A100]}
steps:
  prepare: {command: python prepare.py, workers: 1}
  train:
    needs: [prepare, {job: 12, files: false}]
    command: python train.py --data $FAIRLOT_INPUT_PREPARE/checkpoint
  tell:
    needs: [{step: train, when: failure}]
    name: bad news
    command: ./tell
"""


def test_steps_and_needs_are_read_and_written_back() -> None:
    read = Definition.from_yaml(WRITTEN)
    assert [step.name for step in read.steps] == ["prepare", "train", "tell"]
    prepare, train, tell = read.steps
    assert (prepare.spec.name, prepare.spec.workers, prepare.spec.generations) == (
        "digits-prepare",
        1,
        ["A100"],
    )
    assert (train.spec.workers, tell.spec.name) == (2, "bad news")
    assert train.needs == (Need("prepare"), Need("", 12, files=False))
    assert tell.needs == (Need("train", when="failure"),)
    assert Definition.from_yaml(read.to_yaml()) == read


@pytest.mark.parametrize(
    ("changes", "path", "says"),
    [
        ({"steps": {}}, "steps", "1 to 100"),
        ({"steps": ["a"]}, "steps", "mapping"),
        ({"steps": {f"s{n}": {"command": "x"} for n in range(101)}}, "steps", "1 to 100"),
        ({"stages": 1}, "stages", "not a field of a pipeline"),
        ({"version": 2}, "version", "must be 1"),
        ({"name": ""}, "name", "1 to 120"),
        ({"defaults": {"needs": ["a"]}}, "defaults", "needs"),
        ({"steps": {"Big": {"command": "x"}}}, "steps.Big", "lower-case"),
        ({"steps": {"a-": {"command": "x"}}}, "steps.a-", "lower-case"),
        ({"steps": {"job-7": {"command": "x"}}}, "steps.job-7", "stand for jobs"),
        ({"steps": {7: {"command": "x"}}}, "steps.7", "lower-case"),
        ({"steps": {"a": None}}, "steps.a", "mapping of fields"),
        ({"steps": {"a": {"command": "x", "workers": 0}}}, "steps.a.workers", "1 to 4096"),
        ({"steps": {"a": {"needs": []}}}, "steps.a.command", "missing"),
        ({"steps": {"a": {"command": "x", "needs": "b"}}}, "steps.a.needs", "must be a list"),
        ({"steps": {"a": {"command": "x", "needs": ["b"]}}}, "steps.a.needs", "b is no step of this pipeline"),
        ({"steps": {"a": {"command": "x", "needs": [True]}}}, "steps.a.needs.0", "the number of a job"),
        ({"steps": {"a": {"command": "x", "needs": [0]}}}, "steps.a.needs.0", "the number of a job"),
        ({"steps": {"a": {"command": "x", "needs": [{"job": 1, "step": "a"}]}}}, "steps.a.needs.0", "step or job"),
        ({"steps": {"a": {"command": "x", "needs": [{"job": 1, "when": "later"}]}}}, "steps.a.needs.0", "failure"),
        ({"steps": {"a": {"command": "x", "needs": [{"step": {"step": "a"}}]}}}, "steps.a.needs.0", "a step"),
        ({"steps": {"a": {"command": "x", "needs": [3, {"job": 3}]}}}, "steps.a.needs", "names job 3 twice"),
        ({"steps": {"a": {"command": "x", "needs": ["a"]}}}, "steps.a.needs", "a → a"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(changes: dict[str, Any], path: str, says: str) -> None:
    with pytest.raises(SpecError) as refused:
        Definition.parse({"name": "digits", "steps": {"a": {"command": "x"}}} | changes)
    assert says in refused.value.problems[path]


def test_steps_that_need_each_other_are_named_in_their_order() -> None:
    needs = {"a": [], "b": ["d", "a"], "c": ["b"], "d": ["c"], "e": ["b"]}
    steps = {name: {"command": "x", "needs": wanted} for name, wanted in needs.items()}
    with pytest.raises(SpecError, match="b → d → c → b"):
        Definition.parse({"name": "digits", "steps": steps})


def test_yaml_that_cannot_be_read_is_refused() -> None:
    for text in ("steps: [", "a: 1\na: 2", "[]", "x" * 70_000):
        with pytest.raises(SpecError):
            Definition.from_yaml(text)


def test_a_job_that_needs_jobs_is_a_pipeline_of_one_step() -> None:
    spec = JobSpec(name="after", command="x")
    made = Definition.of_job(spec, [3, {"job": 4, "when": "always"}])
    assert [step.needs for step in made.steps] == [(Need("", 3), Need("", 4, "always"))]
    assert Definition.from_yaml(made.to_yaml()) == made
    for wrong in (["train"], "3", [3, 3]):
        with pytest.raises(SpecError) as refused:
            Definition.of_job(spec, wrong)
        assert list(refused.value.problems) == ["needs"] or "needs.0" in refused.value.problems


NAMES = [*"abcdef"]


@given(st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=3)))
def test_a_circle_is_found_if_and_only_if_no_order_exists(needs: dict[str, list[str]]) -> None:
    found = cycle_in(needs)
    left = {name: set(wanted) & needs.keys() for name, wanted in needs.items()}
    while free := [name for name, wanted in left.items() if not wanted]:
        left = {name: wanted - {*free} for name, wanted in left.items() if name not in free}
    assert bool(found) == bool(left)
    for name, after in pairwise(found):
        assert after in needs[name]
    if found:
        assert found[0] == found[-1]


# --- code beside the text, and the sketch --------------------------------------------------------

ALL, ONE = (f"sha256:{digit * 64}" for digit in "ab")


def test_uploads_beside_the_text_are_the_code_of_their_steps() -> None:
    own = WRITTEN.replace("workers: 1}", f"workers: 1, code: {{upload: 'sha256:{'c' * 64}'}}}}")
    read = Definition.from_yaml(own, {FOR_ALL: ALL, "tell": ONE})
    codes = [step.spec.code and step.spec.code.upload for step in read.steps]
    assert codes == [f"sha256:{'c' * 64}", ALL, ONE], "a step keeps the code that its text names"
    assert Definition.from_yaml(own, {"prepare": ONE}).steps[0].spec.code == read.steps[2].spec.code
    assert Definition.from_yaml(read.to_yaml()) == read
    with pytest.raises(SpecError, match="has no step gone"):
        Definition.from_yaml(WRITTEN, {"gone": ONE})


@pytest.mark.parametrize(
    "data", [None, [], {"steps": []}, {"steps": {"a": None}}, {"steps": {"a": 1}, "defaults": 7}]
)
def test_what_is_no_definition_stays_unchanged_by_uploads(data: Any) -> None:
    wanted = data if not isinstance(data, dict) or "defaults" in data else None
    found = with_uploads(data, {FOR_ALL: ALL, "a": ONE})
    assert wanted is None or found == wanted
    with pytest.raises(SpecError):
        Definition.parse(found)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 30) | st.sampled_from(["", "a", "b", "c", "Big", "job-7"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["steps", "defaults", "needs", "command", "step", "a", "b", "c"]), inner
        )
    ),
    max_leaves=12,
)


@given(
    ANYTHING, ANYTHING, st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=3))
)
def test_a_sketch_can_be_drawn_whatever_the_text_says(
    data: Any, fields: Any, needs: dict[str, list[str]]
) -> None:
    steps: dict[Any, Any] = {name: {"needs": wanted, "command": fields} for name, wanted in needs.items()}
    for text in (
        write(data),
        write({"steps": data}),
        write({"defaults": data, "steps": steps | {"z": fields}}),
    ):
        found = sketch(text)
        known = [step.name for step in found]
        assert len(known) == len(set(known))
        wanted = {step.name: [need.step for need in step.needs if need.step] for step in found}
        assert all(name in known for names in wanted.values() for name in names)
        assert not cycle_in(wanted)
    assert {*needs} <= {*known}


def test_a_sketch_of_a_right_definition_has_its_steps_and_needs() -> None:
    read = Definition.from_yaml(WRITTEN)
    found = sketch(WRITTEN)
    assert [(one.name, tuple(one.needs)) for one in found] == [
        (one.name, tuple(one.needs)) for one in read.steps
    ]
    assert [one.spec.workers for one in found] == [one.spec.workers for one in read.steps]
    assert sketch("x" * (LONGEST_YAML + 1)) == []
    with pytest.raises(NotYaml):
        sketch("steps: [")
