"""Jobs of Volcano: tasks that start together, and what its plug-ins tell them about each other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduling.importers.commands import used_in
from scheduling.importers.draft import LAUNCHER, JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.kubernetes.batch import OF_JOBS, drop_known, timetable
from scheduling.importers.kubernetes.metadata import QUEUE, drop_template_metadata, put_labels
from scheduling.importers.kubernetes.objects import Objects
from scheduling.importers.kubernetes.roles import Role, put_as_roles, put_roles, serves_ssh
from scheduling.importers.report import Fate, Work, WorkKind
from scheduling.importers.roles import hosts_of

# The folder in which Volcano mounts the lists of hosts, and the one in which a command writes them.
HOSTS, FOLDER = "/etc/volcano", "/tmp/volcano"  # noqa: S108 - of a container, or of one job
INDICES = ("VC_TASK_INDEX", "VK_TASK_INDEX")
SUCCEEDS = "A job succeeds when all its workers succeed, and fails when one fails."
SETTINGS = "Fairlot sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT instead."


@dataclass(frozen=True)
class Plugins:
    """What the plug-ins svc and env tell each pod, as lines at the beginning of its command.

    `has_roles`: whether the tasks are roles; otherwise there is one task.
    """

    tasks: Sequence[Role]
    draft: JobDraft
    has_roles: bool

    def begun(self, role: Role, script: str, source: str) -> str:
        """Returns the script after the lines that it needs."""
        lines, text, report = [], script, self.draft.report
        index = '"$FAIRLOT_ROLE_INDEX"' if self.has_roles else '"$RANK"'
        for name in used_in(script, INDICES):
            lines.append(f"export {name}={index}")
            report.remark(Fate.APPROXIMATED, source, "command", f"The command sets {name} to {index}.")
        for task in self.tasks:
            plain = re.sub(r"\W", "_", task.name.upper(), flags=re.ASCII)
            hosts = f'"$(echo "${hosts_of(task.name)}" | sed \'s/:[0-9]*//g\')"'
            for name, value in ((f"VC_{plain}_HOSTS", hosts), (f"VC_{plain}_NUM", str(task.count))):
                if used_in(script, [name]):
                    lines.append(f"export {name}={value}")
                    report.remark(Fate.APPROXIMATED, source, "command", f"The command sets {name}.")
            if f"{HOSTS}/{task.name}.host" in script:
                lines.append(f"mkdir -p {FOLDER} && echo {hosts} | tr , '\\n' > {FOLDER}/{task.name}.host")
        if HOSTS in script:
            text = script.replace(HOSTS, FOLDER)
            report.remark(
                Fate.APPROXIMATED, source, "command",
                f"The command writes the lists of hosts to {FOLDER}, and reads them there in place of {HOSTS}.",
            )  # fmt: skip
        return "\n".join([*lines, text])


def cron_job(root: Fields, objects: Objects, draft: JobDraft) -> list[Work]:
    """Returns a schedule that submits a job whose workers are the pods of all tasks."""
    spec = root.section("spec")
    options, template = timetable(spec, draft), spec.section("jobTemplate")
    put_labels(template.section("metadata"), draft)
    if not _put_job(template.section("spec"), objects, draft) or not options:
        return []
    return draft.finish(WorkKind.SCHEDULE, options)


def volcano_job(root: Fields, objects: Objects, draft: JobDraft) -> list[Work]:
    """Returns one job whose workers are the pods of all tasks."""
    return draft.finish() if _put_job(root.section("spec"), objects, draft) else []


def _put_job(spec: Fields, objects: Objects, draft: JobDraft) -> bool:
    """Sets the fields of a job from the specification of a Job. Returns whether it has tasks."""
    report = draft.report
    roles = [_task(one, draft, is_only=len(spec.items("tasks")) == 1) for one in spec.sections("tasks")]
    total, least = sum(role.count for role in roles), spec.whole("minAvailable")
    if least is not None and least > total:
        report.refused_at(
            spec.at("minAvailable"), f"The job needs {least} pods and has {total}. It could never start."
        )
    elif least is not None and least < total:
        report.approximated(
            spec.at("minAvailable"), "workers", f"All {total} workers start together, not only {least}."
        )
    elif least is not None:
        report.mapped(spec.at("minAvailable"), "workers", "All workers start together.")
    plugins = spec.section("plugins")
    roles = _with_launcher(plugins, roles, draft)
    mpi = total > 1 and _logs_in(plugins, roles, draft)
    if not roles:
        report.refused_at(spec.at("tasks"), "The job has no tasks.")
        return False
    several = [role for role in roles if role.count]
    needs_roles = len(several) > 1 and (
        any(role.ends_job for role in several) or "tensorflow" in plugins or any(map(_asks, several))
    )
    for name in plugins:
        _plugin(plugins, name, draft, has_roles=needs_roles or mpi)
    needs_roles = needs_roles or mpi or any(_asks_for_hosts(role) for role in several)
    begun = Plugins(several, draft, needs_roles).begun
    if needs_roles:
        put_as_roles(several, objects, draft, mpi=mpi, begun=begun)
    else:
        put_roles(roles, objects, draft, begun=begun)
    if mpi:
        draft.put("launch", "mpi", plugins.at("mpi" if "mpi" in plugins else "ssh"),
                  "One pod calls mpirun, which logs in to the others.")  # fmt: skip
    _policies(spec, draft, several=len(several) > 1 and not any(role.ends_job for role in several))
    drop_known(spec, {
        "queue": QUEUE, "schedulerName": "Fairlot schedules the job.",
        "priorityClassName": "Use the field priority to order your own jobs.",
        "volumes": "Only volumes of the pods are taken over.", "networkTopology": "Fairlot places workers close"
                " together.",
        "ttlSecondsAfterFinished": OF_JOBS["ttlSecondsAfterFinished"],
    }, draft)  # fmt: skip
    return True


def _task(one: Fields, draft: JobDraft, *, is_only: bool) -> Role:
    report = draft.report
    source = one.at("replicas") if "replicas" in one else one.at("name")
    if "name" in one:
        report.mapped(one.at("name"), "workers")
    drop_template_metadata(one.section("template"), draft)
    ending = next((policy for policy in one.sections("policies") if _completes(policy)), None)
    if ending is not None:
        said = (
            "The job succeeds when all its workers have."
            if is_only
            else "The end of these workers ends the job."
        )
        report.mapped(ending.path, "" if is_only else "ends_job", said)
    for policy in one.sections("policies"):
        if not report.covers(policy.path):
            report.dropped(policy.path, SUCCEEDS)
    drop_known(one, {
        "minAvailable": "All workers of a job start together.",
        "topologyPolicy": "The cluster places workers on the processors of a node.",
    }, draft)  # fmt: skip
    replicas = one.whole("replicas", 1)
    return Role(
        one.text("name") or "workers",
        1 if replicas is None else replicas,
        one.section("template"),
        source,
        ends_job=ending is not None and not is_only,
    )


def _completes(policy: Fields) -> bool:
    """Returns whether a policy ends the job when a task has completed."""
    events = {policy.text("event"), *policy.texts("events")}
    return policy.text("action") == "CompleteJob" and bool(events & {"TaskCompleted", "*"})


def _policies(spec: Fields, draft: JobDraft, *, several: bool) -> None:
    """Says what became of the policies of the whole job."""
    for policy in spec.sections("policies"):
        if _completes(policy) and several:
            draft.report.approximated(
                policy.path, "",
                "The job ends when all its workers have succeeded, not when the first task has. If pods of a task run"
                " until the job ends, give ends_job to the role of another one.",
            )  # fmt: skip
        elif _completes(policy):
            draft.report.mapped(policy.path, "", SUCCEEDS)
        elif not draft.report.covers(policy.path):
            draft.report.dropped(policy.path, SUCCEEDS)


def _script(role: Role) -> str:
    words = [
        word for one in role.template.section("spec").sections("containers") for word in
        (*one.texts("command"), *one.texts("args"))
    ]  # fmt: skip
    return "\n".join(words)


def _asks_for_hosts(role: Role) -> bool:
    script = _script(role)
    return HOSTS in script or bool(re.search(r"\bVC_\w+_HOSTS\b", script, re.ASCII))


def _asks(role: Role) -> bool:
    """Returns whether the command of a pod asks for what a role knows: its hosts, or the number in its task."""
    return _asks_for_hosts(role) or bool(used_in(_script(role), INDICES))


def _with_launcher(plugins: Fields, roles: Sequence[Role], draft: JobDraft) -> list[Role]:
    """Returns the tasks. If no policy says which of them ends the job, the only pod that calls mpirun does."""
    calling = [role for role in roles if role.count == 1 and LAUNCHER.search(_script(role))]
    if not {"mpi", "ssh"} & plugins.data.keys() or any(role.ends_job for role in roles) or len(calling) != 1:
        return list(roles)
    draft.report.remark(
        Fate.APPROXIMATED, calling[0].counted_at, "ends_job",
        "The end of the pod that calls mpirun ends the job. In Volcano it goes on while the others run sshd.",
    )  # fmt: skip
    return [replace(role, ends_job=role is calling[0]) for role in roles]


def _logs_in(plugins: Fields, roles: Sequence[Role], draft: JobDraft) -> bool:
    """Returns whether one pod calls mpirun and the others wait for it. Refuses other pods that log in to each other."""
    names = [name for name in ("mpi", "ssh") if name in plugins]
    if not names:
        return False
    ends = [role for role in roles if role.ends_job]
    waiting = [role for role in roles if role not in ends and role.count]
    containers = [one for role in waiting for one in role.template.section("spec").sections("containers")]
    if [role.count for role in ends] == [1] and all(map(serves_ssh, containers)):
        return True
    for name in names:
        draft.report.refused_at(
            plugins.at(name),
            "Only jobs with launch: mpi let a worker log in to others. One task with one pod calls mpirun and has the"
            " policy TaskCompleted with CompleteJob; the pods of the others run sshd.",
            "launch",
        )
    return False


def _plugin(plugins: Fields, name: str, draft: JobDraft, *, has_roles: bool) -> None:
    report, source = draft.report, plugins.at(name)
    if report.covers(source):
        return
    if name in {"mpi", "ssh"}:
        report.approximated(
            source, "launch", "Fairlot brings the keys, at another path, and starts the ssh servers."
        )
    elif name == "tensorflow" and has_roles:
        report.approximated(
            source, "roles", "Fairlot sets TF_CONFIG, with the names of the roles and its own ports."
        )
    elif name in {"svc", "env"}:
        report.approximated(
            source, "command", f"Commands that ask for hosts or their number get those of Fairlot. {SETTINGS}"
        )
    elif name == "pytorch":
        report.approximated(source, "", SETTINGS)
    else:
        report.dropped(source, "Fairlot has no such plug-in.")
