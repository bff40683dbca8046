"""Imports dstack configurations: tasks, services and development environments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from scheduling.importers import retries, time_limits
from scheduling.importers.amounts import NO_AMOUNT, NoAmount, seconds, size
from scheduling.importers.code import BRING_FILES, put_git
from scheduling.importers.commands import HOSTS, put_command, used_in
from scheduling.importers.documents import drop_each, fields_of
from scheduling.importers.draft import JobDraft
from scheduling.importers.dstack_gpus import as_text, put_wanted
from scheduling.importers.environment import put_variables
from scheduling.importers.fields import Fields
from scheduling.importers.images import put_image, started_by
from scheduling.importers.mounts import put_volume, refuse_host_path
from scheduling.importers.ports import put_port, put_readiness
from scheduling.importers.reading import Source, step
from scheduling.importers.report import Fate, Report, Work, WorkKind
from scheduling.importers.resources import no_gpus, put_cpus
from scheduling.importers.services import finish_service, put_replicas, put_scaling
from scheduling.importers.timetables import put_cron

KINDS = {"task", "service", "dev-environment"}
OTHER_KINDS = {"fleet", "volume", "gateway", "pool"}
NO_CLOUD = "Fairlot has no clouds or regions. Choose the cluster when you submit the job."
NO_IDE = "Start a session in the portal to work in a notebook or a terminal."
MPI_HOSTS = "DSTACK_MPI_HOSTFILE"
# By variable that dstack sets, the shell expression for its value; {gpus} stands for the GPUs of a worker.
GIVEN = {
    "DSTACK_NODE_RANK": '"$RANK"',
    "DSTACK_NODES_NUM": '"$WORLD_SIZE"',
    "DSTACK_MASTER_NODE_IP": '"$MASTER_ADDR"',
    "DSTACK_NODES_IPS": HOSTS,
    "DSTACK_GPUS_PER_NODE": "{gpus}",
    "DSTACK_GPUS_NUM": '"$(({gpus} * ${WORLD_SIZE:-1}))"',
    MPI_HOSTS: '"$FAIRLOT_HOSTFILE"',
    "DSTACK_RUN_NAME": '"$FAIRLOT_JOB_ID"',
    "DSTACK_RUN_ID": '"$FAIRLOT_JOB_ID"',
    "DSTACK_WORKING_DIR": '"$PWD"',
}
LEFT_OUT = {
    **dict.fromkeys(
        ("backends", "regions", "availability_zones", "instance_types", "reservation", "fleets"), NO_CLOUD
    ),
    **dict.fromkeys(("ide", "version", "inactivity_duration"), NO_IDE),
    "max_price": "Limits and budgets belong to teams.",
    "retry": retries.OF_SERVICES,
    "retry_policy": "The job waits until there are GPUs.",
    "stop_duration": "Use the field checkpoint_grace_seconds.",
    "creation_policy": "Fairlot creates no machines.",
    "idle_duration": "Fairlot creates no machines.",
    "termination_policy": "Fairlot creates no machines.",
    "termination_idle_time": "Fairlot creates no machines.",
    "pool_name": "Fairlot has no pools.",
    "instance_name": "Fairlot chooses the nodes.",
    "utilization_policy": "The idle timeout of the team stops idle jobs.",
    "startup_order": "All workers of a job start together.",
    "stop_criteria": "A job ends when all of its workers have ended, or when one fails.",
    "python": "The image decides the version of Python.",
    "nvcc": "The image must contain the CUDA compiler.",
    "single_branch": "Fairlot fetches one commit of a repository.",
    "files": BRING_FILES,
    "tags": "Tags have no effect. Use labels.",
    "home_dir": "Fairlot sets the home folder.",
    "gateway": "The portal is the gateway of all services.",
    "strip_prefix": "Each service has a host name of its own.",
    "path_prefix": "Each service has a host name of its own.",
    "https": "The portal serves HTTPS.",
    "auth": "Members of the team reach the service, in a browser or with a token.",
    "rate_limits": "Fairlot does not limit the rate of requests.",
    "model": "Fairlot has no common address for models. Clients use the address of the service.",
    "cache": "A worker's local disk ends with it.",
}


def recognise(source: Source) -> bool:
    top = source.top
    if (
        top.get("type") in (*KINDS, *OTHER_KINDS)
        and not {"apiVersion", "protocolVersion", "kind"} & top.keys()
    ):
        return bool(
            {"commands", "resources", "image", "python", "ide", "port", "nodes", "env", "backends", "backend"}
            & top.keys()
        )
    return False


def convert(source: Source, report: Report, known: Sequence[str]) -> list[Work]:
    """Returns a job, or a service, or a schedule for a task with a cron expression."""
    works: list[Work] = []
    for fields in fields_of(source, report):
        kind = fields.text("type")
        if kind in KINDS:
            report.mapped(fields.at("type"), "", f"This is a {kind}.")
            works += _run(fields, kind, report, known)
        else:
            report.refused_at(
                fields.at("type"), "Only a task, a service or a dev-environment can be imported."
            )
    return works


def _run(fields: Fields, kind: str, report: Report, known: Sequence[str]) -> list[Work]:
    draft = JobDraft(report, known_generations=known)
    if fields.text("name"):
        draft.name(fields.text("name"), fields.at("name"))
    draft.default("name", f"dstack-{kind}", "The configuration has no name.")
    if nodes := fields.whole("nodes"):
        draft.put("workers", nodes, fields.at("nodes"), "Each node becomes a worker.")
    _resources(fields, draft)
    if "image" in fields:
        put_image(draft, fields.text("image"), fields.at("image"))
    else:
        report.defaulted(
            "environment", "dstack would use its own image. Choose an environment with Python and CUDA."
        )
    _registry(fields, draft)
    put_variables(draft, fields, "env")
    _volumes(fields, draft)
    _settings(fields, draft)
    _repos(fields, draft)
    for at, one in enumerate(fields.texts("ports")):
        path = step(fields.at("ports"), at) if isinstance(fields.get("ports"), list) else fields.at("ports")
        _port(draft, one, path)
    _command(fields, kind, draft)
    if kind != "service":
        retries.put_on_events(fields, "retry", draft)
    drop_each(fields, {"docker": "Programs cannot start containers of their own."} | LEFT_OUT)
    if kind == "service":
        return _service(fields, draft)
    if cron := fields.section("schedule"):
        return _schedule(cron, draft)
    return draft.finish()


def _resources(fields: Fields, draft: JobDraft) -> None:
    resources = fields.section("resources")
    if "gpu" in resources:
        put_wanted(resources, "gpu", draft)
    else:
        no_gpus(draft)
    for name, target in (("cpu", "cpu"), ("memory", "memory"), ("shm_size", "shm")):
        if name not in resources:
            continue
        value, path = resources.get(name), resources.at(name)
        said = as_text(value.get("count") if isinstance(value, dict) and "count" in value else value)
        text = "At least this much." if ".." in str(value) else ""
        try:
            if target == "cpu":
                put_cpus(draft, Decimal(said.rsplit(":", 1)[-1]), path, text)
            else:
                draft.amount(target, size(said, bare="GB", binary=True), path, text)
        except (NoAmount, ArithmeticError):
            draft.report.refused_at(path, NO_AMOUNT, target)
    drop_each(resources, {"disk": "A worker's local disk has the size that the node gives."})


def _registry(fields: Fields, draft: JobDraft) -> None:
    if "registry_auth" in fields:
        draft.put(
            "image_pull_secret", "registry", fields.at("registry_auth"),
            "Store the user name and the password as the secret registry, which holds a Docker configuration.",
            Fate.APPROXIMATED,
        )  # fmt: skip


def _volumes(fields: Fields, draft: JobDraft) -> None:
    for at, one in enumerate(fields.items("volumes")):
        path = step(fields.at("volumes"), at)
        if isinstance(one, dict):
            item = Fields(one, path, fields.document, fields.report)
            source, target = item.text("name") or item.text("instance_path"), item.text("path")
            names = item.texts("name") if isinstance(item.get("name"), list) else [source]
            source = names[0] if names else ""
        else:
            source, _, target = fields.written(path, one).partition(":")
        if source.startswith("/") or not source:
            refuse_host_path(draft.report, path)
        else:
            put_volume(draft, source, target, path)


def _repos(fields: Fields, draft: JobDraft) -> None:
    """Takes the code from the first repository. Its folder in the container is the one in which the command starts."""
    for at, one in enumerate(fields.items("repos")):
        path = step(fields.at("repos"), at)
        if isinstance(one, dict):
            item = Fields(one, path, fields.document, fields.report)
            address, ref = item.text("url"), item.text("hash") or item.text("branch")
        else:
            address, ref = re.sub(r"(?<=\w):[/~][^/].*$", "", fields.written(path, one), flags=re.ASCII), ""
        if address and not address.startswith((".", "/", "~")):
            put_git(draft, address, path, ref=ref)
        else:
            draft.report.dropped(path, BRING_FILES)


def _settings(fields: Fields, draft: JobDraft) -> None:
    report = draft.report
    spot = fields.text("spot_policy")
    if spot == "spot":
        draft.put("preemptible", True, fields.at("spot_policy"),
                  "A preemptible job runs on idle GPUs only, and stops when others need them.",
                  Fate.APPROXIMATED)  # fmt: skip
    elif spot:
        report.dropped(
            fields.at("spot_policy"), "The job uses its team's share, as an on-demand instance would be kept."
        )
    if (priority := fields.whole("priority")) is not None:
        draft.put("priority", max(-100, min(priority, 100)), fields.at("priority"), "It orders your own jobs only.",
                  Fate.APPROXIMATED)  # fmt: skip
    if fields.flag("privileged"):
        report.refused_at(fields.at("privileged"), "A privileged container would be root on the node.")
    drop_each(fields, {"privileged": "Programs have no rights on the node."})
    folder = fields.text("working_dir")
    if folder.startswith("/"):
        draft.put("working_directory", folder, fields.at("working_dir"))
    elif folder:
        report.dropped(
            fields.at("working_dir"), "A relative folder has no meaning here. Change to it in the command."
        )
    user = fields.text("user").partition(":")[0]
    if user.isascii() and user.isdigit() and 0 < int(user[:10]) < 2**31:
        draft.put("user_id", int(user), fields.at("user"))
    drop_each(fields, {"user": "Programs never run as root, but as user 1000 or the number that is given."})
    _duration(fields, draft)


def _duration(fields: Fields, draft: JobDraft) -> None:
    said = fields.text("max_duration")
    source = fields.at("max_duration")
    if not said:
        return
    if said.lower() in {"off", "false", "-1"}:
        draft.report.mapped(source, "", "The job has no time limit of its own.")
        return
    if fields.text("type") != "task":
        draft.report.dropped(source, "Only jobs have this time limit. A session has one of its own.")
        return
    try:
        longest = seconds(said, bare=1)
    except NoAmount as error:
        draft.report.refused_at(source, str(error), "time_limit_hours")
        return
    time_limits.put_seconds(draft, longest, source, time_limits.OF_ATTEMPTS)


def _port(draft: JobDraft, said: str, path: str) -> None:
    number = said.rsplit(":", 1)[-1].strip()
    if number.isascii() and number.isdigit() and len(number) < 8:
        put_port(draft, int(number), path)
    else:
        draft.report.dropped(path, "A job has one port, not a range.")


def _command(fields: Fields, kind: str, draft: JobDraft) -> None:
    name = "commands" if "commands" in fields else "init"
    commands = [
        "wait" if one.strip() == "fg" else one for one in (*fields.texts("setup"), *fields.texts(name))
    ]
    if "setup" in fields:
        draft.report.mapped(fields.at("setup"), "command", "The command begins with these commands.")
    if "fg" in fields.texts(name):
        draft.report.remark(
            Fate.APPROXIMATED, fields.at(name), "command", "There is no terminal: fg becomes wait."
        )
    script = "\n".join(
        ["set -e", *commands] if len(commands) > 1 else commands
    )  # a failed command ends a run
    gpus = str(draft.spec.get("gpus_per_worker", 1))
    given = {key: value.replace("{gpus}", gpus) for key, value in GIVEN.items()}
    if (workers := draft.spec.get("workers", 1)) > 1 and used_in(script, [MPI_HOSTS]):
        draft.put(
            "launch", "mpi", f"{fields.at(name)}: ${MPI_HOSTS}",
            "The commands run on one worker, where mpirun finds the others. The image needs an ssh server.",
            Fate.APPROXIMATED,
        )  # fmt: skip
        # MPI tells its processes their ranks, so the variables of a worker are not set.
        given |= {"DSTACK_NODE_RANK": "0", "DSTACK_NODES_NUM": str(workers)}
        given |= {"DSTACK_GPUS_NUM": str(int(gpus) * workers)}
    entrypoint = fields.text("entrypoint")
    if kind == "dev-environment":
        put_command(
            draft, f"{script}\nsleep infinity".strip(), fields.at("ide"), given=given,
            text=f"The job waits until it is cancelled. {NO_IDE}", fate=Fate.APPROXIMATED,
        )  # fmt: skip
        draft.report.add(Fate.MAPPED, fields.at(name), "command", "The command begins with these commands.")
    elif script.strip():
        put_command(draft, " ".join([entrypoint, script]).strip(), fields.at(name), given=given)
    elif entrypoint:
        put_command(draft, entrypoint, fields.at("entrypoint"), given=given)
    elif (known := started_by(fields.text("image"))) and (known[0] or known[1]):
        put_command(draft, " ".join(known), fields.at("image"), text="The image starts this program.")
    else:
        draft.report.refused_at(
            fields.at("image"),
            "The text does not say which program the image starts. Add commands.",
            "command",
        )
    if entrypoint:
        draft.report.mapped(fields.at("entrypoint"), "command")
    drop_each(fields, {"shell": "A script that needs bash runs with bash, others with /bin/sh.",
                       "init": "Only a dev-environment runs these commands."})  # fmt: skip


def _service(fields: Fields, draft: JobDraft) -> list[Work]:
    options: dict[str, Any] = {}
    if isinstance(fields.get("port"), dict):
        inner = fields.section("port")
        _port(draft, inner.text("container_port"), inner.at("container_port"))
    elif "port" in fields:
        _port(draft, fields.text("port"), fields.at("port"))
    value = fields.get("replicas")
    if isinstance(value, list):
        draft.report.refused_at(
            fields.at("replicas"),
            "The replicas of a service are alike. Submit one service for each group.",
            "replicas",
        )
    elif isinstance(value, dict) or ".." in str(value):
        said = [
            as_text(value),
            value.get("max") if isinstance(value, dict) else str(value).partition("..")[2],
        ]
        least, most = (int(str(one)) if re.fullmatch(r"\d{1,6}", str(one), re.ASCII) else 1 for one in said)
        put_scaling(draft, least, max(most, least), fields.at("replicas"), options)
    elif value is not None and (number := fields.whole("replicas")) is not None:
        put_replicas(draft, number, fields.at("replicas"), options)
    for probe in fields.sections("probes"):
        if (
            probe.text("type") == "http"
            and probe.text("method", "get").lower() == "get"
            and "readiness_path" not in draft
        ):
            period = _whole_seconds(probe, "interval")
            put_readiness(draft, probe.text("url") or "/", probe.path, period=period)
        else:
            draft.report.dropped(probe.path, "A service has one probe, which is a GET request.")
    drop_each(fields, {"scaling": "Fairlot does not scale services by load."})
    return finish_service(draft, options, fields.at("port"), name_at=fields.at("name"))


def _whole_seconds(fields: Fields, name: str) -> int | None:
    try:
        return int(seconds(fields.text(name), bare=1)) if fields.text(name) else None
    except NoAmount:
        return None


def _schedule(section: Fields, draft: JobDraft) -> list[Work]:
    options: dict[str, Any] = {}
    crons = section.texts("cron")
    if len(crons) != 1:
        draft.report.refused_at(
            section.at("cron"), "A schedule has one cron expression. Create one schedule for each."
        )
        return []
    put_cron(draft, crons[0], section.at("cron"), options, "UTC")
    return draft.finish(WorkKind.SCHEDULE, options)
