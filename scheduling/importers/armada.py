"""Imports job files of Armada. Jobs of one gang become one job."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.importers.documents import drop_each, fields_of
from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.kubernetes.objects import Objects
from scheduling.importers.kubernetes.pods import PodTemplate
from scheduling.importers.kubernetes.roles import Role, put_roles
from scheduling.importers.reading import Source, Yaml, step
from scheduling.importers.report import Report, Work
from scheduling.importers.roles import role_name

GANG, SIZE = "armadaproject.io/gangId", "armadaproject.io/gangCardinality"
TOGETHER = "The jobs of a gang are the workers of one job."
OF_GANGS = {
    "armadaproject.io/gangNodeUniformityLabel": "Fairlot places the workers of a job close together where it can.",
}
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


class PodOfJob(Fields):
    """A job of Armada, read as the template of its pod."""

    def section(self, *names: str) -> Fields:
        if names[:1] != ("spec",):
            return super().section(*names)
        several = super().sections("podSpecs") if "podSpec" not in self else []
        pod = several[0] if several else super().section("podSpec")
        return pod.section(*names[1:])


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
            if not gangs[at]:
                works += _job([one], fields, at, known)
            elif gangs.index(gangs[at]) == at:
                gang = [other for other, name in zip(jobs, gangs, strict=True) if name == gangs[at]]
                works += _job(gang, fields, at, known)
        drop_each(fields, AT_TOP)
    return works


def _job(gang: Sequence[Fields], root: Fields, at: int, known: Sequence[str]) -> list[Work]:
    """Returns the job whose workers are the jobs of `gang`, of which the first one is at this place in the text."""
    report = root.report
    draft = JobDraft(report, known_generations=known)
    name = root.text("jobSetId") or "armada-job"
    draft.name(name if len(root.items("jobs")) == len(gang) else f"{name}-{at + 1}", root.at("jobSetId"))
    for one in gang:
        if len(one.sections("podSpecs")) > 1:
            report.refused_at(
                step(one.at("podSpecs"), 1),
                "A job with several pods cannot be imported. Submit one for each.",
            )
    roles = _roles(gang, report)
    if len(gang) == 1 and roles[0].count == 1:
        if PodTemplate(roles[0].template, Objects({}, known), draft).put() is None:
            return []
    else:
        put_roles(roles, Objects({}, known), draft)
    for one in gang:
        annotations, labels = one.section("annotations"), one.section("labels")
        for label in (GANG, SIZE):
            if label in annotations and not report.covers(annotations.at(label)):
                report.mapped(annotations.at(label), "workers", TOGETHER)
        drop_each(annotations, OF_GANGS)
        drop_each(annotations, dict.fromkeys(annotations, "Fairlot sets the annotations of pods."))
        draft.labels({key: labels.text(key) for key in labels}, {key: labels.at(key) for key in labels})
        drop_each(one, LEFT_OUT)
    return draft.finish()


def _roles(gang: Sequence[Fields], report: Report) -> list[Role]:
    """Returns the workers of a gang: jobs with equal pods, one after the other, are a role. The text may have fewer
    jobs than the gang if all of them are equal."""
    alike: list[list[Fields]] = []
    for one in gang:
        if alike and _pods(one) == _pods(alike[-1][0]):
            report.mapped(one.path, "workers", f"A worker of the same job, like {alike[-1][0].path}.")
            alike[-1].append(one)
        else:
            alike.append([one])
    annotations = gang[0].section("annotations")
    size, source = annotations.whole(SIZE, 1) or 1, annotations.at(SIZE)
    if size > len(gang) and len(alike) > 1:
        report.refused_at(
            source,
            f"The gang has {size} jobs, but the text has {len(gang)}, which differ. The others are not known.",
            "workers",
        )
    elif SIZE in annotations:
        report.mapped(source, "workers", TOGETHER)
    names = [_name(jobs[0]) for jobs in alike]
    own = len(set(map(role_name, names))) == len(names) and all(names)
    return [
        Role(
            names[at] if own else f"job-{at + 1}",
            max(size, len(gang)) if len(alike) == 1 else len(jobs),
            PodOfJob(jobs[0].data, jobs[0].path, jobs[0].document, report),
            source if len(alike) == 1 and SIZE in annotations else jobs[0].path,
        )
        for at, jobs in enumerate(alike)
    ]


def _name(one: Fields) -> str:
    containers = PodOfJob(one.data, one.path, one.document, one.report).section("spec").sections("containers")
    return containers[0].text("name") if containers else ""


def _pods(one: Fields) -> list[object]:
    return [one.get("podSpec"), one.get("podSpecs")]
