"""Imports Docker Compose files. Each service that requests GPUs becomes a service, or a job if it has no port."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from scheduling.importers import retries
from scheduling.importers.amounts import NO_AMOUNT, NoAmount, seconds, size
from scheduling.importers.commands import put_command, script_of
from scheduling.importers.compose_gpus import has_gpus, put_requested
from scheduling.importers.credentials import secret_name
from scheduling.importers.documents import drop_each, fields_of
from scheduling.importers.draft import JobDraft
from scheduling.importers.environment import pairs_of, put_variable
from scheduling.importers.fields import Fields
from scheduling.importers.images import put_image, started_by
from scheduling.importers.interpolation import filled
from scheduling.importers.mounts import put_volume, refuse_host_path
from scheduling.importers.ports import put_port, put_readiness
from scheduling.importers.reading import Source, step, template_in, templated
from scheduling.importers.report import Fate, Report, Work
from scheduling.importers.resources import put_cpus, put_memory
from scheduling.importers.services import finish_service, put_replicas

HOST = re.compile(
    r"https?://(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(?::\S*?)?(/[^\s\"'|;)]*)?(?=[\s\"'|;)]|$)",
    re.ASCII,
)
ALONE = "Fairlot gives each worker a network of its own"
LEFT_OUT = {
    "container_name": "Fairlot names the containers.",
    "hostname": "Fairlot sets host names.",
    "domainname": "Fairlot sets host names.",
    "networks": "Services of a team reach each other by their addresses. Fairlot has no other networks.",
    "links": "Services of a team reach each other by their addresses.",
    "depends_on": "Fairlot does not start programs in an order. The program must wait for what it needs.",
    "restart": retries.OF_SERVICES,
    "env_file": "The file is not a part of the text. Add its variables to the field variables.",
    "labels": "These labels are for programs beside Docker.",
    "logging": "Fairlot keeps the output of each worker as its log.",
    "tty": "Programs have no terminal.",
    "stdin_open": "Programs have no terminal.",
    "profiles": "All services are imported.",
    "ulimits": "The cluster sets the limits of processes.",
    "cap_add": "Programs run without capabilities. What needs one fails.",
    "cap_drop": "Programs run without capabilities.",
    "security_opt": "Fairlot sets the security options.",
    "sysctls": "Kernel settings would affect the node.",
    "extra_hosts": "The cluster decides how programs look up host names.",
    "dns": "The cluster decides how programs look up host names.",
    "dns_search": "The cluster decides how programs look up host names.",
    "init": "The container runtime reaps processes.",
    "platform": "The cluster's nodes decide the platform.",
    "read_only": "The image's file system is as the cluster sets it.",
    "stop_signal": "Fairlot sends SIGTERM.",
    "configs": "Put the file into the image, a volume or a secret.",
    "tmpfs": "A worker has a local disk and shared memory.",
    "develop": "Fairlot watches no files.",
    "build": "Fairlot builds no images. The image that is named must already contain the program.",
    "group_add": "A job runs with one group.",
    "oom_kill_disable": "A worker that uses more than its memory is stopped.",
    "memswap_limit": "Workers have no swap.",
    "mem_swappiness": "Workers have no swap.",
    "cpu_shares": "Use the field cpu.",
    "attach": "Fairlot keeps the output of each worker as its log.",
}
AT_TOP = {
    "version": "The version of the file format has no effect.",
    "name": "Each service has its own name.",
    "networks": "Services of a team reach each other by their addresses. Fairlot has no other networks.",
    "volumes": "An operator creates volumes. Services refer to them by name.",
    "secrets": "Create the secrets in Fairlot. Services refer to them by name.",
    "configs": "Put the files into the image, a volume or a secret.",
}


def recognise(source: Source) -> bool:
    services = source.top.get("services")
    if not isinstance(services, dict) or {"apiVersion", "kind", "taskRoles"} & source.top.keys():
        return False
    return any(
        isinstance(one, dict) and {"image", "build", "deploy", "extends", "container_name"} & one.keys()
        for one in services.values()
    )


def convert(source: Source, report: Report, known: Sequence[str]) -> list[Work]:
    """Returns a service or a job for each service that requests GPUs, or for the only service."""
    works: list[Work] = []
    for fields in fields_of(source, report):
        services = fields.section("services")
        found = [services.section(name) for name in services]
        with_gpus = [one for one in found if has_gpus(one)]
        if len(found) > 1 and not with_gpus:
            report.refused_at(
                services.path,
                "No service requests GPUs. Fairlot runs programs that use GPUs; mark the service that does.",
            )
        for name, service in zip(services, found, strict=True):
            if service in with_gpus or len(found) == 1:
                works += _service(name, service, report, known)
            elif with_gpus:
                report.dropped(
                    service.path,
                    "This service requests no GPUs, so it is left out. Run it elsewhere, if it is needed.",
                )
        if "include" in fields:
            report.refused_at(
                fields.at("include"),
                "The text includes other files. Import what docker compose config prints.",
            )
        drop_each(fields, AT_TOP)
        for name in fields:
            if name.startswith("x-"):
                drop_each(fields, {name: "An extension has an effect only where the text refers to it."})
    return works


def _service(name: str, fields: Fields, report: Report, known: Sequence[str]) -> list[Work]:
    draft = JobDraft(report, known_generations=known)
    draft.spec["name"] = " ".join(name.split())[:120] or "service"
    report.remark(Fate.MAPPED, fields.path, "name", "The name of the service.")
    put_requested(fields, draft)
    _refuse(fields, report)
    _image(fields, draft)
    for key, value, path in pairs_of(fields, "environment"):
        text, missing = filled(value or "")
        alone = bool(missing) and text == f"${{{missing[0]}}}"
        put_variable(draft, key, value is not None and not alone, text, path)
    _amounts(fields, draft)
    _mounts(fields, draft)
    _user(fields, draft)
    _ports(fields, draft)
    _command(fields, draft)
    if "stop_grace_period" in fields:
        _grace(fields, draft)
    options: dict[str, Any] = {}
    is_service = "port" in draft
    _health(fields, draft, is_service=is_service)
    _replicas(fields, draft, options, is_service=is_service)
    if not is_service:
        retries.put_restart(fields, "restart", draft)
        retries.put_restart_policy(fields.section("deploy", "restart_policy"), draft)
    drop_each(fields, LEFT_OUT)
    drop_each(fields.section("deploy"), {
        "restart_policy": LEFT_OUT["restart"], "placement": "Fairlot chooses the nodes.", "labels": LEFT_OUT["labels"],
        "update_config": "Fairlot rolls out a new version one replica at a time.", "mode": "Fairlot runs replicas.",
    })  # fmt: skip
    return finish_service(draft, options, fields.path) if is_service else draft.finish()


def _refuse(fields: Fields, report: Report) -> None:
    if fields.flag("privileged"):
        report.refused_at(fields.at("privileged"), "A privileged container would be root on the node.")
    for name in ("network_mode", "pid", "uts", "userns_mode", "cgroup"):
        if fields.text(name) == "host":
            report.refused_at(fields.at(name), f"{ALONE}, and no access to the node. Remove this field.")
    if fields.text("ipc") == "host":
        report.approximated(
            fields.at("ipc"), "shm", "The worker has shared memory of its own: half of its memory."
        )
    for name in ("ipc", "network_mode", "pid", "privileged", "uts", "userns_mode", "cgroup"):
        drop_each(fields, {name: f"{ALONE} and its own processes."})
    if "extends" in fields:
        report.refused_at(
            fields.at("extends"), "The service extends another. Import what docker compose config prints."
        )


def _image(fields: Fields, draft: JobDraft) -> None:
    if "image" in fields:
        put_image(draft, filled(fields.text("image"))[0], fields.at("image"))
    elif "build" in fields:
        draft.report.refused_at(
            fields.at("build"), "Fairlot builds no images. Build the image, push it, and name it in the field image.",
            "environment",
        )  # fmt: skip
    else:
        draft.report.refused_at(
            fields.path,
            "The service has no image. If this file adds to another one, import what docker compose config prints.",
            "environment",
        )
    policy = {
        "always": "Always",
        "never": "Never",
        "if_not_present": "IfNotPresent",
        "missing": "IfNotPresent",
    }
    if said := fields.text("pull_policy"):
        if said in policy:
            draft.put("image_pull_policy", policy[said], fields.at("pull_policy"))
        else:
            draft.report.dropped(fields.at("pull_policy"), "Fairlot pulls images as the cluster says.")


def _words(fields: Fields, name: str) -> list[str] | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, list):
        return [filled(one)[0] for one in fields.texts(name)]
    text = filled(fields.text(name))[0]
    try:
        words = shlex.split(text, comments=False)
    except ValueError:
        fields.report.refused_at(fields.at(name), "The quotation marks do not match.", "command")
        return []
    if (template := template_in(text)) and not any(template in word for word in words):
        fields.report.refused_at(fields.at(name), templated(template), "command")
    return words


def _command(fields: Fields, draft: JobDraft) -> None:
    entrypoint, arguments = _words(fields, "entrypoint"), _words(fields, "command")
    source = fields.at("command") if arguments is not None else fields.at("entrypoint")
    if entrypoint:
        put_command(draft, script_of([*entrypoint, *(arguments or [])], expand=True), source)
        draft.report.mapped(fields.at("entrypoint"), "command", "The command begins with the entrypoint.")
        if "command" in fields:
            draft.report.mapped(fields.at("command"), "command", "The command ends with these words.")
        return
    known = started_by(filled(fields.text("image"))[0]) if entrypoint is None else ("", "")
    if arguments:
        program = known[0] if known else ""
        if known is None and arguments[0].startswith("-"):
            draft.report.refused_at(
                source,
                "These are arguments for the program that the image starts. Add it as entrypoint.",
                "command",
            )
        else:
            script = script_of([*program.split(), *arguments], expand=True)
            text = f"The image starts {program}." if program else "The image's own entrypoint does not run."
            put_command(draft, script, source, text=text, fate=Fate.MAPPED if known else Fate.APPROXIMATED)
    elif known and (known[0] or known[1]):
        draft.command(
            " ".join(known).strip(), fields.at("image"), "The image starts this program.", Fate.APPROXIMATED
        )
        draft.report.mapped(fields.at("image"), "environment")
    elif "image" in fields:
        draft.report.refused_at(
            fields.at("image"),
            "The text does not say which program the image starts. Add the command.",
            "command",
        )


def _amounts(fields: Fields, draft: JobDraft) -> None:
    resources = fields.section("deploy", "resources")
    places = [
        (resources.section("limits"), "memory", "cpus"),
        (resources.section("reservations"), "memory", "cpus"),
    ]
    for section, memory, cpus in [
        *places,
        (fields, "mem_limit", "cpus"),
        (fields, "mem_reservation", "cpu_count"),
    ]:
        for name, target in ((memory, "memory"), (cpus, "cpu")):
            if name not in section:
                continue
            said, path = filled(section.text(name))[0], section.at(name)
            if target in draft:
                draft.report.dropped(path, "Another field already sets the amount.")
                continue
            try:
                if target == "memory":
                    draft.amount("memory", size(said, bare="B", binary=True), path)
                else:
                    put_cpus(draft, Decimal(said), path)
            except (NoAmount, ArithmeticError):
                draft.report.refused_at(path, NO_AMOUNT, target)
    if "shm_size" in fields:
        put_memory(draft, "shm", filled(fields.text("shm_size"))[0], fields.at("shm_size"), bare="B")


def _mounts(fields: Fields, draft: JobDraft) -> None:
    value = fields.items("volumes")
    for at, one in enumerate(value):
        path = step(fields.at("volumes"), at)
        if isinstance(one, dict):
            item = Fields(one, path, fields.document, fields.report)
            _mount(
                draft, item.text("type"), filled(item.text("source"))[0], filled(item.text("target"))[0], path
            )
        elif isinstance(one, str):
            host, folder = _parts(filled(one)[0])
            _mount(draft, "", host, folder, path)
    for at, one in enumerate(fields.items("secrets")):
        path = step(fields.at("secrets"), at)
        item = Fields(one if isinstance(one, dict) else {"source": one}, path, fields.document, fields.report)
        name = secret_name(item.text("source"))
        draft.secret_files(
            name, "", path, f"Create the secret {name}. Its files are in $FAIRLOT_SECRETS_DIR/{name}, not"
                f" /run/secrets.",
            Fate.APPROXIMATED,
        )  # fmt: skip


def _parts(text: str) -> tuple[str, str]:
    """Returns the source and the target of a mount such as ./data:/data:ro. The source is "" if there is none."""
    parts = text.split(":")
    if len(parts) > 1 and len(parts[0]) == 1 and parts[0].isalpha() and parts[1][:1] in {"\\", "/"}:
        parts[:2] = [":".join(parts[:2])]  # a drive of Windows
    return (parts[0], parts[1]) if len(parts) > 1 else ("", parts[0])


def _mount(draft: JobDraft, kind: str, source: str, target: str, path: str) -> None:
    if (
        kind in {"bind", "npipe", "cluster"}
        or source[:1] in {".", "/", "~", "$"}
        or source[1:3] in {":/", ":\\"}
    ):
        refuse_host_path(draft.report, path)
    elif kind == "tmpfs" or not source:
        draft.report.dropped(path, "The folder is on the worker's local disk and ends with it.")
    else:
        put_volume(draft, source, target, path)


def _user(fields: Fields, draft: JobDraft) -> None:
    if "working_dir" in fields:
        draft.put("working_directory", filled(fields.text("working_dir"))[0], fields.at("working_dir"))
    if "user" not in fields:
        return
    user, _, group = filled(fields.text("user"))[0].partition(":")
    numbers = [int(one) if one.isascii() and one.isdigit() and len(one) < 10 else 0 for one in (user, group)]
    if not numbers[0]:
        draft.report.dropped(
            fields.at("user"), "Programs never run as root, but as user 1000 or the number that is given."
        )
        return
    draft.put("user_id", numbers[0], fields.at("user"))
    if numbers[1]:
        draft.put("group_id", numbers[1], fields.at("user"))


def _ports(fields: Fields, draft: JobDraft) -> None:
    for name in ("ports", "expose"):
        for at, one in enumerate(fields.items(name)):
            path = step(fields.at(name), at)
            if isinstance(one, dict):
                item = Fields(one, path, fields.document, fields.report)
                said, protocol = item.text("target"), item.text("protocol")
            else:
                said, _, protocol = filled(fields.written(path, one))[0].partition("/")
                said = said.rsplit(":", 1)[-1]
            if protocol == "udp":
                draft.report.dropped(path, "Only TCP ports can be reached.")
            elif said.isascii() and said.isdigit() and len(said) < 8:
                put_port(draft, int(said), path)
            else:
                draft.report.dropped(
                    path,
                    "A service has one port, as a number: not a range, and not a variable without a value.",
                )


def _grace(fields: Fields, draft: JobDraft) -> None:
    try:
        grace = min(seconds(fields.text("stop_grace_period"), bare=1), 3600.0)
        draft.put("checkpoint_grace_seconds", grace, fields.at("stop_grace_period"))
    except NoAmount:
        draft.report.dropped(
            fields.at("stop_grace_period"), "This is not a duration. A worker has 30 seconds to stop."
        )


def _health(fields: Fields, draft: JobDraft, *, is_service: bool) -> None:
    health = fields.section("healthcheck")
    if not health:
        return
    found = HOST.search(" ".join(health.texts("test")))
    if is_service and found and not health.flag("disable"):
        numbers = []
        for name, bare in (("interval", 1.0), ("retries", None)):
            try:
                numbers.append(int(seconds(health.text(name), bare=bare)) if bare else health.whole(name))
            except NoAmount:
                numbers.append(None)
        put_readiness(draft, found[1] or "/", health.at("test"), period=numbers[0], failures=numbers[1])
        for name in ("interval", "retries"):
            if name in health:
                draft.report.mapped(
                    health.at(name),
                    "readiness_period_seconds" if name == "interval" else "readiness_failures",
                )
    drop_each(
        health,
        dict.fromkeys(
            health, "A replica is ready when its port answers. A program that hangs is not stopped."
        ),
    )


def _replicas(fields: Fields, draft: JobDraft, options: dict[str, Any], *, is_service: bool) -> None:
    for section, name in ((fields.section("deploy"), "replicas"), (fields, "scale")):
        number = section.whole(name)
        if number is None:
            continue
        if is_service:
            put_replicas(draft, number, section.at(name), options)
        elif number == 1:
            draft.report.mapped(section.at(name), "")
        else:
            draft.report.dropped(
                section.at(name), "The job is submitted once. Submit it again for more copies."
            )
