"""When a spec is refused, the error names the full path of the refused value."""

from __future__ import annotations

import pytest

from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.spec.refused_values import by_top_field

SPEC = {"name": "x", "command": "x"}
NESTED = [
    ("variables: {DEBUG: true}", "variables.DEBUG", "put what you wrote in quotes"),
    ("variables: {LR: 0.1, OK: a}", "variables.LR", "put what you wrote in quotes"),
    ("variables: {V: 1.10}", "variables.V", "put what you wrote in quotes"),
    ("variables: {A: null}", "variables.A", "a text"),
    ("variables: {1A: x}", "variables.1A", "not a variable name"),
    ("variables: {OK: a, RANK: x}", "variables.RANK", "set by Fairlot itself"),
    ("secrets: {TOKEN: 5}", "secrets.TOKEN", "must be a secret, written as name or name/key"),
    ("secrets: {OK: a, TOKEN: Not A Name}", "secrets.TOKEN", "not a valid secret name"),
    ("variables: {TOKEN: a}\nsecrets: {TOKEN: b}", "secrets.TOKEN", "already one of the variables"),
    ("generations: [A100, 5]", "generations.1", "the name of a generation"),
    ("generations: [A100, V100, A100]", "generations.2", "contains A100 twice"),
    ("generations: [A100, '']", "generations.1", "must not be empty"),
    ("labels: {team/x: 1}", "labels.team/x", "a text"),
    ("labels: {ok: a, 'b!': c}", "labels.b!", "not a label key"),
    ("labels: {ok: a, b: '!'}", "labels.b", "not a label value"),
    ("volumes: [{name: data}, {name: 7}]", "volumes.1.name", "a volume"),
    ("volumes: [{name: data, path: relative}]", "volumes.0.path", "not absolute"),
    ("volumes: [{name: data, mode: ro}]", "volumes.0.mode", "is not accepted here"),
    ("volumes: [{path: /data}]", "volumes.0.name", "is missing"),
    ("volumes: [{name: a, path: /a}, {name: b, path: /a/b}]", "volumes.1", "overlap"),
    ("volumes: [{name: a, path: /a}, {name: a, path: /b}]", "volumes.1.name", "twice"),
    ("secret_files: [{name: a, path: /v/a}]\nvolumes: [{name: b, path: /v}]", "volumes.0", "overlap"),
    ("memory: 1Gi\nshm: 2Gi", "shm", "must not be more than memory"),
    ("workers: 4096\ngpus_per_worker: 64", "workers", "more than 65\xa0536 GPUs"),
]  # fmt: skip


@pytest.mark.parametrize(("yaml", "path", "said"), NESTED)
def test_a_refusal_names_the_whole_path(yaml: str, path: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        JobSpec.from_yaml(f"name: x\ncommand: x\n{yaml}")
    assert list(refused.value.problems) == [path]
    assert said in refused.value.problems[path]


def test_a_text_that_cannot_be_stored_is_named_by_its_path() -> None:
    with pytest.raises(SpecError) as refused:
        JobSpec.parse(SPEC | {"volumes": [{"name": "a"}, {"name": "a\0"}]})
    assert list(refused.value.problems) == ["volumes.1.name"]


def test_all_errors_are_shown_at_once_beside_their_fields() -> None:
    with pytest.raises(SpecError) as refused:
        JobSpec.parse(SPEC | {"variables": {"A": 1, "B": True}, "workers": 0})
    assert set(refused.value.problems) == {"variables.A", "variables.B", "workers"}
    beside = by_top_field(refused.value.problems)
    assert set(beside) == {"variables", "workers"}
    assert beside["variables"].startswith("A: must be a text")
    assert "\nB: must be a text" in beside["variables"]


def test_items_of_a_list_are_numbered_from_one() -> None:
    beside = by_top_field({"roles.0.workers": "is missing", "roles.2": "is twice", "labels.1": "is odd"})
    assert beside == {"roles": "role 1, workers: is missing\nrole 3: is twice", "labels": "item 2: is odd"}
