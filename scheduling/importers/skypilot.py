"""Imports SkyPilot tasks: single tasks, services, and pipelines of several documents."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from math import ceil
from typing import Any

from scheduling.importers import gpu_models, retries
from scheduling.importers.amounts import NO_AMOUNT, NoAmount, size
from scheduling.importers.chains import HOW_TO_NEED, Link, pipeline_of
from scheduling.importers.code import BRING_FILES, put_git
from scheduling.importers.commands import HOSTS, in_subshell, put_command
from scheduling.importers.documents import drop_each, fields_of, shown
from scheduling.importers.draft import JobDraft
from scheduling.importers.environment import put_secret, put_variables
from scheduling.importers.fields import Fields
from scheduling.importers.images import default_image, put_image
from scheduling.importers.ports import put_port, put_readiness
from scheduling.importers.reading import Source, step
from scheduling.importers.report import Fate, Report, Work, WorkKind
from scheduling.importers.resources import no_gpus, put_cpus, put_machine
from scheduling.importers.services import finish_service, put_replicas, put_scaling

MARKS = {
    "resources",
    "num_nodes",
    "envs",
    "secrets",
    "file_mounts",
    "workdir",
    "service",
    "pool",
    "volumes",
    "config",
}
OTHERS = {
    "apiVersion",
    "kind",
    "services",
    "jobs",
    "taskRoles",
    "type",
    "entrypoint",
    "steps",
    "on",
    "cluster_name",
}
BUCKETS = ("s3://", "gs://", "r2://", "https://", "cos://", "oci://", "azure://", "nebius://", "hf://")
IMAGE = re.compile(r"[\w.:-]+(?:/[\w.-]+)+:[\w.-]+\Z", re.ASCII)  # of a container: with a slash and a tag
NO_CLOUD = "Fairlot has no clouds or regions. Choose the cluster when you submit the job."
NO_DISK = "A worker's local disk has the size that the node gives."
# By variable that SkyPilot sets, the shell expression for its value.
GIVEN = {
    "SKYPILOT_NODE_RANK": '"$RANK"',
    "SKYPILOT_NUM_NODES": '"$WORLD_SIZE"',
    "SKYPILOT_NODE_IPS": HOSTS,
    "SKYPILOT_TASK_ID": '"$FAIRLOT_JOB_ID"',
    "SKYPILOT_JOBGROUP_NAME": '"$FAIRLOT_JOB_ID"',
    "SKYPILOT_SETUP_NODE_RANK": '"$RANK"',
    "SKYPILOT_SETUP_NODE_IPS": HOSTS,
    "SKYPILOT_SETUP_NUM_GPUS_PER_NODE": "",
    "SKYPILOT_NUM_GPUS_PER_NODE": "",
}
IN_RESOURCES = {
    **dict.fromkeys(("infra", "cloud", "region", "zone"), NO_CLOUD),
    **dict.fromkeys(("disk_size", "disk_tier", "local_disk"), NO_DISK),
    "network_tier": "Fairlot places the workers of a job close together where it can.",
    "accelerator_args": "These settings are for TPUs.",
    "autostop": "A job ends when its program ends. The idle timeout of the team stops idle jobs.",
    "priority": "Use the field priority to order your own jobs.",
    "max_hourly_cost": "Limits and budgets belong to teams.",
}
IN_TASK = {
    "workdir": BRING_FILES,
    "event_callback": "Fairlot calls no script when the state changes. Use a webhook of the team.",
    "config": "These are settings of SkyPilot itself.",
    "experimental": "These are settings of SkyPilot itself.",
    "inputs": "Fairlot does not estimate transfers.",
    "outputs": "Fairlot does not estimate transfers.",
    "depends_on": f"The job does not wait for other jobs. {HOW_TO_NEED}",
    "execution": "There is one task, or they do not follow each other.",
    "primary_tasks": "Each job ends by itself.",
    "termination_delay": "Each job ends by itself.",
    "api_server": "These are settings of SkyPilot itself.",
}
IN_HEADER = {"name": "Each task becomes a job, which has its own name."}
IN_SERVICE = {
    "load_balancing_policy": "Fairlot distributes requests among the replicas that are ready.",
    "tls": "The portal's own certificate is used.",
}


def recognise(source: Source) -> bool:
    return any(_is_task(document) for document in source.mappings[:3])


def _is_task(data: dict[str, Any]) -> bool:
    if OTHERS & data.keys():
        return False
    resources = data.get("resources")
    if isinstance(resources, dict) and "accelerators" in resources:
        return True
    scripts = [name for name in ("run", "setup") if isinstance(data.get(name), str)]
    return bool(scripts) and (bool(MARKS & data.keys()) or data.keys() <= {"name", "run", "setup"})


def convert(source: Source, report: Report, known: Sequence[str]) -> list[Work]:
    """Returns a job or a service; for several tasks, a pipeline, or the jobs of a group that runs in parallel."""
    works: list[Work] = []
    links: list[Link] = []
    tasks = fields_of(source, report)
    headers = [one for one in tasks if len(tasks) > 1 and not {"run", "setup", "resources"} & one.data.keys()]
    for fields in tasks:
        if fields in headers:
            continue
        found = _task(fields, report, known)
        works += found
        if found:
            name = fields.text("name")
            taken = not name or name in [one.name for one in links]
            links.append(
                Link(f"task-{len(links) + 1}" if taken else name, found[0], fields.texts("depends_on"))
            )
    together = [one.at("execution") for one in headers if one.text("execution") == "parallel"]
    are_jobs = [work.kind for work in works] == [WorkKind.JOB] * len(tasks[len(headers) :])
    if len(works) > 1 and are_jobs and not together:
        works = _pipeline(tasks, headers, links, report)
    elif together:
        report.approximated(
            together[0], "",
            "Each task becomes a job. They start as each gets its GPUs, not together, and do not know each other's"
            " hosts. Workers that work together are roles of one job.",
        )  # fmt: skip
    elif len(works) > 1:
        report.remark(
            Fate.APPROXIMATED, "", "", "A service never ends, so nothing can follow it in a pipeline."
        )
    for fields in tasks:
        drop_each(fields, {**IN_TASK, **(IN_HEADER if fields in headers else {})})
    return works


def _pipeline(
    tasks: Sequence[Fields], headers: Sequence[Fields], links: list[Link], report: Report
) -> list[Work]:
    """Returns the pipeline in which each task needs the one before it, or those that it names."""
    named = next((one for one in headers if one.text("name")), None)
    if not any("depends_on" in one for one in tasks):
        before = [(), *((one.name,) for one in links)]
        links = [replace(link, needs=needs) for link, needs in zip(links, before, strict=False)]
    for one in tasks:
        if "depends_on" in one:
            report.mapped(one.at("depends_on"), "needs")
        if one in headers and one.text("execution") == "serial":
            report.mapped(one.at("execution"), "needs")
    if named:
        report.mapped(named.at("name"), "name", "The name of the pipeline.")
    return pipeline_of(named.text("name") if named else "skypilot-pipeline", links, "", report)


def _task(fields: Fields, report: Report, known: Sequence[str]) -> list[Work]:
    draft = JobDraft(report, known_generations=known)
    if fields.text("name"):
        draft.name(fields.text("name"), fields.at("name"))
    draft.default("name", "skypilot-task", "The task has no name.")
    if nodes := fields.whole("num_nodes"):
        draft.put("workers", nodes, fields.at("num_nodes"), "Each node becomes a worker.")
    _resources(fields.section("resources"), draft, is_service="service" in fields)
    default_image(draft)
    put_variables(draft, fields, "envs")
    _secrets(fields, draft)
    _mounts(fields, draft)
    if isinstance(fields.get("workdir"), dict):
        code = fields.section("workdir")
        ref_at = code.at("ref") if "ref" in code else ""
        put_git(draft, code.text("url"), code.at("url"), ref=code.text("ref"), ref_at=ref_at)
    _command(fields, draft)
    if "pool" in fields:
        report.refused_at(
            fields.at("pool"),
            "A pool keeps machines for later jobs. Fairlot has no pools; submit the jobs themselves.",
        )
    if "service" not in fields:
        return draft.finish()
    return _service(fields, draft)


def _resources(fields: Fields, draft: JobDraft, *, is_service: bool) -> None:
    alternatives = [one for name in ("any_of", "ordered", "candidates") for one in fields.sections(name)]
    if "accelerators" in fields:
        _accelerators(fields, draft)
    elif found := [one for one in alternatives if "accelerators" in one]:
        for one in found:
            _accelerators(one, draft)
    elif "instance_type" in fields:
        put_machine(fields, "instance_type", draft)
    else:
        no_gpus(draft)
    for one in alternatives:
        drop_each(one, {**IN_RESOURCES, "accelerators": "The accelerators of the task itself count."})
    spots = [one for one in (fields, *alternatives) if one.flag("use_spot")]
    if spots and not any(one.get("use_spot") is False for one in alternatives):
        draft.put(
            "preemptible", True, spots[0].at("use_spot"),
            "A spot instance may be taken away. A preemptible job runs on idle GPUs only, and stops when others"
            " need them.",
            Fate.APPROXIMATED,
        )  # fmt: skip
    for one in (fields, *alternatives):
        drop_each(one, {"use_spot": "The job uses its team's share, as an on-demand instance would be kept."})
    for one in (fields, *alternatives):
        _recovery(one, draft, is_service=is_service)
    _amounts(fields, draft)
    _image(fields, draft)
    _ports(fields, draft)
    if labels := fields.section("labels"):
        draft.labels({key: labels.text(key) for key in labels}, {key: labels.at(key) for key in labels})
    drop_each(
        fields, {**IN_RESOURCES, "instance_type": "The accelerators count. Fairlot has no types of machines."}
    )


def _recovery(fields: Fields, draft: JobDraft, *, is_service: bool) -> None:
    for name in ("job_recovery", "spot_recovery"):
        if is_service:
            drop_each(fields, {name: retries.OF_SERVICES})
        else:
            retries.put_recovery(fields, name, draft)


def _accelerators(fields: Fields, draft: JobDraft) -> None:
    found = _named(fields, "accelerators")
    usable = []
    for name, number, path in found:
        if gpu_models.is_no_gpu(name):
            draft.report.dropped(path, f"{shown(name)} is no GPU. Fairlot gives only GPUs.")
        elif number is not None:
            usable.append((name, number, path))
    if not usable:
        draft.report.refused_at(
            fields.at("accelerators"), "None of these is a GPU with a number.", "gpus_per_worker"
        )
        return
    if "gpus_per_worker" not in draft.spec:
        draft.spec["gpus_per_worker"] = Counter(number for _, number, _ in usable).most_common(1)[0][0]
    count = draft.spec["gpus_per_worker"]
    for name, number, path in usable:
        if number != count:
            draft.report.dropped(
                path,
                f"A worker has {count} GPUs, whatever their type. The alternative with {number} is left out.",
            )
        else:
            draft.generations([name], path)
            draft.report.mapped(path, "gpus_per_worker", f"{count} for each worker.")


def _named(fields: Fields, name: str) -> list[tuple[str, int | None, str]]:
    """Returns (name, number, path) for each accelerator in a text, list, set or mapping."""
    value, path = fields.get(name), fields.at(name)
    if isinstance(value, dict):
        inner = fields.section(name)
        said = [(f"{key}:{inner.text(key)}" if key in inner else key, inner.at(key)) for key in inner]
    elif isinstance(value, list):
        said = [(text, step(path, at)) for at, text in enumerate(fields.texts(name))]
    else:
        said = [(text.strip(), path) for text in fields.text(name).strip("{} ").split(",")]
    found = []
    for text, where in said:
        model, _, number = text.strip().partition(":")
        found.append((model.strip(), _whole_gpus(number.strip() or "1", where, fields.report), where))
    return found


def _whole_gpus(number: str, path: str, report: Report) -> int | None:
    try:
        count = Decimal(number)
    except ArithmeticError:
        report.refused_at(
            path, "The number after the colon is not a number of accelerators.", "gpus_per_worker"
        )
        return None
    if not count.is_finite() or count <= 0 or count > 64:
        report.refused_at(path, "A worker has 1 to 64 GPUs.", "gpus_per_worker")
        return None
    if count != int(count):
        report.remark(
            Fate.APPROXIMATED,
            path,
            "gpus_per_worker",
            "Fairlot gives whole GPUs only; the number is rounded up.",
        )
    return ceil(count)


def _amounts(fields: Fields, draft: JobDraft) -> None:
    for name, target in (("cpus", "cpu"), ("memory", "memory")):
        if name not in fields:
            continue
        said, path = fields.text(name).strip(), fields.at(name)
        text = "At least this much." if said.endswith("+") else ""
        try:
            if target == "memory":
                draft.amount("memory", size(said.rstrip("+"), bare="GB", binary=True), path, text)
            else:
                put_cpus(draft, Decimal(said.rstrip("+")), path, text)
        except (NoAmount, ArithmeticError):
            draft.report.refused_at(path, NO_AMOUNT, target)


def _image(fields: Fields, draft: JobDraft) -> None:
    value, path = fields.get("image_id"), fields.at("image_id")
    said = {path: fields.text("image_id")} if isinstance(value, str) else {}
    if isinstance(value, dict):
        inner = fields.section("image_id")
        said = {inner.at(key): inner.text(key) for key in inner}
    for where, image in said.items():
        if (image.startswith("docker:") or IMAGE.match(image)) and "environment" not in draft:
            put_image(draft, image, where)
        else:
            draft.report.dropped(
                where, "This is the image of a machine, not of a container. Choose an environment."
            )


def _ports(fields: Fields, draft: JobDraft) -> None:
    value = fields.get("ports")
    at_once = not isinstance(value, list)
    for at, said in enumerate(fields.texts("ports")):
        path = fields.at("ports") if at_once else step(fields.at("ports"), at)
        if said.strip().isascii() and said.strip().isdigit() and len(said) < 8:
            put_port(draft, int(said), path)
        else:
            draft.report.dropped(path, "A job has one port, not a range.")


def _secrets(fields: Fields, draft: JobDraft) -> None:
    section = fields.section("secrets") if isinstance(fields.get("secrets"), dict) else None
    names = {name: section.at(name) for name in section} if section else {}
    if section is None:
        names = {name: step(fields.at("secrets"), at) for at, name in enumerate(fields.texts("secrets"))}
    for name, path in names.items():
        put_secret(draft, name, path)


def _mounts(fields: Fields, draft: JobDraft) -> None:
    for section in (fields.section("file_mounts"), fields.section("volumes")):
        for place in section:
            value = section.get(place)
            inner = section.section(place) if isinstance(value, dict) else None
            name = section.text(place) if inner is None else inner.text("name")
            if section.path.endswith("volumes") or (inner is not None and inner.text("store") == "volume"):
                draft.volume(name, place, section.at(place))
            elif inner is not None or name.startswith(BUCKETS):
                draft.report.dropped(
                    section.at(place),
                    "Fairlot mounts no buckets. Copy the data in the command, or ask an operator for a volume.",
                )
            else:
                draft.report.dropped(section.at(place), BRING_FILES)


def _command(fields: Fields, draft: JobDraft) -> None:
    run, setup = fields.text("run"), fields.text("setup")
    gpus = str(draft.spec.get("gpus_per_worker", 1))
    given = {name: value or gpus for name, value in GIVEN.items()}
    if not setup.strip():
        put_command(draft, run, fields.at("run"), given=given)
        return
    source = fields.at("run") if run.strip() else fields.at("setup")
    put_command(draft, f"{in_subshell(setup)}\n{run}", source, given=given)
    if run.strip():
        draft.report.approximated(
            fields.at("setup"),
            "command",
            "The setup is a part of the command, so it also runs after each suspension.",
        )


def _service(fields: Fields, draft: JobDraft) -> list[Work]:
    options: dict[str, Any] = {}
    service = fields.section("service")
    if "ports" in service:
        _ports(service, draft)
    probe = service.get("readiness_probe")
    if isinstance(probe, dict):
        inner = service.section("readiness_probe")
        if "post_data" in inner:
            drop_each(
                inner,
                {
                    "path": "The probe sends data, a probe of Fairlot is a plain GET. An open port counts as ready."
                },
            )
        elif inner.text("path"):
            put_readiness(draft, inner.text("path"), inner.at("path"))
        drop_each(inner, {
            "initial_delay_seconds": "A replica may take as long as the rollout's deadline to become ready.",
            "timeout_seconds": "A probe waits for some seconds.",
            "post_data": "Probes are GET requests without data.",
            "headers": "Probes are GET requests without headers of their own.",
        })  # fmt: skip
    elif isinstance(probe, str):
        put_readiness(draft, probe, service.at("readiness_probe"))
    if (number := service.whole("replicas")) is not None:
        put_replicas(draft, number, service.at("replicas"), options)
    policy = service.section("replica_policy")
    if (least := policy.whole("min_replicas")) is not None:
        most = policy.whole("max_replicas")
        put_scaling(
            draft,
            least,
            most,
            policy.at("min_replicas"),
            options,
            most_at=policy.at("max_replicas") if most else "",
        )
    for name in policy:
        drop_each(policy, {name: "Fairlot does not scale services by load."})
    drop_each(service, IN_SERVICE)
    return finish_service(draft, options, service.path, name_at=fields.at("name"))
