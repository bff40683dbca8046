"""Imports job files of Armada. Jobs of one gang become one job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduling.importers.documents import drop_each, fields_of
from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.kubernetes import commands
from scheduling.importers.kubernetes.objects import Objects
from scheduling.importers.kubernetes.pods import PodTemplate
from scheduling.importers.reading import Source, Yaml, step
from scheduling.importers.report import Fate, Report, Work

OF_COMMANDS = ("command", "args")
GANG, SIZE = "armadaproject.io/gangId", "armadaproject.io/gangCardinality"
LEFT_OUT = {
    "namespace": "Each team has its own namespace.",
    "clientId": "Fairlot recognises repeated requests by the header Idempotency-Key.",
    "ingress": "Import a Deployment to make a service.",
    "services": "Import a Deployment to make a service.",
    "scheduler": "Fairlot schedules the job.",
    "priority": "Use the field priority to order your own jobs.",
    "requiredNodeLabels": "Fairlot chooses the nodes.",
}
AT_TOP = {
    "queue": "Choose the team when you submit the job.",
    "jobSetId": "Use labels to group jobs.",
    "numBatches": "Each job is submitted once.",
    "batchSize": "Each job is submitted once.",
    "interval": "Each job is submitted once.",
}


class ArmadaPod(PodTemplate):
    """The pod of a job of Armada."""

    @property
    def spec(self) -> Fields:
        if "podSpec" not in self.template and self.template.sections("podSpecs"):
            return self.template.sections("podSpecs")[0]
        return self.template.section("podSpec")


def recognise(source: Source) -> bool:
    jobs = source.top.get("jobs")
    if not isinstance(jobs, list) or {"apiVersion", "kind", "services"} & source.top.keys():
        return False
    return "jobSetId" in source.top or any(
        isinstance(one, dict) and {"podSpec", "podSpecs"} & one.keys() for one in jobs
    )


def convert(source: Source, report: Report, known: Sequence[str]) -> list[Work]:
    """Returns a job for each job or gang of Armada."""
    works: list[Work] = []
    for fields in fields_of(source, report, Yaml.V1_1):
        if "jobs" not in fields:
            drop_each(fields, dict.fromkeys(fields, "Only the document with the jobs is imported."))
            continue
        jobs = fields.sections("jobs")
        gangs = [one.section("annotations").text(GANG) for one in jobs]
        for at, one in enumerate(jobs):
            first = gangs.index(gangs[at]) if gangs[at] else at
            if first < at:
                _like_the_first(one, jobs[first])
            else:
                gang = [other for other, name in zip(jobs, gangs, strict=True) if name == gangs[at]]
                works += _job(one, fields, at, gang if gangs[at] else [one], known)
        drop_each(fields, AT_TOP)
    return works


def _job(one: Fields, root: Fields, at: int, gang: Sequence[Fields], known: Sequence[str]) -> list[Work]:
    """Returns the job of `one`, the first job of `gang`."""
    report, size = one.report, len(gang)
    draft = JobDraft(report, known_generations=known)
    name = root.text("jobSetId") or "armada-job"
    draft.name(name if len(root.items("jobs")) == size else f"{name}-{at + 1}", root.at("jobSetId"))
    if len(one.sections("podSpecs")) > 1:
        report.refused_at(
            step(one.at("podSpecs"), 1), "A job with several pods cannot be imported. Submit one for each."
        )
    pod = ArmadaPod(one, Objects({}, known), draft)
    differ = any(_commands(other) != _commands(one) for other in gang)
    if pod.put(command=not differ) is None:
        return []
    annotations = one.section("annotations")
    workers = max(size, annotations.whole(SIZE, 1) or 1)
    if differ:
        _put_commands(pod, gang, workers)
    if workers > 1:
        draft.put("workers", workers, annotations.at(SIZE),
                  "The jobs of a gang are the workers of one job.")  # fmt: skip
    drop_each(annotations, dict.fromkeys(annotations, "Fairlot sets the annotations of pods."))
    labels = one.section("labels")
    draft.labels({key: labels.text(key) for key in labels}, {key: labels.at(key) for key in labels})
    drop_each(one, LEFT_OUT)
    return draft.finish()


def _put_commands(pod: ArmadaPod, gang: Sequence[Fields], workers: int) -> None:
    """Sets a command that runs in each worker the command of its job of the gang."""
    draft = pod.draft
    if workers > len(gang):
        draft.report.refused_at(
            gang[0].section("annotations").at(SIZE),
            f"The gang has {workers} jobs, but the text has {len(gang)}, with different commands. The workers of the"
            " others would have none.",
            "command",
        )
        return
    parts, source = [], ""
    for rank, one in enumerate(gang):
        container = ArmadaPod(one, pod.objects, draft).container()
        found = commands.of_container(container, draft) if container is not None else None
        if found is None:
            return
        source = source or found[1]
        parts.append(f"{rank})\n{found[0].rstrip()}\n;;\n")
    said = "The jobs of the gang have different commands. Each worker runs that of its job, in the order of the text."
    pod.command(f'case "$RANK" in\n{"".join(parts)}esac', source, said, Fate.APPROXIMATED)


def _like_the_first(one: Fields, first: Fields) -> None:
    if _but_commands(one) == _but_commands(first):
        one.report.mapped(one.path, "workers", f"A worker of the same job as {first.path}.")
    else:
        one.report.refused_at(
            one.path,
            "The jobs of this gang differ in more than their commands. Write them as roles of one job.",
            "workers",
        )


def _containers(one: Fields) -> list[Any]:
    """Returns the containers of all pods of a job as in the text."""
    pods = [one.get("podSpec"), *one.items("podSpecs")]
    lists = [pod.get("containers") for pod in pods if isinstance(pod, dict)]
    return [container for found in lists if isinstance(found, list) for container in found]


def _commands(one: Fields) -> list[Any]:
    return [
        {name: found.get(name) for name in OF_COMMANDS} if isinstance(found, dict) else found
        for found in _containers(one)
    ]


def _but_commands(one: Fields) -> Any:
    """Returns the pods of a job as in the text, without the commands of containers."""

    def stripped(pod: Any) -> Any:
        if not isinstance(pod, dict) or not isinstance(pod.get("containers"), list):
            return pod
        containers = [
            {name: value for name, value in found.items() if name not in OF_COMMANDS}
            if isinstance(found, dict)
            else found
            for found in pod["containers"]
        ]
        return {**pod, "containers": containers}

    return [stripped(one.get("podSpec")), *map(stripped, one.items("podSpecs"))]
