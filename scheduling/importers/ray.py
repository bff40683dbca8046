"""Imports jobs of Ray, as its job API and Anyscale write them, and configurations of Ray clusters.

A Ray cluster becomes a job whose first worker is the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from scheduling.importers import gpu_models, retries, time_limits
from scheduling.importers.code import ARCHIVE, BRING_FILES, put_git
from scheduling.importers.commands import in_subshell, put_command, script_of
from scheduling.importers.documents import drop_each, fields_of, first_of, shown
from scheduling.importers.draft import JobDraft
from scheduling.importers.environment import put_variables
from scheduling.importers.fields import Fields
from scheduling.importers.images import default_image, put_image
from scheduling.importers.ports import drop_variable
from scheduling.importers.reading import Source, parameter_in
from scheduling.importers.report import Fate, Report, Work
from scheduling.importers.resources import no_gpus, put_cpus, put_gpus, put_machine
from scheduling.importers.roles import Group, draft_of, join, role_name

MORE_WORKERS = (
    "The job has the least number of workers. Only jobs with max_workers grow, and start again for that."
)
NO_CLOUD = "Fairlot has no clouds. Choose the cluster when you submit the job."
CLUSTER = """\
if [ "${RANK:-0}" = 0 ]; then
  ray start --head --port=6379 --dashboard-host=0.0.0.0 --block
else
  for attempt in 1 2 3 4 5 6 7 8 9 10 11 12; do
    ray start --address="$MASTER_ADDR:6379" --block && exit 0
    sleep 10
  done
  exit 1
fi"""
# With roles, workers without GPUs have no RANK.
OF_ROLES = CLUSTER.replace('"${RANK:-0}" = 0', '"$FAIRLOT_ROLE" = head').replace(
    "$MASTER_ADDR", "${FAIRLOT_HOSTS_HEAD%%:*}"
)
IN_NODE = {
    "node_config": "Fairlot chooses the nodes. Only the GPUs of the machine count.",
    "resources": "Ray finds the processors, the memory and the GPUs of each worker itself.",
    "docker": "All workers have one image.",
}
IN_JOB = {
    **dict.fromkeys(("submission_id", "job_id", "metadata", "tags"), "Use labels to find jobs."),
    **dict.fromkeys(("compute_config", "cloud", "project", "project_id", "job_queue_config", "queue", "cluster_env",
                     "build_id", "compute_config_id", "containerfile", "registry_login_secret"), NO_CLOUD),
    **dict.fromkeys(("ray_version", "ray_version_override"), "The image brings its version of Ray."),
    **dict.fromkeys(("working_dir", "excludes", "py_modules"),
                    BRING_FILES),
    "entrypoint_resources": "Custom resources of Ray have no meaning here.",
    "entrypoint_memory": "Use the field memory.",
}  # fmt: skip
IN_RUNTIME = {
    **dict.fromkeys(("working_dir", "excludes", "py_modules"),
                    BRING_FILES),
    "conda": "Put the packages into the image.", "uv": "Put the packages into the image.",
    "container": "Name the image in the field environment.", "image_uri": "Name the image in the field environment.",
    "config": "These are settings of Ray itself.", "eager_install": "These are settings of Ray itself.",
    "worker_process_setup_hook": "Call it in the program.", "nsight": "Start the profiler in the command.",
}  # fmt: skip
IN_CLUSTER = {
    **dict.fromkeys(("provider", "auth", "cloud"), NO_CLOUD),
    **dict.fromkeys(("max_workers", "min_workers", "initial_workers", "upscaling_speed", "autoscaling_mode",
                     "target_utilization_fraction", "idle_timeout_minutes", "no_restart"),
                    MORE_WORKERS),
    **dict.fromkeys(("file_mounts", "cluster_synced_files", "file_mounts_sync_continuously", "rsync_exclude",
                     "rsync_filter"),
                    BRING_FILES),
    **dict.fromkeys(("head_start_ray_commands", "worker_start_ray_commands"), "The command starts Ray in its own way."),
    **dict.fromkeys(("initialization_commands",), "Nothing runs on the node before the container starts."),
    **dict.fromkeys(("head_node", "worker_nodes"), "The types of nodes count."),
}  # fmt: skip


def recognise(source: Source) -> bool:
    data = first_of(source)
    if {
        "apiVersion",
        "kind",
        "services",
        "type",
        "searcher",
        "hyperparameters",
        "run",
        "image",
    } & data.keys():
        return False
    if (
        "cluster_name" in data
        and {"provider", "available_node_types", "head_node_type", "head_node"} & data.keys()
    ):
        return True
    return "entrypoint" in data and bool(
        {
            "runtime_env",
            "submission_id",
            "entrypoint_num_gpus",
            "entrypoint_num_cpus",
            "image_uri",
            "compute_config",
        }
        & data.keys()
    )


def convert(source: Source, report: Report, known: Sequence[str]) -> list[Work]:
    """Returns a job."""
    works: list[Work] = []
    for fields in fields_of(source, report):
        draft = JobDraft(report, known_generations=known)
        works += _cluster(fields, draft) if "cluster_name" in fields else _job(fields, draft)
    return works


def _job(fields: Fields, draft: JobDraft) -> list[Work]:
    name = next((one for one in ("name", "submission_id", "job_id") if fields.text(one)), "")
    if name:
        draft.name(fields.text(name), fields.at(name))
    draft.default("name", "ray-job", "The job has no name.")
    if (
        (gpus := fields.get("entrypoint_num_gpus")) is not None
        and isinstance(gpus, int)
        and not isinstance(gpus, bool)
    ):
        put_gpus(draft, gpus, fields.at("entrypoint_num_gpus"))
    elif gpus is not None:
        draft.put(
            "gpus_per_worker",
            1,
            fields.at("entrypoint_num_gpus"),
            "Fairlot gives whole GPUs only.",
            Fate.APPROXIMATED,
        )
    else:
        no_gpus(draft)
    if (cpus := fields.whole("entrypoint_num_cpus")) is not None:
        put_cpus(draft, Decimal(cpus), fields.at("entrypoint_num_cpus"))
    if fields.text("image_uri"):
        put_image(draft, fields.text("image_uri"), fields.at("image_uri"))
    default_image(draft, "The text names no image. The image must contain Ray.")
    runtime = (
        fields.section("runtime_env") if isinstance(fields.get("runtime_env"), dict) else fields.section("?")
    )
    put_variables(draft, runtime, "env_vars")
    put_variables(draft, fields, "env_vars")
    entrypoint = fields.get("entrypoint")
    run = (
        script_of(fields.texts("entrypoint"))
        if isinstance(entrypoint, list)
        else fields.text("entrypoint").strip()
    )
    for one in (runtime, fields):
        if found := ARCHIVE.fullmatch(one.text("working_dir")):
            put_git(draft, found["git"], one.at("working_dir"), ref=found["ref"])
    packages = [*_packages(runtime, "pip"), *_packages(fields, "requirements")]
    if packages and run:
        install = script_of(["pip", "install", *packages])
        put_command(draft, f"{in_subshell(install)}\n{run}", fields.at("entrypoint"))
    else:
        put_command(draft, run, fields.at("entrypoint"))
    draft.report.remark(
        Fate.APPROXIMATED, fields.at("entrypoint"), "command",
        "The program starts Ray on one worker. To use several workers, import the RayJob or the configuration of"
        " the cluster.",
    )  # fmt: skip
    retries.put_whole(fields, "max_retries", draft)
    if "timeout_s" in fields and (longest := fields.whole("timeout_s")) is not None:
        time_limits.put_seconds(draft, longest, fields.at("timeout_s"), time_limits.OF_ATTEMPTS)
    drop_each(runtime, IN_RUNTIME)
    drop_each(
        fields,
        {"runtime_env": "The file is not a part of the text.", "requirements": "Put them into the image."}
        | IN_JOB,
    )
    return draft.finish()


def _packages(fields: Fields, name: str) -> list[str]:
    value: Any = fields.get(name)
    if isinstance(value, dict):
        inner = fields.section(name)
        found, path = inner.texts("packages"), inner.at("packages")
    elif isinstance(value, list):
        found, path = fields.texts(name), fields.at(name)
    else:
        if value is not None:
            fields.report.dropped(
                fields.at(name), "The file is not a part of the text. Put the packages into the image."
            )
        return []
    if found:
        fields.report.approximated(
            path, "command", "The command installs the packages at each start. An image is faster."
        )
    return found


def _cluster(fields: Fields, draft: JobDraft) -> list[Work]:
    draft.name(fields.text("cluster_name"), fields.at("cluster_name"))
    draft.default("name", "ray-cluster", "The cluster has no name.")
    docker = fields.section("docker")
    image = next((one for one in ("image", "head_image", "worker_image") if docker.text(one)), "")
    if image:
        put_image(draft, docker.text(image), docker.at(image))
    default_image(draft, "The text names no image. The image must contain Ray.")
    types = fields.section("available_node_types")
    nodes = [_node(name, types.section(name), fields) for name in types]
    used = [one for one in nodes if one.count]
    if len({one.gpus for one in used}) > 1:
        _put_roles(sorted(used, key=lambda one: not one.is_head), fields, draft)
    else:
        _put_alike(used, fields, draft)
    for one in nodes:
        drop_each(one.fields, {**dict.fromkeys(one.fields, MORE_WORKERS), **IN_NODE})
    for at, _ in enumerate(docker.texts("run_options")):
        draft.report.dropped(f"{docker.at('run_options')}[{at}]", "Options of Docker have no effect.")
    drop_each(docker, dict.fromkeys(docker, "The container runtime is that of the node."))
    _start(fields, draft)
    drop_each(fields, IN_CLUSTER)
    return draft.finish()


@dataclass(frozen=True)
class Node:
    """A type of nodes: how many there are at least, and how many GPUs each has; 0 if none is known."""

    name: str
    fields: Fields
    is_head: bool
    count: int
    gpus: int

    @property
    def role(self) -> str:
        return role_name("head" if self.is_head else self.name)

    def put(self, draft: JobDraft) -> None:
        """Sets the GPUs of a worker, and their type."""
        resources, config = self.fields.section("resources"), self.fields.section("node_config")
        if self.gpus and "GPU" in resources:
            put_gpus(draft, self.gpus, resources.at("GPU"), "The GPUs of such a node.")
        for accelerator in config.sections("guestAccelerators"):
            if not draft.spec.get("generations") and accelerator.text("acceleratorType"):
                name = accelerator.text("acceleratorType").rsplit("/", 1)[-1]
                draft.generations([name], accelerator.at("acceleratorType"))
        machine, kind = _machine(self.fields)
        if kind and "gpus_per_worker" not in draft:
            put_machine(config, kind, draft)
        elif kind and not self.gpus:
            draft.report.approximated(
                config.at(kind), "gpus_per_worker", f"A machine {shown(machine)} is not known to have GPUs."
            )


def _node(name: str, one: Fields, root: Fields) -> Node:
    is_head = name == root.text("head_node_type")
    machine = gpu_models.machine(_machine(one)[0])
    gpus = one.section("resources").whole("GPU")
    count = 1 if is_head else one.whole("min_workers", 0) or 0
    return Node(name, one, is_head, count, gpus if gpus is not None else machine.gpus if machine else 0)


def _machine(one: Fields) -> tuple[str, str]:
    """Returns the machine of a type of nodes, and the field that names it; "" if there is none."""
    config = one.section("node_config")
    for name in ("InstanceType", "machineType", "VmSize"):
        if config.text(name) and not parameter_in(config.text(name)):
            return config.text(name), name
    return "", ""


def _put_alike(nodes: Sequence[Node], fields: Fields, draft: JobDraft) -> None:
    """Sets the fields of a job whose workers are all alike."""
    workers = 1
    for one in nodes:
        if not one.is_head:
            workers += one.count
            draft.report.mapped(one.fields.at("min_workers"), "workers")
        one.put(draft)
    if not nodes and (number := fields.whole("min_workers")) is not None:
        workers += number
        draft.report.mapped(fields.at("min_workers"), "workers")
    draft.put("workers", workers, fields.at("head_node_type"), "The head and the least number of other nodes.",
              Fate.APPROXIMATED)  # fmt: skip
    if "gpus_per_worker" not in draft:
        no_gpus(draft)


def _put_roles(nodes: Sequence[Node], fields: Fields, draft: JobDraft) -> None:
    """Sets the fields of a job with a role for each type of nodes, the head first."""
    groups = []
    for at, one in enumerate(nodes):
        own = draft_of(draft, at)
        if not one.gpus:
            own.spec["gpus_per_worker"] = 0
        one.put(own)
        # The port of the job is that of the role that ends it.
        groups.append(Group(one.role, one.count, one.fields.path, own.spec, ends_job=one.is_head))
        if not one.is_head:
            draft.report.mapped(one.fields.at("min_workers"), f"roles[{at}].workers")
    draft.report.mapped(fields.at("head_node_type"), "roles", "The head is a role with one worker.")
    join(groups, draft, "The types of nodes have different GPUs, so each is a role.")


def _start(fields: Fields, draft: JobDraft) -> None:
    draft.put("port", 8265, "", "The port of Ray's dashboard, to which jobs are submitted.", Fate.DEFAULTED)
    drop_variable(draft, fields.at("head_start_ray_commands"))
    names = [
        one for one in ("setup_commands", "head_setup_commands", "worker_setup_commands") if fields.texts(one)
    ]
    commands = [command for name in names for command in fields.texts(name)]
    start = OF_ROLES if "roles" in draft else CLUSTER
    script = f"{in_subshell(chr(10).join(commands))}\n{start}" if commands else start
    put_command(draft, script, fields.at("head_start_ray_commands"), text="The first worker is the head, the"
        " others join it. The"
                " job runs until it is cancelled.", fate=Fate.APPROXIMATED)  # fmt: skip
    for name in names:
        draft.report.approximated(
            fields.at(name), "command", "Every worker runs these commands at each start."
        )
