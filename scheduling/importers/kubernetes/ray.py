"""RayJobs and RayClusters: the workers of a job form a Ray cluster, whose head is the first worker."""

from __future__ import annotations

import json
import shlex

from scheduling.importers import time_limits
from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.kubernetes import security, variables, volumes
from scheduling.importers.kubernetes.metadata import drop_template_metadata
from scheduling.importers.kubernetes.objects import Objects
from scheduling.importers.kubernetes.pods import GPUS, PodTemplate
from scheduling.importers.kubernetes.roles import Role
from scheduling.importers.reading import Unreadable, Yaml, read_documents
from scheduling.importers.report import Fate, Work

MORE_WORKERS = (
    "The job has the number of workers that replicas says. Ray adds none: only a job with max_workers grows, and it"
    " starts again then."
)
DROPPED = {
    "shutdownAfterJobFinishes": "The Ray cluster ends with the job.",
    "ttlSecondsAfterFinished": "The Ray cluster ends with the job.",
    "submissionMode": "The first worker runs the entrypoint.",
    "submitterPodTemplate": "The first worker runs the entrypoint.",
    "submitterConfig": "The first worker runs the entrypoint.",
    "suspend": "The job is not held: it starts as soon as it gets GPUs.",
    "jobId": "Fairlot gives the job its number.",
    "entrypointNumCpus": "The entrypoint runs on the first worker.",
    "entrypointNumGpus": "The entrypoint runs on the first worker.",
    "entrypointResources": "The entrypoint runs on the first worker.",
    "metadata": "Use labels to find jobs.",
    "deletionStrategy": "The Ray cluster ends with the job.",
}
OF_CLUSTERS = {
    "rayVersion": "The image brings its version of Ray.",
    "enableInTreeAutoscaling": MORE_WORKERS,
    "autoscalerOptions": MORE_WORKERS,
    "headServiceAnnotations": "Workers reach the head at MASTER_ADDR.",
    "upgradeStrategy": "The Ray cluster ends with the job.",
}
CLUSTER = """\
if [ "$RANK" != 0 ]; then
  until ray start --address="$MASTER_ADDR:6379"; do sleep 2; done
  while ray status --address="$MASTER_ADDR:6379" >/dev/null 2>&1; do sleep 10; done
  exit 0
fi
ray start --head --port=6379 --dashboard-host=0.0.0.0
joined() { python -c 'import ray; ray.init(); print(sum(node["Alive"] for node in ray.nodes()))' | tail -n 1; }
until [ "$(joined)" -ge "$WORLD_SIZE" ]; do sleep 2; done
"""


# Runs until the job is cancelled. A worker waits for the head, whose image may take long to load.
STANDING = """\
if [ "${RANK:-0}" = 0 ]; then
  exec ray start --head --port=6379 --dashboard-host=0.0.0.0 --block
fi
until ray start --address="$MASTER_ADDR:6379" --block; do sleep 2; done
"""


def ray_job(root: Fields, objects: Objects, draft: JobDraft) -> list[Work]:
    """Returns one job. The entrypoint runs on the first worker when all have joined the Ray cluster."""
    spec, report = root.section("spec"), draft.report
    if spec.section("clusterSelector"):
        report.refused_at(
            spec.at("clusterSelector"),
            "The job runs in a Ray cluster that exists already. Fairlot knows none.",
        )
        return []
    entrypoint = spec.text("entrypoint").strip()
    if not entrypoint:
        report.refused_at(spec.at("entrypoint"), "The job has no entrypoint.", "command")
        return []
    cluster = spec.section("rayClusterSpec")
    found = _pods(cluster, objects, draft)
    if found is None:
        return []
    role, pods = found
    pods.command(
        _script(spec, entrypoint, role.count, draft), spec.at("entrypoint"),
        "The first worker is the head of a Ray cluster. It runs the entrypoint when all workers have joined."
        if role.count > 1 else "The entrypoint starts Ray on the worker.", Fate.APPROXIMATED,
    )  # fmt: skip
    time_limits.put_deadline(spec, draft)
    drop_known_of(spec, DROPPED, draft)
    drop_known_of(cluster, OF_CLUSTERS, draft)
    return draft.finish()


def ray_cluster(root: Fields, objects: Objects, draft: JobDraft) -> list[Work]:
    """Returns one job, which keeps the Ray cluster running until it is cancelled."""
    cluster = root.section("spec")
    found = _pods(cluster, objects, draft)
    if found is None:
        return []
    _, pods = found
    head = cluster.section("headGroupSpec")
    pods.command(
        STANDING, head.path, "The first worker is the head, the others join it. The job runs until it is cancelled.",
        Fate.APPROXIMATED,
    )  # fmt: skip
    draft.put("port", 8265, "", "The port of Ray's dashboard, to which jobs are submitted.", Fate.DEFAULTED)
    drop_known_of(cluster, OF_CLUSTERS, draft)
    return draft.finish()


def _pods(cluster: Fields, objects: Objects, draft: JobDraft) -> tuple[Role, PodTemplate] | None:
    """Sets everything except the command from the pods of a Ray cluster. Returns None if they are refused."""
    role = _role(cluster, draft)
    if role is None:
        return None
    pods = PodTemplate(role.template, objects, draft)
    drop_template_metadata(role.template, draft)
    container = pods.put(command=False)
    if container is None:
        return None
    pods.at_start |= _add_head(
        cluster.section("headGroupSpec", "template", "spec"), container, objects, draft
    )
    if "workers" not in draft and role.count > 1:
        draft.put("workers", role.count, role.counted_at)
    return role, pods


def _add_head(spec: Fields, container: Fields, objects: Objects, draft: JobDraft) -> dict[str, str]:
    """Adds what only the head has, such as the volume with the entrypoint. Returns variables that a worker sets."""
    heads = spec.sections("containers")
    if not heads or heads[0].path == container.path:
        return {}
    if heads[0].text("image") != container.text("image"):
        draft.report.refused_at(
            heads[0].at("image"),
            "The head and the workers have different images, which must be the same for a Ray cluster here.",
            "environment",
        )
    security.check(spec, heads[0], draft)
    volumes.put(spec, heads[0], objects, draft)
    return variables.put(heads[0], objects, draft)


def drop_known_of(fields: Fields, consequences: dict[str, str], draft: JobDraft) -> None:
    for name, text in consequences.items():
        if name in fields and not draft.report.covers(fields.at(name)):
            draft.report.dropped(fields.at(name), text)


def _role(cluster: Fields, draft: JobDraft) -> Role | None:
    """Returns the pods that become workers: those of the only worker group, or the head if there is none."""
    report, head = draft.report, cluster.section("headGroupSpec")
    groups = cluster.sections("workerGroupSpecs")
    if len(groups) > 1:
        report.refused_at(
            cluster.at("workerGroupSpecs"),
            "A Ray cluster with several groups of workers is not imported. Write a job with a role for each group,"
            " whose commands start Ray.",
        )
        return None
    for one in (head, *groups):
        drop_known_of(one, {
            "rayStartParams": "Ray finds the processors and GPUs of each worker itself.",
            "serviceType": "Workers reach the head at MASTER_ADDR.",
            "minReplicas": MORE_WORKERS, "maxReplicas": MORE_WORKERS,
            "groupName": "All workers are one group.", "enableIngress": "A job has no ingress.",
            "scaleStrategy": MORE_WORKERS, "numOfHosts": "A worker is one host.",
        }, draft)  # fmt: skip
    if not groups:
        return Role("head", 1, head.section("template"), head.path)
    group = groups[0]
    count = group.whole("replicas", group.whole("minReplicas", 1)) or 1
    source = group.at("replicas") if "replicas" in group else group.at("groupName")
    containers = head.section("template", "spec").sections("containers")
    resources = containers[0].section("resources", "limits") if containers else head
    if any(name in resources for name in GPUS):
        count += 1
        report.approximated(head.path, "workers", "The head is one more worker, like those of the group.")
    else:
        report.approximated(
            head.path, "workers", "The head requests no GPU. The first worker of the group is the head, too."
        )
    draft.put("workers", count, source, "All start together.")
    return Role("workers", count, group.section("template"), source)


def _script(spec: Fields, entrypoint: str, workers: int, draft: JobDraft) -> str:
    """Returns the command of each worker."""
    environment = _runtime_environment(spec, draft)
    head = CLUSTER if workers > 1 else "ray start --head --port=6379\n"
    if environment:
        # as the operator does: Ray's job server prepares the environment
        return (
            f"{head}ray job submit --address http://127.0.0.1:8265 --runtime-env-json {shlex.quote(environment)} --"
            f" sh -c {shlex.quote(entrypoint)}\nstatus=$?\nray stop\nexit $status"
        )
    return f"{head}export RAY_ADDRESS=auto\n{entrypoint}\nstatus=$?\nray stop\nexit $status"


def _runtime_environment(spec: Fields, draft: JobDraft) -> str:
    """Returns Ray's runtime environment as JSON; "" if the job has none."""
    text = spec.text("runtimeEnvYAML")
    if not text.strip():
        if "runtimeEnv" in spec:
            draft.report.refused_at(
                spec.at("runtimeEnv"), "This older field is not imported. Use runtimeEnvYAML."
            )
        return ""
    source = spec.at("runtimeEnvYAML")
    try:
        documents = read_documents(text, Yaml.V1_2)
    except Unreadable as error:
        draft.report.refused_at(source, f"The runtime environment cannot be read. {error}")
        return ""
    data = documents[0].data if documents else None
    if not isinstance(data, dict):
        draft.report.refused_at(source, "The runtime environment is not a mapping.")
        return ""
    variables = data.pop("env_vars", None)
    for name, value in variables.items() if isinstance(variables, dict) else ():
        draft.variable(str(name), str(value), source, "A variable of the runtime environment.")
    draft.report.approximated(source, "command", "Ray prepares this environment when the job starts.")
    return json.dumps(data) if data else ""
