"""Helpers for tests of pipelines; by default a pipeline is Bob's, in Astro, with the steps prepare, train and
report."""

from __future__ import annotations

from typing import Any

from scheduling.models import Pipeline
from scheduling.pipelines.actions import create_pipeline
from scheduling.pipelines.controller import step_pipeline
from scheduling.pipelines.definition import Definition
from tests.scheduling.world import World

LINE = {"prepare": [], "train": ["prepare"], "report": ["train"]}


def defined(needs: dict[str, list[Any]] | None = None, **changes: Any) -> Definition:
    """Returns a definition whose steps have these needs; `changes` are fields of its YAML."""
    steps = {name: {"needs": wanted} for name, wanted in (LINE if needs is None else needs).items()}
    data = {"name": "digits", "defaults": {"command": "go"}, "steps": steps}
    return Definition.parse(data | changes)


def make(lab: World, needs: dict[str, list[Any]] | None = None, **changes: Any) -> Pipeline:
    """Creates a pipeline whose steps have these needs; `changes` replace arguments of `create_pipeline`."""
    asked: dict[str, Any] = {
        "actor": lab.people.bob,
        "tenant": lab.people.astro,
        "cluster": lab.cluster,
        "definition": defined(needs),
    }
    return create_pipeline(**asked | changes)


def step(pipeline: Pipeline) -> Pipeline:
    step_pipeline(pipeline_id=pipeline.pk)
    pipeline.refresh_from_db()
    return pipeline


def states(pipeline: Pipeline) -> dict[str, str]:
    return dict(pipeline.steps.order_by("index").values_list("name", "state"))
