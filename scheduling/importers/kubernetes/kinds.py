"""Converts each kind of object that runs programs."""

from __future__ import annotations

from collections.abc import Callable

from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.kubernetes import batch, deployments, ray, retries, training, volcano
from scheduling.importers.kubernetes.metadata import put_metadata, put_time_limit
from scheduling.importers.kubernetes.objects import OTHERS, Objects
from scheduling.importers.report import Work

Converter = Callable[[Fields, Objects, JobDraft], list[Work]]
CONVERTERS: dict[str, Converter] = {
    "Job": batch.job,
    "CronJob": batch.cron_job,
    "Pod": batch.pod,
    "Deployment": deployments.deployment,
    "JobSet": batch.job_set,
    "Volcano CronJob": volcano.cron_job,
    "Volcano Job": volcano.volcano_job,
    "PyTorchJob": training.pytorch_job,
    "MPIJob": training.mpi_job,
    "TFJob": training.tf_job,
    "TrainJob": training.train_job,
    "RayCluster": ray.ray_cluster,
    "RayJob": ray.ray_job,
}
VOLCANO = "batch.volcano.sh/"


def convert_object(root: Fields, objects: Objects) -> list[Work]:
    """Returns the works of one object. Refuses kinds that run programs and that are not known."""
    kind, version = root.text("kind"), root.text("apiVersion")
    report = root.report
    if not kind or not version:
        report.refused_at(root.path or "kind", "This object has no kind or no apiVersion.")
        return []
    if kind in OTHERS:
        report.dropped(root.path or "kind", f"{kind}: {OTHERS[kind]}")
        return []
    known = f"Volcano {kind}" if version.startswith(VOLCANO) else kind
    converter = CONVERTERS.get(known)
    if converter is None:
        report.refused_at(
            root.at("kind"), f"{kind[:60]} is not imported. Fairlot imports {', '.join(sorted(CONVERTERS))}."
        )
        return []
    report.mapped(root.at("apiVersion"), "")
    report.mapped(root.at("kind"), "", f"An {kind}." if kind.startswith("MPI") else f"A {kind}.")
    draft = JobDraft(report, known_generations=objects.known_generations)
    if kind != "Deployment":
        put_time_limit(root.section("metadata"), draft)
    put_metadata(root.section("metadata"), draft)
    retries.put(known, root, draft)
    works = converter(root, objects, draft)
    if "status" in root:
        report.dropped(root.at("status"), "The state of the object in its cluster has no meaning here.")
    return works
