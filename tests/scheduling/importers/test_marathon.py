"""Apps and groups of Marathon."""

from __future__ import annotations

import json

import pytest

from scheduling.importers.registry import convert
from scheduling.importers.report import Fate, WorkKind
from tests.scheduling.importers.foreign_samples import SAMPLES


def test_an_app_becomes_a_service() -> None:
    (work,) = convert(SAMPLES["marathon-app"]).works
    assert (work.kind, work.name, work.spec["gpus_per_worker"]) == (WorkKind.SERVICE, "astro-serving", 2)
    assert dict(work.options) == {"replicas": 4, "max_unavailable": 2, "max_surge": 1}
    assert (work.spec["cpu"], work.spec["memory"], work.spec["port"]) == (4, "16Gi", 8000)
    assert (work.spec["readiness_path"], work.spec["readiness_period_seconds"]) == ("/health", 20)
    assert work.spec["command"] == "vllm serve --model org/model --port 8000"
    assert work.spec["secrets"] == {"HF_TOKEN": "hf-token", "DB": "db"}


def test_each_app_of_a_group_is_imported() -> None:
    found = convert(SAMPLES["marathon-group"])
    assert [(work.kind, work.name) for work in found.works] == [
        (WorkKind.SERVICE, "tools-web"), (WorkKind.JOB, "tools-worker_1"),
    ]  # fmt: skip
    assert found.works[0].spec["command"].startswith('export PORT0="$PORT"')


def test_an_id_without_a_slash_is_relative_to_its_group() -> None:
    apps = [{"id": one, "cmd": "x"} for one in ("web", "/shop/db", "../cache")]
    group = {"id": "/shop", "apps": apps, "groups": [{"id": "models", "apps": [{"id": "web", "cmd": "x"}]}]}
    assert [work.name for work in convert(json.dumps(group)).works] == [
        "shop-web", "shop-db", "cache", "shop-models-web",
    ]  # fmt: skip


def test_access_to_the_node_is_refused() -> None:
    lines = [line.source for line in convert(SAMPLES["marathon-host"]).report if line.fate is Fate.REFUSED]
    assert lines == [
        "cpus", "container.docker.privileged", "container.docker.parameters[0]", "container.volumes[0]",
    ]  # fmt: skip


@pytest.mark.parametrize(("ports", "port"), [([0], 8080), ([10018, 10019], 8080)])
def test_an_app_listens_where_fairlot_says(ports: list[int], port: int) -> None:
    text = json.dumps({"id": "a", "cmd": "serve $PORT0", "cpus": 1, "mem": 32, "ports": ports})
    assert convert(text).works[0].spec["port"] == port


def test_an_app_without_ports_that_uses_its_port_is_a_service() -> None:
    (work,) = convert(json.dumps({"id": "a", "cmd": "serve $PORT", "cpus": 1, "mem": 32})).works
    assert (work.kind, work.spec["port"]) == (WorkKind.SERVICE, 8080)


def test_the_variable_of_a_named_port_is_set() -> None:
    app = {
        "id": "a",
        "cmd": "serve ${PORT_WEB}",
        "cpus": 1,
        "mem": 32,
        "portDefinitions": [{"port": 0, "name": "web"}],
    }
    assert convert(json.dumps(app)).works[0].spec["command"].startswith('export PORT_WEB="$PORT"')
