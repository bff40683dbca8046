"""Imports jobs of OpenPAI, protocol version 2."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from scheduling.importers import credentials, retries
from scheduling.importers.commands import HOSTS, put_command, used_in
from scheduling.importers.documents import drop_each, fields_of, shown
from scheduling.importers.draft import JobDraft
from scheduling.importers.environment import put_secret
from scheduling.importers.fields import Fields
from scheduling.importers.images import default_image, put_image
from scheduling.importers.ports import put_port
from scheduling.importers.reading import Source
from scheduling.importers.report import Fate, Report, Work
from scheduling.importers.resources import no_gpus, put_cpus, put_gpus

EXPRESSION = re.compile(r"<%\s*\$(\w+)((?:\.[\w-]+|\[\d+\])*)\s*%>", re.ASCII)
MIB = 2**20
FAILS = "A job fails as soon as one of its workers fails, and succeeds when all have ended."
# By variable that OpenPAI sets, the shell expression for its value.
GIVEN = {
    "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": '"$RANK"',
    "PAI_TASK_INDEX": '"$RANK"',
    "PAI_CURRENT_CONTAINER_IP": '"$(hostname -i | cut -d " " -f 1)"',
    "PAI_JOB_NAME": '"$FAIRLOT_JOB_ID"',
    "PAI_WORK_DIR": '"$PWD"',
    "PAI_USER_NAME": '"$LOGNAME"',
}
IN_JOB = {
    "type": "This is a job.", "version": "The version of a component has no effect.",
    "contributor": "The contributor has no effect.", "description": "A description has no effect.",
    "protocolVersion": "This is the version of the format.",
    "defaults": "Choose the team and the cluster when you submit the job.",
    "default": "Choose the team and the cluster when you submit the job.",
}  # fmt: skip
PLUGINS = "Fairlot has no plugins: no SSH, and storage only as volumes that an operator grants."


@dataclass
class Role:
    """A task role: its fields, and what its expressions refer to."""

    name: str
    fields: Fields
    root: Fields  # of the whole job
    scope: dict[str, Any]
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)


def recognise(source: Source) -> bool:
    return any(
        isinstance(one.get("taskRoles"), dict | list) and "apiVersion" not in one
        for one in source.mappings[:3]
    )


def convert(source: Source, report: Report, known: Sequence[str]) -> list[Work]:
    """Returns a job for each task role."""
    works: list[Work] = []
    for fields in fields_of(source, report):
        works += _job(fields, report, known)
    return works


def _job(fields: Fields, report: Report, known: Sequence[str]) -> list[Work]:
    parts = {one.text("name"): one for one in fields.sections("prerequisites")}
    roles = [_role(name, fields, parts) for name in fields.section("taskRoles")]
    if not roles:
        report.refused_at(fields.at("taskRoles"), "The job has no task roles.")
    drop_each(fields, IN_JOB)
    works: list[Work] = []
    counts = {role.name: role.fields.whole("instances", 1) or 1 for role in roles}
    for role in roles:
        works += _task_role(role, counts, fields, report, known)
    if len(roles) > 1:
        report.remark(
            Fate.APPROXIMATED, fields.at("taskRoles"), "",
            "Each task role becomes a job of its own. They do not start together, and do not know each other's hosts.",
        )  # fmt: skip
    for one in parts.values():
        drop_each(one, dict.fromkeys(one, "This has an effect only where a task role refers to it."))
    for name in ("parameters", "secrets"):
        section = fields.section(name)
        drop_each(section, dict.fromkeys(section, "It has an effect only where a command refers to it."))
    _extras(fields.section("extras"), report)
    drop_each(fields, {"deployments": "Only the deployment that defaults names is used."})
    return works


def _role(name: str, fields: Fields, parts: Mapping[str, Fields]) -> Role:
    section = fields.section("taskRoles").section(name)
    scope: dict[str, Any] = {
        "parameters": fields.get("parameters") or {},
        "secrets": fields.get("secrets") or {},
    }
    for kind in ("data", "script", "output"):
        if section.text(kind) in parts:
            scope[kind] = parts[section.text(kind)].data
    role = Role(name, section, fields, scope)
    wanted = fields.section("defaults").text("deployment") or fields.section("default").text("deployment")
    for deployment in fields.sections("deployments"):
        if wanted and deployment.text("name") == wanted:
            steps = deployment.section("taskRoles", name)
            fields.report.mapped(
                deployment.path, "command", "Its commands run before and after those of the roles."
            )
            for part in (fields.section("defaults"), fields.section("default")):
                if "deployment" in part:
                    fields.report.mapped(part.at("deployment"), "command", "The deployment that is used.")
            role.before, role.after = steps.texts("preCommands"), steps.texts("postCommands")
    return role


def _task_role(
    role: Role, counts: Mapping[str, int], fields: Fields, report: Report, known: Sequence[str]
) -> list[Work]:
    section = role.fields
    draft = JobDraft(report, known_generations=known)
    name = fields.text("name") or "openpai-job"
    draft.name(name if len(counts) == 1 else f"{name}-{role.name}", fields.at("name"))
    if (instances := section.whole("instances")) is not None:
        draft.put("workers", instances, section.at("instances"), "Each instance becomes a worker.")
    _resources(section, draft)
    _image(role, fields, draft)
    _types(fields, role, draft)
    _command(role, counts, draft)
    retries.put_whole(section, "taskRetryCount", draft)
    retries.put_whole(fields, "jobRetryCount", draft)
    drop_each(section.section("completion"), dict.fromkeys(section.section("completion"), FAILS))
    drop_each(section, {
        "completion": FAILS,
        **dict.fromkeys(("data", "script", "output"), "Fairlot fetches nothing. The command must do it."),
    })  # fmt: skip
    return draft.finish()


def _resources(section: Fields, draft: JobDraft) -> None:
    resources = section.section("resourcePerInstance")
    gpus = resources.whole("gpu")
    if gpus is None:
        no_gpus(draft)
    else:
        put_gpus(draft, gpus, resources.at("gpu"))
    if (cpu := resources.whole("cpu")) is not None:
        put_cpus(draft, Decimal(cpu), resources.at("cpu"))
    if (memory := resources.whole("memoryMB")) is not None:
        draft.amount("memory", memory * MIB, resources.at("memoryMB"))
    ports = resources.section("ports")
    for label in ports:
        number = ports.whole(label) or 0
        if number >= 1024:
            put_port(draft, number, ports.at(label))
        else:
            draft.report.dropped(
                ports.at(label),
                "OpenPAI would choose ports of the node. Workers reach all ports of each other.",
            )
    options = section.section("extraContainerOptions")
    if (shm := options.whole("shmMB")) is not None:
        draft.amount("shm", shm * MIB, options.at("shmMB"))
    drop_each(options, {"infiniband": "The cluster decides how workers communicate."})


def _image(role: Role, fields: Fields, draft: JobDraft) -> None:
    wanted, source = role.fields.text("dockerImage"), role.fields.at("dockerImage")
    for one in fields.sections("prerequisites"):
        if one.text("name") != wanted or not wanted:
            continue
        put_image(draft, one.text("uri"), one.at("uri"))
        if "auth" in one:
            draft.put(
                "image_pull_secret", "registry", one.at("auth"),
                "Store the user name and the password as the secret registry, which holds a Docker configuration.",
                Fate.APPROXIMATED,
            )  # fmt: skip
        draft.report.mapped(source, "environment", "The image of this name.")
        return
    if wanted:
        draft.report.refused_at(source, "No prerequisite has this name.", "environment")
    default_image(draft)


def _types(fields: Fields, role: Role, draft: JobDraft) -> None:
    section = fields.section("extras", "hivedScheduler", "taskRoles", role.name)
    for name in ("gpuType", "skuType"):
        if section.text(name):
            draft.generations([section.text(name)], section.at(name))


def _command(role: Role, counts: Mapping[str, int], draft: JobDraft) -> None:
    source = role.fields.at("commands")
    lines = [*role.before, *role.fields.texts("commands"), *role.after]
    script = "\n".join(_filled(one, role, source, draft) for one in lines)
    others = [name for name in counts if name != role.name]
    for other in others:
        if re.search(
            rf"PAI_(?:TASK_ROLE|HOST_IP|PORT_LIST|{re.escape(other)})\w*{re.escape(other)}",
            script,
            flags=re.ASCII,
        ):
            draft.report.refused_at(
                source, f"The commands need the hosts of the task role {shown(other)}. Workers of different roles"
                    f" cannot be"
                " one job.", "command",
            )  # fmt: skip
            return
    given = dict(GIVEN)
    given[f"PAI_TASK_ROLE_{role.name}_HOST_LIST"] = HOSTS
    given[f"PAI_TASK_ROLE_TASK_COUNT_{role.name}"] = '"$WORLD_SIZE"'
    given[f"PAI_HOST_IP_{role.name}_0"] = '"$MASTER_ADDR"'
    given[f"PAI_{role.name}_0_PORT"] = '"$MASTER_PORT"'
    given[f"PAI_PORT_LIST_{role.name}_0"] = '"$MASTER_PORT"'
    given = {name: text for name, text in given.items() if re.fullmatch(r"\w+", name, re.ASCII)}
    put_command(draft, script, source, given=given)
    for name in dict.fromkeys(re.findall(r"\bPAI_\w+", script, flags=re.ASCII)):
        if not used_in(name, given):
            draft.report.remark(
                Fate.DROPPED, f"{source}: ${shown(name)}", "command", "This variable is not set."
            )


def _filled(text: str, role: Role, at: str, draft: JobDraft) -> str:
    """Returns a command with its expressions replaced. A secret becomes a variable."""

    def value_of(found: re.Match[str]) -> str:
        path = re.findall(r"[\w-]+", found[2], flags=re.ASCII)
        if found[1] == "secrets" and len(path) == 1:
            name = re.sub(r"\W", "_", path[0], flags=re.ASCII).upper()
            name = name if not name[:1].isdigit() else f"SECRET_{name}"
            put_secret(draft, name, role.root.section("secrets").at(path[0]))
            return f'"${name}"'
        source = at
        value: Any = role.scope.get(found[1])
        for one in path:
            if isinstance(value, dict):
                value = value.get(one)
            elif isinstance(value, list) and one.isdigit() and int(one) < len(value):
                value = value[int(one)]
            else:
                value = None
        if isinstance(value, str | int | float):
            said = str(value)
            if found[1] == "parameters" and path:
                source = role.root.section("parameters").at(path[0])
            draft.report.mapped(source, "command", f"{found[0]} is filled in.")
            return said if not credentials.has_credential(said) else found[0]
        return found[0]

    return EXPRESSION.sub(value_of, text)


def _extras(extras: Fields, report: Report) -> None:
    drop_each(extras, {
        "com.microsoft.pai.runtimeplugin": PLUGINS, "storages": PLUGINS,
        "gangAllocation": "All workers start together.",
        "submitFrom": "This says which page created the text.",
        "jobStatusChangeNotification": "The job's page shows its state. Use a webhook of the team.",
    })  # fmt: skip
    hived = extras.section("hivedScheduler")
    drop_each(hived, {
        "jobPriorityClass": "Fairlot has no classes of priority. Use the field priority to order your own jobs.",
        "taskRoles": "Only the GPU type is taken over.", "affinityGroups": "Fairlot chooses the nodes.",
    })  # fmt: skip
