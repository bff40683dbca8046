"""Values whose meaning is not known: templates, numbers that programs read differently, variables that occur twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scheduling.importers.registry import convert
from scheduling.importers.report import Fate
from tests.scheduling.importers.foreign_samples import ACCEPTED, format_of

SKY = "resources: {accelerators: 'A100:1'}\nrun: python x.py\n"
STACK = {"type": "task", "commands": ["run"], "resources": {"gpu": 1}}
COMPOSE: dict[str, Any] = {"image": "a/b:1", "command": "run", "gpus": 1}


def job(**spec: Any) -> str:
    container = {
        "name": "a",
        "image": "a/b:1",
        "command": ["run"],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    for name in ("env", "resources", "volumeMounts"):
        if name in spec:
            container[name] = spec.pop(name)
    pod = {"containers": [container], "restartPolicy": "Never", **spec}
    return yaml.safe_dump({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"},
                           "spec": {"template": {"spec": pod}}})  # fmt: skip


def composed(**fields: Any) -> str:
    return yaml.safe_dump({"services": {"a": COMPOSE | fields}})


@pytest.mark.parametrize(
    "text",
    [
        SKY.replace("A100:1", "{{ acc }}"), SKY.replace("A100:1", "${ACC}:1"),
        SKY.replace("'A100:1'", "{'{{ acc }}': 1}"),
        SKY.replace("A100:1", "{{ acc }}:2"), yaml.safe_dump(STACK | {"resources": {"gpu": "${{ gpu }}:1"}}),
        yaml.safe_dump(STACK | {"resources": {"gpu": "${ACC}:1"}}),
        yaml.safe_dump(STACK | {"resources": {"gpu": {"name": "<% gpu %>"}}}),
        job(nodeSelector={"nvidia.com/gpu.product": "{{ gpu }}"}), job(nodeSelector={"gpu.product": "${GPU}"}),
        job(nodeSelector={"gpu": "a100-{{ size }}"}),
        job(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["{{ gpu }}"]}]}]}}}),
        composed(command="python {{ script }}"), composed(entrypoint="run {{ a }} b"),
        composed(image="<REGISTRY>/train:1"),
        json.dumps({"id": "/a", "cmd": "x", "instances": 1, "constraints": [["gpu", "CLUSTER", "{{ gpu }}"]]}),
    ],
)  # fmt: skip
def test_a_template_is_no_gpu_type_and_does_not_vanish(text: str) -> None:
    found = convert(text, known_generations=("A100-40GB", "V100"))
    assert found.refused
    assert not any("means" in line.text for line in found.report)


def test_templates_stay_in_commands_and_in_what_is_left_out() -> None:
    found = convert(composed(command=["python", "x.py", "--prompt={{ a }}"], labels={"note": "{{ b }}"}))
    (work,) = found.works
    assert work.spec["command"] == "python x.py '--prompt={{ a }}'"
    assert any("stays as it is" in line.text for line in found.report)
    assert convert(composed(command="python 'x {{ a }}'")).works


VALUES = st.sampled_from(["{{ x }}", "{% x %}", "<% x %>", "a-{{ x }}"])


@given(
    st.sampled_from([name for name in ACCEPTED if format_of(name) not in {"slurm", "openpai", "polyaxon"}]),
    VALUES,
    st.data(),
)
def test_a_template_is_nowhere_in_a_result_but_in_commands(
    name: str, template: str, data: st.DataObject
) -> None:
    documents = [one for one in yaml.load_all(ACCEPTED[name], Loader=yaml.BaseLoader) if one is not None]
    places = list(_leaves(documents[0]))
    holder, key = places[data.draw(st.integers(0, len(places) - 1))]
    holder[key] = template
    found = convert(yaml.safe_dump_all(documents), name=format_of(name))
    for work in found.works:
        for field, value in [*work.spec.items(), *work.options.items()]:
            roles = [{**role, "command": ""} for role in value] if field == "roles" else value
            assert field == "command" or template not in str(roles), (field, value)


def _leaves(data: Any) -> Any:
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        if isinstance(value, dict | list):
            yield from _leaves(value)
        else:
            yield data, key


@pytest.mark.parametrize(
    "text",
    [
        composed(environment=["A=1", "B=0", "A=2"]), yaml.safe_dump(STACK | {"env": ["A=1", "A=2"]}),
        json.dumps({"name": "a", "command": "b", "schedule": "R/2030-01-01T00:00:00Z/P1D",
                    "environmentVariables": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}),
        job(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
    ],
)  # fmt: skip
def test_of_a_variable_that_occurs_twice_the_last_value_counts_and_the_report_says_so(text: str) -> None:
    found = convert(text)
    assert found.works[0].spec["variables"]["A"] == "2"
    about = [line for line in found.report if line.target == "variables.A"]
    assert len(about) == 1
    assert [line.fate for line in found.report if "A later entry" in line.text] == [Fate.DROPPED]


def test_a_secret_replaces_a_value_and_an_equal_value_changes_nothing() -> None:
    found = convert(
        job(
            env=[
                {"name": "A", "value": "1"},
                {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            ]
        )
    )
    assert not found.works[0].spec.get("variables")
    assert [line.target for line in found.report if line.target.endswith(".A")] == ["secrets.A"]
    assert "A later entry" not in str(convert(composed(environment=["A=1", "A=1"])).report)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("num_nodes: 010\n" + SKY, "num_nodes"), ("num_nodes: 1_0\n" + SKY, "num_nodes"),
        ("type: task\ncommands: [run]\nresources: {gpu: 010}\n", "resources.gpu"),
        ("type: service\nname: a\ncommands: [run]\nport: 010000\nresources: {gpu: 1}\n", "port"),
        ("services: {a: {image: a/b:1, command: run, gpus: 010}}\n", "services.a.gpus"),
        (job().replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 010"), "resources.limits[\"nvidia.com/gpu\"]"),
    ],
)  # fmt: skip
def test_a_number_that_programs_read_differently_is_refused(text: str, at: str) -> None:
    refused = [line for line in convert(text).report if line.fate is Fate.REFUSED]
    assert [line.source.endswith(at) for line in refused] == [True], refused


def test_what_was_written_counts_in_texts() -> None:
    found = convert("services: {a: {image: a/b:1, command: [run, on, 012], gpus: 1, user: 1000}}\n")
    assert found.works[0].spec["command"] == "run on 012"
    said = [line.text for line in found.report if "012" in line.text]
    assert len(said) == 1
    assert "used as it was written" in said[0]
    assert "12 or 10" in said[0]


@pytest.mark.parametrize(
    "amount", ["memory: 64Zi", "memory: 4x", "cpus: abc", "cpus: 4x", "memory: '{{ m }}'"]
)
def test_an_amount_that_is_none_is_refused(amount: str) -> None:
    assert convert(f"resources: {{accelerators: A100, {amount}}}\nrun: x\n").refused


@pytest.mark.parametrize(
    ("amount", "said"), [("cpu: many", "resources.cpu"), ("memory: lots", "resources.memory")]
)
def test_an_amount_of_dstack_that_is_none_is_refused(amount: str, said: str) -> None:
    found = convert(f"type: task\ncommands: [x]\nresources: {{gpu: 1, {amount}}}\n")
    assert [line.source for line in found.report if line.fate is Fate.REFUSED] == [said]


def test_gpus_of_another_vendor_are_asked_for_by_their_type() -> None:
    amd = job(resources={"limits": {"amd.com/gpu": 2}})
    (work,) = convert(amd, known_generations=("H100", "MI300X", "MI210")).works
    assert (work.spec["gpus_per_worker"], work.spec["generations"]) == (2, ["MI300X", "MI210"])
    assert convert(amd, known_generations=("H100",)).refused
    assert any("GPUs of AMD are requested" in line.text for line in convert(amd).report)
    assert convert(job(resources={"limits": {"gpu.intel.com/xe": 1}}), known_generations=("A100",)).refused
    named = job(resources={"limits": {"amd.com/gpu": 1}}, nodeSelector={"amd.com/gpu.product-name": "MI300X"})
    assert convert(named, known_generations=("MI300X", "MI210")).works[0].spec["generations"] == ["MI300X"]
    assert "generations" not in convert(job(), known_generations=("MI300X",)).works[0].spec
    assert convert(composed(devices=["/dev/kfd", "/dev/dri"]), known_generations=("A100",)).refused
    assert convert(
        yaml.safe_dump(STACK | {"resources": {"gpu": "amd:2"}}), known_generations=("A100",)
    ).refused


@pytest.mark.parametrize(
    ("resources", "memory"),
    [
        ({"requests": {"memory": "4Gi"}}, "12Gi"), ({"requests": {"memory": "16Gi"}}, "16Gi"),
        ({"requests": {"memory": "4Gi"}, "limits": {"memory": "32Gi"}}, "32Gi"), ({"limits": {"memory": "4Gi"}}, None),
    ],
)  # fmt: skip
def test_shared_memory_is_no_part_of_requested_memory(resources: dict[str, Any], memory: str | None) -> None:
    found = convert(
        job(
            resources=resources, volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}],
            volumes=[{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}],
        )
    )  # fmt: skip
    assert [work.spec["memory"] for work in found.works] == ([memory] if memory else [])


@pytest.mark.parametrize(
    ("constraint", "types"),
    [
        (["gpu_model", "CLUSTER", "V100"], ["V100"]), (["gpu", "LIKE", "(V100|A100.*)"], ["V100", "A100"]),
        (["hostname", "UNIQUE"], None), (["gpu", "UNLIKE", "K80"], "refused"),
        (["accelerator", "LIKE", ".*"], "refused"),
    ],
)  # fmt: skip
def test_constraints_of_marathon_and_chronos_choose_gpu_types(constraint: list[str], types: Any) -> None:
    app = {"id": "/a", "cmd": "x", "instances": 1}
    chronos = {"name": "a", "command": "b", "schedule": "R/2030-01-01T00:00:00Z/P1D"}
    for one in (app, chronos):
        found = convert(json.dumps(one | {"constraints": [constraint]}))
        assert found.refused is (types == "refused")
        assert [work.spec.get("generations") for work in found.works] == ([] if found.refused else [types])
