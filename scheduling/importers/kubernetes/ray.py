"""RayJobs and RayClusters: the workers of a job form a Ray cluster.

The head is the first worker, or a role if it differs from the others, as groups of workers do.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduling.importers import time_limits
from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.kubernetes import security, variables, volumes
from scheduling.importers.kubernetes.metadata import drop_template_metadata
from scheduling.importers.kubernetes.objects import Objects
from scheduling.importers.kubernetes.pods import PodTemplate
from scheduling.importers.kubernetes.roles import Role, holds_gpus, need_roles, put_as_roles
from scheduling.importers.reading import Unreadable, Yaml, read_documents, template_in
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
    "headServiceAnnotations": "Workers find the head by variables of Fairlot.",
    "upgradeStrategy": "The Ray cluster ends with the job.",
}
# Parameters of ray start that say what a node offers. They are options of the command, as the operator writes them.
OPTIONS = ("num-cpus", "num-gpus", "memory", "object-store-memory", "resources", "labels")
HEAD = "ray start --head --port=6379 --dashboard-host=0.0.0.0"
# Runs until all nodes have joined; the blank is the variable with their number.
ALL_JOINED = """\
joined() {{ python -c 'import ray; ray.init(); print(sum(node["Alive"] for node in ray.nodes()))' | tail -n 1; }}
until [ "$(joined)" -ge "${}" ]; do sleep 2; done
"""
OF_ROLE = "${FAIRLOT_HOSTS_HEAD%%:*}"  # the address of a head that is a role


@dataclass(frozen=True)
class Starts:
    """How workers start Ray.

    - `head`, `worker`: the options of ray start.
    - `roles`: the roles of the job, the head first; none if all workers are alike and the first one is the head.
    """

    head: str
    worker: Mapping[str, str]
    count: int
    roles: Sequence[Role] = ()

    def runs(self, role: Role, then: str) -> str:
        """Returns the script of a role. `then` runs on the head when all have joined; if it is "", Ray runs on."""
        if not role.ends_job:
            return _joins(OF_ROLE, self.worker[role.name])
        return (
            f"{HEAD}{self.head}\n{ALL_JOINED.format('FAIRLOT_WORLD_SIZE')}{then}"
            if then
            else (f"exec {HEAD}{self.head} --block")
        )

    def run(self, then: str) -> str:
        """Returns the script of workers that are all alike."""
        own = next(iter(self.worker.values()), "")
        if not then:
            head = f'if [ "${{RANK:-0}}" = 0 ]; then\n  exec {HEAD}{self.head} --block\nfi'
            return f"{head}\n{_joins('$MASTER_ADDR', own)}\n"
        if self.count == 1:
            return f"ray start --head --port=6379{self.head}\n{then}"
        return (
            'if [ "$RANK" != 0 ]; then\n'
            f'  until ray start --address="$MASTER_ADDR:6379"{own}; do sleep 2; done\n'
            '  while ray status --address="$MASTER_ADDR:6379" >/dev/null 2>&1; do sleep 10; done\n'
            f"  exit 0\nfi\n{HEAD}{self.head}\n{ALL_JOINED.format('WORLD_SIZE')}{then}"
        )


def _joins(address: str, options: str) -> str:
    """Returns the script of a worker, which waits for the head, whose image may take long to load."""
    return f'until ray start --address="{address}:6379" --block{options}; do sleep 2; done'


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
    if not _put(cluster, objects, draft, then=_script(spec, entrypoint, draft), source=spec.at("entrypoint")):
        return []
    time_limits.put_deadline(spec, draft)
    drop_known_of(spec, DROPPED, draft)
    drop_known_of(cluster, OF_CLUSTERS, draft)
    return draft.finish()


def ray_cluster(root: Fields, objects: Objects, draft: JobDraft) -> list[Work]:
    """Returns one job, which keeps the Ray cluster running until it is cancelled."""
    cluster = root.section("spec")
    if not _put(cluster, objects, draft, then="", source=cluster.section("headGroupSpec").path):
        return []
    draft.put("port", 8265, "", "The port of Ray's dashboard, to which jobs are submitted.", Fate.DEFAULTED)
    drop_known_of(cluster, OF_CLUSTERS, draft)
    return draft.finish()


def _put(cluster: Fields, objects: Objects, draft: JobDraft, *, then: str, source: str) -> bool:
    """Sets everything from the pods of a Ray cluster. `then`, from `source`, runs on the head when all have joined.
    Returns whether the job has a command."""
    head = cluster.section("headGroupSpec")
    roles = [Role("head", 1, head.section("template"), head.path, ends_job=True), *_groups(cluster, draft)]
    for one in (head, *cluster.sections("workerGroupSpecs")):
        drop_known_of(one, {
            "serviceType": "Workers find the head by variables of Fairlot.",
            "minReplicas": MORE_WORKERS, "maxReplicas": MORE_WORKERS, "idleTimeoutSeconds": MORE_WORKERS,
            "enableIngress": "A job has no ingress.", "scaleStrategy": MORE_WORKERS,
            "suspend": "The workers are not held: they start with the others.",
        }, draft)  # fmt: skip
    groups = roles[1:]
    if len(groups) > 1 or (groups and need_roles(roles) and any(map(holds_gpus, roles))):
        starts = _as_roles(cluster, roles, draft)
        said = (
            "The head runs the entrypoint when all workers have joined."
            if then
            else ("The head and the workers form a Ray cluster. The job runs until it is cancelled.")
        )
        put_as_roles(roles, objects, draft, runs=lambda role: (starts.runs(role, then), source, said))
    elif not _put_alike(cluster, roles, objects, draft, then=then, source=source):
        return False
    return True


def _groups(cluster: Fields, draft: JobDraft) -> list[Role]:
    """Returns the groups of workers, in the order of the text. Groups without workers are left out."""
    report, found = draft.report, []
    groups = cluster.sections("workerGroupSpecs")
    none = all(one.whole("replicas", one.whole("minReplicas", 1)) == 0 for one in groups)
    for at, one in enumerate(groups):
        count = one.whole("replicas", one.whole("minReplicas", 1))
        source = one.at("replicas") if "replicas" in one else one.at("groupName")
        if count == 0 and none:
            report.approximated(
                source, "workers", "Ray would add workers when they are needed. The job has one."
            )
            count = 1
        elif count == 0:
            report.approximated(
                one.path, "roles", f"The group has no workers at first, so it is left out. {MORE_WORKERS}"
            )
            continue
        hosts = one.whole("numOfHosts", 1) or 1
        if "numOfHosts" in one:
            report.mapped(one.at("numOfHosts"), "workers", f"Each of the replicas is {hosts} workers.")
        drop_template_metadata(one.section("template"), draft)
        name = one.text("groupName") or f"group-{at + 1}"
        found.append(Role(name, (count or 1) * hosts, one.section("template"), source))
    return found


def _as_roles(cluster: Fields, roles: Sequence[Role], draft: JobDraft) -> Starts:
    """Returns how the roles start Ray. Each has its own options."""
    report, head = draft.report, cluster.section("headGroupSpec")
    drop_template_metadata(head.section("template"), draft)
    worker = {}
    for one in cluster.sections("workerGroupSpecs"):
        if not report.covers(one.path):
            name = one.text("groupName")
            worker[name] = _options(one.section("rayStartParams"), draft)
            report.mapped(one.at("groupName"), "roles", "The name of the role.")
    worker = {role.name: worker.get(role.name, "") for role in roles[1:]}
    return Starts(_options(head.section("rayStartParams"), draft), worker, len(roles), roles)


def _put_alike(
    cluster: Fields, roles: Sequence[Role], objects: Objects, draft: JobDraft, *, then: str, source: str
) -> bool:
    """Sets the fields of a job whose workers are all alike: those of the only group, or the head if there is none."""
    report, head, groups = (
        draft.report,
        cluster.section("headGroupSpec"),
        cluster.sections("workerGroupSpecs"),
    )
    role = roles[-1]
    count = role.count
    if groups and holds_gpus(roles[0]):
        count += 1
        report.approximated(head.path, "workers", "The head is one more worker, like those of the group.")
    elif groups:
        report.approximated(
            head.path, "workers", "The head requests no GPU. The first worker of the group is the head, too."
        )
    if groups:
        draft.put("workers", count, role.counted_at, "All start together.")
        report.mapped(groups[0].at("groupName"), "", "All workers are one group.")
    pods = PodTemplate(role.template, objects, draft)
    if not groups:
        drop_template_metadata(role.template, draft)
    container = pods.put(command=False)
    if container is None:
        return False
    pods.at_start |= _add_head(head.section("template", "spec"), container, objects, draft)
    own = _options(groups[0].section("rayStartParams"), draft) if groups else ""
    if count > role.count or not groups:
        of_head = _options(head.section("rayStartParams"), draft)
    else:
        of_head, parameters = own, head.section("rayStartParams")
        drop_known_of(
            parameters, dict.fromkeys(parameters, "The first worker starts Ray as its group does."), draft
        )
    starts = Starts(of_head, {role.name: own}, count)
    if not then:
        said = "The first worker is the head, the others join it. The job runs until it is cancelled."
    elif count > 1:
        said = "The first worker is the head of a Ray cluster. It runs the entrypoint when all workers have joined."
    else:
        said = "The entrypoint starts Ray on the worker."
    pods.command(starts.run(then), source, said, Fate.APPROXIMATED)
    return True


def _options(parameters: Fields, draft: JobDraft) -> str:
    """Returns the parameters of ray start that say what a node offers, as options of the command."""
    found = ""
    for name in parameters:
        value = parameters.text(name)
        if name in OPTIONS and value and "$" not in value and not template_in(value):
            # the operator writes the value into a shell script, so it may be in quotes
            try:
                words = shlex.split(value)
            except ValueError:
                words = [value]
            found += f" --{name}={shlex.quote(words[0] if len(words) == 1 else value)}"
            draft.report.mapped(parameters.at(name), "command", "An option of ray start.")
        else:
            draft.report.dropped(parameters.at(name), "The command starts Ray with its own options.")
    return found


def _add_head(spec: Fields, container: Fields, objects: Objects, draft: JobDraft) -> dict[str, str]:
    """Adds what only the head has, such as the volume with the entrypoint. Returns variables that a worker sets."""
    heads = spec.sections("containers")
    if not heads or heads[0].path == container.path:
        return {}
    if heads[0].text("image") != container.text("image"):
        draft.report.refused_at(
            heads[0].at("image"),
            "The head and the workers have different images, which must be the same for a Ray cluster without GPUs.",
            "environment",
        )
    security.check(spec, heads[0], draft)
    volumes.put(spec, heads[0], objects, draft)
    return variables.put(heads[0], objects, draft)


def drop_known_of(fields: Fields, consequences: dict[str, str], draft: JobDraft) -> None:
    for name, text in consequences.items():
        if name in fields and not draft.report.covers(fields.at(name)):
            draft.report.dropped(fields.at(name), text)


def _script(spec: Fields, entrypoint: str, draft: JobDraft) -> str:
    """Returns what the head runs when all workers have joined."""
    environment = _runtime_environment(spec, draft)
    if environment:
        # as the operator does: Ray's job server prepares the environment
        return (
            f"ray job submit --address http://127.0.0.1:8265 --runtime-env-json {shlex.quote(environment)} --"
            f" sh -c {shlex.quote(entrypoint)}\nstatus=$?\nray stop\nexit $status"
        )
    return f"export RAY_ADDRESS=auto\n{entrypoint}\nstatus=$?\nray stop\nexit $status"


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
