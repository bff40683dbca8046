"""The name and the labels of an object."""

from __future__ import annotations

from scheduling.importers import time_limits
from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields

QUEUE = "Fairlot has no queues. Choose the team when you submit the job: its share and limits count."
TIME_LABEL = "kueue.x-k8s.io/max-exec-time-seconds"
# By beginning of a label or annotation, the consequence.
MEANINGS = {
    "kueue.x-k8s.io/queue-name": QUEUE,
    "kueue.x-k8s.io/priority-class": "Use the field priority to order your own jobs.",
    "kueue.x-k8s.io/pod-group-": "Each pod of the group becomes a job of its own. They do not start together.",
    TIME_LABEL: "Set the field time_limit_hours.",
    "kueue.x-k8s.io/": "Fairlot schedules the job, without Kueue.",
    "kai.scheduler/queue": QUEUE,
    "runai/queue": QUEUE,
    "volcano.sh/queue-name": QUEUE,
    "scheduling.volcano.sh/queue-name": QUEUE,
    "volcano.sh/": "Fairlot schedules the job, without Volcano.",
    "scheduling.k8s.io/": "All workers of a job start together.",
    "sidecar.istio.io/": "Workers have no sidecars.",
}
GENERATED = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink",
             "ownerReferences", "finalizers", "deletionTimestamp", "clusterName")  # fmt: skip


def put_metadata(metadata: Fields, draft: JobDraft) -> None:
    """Sets the name and the labels, and says what other metadata means."""
    report = draft.report
    if name := metadata.text("name"):
        draft.name(name, metadata.at("name"))
    elif generated := metadata.text("generateName"):
        draft.name(generated.rstrip("-."), metadata.at("generateName"))
    if "namespace" in metadata:
        report.dropped(
            metadata.at("namespace"),
            "Each team has its own namespace. Choose the team when you submit the job.",
        )
    for name in GENERATED:
        if name in metadata:
            report.dropped(metadata.at(name), "Kubernetes sets this field. It has no meaning here.")
    put_labels(metadata, draft)


def put_labels(metadata: Fields, draft: JobDraft) -> None:
    """Takes over the labels that have no meaning for a scheduler."""
    labels, annotations = metadata.section("labels"), metadata.section("annotations")
    kept: dict[str, str] = {}
    for fields in (labels, annotations):
        for key in fields:
            if draft.report.covers(fields.at(key)):
                continue
            meaning = next((text for prefix, text in MEANINGS.items() if key.startswith(prefix)), "")
            if meaning or fields is annotations:
                draft.report.dropped(fields.at(key), meaning or "Jobs have no annotations.")
            else:
                kept[key] = fields.text(key)
    draft.labels(kept, {key: labels.at(key) for key in kept})


def put_time_limit(metadata: Fields, draft: JobDraft) -> None:
    """Sets the time limit from the label of Kueue that limits how long a job runs."""
    labels = metadata.section("labels")
    seconds = labels.text(TIME_LABEL)
    if seconds.isascii() and seconds.isdigit() and len(seconds) < 12:
        time_limits.put_seconds(
            draft, int(seconds), labels.at(TIME_LABEL),
            f"Kueue counts while the job is admitted. {time_limits.TOGETHER}",
        )  # fmt: skip


def drop_template_metadata(template: Fields, draft: JobDraft) -> None:
    """Says what the metadata of a pod template means: its labels are those of pods, not of the job."""
    metadata = template.section("metadata")
    for fields in (metadata.section("labels"), metadata.section("annotations")):
        for key in fields:
            meaning = next((text for prefix, text in MEANINGS.items() if key.startswith(prefix)), "")
            draft.report.dropped(
                fields.at(key), meaning or "Only the labels of the job itself are taken over."
            )
    if metadata and not draft.report.covers(metadata.path):
        for name in metadata:
            if name not in {"labels", "annotations"}:
                draft.report.dropped(metadata.at(name), "Fairlot names the pods.")
