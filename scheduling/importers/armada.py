"""Imports job files of Armada. Jobs of one gang become one job."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.importers.documents import drop_each, fields_of
from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.kubernetes.objects import Objects
from scheduling.importers.kubernetes.pods import PodTemplate
from scheduling.importers.reading import Source, Yaml, step
from scheduling.importers.report import Report, Work

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
                size = gangs.count(gangs[at]) if gangs[at] else 1
                works += _job(one, fields, at, size, known)
        drop_each(fields, AT_TOP)
    return works


def _job(one: Fields, root: Fields, at: int, size: int, known: Sequence[str]) -> list[Work]:
    report = one.report
    draft = JobDraft(report, known_generations=known)
    name = root.text("jobSetId") or "armada-job"
    draft.name(name if len(root.items("jobs")) == size else f"{name}-{at + 1}", root.at("jobSetId"))
    if len(one.sections("podSpecs")) > 1:
        report.refused_at(
            step(one.at("podSpecs"), 1), "A job with several pods cannot be imported. Submit one for each."
        )
    if ArmadaPod(one, Objects({}, known), draft).put() is None:
        return []
    annotations = one.section("annotations")
    if size > 1 or annotations.whole(SIZE, 1) != 1:
        draft.put("workers", max(size, annotations.whole(SIZE, 1) or 1), annotations.at(SIZE),
                  "The jobs of a gang are the workers of one job.")  # fmt: skip
    drop_each(annotations, dict.fromkeys(annotations, "Fairlot sets the annotations of pods."))
    labels = one.section("labels")
    draft.labels({key: labels.text(key) for key in labels}, {key: labels.at(key) for key in labels})
    drop_each(one, LEFT_OUT)
    return draft.finish()


def _like_the_first(one: Fields, first: Fields) -> None:
    same = ("podSpec", "podSpecs")
    if all(one.get(name) == first.get(name) for name in same):
        one.report.mapped(one.path, "workers", f"A worker of the same job as {first.path}.")
    else:
        one.report.refused_at(
            one.path, "The jobs of this gang differ. All workers of a job are alike.", "workers"
        )
