"""Imports jobs of Ray, as its job API and Anyscale write them, and configurations of Ray clusters.

A Ray cluster becomes a job whose first worker is the head. It has a fixed number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from scheduling.importers import retries, time_limits
from scheduling.importers.commands import in_subshell, put_command, script_of
from scheduling.importers.documents import drop_each, fields_of, first_of
from scheduling.importers.draft import JobDraft
from scheduling.importers.environment import put_variables
from scheduling.importers.fields import Fields
from scheduling.importers.images import default_image, put_image
from scheduling.importers.ports import drop_variable
from scheduling.importers.reading import Source, parameter_in
from scheduling.importers.report import Fate, Report, Work
from scheduling.importers.resources import no_gpus, put_cpus, put_gpus, put_machine

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
IN_JOB = {
    **dict.fromkeys(("submission_id", "job_id", "metadata", "tags"), "Use labels to find jobs."),
    **dict.fromkeys(("compute_config", "cloud", "project", "project_id", "job_queue_config", "queue", "cluster_env",
                     "build_id", "compute_config_id", "containerfile", "registry_login_secret"), NO_CLOUD),
    **dict.fromkeys(("ray_version", "ray_version_override"), "The image brings its version of Ray."),
    **dict.fromkeys(("working_dir", "excludes", "py_modules"),
                    "Fairlot uploads no files. Put the code into the image or a volume."),
    "entrypoint_resources": "Custom resources of Ray have no meaning here.",
    "entrypoint_memory": "Use the field memory.",
}  # fmt: skip
IN_RUNTIME = {
    **dict.fromkeys(("working_dir", "excludes", "py_modules"),
                    "Fairlot uploads no files. Put the code into the image or a volume."),
    "conda": "Put the packages into the image.", "uv": "Put the packages into the image.",
    "container": "Name the image in the field environment.", "image_uri": "Name the image in the field environment.",
    "config": "These are settings of Ray itself.", "eager_install": "These are settings of Ray itself.",
    "worker_process_setup_hook": "Call it in the program.", "nsight": "Start the profiler in the command.",
}  # fmt: skip
IN_CLUSTER = {
    **dict.fromkeys(("provider", "auth", "cloud"), NO_CLOUD),
    **dict.fromkeys(("max_workers", "min_workers", "initial_workers", "upscaling_speed", "autoscaling_mode",
                     "target_utilization_fraction", "idle_timeout_minutes", "no_restart"),
                    "The job has a fixed number of workers."),
    **dict.fromkeys(("file_mounts", "cluster_synced_files", "file_mounts_sync_continuously", "rsync_exclude",
                     "rsync_filter"),
                    "Fairlot uploads no files. Put them into the image, a volume or a secret."),
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
    types = fields.section("available_node_types")
    workers = 1
    for name in types:
        one = types.section(name)
        is_head = name == fields.text("head_node_type")
        if (number := one.whole("min_workers")) is not None and not is_head:
            workers += number
            draft.report.mapped(one.at("min_workers"), "workers")
        _node(one, draft)
        drop_each(one, dict.fromkeys(one, "All workers are alike, and their number is fixed."))
    if not types and (number := fields.whole("min_workers")) is not None:
        workers += number
        draft.report.mapped(fields.at("min_workers"), "workers")
    draft.put("workers", workers, fields.at("head_node_type"), "The head and the least number of other nodes. It"
        " stays fixed.",
              Fate.APPROXIMATED)  # fmt: skip
    if "gpus_per_worker" not in draft:
        no_gpus(draft)
    docker = fields.section("docker")
    image = next((one for one in ("image", "head_image", "worker_image") if docker.text(one)), "")
    if image:
        put_image(draft, docker.text(image), docker.at(image))
    default_image(draft, "The text names no image. The image must contain Ray.")
    for at, _ in enumerate(docker.texts("run_options")):
        draft.report.dropped(f"{docker.at('run_options')}[{at}]", "Options of Docker have no effect.")
    drop_each(docker, dict.fromkeys(docker, "The container runtime is that of the node."))
    _start(fields, draft)
    drop_each(fields, IN_CLUSTER)
    return draft.finish()


def _node(one: Fields, draft: JobDraft) -> None:
    resources, config = one.section("resources"), one.section("node_config")
    if (gpus := resources.whole("GPU")) is not None and gpus > draft.spec.get("gpus_per_worker", 0):
        put_gpus(draft, gpus, resources.at("GPU"), "The most GPUs of a node of any type.")
    for accelerator in config.sections("guestAccelerators"):
        if not draft.spec.get("generations") and accelerator.text("acceleratorType"):
            name = accelerator.text("acceleratorType").rsplit("/", 1)[-1]
            draft.generations([name], accelerator.at("acceleratorType"))
    for name in ("InstanceType", "machineType", "VmSize"):
        said = config.text(name) or config.section("azure_arm_parameters").text("vmSize")
        if said and not parameter_in(said) and "gpus_per_worker" not in draft and name in config:
            put_machine(config, name, draft)


def _start(fields: Fields, draft: JobDraft) -> None:
    draft.put("port", 8265, "", "The port of Ray's dashboard, to which jobs are submitted.", Fate.DEFAULTED)
    drop_variable(draft, fields.at("head_start_ray_commands"))
    names = [
        one for one in ("setup_commands", "head_setup_commands", "worker_setup_commands") if fields.texts(one)
    ]
    commands = [command for name in names for command in fields.texts(name)]
    script = f"{in_subshell(chr(10).join(commands))}\n{CLUSTER}" if commands else CLUSTER
    put_command(draft, script, fields.at("head_start_ray_commands"), text="The first worker is the head, the"
        " others join it. The"
                " job runs until it is cancelled.", fate=Fate.APPROXIMATED)  # fmt: skip
    for name in names:
        draft.report.approximated(
            fields.at(name), "command", "Every worker runs these commands at each start."
        )
