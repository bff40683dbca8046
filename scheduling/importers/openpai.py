"""Imports jobs of OpenPAI, protocol version 2."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from scheduling.importers import credentials, retries
from scheduling.importers.commands import put_command
from scheduling.importers.documents import drop_each, fields_of, shown
from scheduling.importers.draft import JobDraft
from scheduling.importers.environment import put_secret
from scheduling.importers.fields import Fields
from scheduling.importers.images import default_image, put_image
from scheduling.importers.openpai_tasks import VARIABLE, Tasks, needs_roles
from scheduling.importers.ports import put_port
from scheduling.importers.reading import Source
from scheduling.importers.report import Fate, Report, Work
from scheduling.importers.resources import no_gpus, put_cpus, put_gpus
from scheduling.importers.roles import Group, draft_of, join

EXPRESSION = re.compile(r"<%\s*\$(\w+)((?:\.[\w-]+|\[\d+\])*)\s*%>", re.ASCII)
MIB = 2**20
FAILS = "A job fails as soon as one of its workers fails, and succeeds when all have succeeded."
SUCCEEDS = "A job succeeds when all its workers have succeeded."
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

    @property
    def count(self) -> int:
        number = self.fields.whole("instances", 1)
        return 1 if number is None else number

    @property
    def gpus(self) -> int | None:
        return self.fields.section("resourcePerInstance").whole("gpu")

    @property
    def ports(self) -> list[str]:
        return list(self.fields.section("resourcePerInstance", "ports"))

    @property
    def script(self) -> str:
        """Returns the commands as they are written, with their expressions."""
        return "\n".join([*self.before, *self.fields.texts("commands"), *self.after])


def recognise(source: Source) -> bool:
    return any(
        isinstance(one.get("taskRoles"), dict | list) and "apiVersion" not in one
        for one in source.mappings[:3]
    )


def convert(source: Source, report: Report, known: Sequence[str]) -> list[Work]:
    """Returns a job, whose roles are the task roles. Task roles that cannot be one job, and do not need each other,
    become jobs."""
    works: list[Work] = []
    for fields in fields_of(source, report):
        works += _job(fields, report, known)
    return works


def _job(fields: Fields, report: Report, known: Sequence[str]) -> list[Work]:
    parts = {one.text("name"): one for one in fields.sections("prerequisites")}
    roles = [_role(name, fields, parts) for name in fields.section("taskRoles")]
    if not roles:
        report.refused_at(fields.at("taskRoles"), "The job has no task roles.")
    for role in roles:
        if role.count < 1:
            report.refused_at(
                role.fields.at("instances"), "A task role has at least one instance.", "workers"
            )
    drop_each(fields, IN_JOB)
    works: list[Work] = []
    if roles and not report.refused:
        works = _works(roles, fields, report, known)
    for one in parts.values():
        drop_each(one, dict.fromkeys(one, "This has an effect only where a task role refers to it."))
    for name in ("parameters", "secrets"):
        section = fields.section(name)
        drop_each(section, dict.fromkeys(section, "It has an effect only where a command refers to it."))
    _extras(fields.section("extras"), report)
    drop_each(fields, {"deployments": "Only the deployment that defaults names is used."})
    return works


def _works(roles: Sequence[Role], fields: Fields, report: Report, known: Sequence[str]) -> list[Work]:
    held = {role.gpus for role in roles if role.gpus != 0}
    if len(roles) > 1 and len(held) > 1:
        return _apart(roles, fields, report, known)
    draft = JobDraft(report, known_generations=known)
    draft.name(fields.text("name") or "openpai-job", fields.at("name"))
    (first, *others) = roles
    if not others and not needs_roles(first.script, first.name, first.count):
        _put(first, draft, tasks=_tasks(first, roles, are_roles=False))
        if "instances" in first.fields:
            draft.put("workers", first.count, first.fields.at("instances"), "Each instance becomes a worker.")
        _completion(first, draft, is_only=True)
        retries.put_whole(fields, "jobRetryCount", draft)
        return draft.finish()
    _put_roles(roles, draft, without_gpus=not held)
    retries.put_whole(fields, "jobRetryCount", draft)
    return draft.finish()


def _put_roles(roles: Sequence[Role], draft: JobDraft, *, without_gpus: bool) -> None:
    """Sets the fields of a job whose roles are the task roles. If none requests GPUs, those of the first one get one
    each."""
    groups = []
    for at, role in enumerate(roles):
        own = draft_of(draft, at)
        _put(role, own, tasks=_tasks(role, roles, are_roles=True), may_lack_gpus=at > 0 or not without_gpus)
        draft.report.mapped(
            role.fields.at("instances" if "instances" in role.fields else "commands"),
            f"roles[{at}].workers",
            f"{role.count} of the workers are {role.name}.",
        )
        ends = _completion(role, own, is_only=len(roles) == 1)
        groups.append(Group(role.name, role.count, role.fields.path, own.spec, ends_job=ends))
    join(groups, draft, "Each task role is a role of the job. All start together.")


def _apart(roles: Sequence[Role], fields: Fields, report: Report, known: Sequence[str]) -> list[Work]:
    """Returns a job for each task role. Refuses those whose commands need the hosts of others."""
    works: list[Work] = []
    name = fields.text("name") or "openpai-job"
    for role in roles:
        others = [one.name for one in roles if one is not role]
        for other in others:
            if any(re.search(rf"_{re.escape(other)}(?:_|$)", one) for one in VARIABLE.findall(role.script)):
                report.refused_at(
                    role.fields.at("commands"),
                    f"The commands need the hosts of the task role {shown(other)}, so both must be roles of one job."
                    " Roles with GPUs have the same number of GPUs for each worker.",
                    "roles",
                )
        draft = JobDraft(report, known_generations=known)
        draft.name(f"{name}-{role.name}", fields.at("name"))
        if "instances" in role.fields:
            draft.put("workers", role.count, role.fields.at("instances"), "Each instance becomes a worker.")
        _put(role, draft, tasks=_tasks(role, [role], are_roles=False))
        _completion(role, draft, is_only=True)
        retries.put_whole(fields, "jobRetryCount", draft)
        works += draft.finish()
    report.remark(
        Fate.APPROXIMATED, fields.at("taskRoles"), "",
        "The task roles have different numbers of GPUs for each instance, so each becomes a job of its own. They do not"
        " start together, and do not know each other's hosts.",
    )  # fmt: skip
    return works


def _tasks(role: Role, roles: Sequence[Role], *, are_roles: bool) -> Tasks:
    counts, ports = {one.name: one.count for one in roles}, {one.name: one.ports for one in roles}
    return Tasks(role.name, counts, ports, are_roles)


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


def _put(role: Role, draft: JobDraft, *, tasks: Tasks, may_lack_gpus: bool = False) -> None:
    """Sets the fields that the workers of a task role have."""
    section = role.fields
    _resources(section, draft, may_lack_gpus=may_lack_gpus)
    _image(role, role.root, draft)
    _types(role.root, role, draft)
    _command(role, tasks, draft)
    retries.put_whole(section, "taskRetryCount", draft)
    drop_each(section, dict.fromkeys(
        ("data", "script", "output"), "Only code from a Git repository is fetched. The command must do it.",
    ))  # fmt: skip


def _completion(role: Role, draft: JobDraft, *, is_only: bool) -> bool:
    """Says what became of the policy of a task role. Returns whether the end of its workers ends the job."""
    policy, report = role.fields.section("completion"), draft.report
    failed, succeeded = policy.whole("minFailedInstances"), policy.whole("minSucceededInstances")
    if failed == 1:
        report.mapped(policy.at("minFailedInstances"), "", "A job fails as soon as one of its workers fails.")
    ends = False
    if succeeded is not None and succeeded > 0:
        ends, source = not is_only, policy.at("minSucceededInstances")
        said = "The job ends when all workers of this role have succeeded." if ends else SUCCEEDS
        if succeeded < role.count:
            report.approximated(source, "ends_job" if ends else "", f"{said} Fewer do not end it.")
        else:
            report.mapped(source, "ends_job" if ends else "", said)
    elif "minSucceededInstances" in policy:
        report.mapped(policy.at("minSucceededInstances"), "", SUCCEEDS)
    drop_each(policy, dict.fromkeys(policy, FAILS))
    return ends


def _resources(section: Fields, draft: JobDraft, *, may_lack_gpus: bool) -> None:
    """Sets the resources of a worker. `may_lack_gpus`: whether other workers of the job have GPUs."""
    resources = section.section("resourcePerInstance")
    gpus = resources.whole("gpu")
    if may_lack_gpus and gpus == 0:
        draft.spec["gpus_per_worker"] = 0
        draft.report.mapped(resources.at("gpu"), "gpus_per_worker")
    elif gpus is None:
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
            draft.report.approximated(
                ports.at(label), "command",
                "OpenPAI would choose a port of the node. Commands that ask for it get the port at which the worker may"
                " listen.",
            )  # fmt: skip
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


def _command(role: Role, tasks: Tasks, draft: JobDraft) -> None:
    source = role.fields.at("commands")
    lines = [*role.before, *role.fields.texts("commands"), *role.after]
    script = "\n".join(_filled(one, role, source, draft) for one in lines)
    given, missing = tasks.given(script)
    put_command(draft, script, source, given=given)
    for name, why in missing:
        if why:
            draft.report.refused_at(
                f"{source}: ${shown(name)}", f"{why}. Write the value instead.", "command"
            )
        else:
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
