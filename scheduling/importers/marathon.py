"""Imports apps and groups of Marathon. Each app becomes a service, or a job if it has no port."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from scheduling.importers.commands import put_command, script_of
from scheduling.importers.documents import drop_each, fields_of, first_of
from scheduling.importers.draft import JobDraft
from scheduling.importers.environment import put_secret, put_variable
from scheduling.importers.fields import Fields
from scheduling.importers.gpus import model_of
from scheduling.importers.images import default_image, put_image, started_by
from scheduling.importers.mounts import put_volume, refuse_host_path
from scheduling.importers.ports import drop_variable, put_port, put_readiness
from scheduling.importers.reading import Source, step
from scheduling.importers.report import Fate, Report, Work
from scheduling.importers.resources import no_gpus, put_cpus, put_gpus
from scheduling.importers.services import finish_service, put_replicas

MIB = 2**20
PORT = 8080  # of an app that listens where Marathon says
MARKS = {
    "instances",
    "cpus",
    "mem",
    "container",
    "healthChecks",
    "portDefinitions",
    "ports",
    "fetch",
    "uris",
    "upgradeStrategy",
}
GIVEN = {
    "PORT0": '"$PORT"', "PORT_0": '"$PORT"', "HOST": '"$(hostname)"', "MESOS_SANDBOX": '"$PWD"',
    "MESOS_TASK_ID": '"$FAIRLOT_JOB_ID"', "MARATHON_APP_ID": "", "MESOS_DIRECTORY": '"$PWD"',
}  # fmt: skip
OF_GPUS = re.compile(r"gpu|accelerator", re.IGNORECASE)
CHOOSE = {"CLUSTER", "IS", "LIKE", "EQUALS"}
LEFT_OUT = {
    **dict.fromkeys(("constraints", "acceptedResourceRoles", "executor", "requirePorts"), "Fairlot chooses the nodes."),
    **dict.fromkeys(("backoffFactor", "backoffSeconds", "maxLaunchDelaySeconds"),
                    "Fairlot waits longer after each failed start by its own rule."),
    **dict.fromkeys(("fetch", "uris", "storeUrls"),
                    "Only code from a Git repository is fetched. Put the files into the image, or fetch them in the"
                    " command."),
    **dict.fromkeys(("version", "versionInfo", "tasksStaged", "tasksRunning", "tasksHealthy", "tasksUnhealthy", "tasks",
                     "deployments", "lastTaskFailure", "taskStats"), "This is the state of the app, not its"
                         " definition."),
    "disk": "A worker's local disk has the size that the node gives.",
    "dependencies": "Fairlot does not start programs in an order. The program must wait for what it needs.",
    "ipAddress": "Services of a team reach each other by their addresses.",
    "residency": "A worker may run on another node after each start.",
    "killSelection": "Fairlot decides which replica ends first.",
    "unreachableStrategy": "Fairlot starts a replica again when its node is lost.",
    "taskKillGracePeriodSeconds": "Use the field checkpoint_grace_seconds.",
    "role": "Choose the team when you submit the service.",
    "resourceLimits": "The requests count as limits, too.",
    "networks": "The worker has a network of its own. Clients use the address of the service.",
    "executorResources": "Fairlot has no executors.",
    "tty": "Programs have no terminal.",
    "enforceRole": "Choose the team when you submit the service.",
}  # fmt: skip


def recognise(source: Source) -> bool:
    data = first_of(source)
    if {"apiVersion", "kind", "services", "schedule", "parents", "taskRoles"} & data.keys():
        return False
    if isinstance(data.get("id"), str) and (
        isinstance(data.get("apps"), list) or isinstance(data.get("groups"), list)
    ):
        return True
    if isinstance(data.get("id"), str) and bool({"cmd", "args", "container"} & data.keys()):
        return bool(MARKS & data.keys()) or data.keys() <= {"id", "cmd", "args"}
    return isinstance(data.get("apps"), list) and data.keys() <= {"apps"}


def convert(source: Source, report: Report, known: Sequence[str]) -> list[Work]:
    """Returns a service or a job for each app."""
    works: list[Work] = []
    for fields in fields_of(source, report):
        for app, path in _apps(fields, "/"):
            works += _app(app, path, report, known)
    return works


def _apps(fields: Fields, parent: str) -> Iterator[tuple[Fields, str]]:
    """Yields each app with its whole id. An id that does not begin with a slash is relative to that of the group."""
    own = posixpath.normpath(posixpath.join(parent, fields.text("id")))
    if "apps" not in fields and "groups" not in fields:
        yield fields, own if "id" in fields else ""
        return
    for app in fields.sections("apps"):
        yield app, posixpath.normpath(posixpath.join(own, app.text("id"))) if "id" in app else ""
    for group in fields.sections("groups"):
        if "apps" in group or "groups" in group:
            yield from _apps(group, own)
    drop_each(fields, {
        "id": "Fairlot has no groups of services. The name of each app contains its group.",
        "pods": "Pods of several containers are not imported.",
    } | LEFT_OUT)  # fmt: skip
    for group in fields.sections("groups"):
        drop_each(group, {"id": "Fairlot has no groups of services."} | LEFT_OUT)


def _app(app: Fields, path: str, report: Report, known: Sequence[str]) -> list[Work]:
    draft = JobDraft(report, known_generations=known)
    name = path.strip("/").replace("/", "-")
    if name:
        draft.name(name, app.at("id"))
    draft.default("name", "marathon-app", "The app has no id.")
    _resources(app, draft)
    container = app.section("container")
    _container(container, draft)
    _variables(app.section("env"), draft)
    _ports(app, container, draft)
    options: dict[str, Any] = {}
    _health(app, draft)
    _command(app, container, draft)
    instances = app.whole("instances", 1) or 0
    if "port" in draft:
        if "instances" in app:
            put_replicas(draft, instances, app.at("instances"), options)
        _upgrades(app.section("upgradeStrategy"), instances, options, report)
    labels = app.section("labels")
    draft.labels({key: labels.text(key) for key in labels}, {key: labels.at(key) for key in labels})
    _user(app, draft)
    drop_each(app, {
        **LEFT_OUT, "secrets": "Create the secrets in Fairlot. The variables refer to them by name.",
        "instances": "The job is submitted once. Submit it again for more copies.",
        "healthChecks": "Only a service with a port is checked, and only if the list has a check.",
        "readinessChecks": "Only a service with a port is checked, and only if the list has a check.",
        "upgradeStrategy": "A job is not rolled out.",
    })  # fmt: skip
    return (
        finish_service(draft, options, app.path, name_at=app.at("id")) if "port" in draft else draft.finish()
    )


def put_constraints(fields: Fields, draft: JobDraft) -> None:
    """Accepts the GPU types that constraints name, such as ["gpu_model", "CLUSTER", "V100"]. Others are dropped."""
    for at, one in enumerate(fields.items("constraints")):
        path = step(fields.at("constraints"), at)
        words = [str(word) for word in one] if isinstance(one, list) else []
        if not words or not OF_GPUS.search(words[0]):
            draft.report.dropped(path, "Fairlot chooses the nodes.")
            continue
        names = [name for name in re.split(r"[|,]", words[2].strip("()^$")) if name] if len(words) > 2 else []
        plain = [re.sub(r"\.[*+]", "", name) for name in names]
        if words[1].upper() in CHOOSE and plain and all(model_of(name)[0] for name in plain):
            draft.generations(plain, path)
        else:
            draft.report.refused_at(
                path, "This chooses GPUs in a way that is not imported. Name the types.", "generations"
            )


def _resources(app: Fields, draft: JobDraft) -> None:
    put_constraints(app, draft)
    if (gpus := app.whole("gpus")) is not None:
        put_gpus(draft, gpus, app.at("gpus"))
    else:
        no_gpus(draft)
    for name in ("cpus", "mem"):
        if name not in app:
            continue
        try:
            number = Decimal(app.text(name))
            if not number.is_finite():
                raise ArithmeticError
        except ArithmeticError:
            draft.report.refused_at(app.at(name), "Here a number is expected.")
            continue
        if name == "cpus":
            put_cpus(draft, number, app.at(name))
        else:
            draft.amount("memory", int(min(number, Decimal(10**9)) * MIB), app.at(name))


def _container(container: Fields, draft: JobDraft) -> None:
    docker = container.section("docker")
    if docker.text("image"):
        put_image(draft, docker.text("image"), docker.at("image"))
    else:
        default_image(draft)
    if docker.flag("forcePullImage"):
        draft.put("image_pull_policy", "Always", docker.at("forcePullImage"))
    if docker.flag("privileged"):
        draft.report.refused_at(docker.at("privileged"), "A privileged container would be root on the node.")
    for one in docker.sections("parameters"):
        if re.fullmatch(
            r"privileged|volume|v|device|net|network|pid|ipc|cap-add|mount|security-opt", one.text("key")
        ):
            draft.report.refused_at(one.path, "This option of Docker gives access to the node.")
        else:
            draft.report.dropped(one.path, "Options of Docker have no effect.")
    drop_each(docker, {
        "network": "The worker has a network of its own. Clients use the address of the service.",
        "forcePullImage": "The cluster decides when images are pulled.",
        "privileged": "Programs have no rights on the node.", "pullConfig": "Name a secret in the field"
            " image_pull_secret.",
        "credential": "Name a secret in the field image_pull_secret.",
    })  # fmt: skip
    for volume in container.sections("volumes"):
        put_docker_volume(volume, draft)
    drop_each(
        container,
        {"type": "The container runtime is that of the node.", "linuxInfo": "Fairlot sets the options."},
    )


def put_docker_volume(volume: Fields, draft: JobDraft) -> None:
    """Takes over a volume of an app or a job. A folder of the node is refused."""
    if volume.text("hostPath").startswith("/") or ("hostPath" in volume and "persistent" not in volume):
        refuse_host_path(draft.report, volume.path)
    elif volume.section("external").text("name"):
        put_volume(draft, volume.section("external").text("name"), volume.text("containerPath"), volume.path)
    elif "secret" in volume:
        draft.report.dropped(volume.path, "Name the secret in the field secret_files.")
    else:
        draft.report.dropped(
            volume.path, "The folder is on the worker's local disk and ends with it. Ask for a volume."
        )


def _variables(env: Fields, draft: JobDraft) -> None:
    for key in env:
        if isinstance(env.get(key), dict):
            put_secret(draft, key, env.at(key))
        elif key in {"PORT", "PORT0"}:
            draft.report.dropped(env.at(key), "Fairlot sets this variable to the port of the job.")
        else:
            put_variable(draft, key, key in env, env.text(key), env.at(key))


def _ports(app: Fields, container: Fields, draft: JobDraft) -> None:
    docker = container.section("docker")
    for section, name, inner in (
        (container, "portMappings", "containerPort"), (docker, "portMappings", "containerPort"),
        (app, "portDefinitions", "port"),
    ):  # fmt: skip
        for one in section.sections(name):
            if "udp" in one.text("protocol") and "tcp" not in one.text("protocol"):
                draft.report.dropped(one.path, "Only TCP ports can be reached.")
            else:
                _port(one.whole(inner, 0) or 0, one.at(inner) if inner in one else one.path, draft)
                drop_each(one, dict.fromkeys(one, "The address of the service is a host name of the portal."))
    for at, _ in enumerate(app.items("ports")):
        value = app.items("ports")[at]
        number = int(value) if isinstance(value, int | float) and 0 <= value < 70_000 else 0
        # A service port of Marathon's router: the program listens where $PORT0 says.
        _port(
            number if "portMappings" in container or "portMappings" in docker else 0,
            step(app.at("ports"), at),
            draft,
        )
    if (
        "port" not in draft
        and "portMappings" not in container
        and "portMappings" not in docker
        and _listens(app)
    ):
        source = app.at("cmd") if "cmd" in app else app.at("healthChecks")
        draft.report.remark(
            Fate.APPROXIMATED,
            source,
            "port",
            "Marathon would choose a port. The variables PORT and PORT0 name it.",
        )
        draft.spec["port"] = PORT
    if "port" in draft:
        drop_variable(draft, app.at("env"))


def _names_of_ports(app: Fields, container: Fields) -> list[str]:
    docker = container.section("docker")
    places = [(container, "portMappings"), (docker, "portMappings"), (app, "portDefinitions")]
    names = [one.text("name") for section, name in places for one in section.sections(name)]
    return [name for name in names[:1] if re.fullmatch(r"\w+", name, re.ASCII)]


def _listens(app: Fields) -> bool:
    """Returns whether an app without ports listens at the port that Marathon gives to every app."""
    return bool(re.search(r"\$\{?PORT(?:0|_0)?\b", app.text("cmd"), flags=re.ASCII)) or bool(
        app.items("healthChecks")
    )


def _port(number: int, path: str, draft: JobDraft) -> None:
    if number:
        put_port(draft, number, path)
    elif "port" in draft:
        draft.report.dropped(path, f"A service has one port, which is {draft.spec['port']}.")
    else:
        draft.put(
            "port",
            PORT,
            path,
            "Marathon would choose a port. The variables PORT and PORT0 name it.",
            Fate.APPROXIMATED,
        )


def _health(app: Fields, draft: JobDraft) -> None:
    if "port" not in draft:
        return
    for name, period_name in (("readinessChecks", "intervalSeconds"), ("healthChecks", "intervalSeconds")):
        for check in app.sections(name):
            if "HTTP" in check.text("protocol", "HTTP") and "readiness_path" not in draft:
                period, failures = check.whole(period_name), check.whole("maxConsecutiveFailures")
                put_readiness(
                    draft, check.text("path") or "/", check.at("path"), period=period, failures=failures
                )
                for one in (period_name, "maxConsecutiveFailures", "protocol"):
                    if one in check:
                        draft.report.mapped(check.at(one), "readiness_path")
            drop_each(
                check, dict.fromkeys(check, "A service has one probe, which is a GET request at its port.")
            )


def _command(app: Fields, container: Fields, draft: JobDraft) -> None:
    given = {**GIVEN, "MARATHON_APP_ID": '"$FAIRLOT_JOB_ID"'}
    given |= {f"PORT_{name.upper()}": '"$PORT"' for name in _names_of_ports(app, container)}
    given |= {f"PORT{draft.spec['port']}": '"$PORT"'} if "port" in draft else {}
    if "port" not in draft:
        given = {name: text for name, text in given.items() if "PORT" not in name}
    image, args = container.section("docker").text("image"), app.texts("args")
    if "cmd" in app:
        put_command(draft, app.text("cmd"), app.at("cmd"), given=given)
        drop_each(app, {"args": "The field cmd counts."})
        return
    known = started_by(image)
    if args and not (known is None and args[0].startswith("-")):
        words = [*(known[0].split() if known else []), *args]
        own = "The image's own entrypoint does not run."
        text, fate = (
            (own, Fate.APPROXIMATED) if known is None else ("The image starts this program.", Fate.MAPPED)
        )
        put_command(draft, script_of(words), app.at("args"), given=given, text=text, fate=fate)
    elif known and (known[0] or known[1]):
        put_command(
            draft,
            " ".join(known),
            container.section("docker").at("image"),
            text="The image starts this program.",
        )
        draft.report.mapped(container.section("docker").at("image"), "environment")
    else:
        draft.report.refused_at(
            app.at("args") if args else app.at("cmd"),
            "The text does not say which program the image starts. Add the field cmd.", "command",
        )  # fmt: skip


def _upgrades(fields: Fields, instances: int, options: dict[str, Any], report: Report) -> None:
    for name, target in (("minimumHealthCapacity", "max_unavailable"), ("maximumOverCapacity", "max_surge")):
        value = fields.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
            continue
        share = (1 - value) if target == "max_unavailable" else value
        options[target] = math.floor(share * instances + 1e-9)
        report.mapped(fields.at(name), target, f"{options[target]} of {instances} replicas.")
    if options.get("max_unavailable") == 0 and options.get("max_surge") == 0:
        options["max_surge"] = 1
        report.remark(
            Fate.APPROXIMATED, fields.path, "max_surge", "A rollout needs room for one replica more or less."
        )


def _user(app: Fields, draft: JobDraft) -> None:
    if "user" in app:
        draft.report.dropped(
            app.at("user"), "Programs never run as root, but as user 1000. Set user_id for another one."
        )
    if (grace := app.whole("taskKillGracePeriodSeconds")) is not None and 0 <= grace <= 3600:
        draft.put("checkpoint_grace_seconds", grace, app.at("taskKillGracePeriodSeconds"))
