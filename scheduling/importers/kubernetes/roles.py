"""Workers that differ, such as a master and its workers.

If they differ in their command alone, the command of the job asks for the rank. Otherwise they become roles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.kubernetes import commands
from scheduling.importers.kubernetes.objects import Objects
from scheduling.importers.kubernetes.pods import PodTemplate, has_gpus
from scheduling.importers.report import Fate
from scheduling.importers.roles import Group, draft_of, join

# Fields of containers in which roles may differ.
OF_ROLES = ("image", "env", "resources")
# Names of pods that help the others. If no pod requests GPUs, these hold none.
HELPERS = {"launcher", "head", "ps", "pserver", "server", "parameter-server", "scheduler", "evaluator"}


@dataclass(frozen=True)
class Role:
    """A number of equal pods. The pods of the first role get the lowest ranks."""

    name: str
    count: int
    template: Fields
    counted_at: str  # the source of the number
    ends_job: bool = False  # whether the end of these pods ends the job


# Returns the script of a role, found at a source, after lines that it needs.
Begun: TypeAlias = Callable[[Role, str, str], str]
# Returns the script that a role runs in place of the command of its container, its source and what the report says.
Runs: TypeAlias = Callable[[Role], tuple[str, str, str]]


def put_roles(
    roles: Sequence[Role],
    objects: Objects,
    draft: JobDraft,
    *,
    all_train: bool = False,
    begun: Begun | None = None,
) -> None:
    """Sets the fields of a job whose workers are the pods of all roles.

    `all_train`: whether all pods are members of the process group of a program that trains. Pods without GPUs are then
    refused, because Fairlot counts only workers with GPUs there.
    """
    report = draft.report
    used = [role for role in roles if role.count > 0]
    if not used:
        report.refused_at(roles[0].counted_at if roles else "spec", "There are no pods to run.", "workers")
        return
    if need_roles(used):
        put_as_roles(used, objects, draft, all_train=all_train, begun=begun)
        return
    first, *others = used
    leading = PodTemplate(first.template, objects, draft)
    container = leading.put(command=False)
    if container is None:
        return
    scripts = [(first, commands.of_container(container, draft))]
    for role in others:
        other = role.template.section("spec").sections("containers")
        if not other or not _alike(first, role, container, other[0], draft):
            return
        scripts.append((role, commands.of_container(other[0], draft)))
        report.mapped(role.template.path, "", f"The same as for {first.name}, except for the command.")
    for role in used:
        report.mapped(role.counted_at, "workers", f"{role.count} of the workers are {role.name}.")
    draft.put(
        "workers", sum(role.count for role in used), used[-1].counted_at, "All pods are workers of one job."
    )
    known = [
        (role, (begun(role, *script[:2]), *script[1:]) if begun else script)
        for role, script in scripts
        if script is not None
    ]
    if len(known) < len(scripts):
        return
    if len({script[0] for _, script in known}) == 1:
        text, source, said = known[0][1]
        leading.command(text, source, said)
    else:
        text = _by_rank([(role, script[0]) for role, script in known])
        said = "Each worker runs the command of its role, which follows from RANK."
        leading.command(text, known[0][1][1], said, Fate.APPROXIMATED)


def need_roles(used: Sequence[Role]) -> bool:
    """Returns whether the pods differ in what roles may differ in, apart from their command."""
    containers = [role.template.section("spec").sections("containers") for role in used]
    if not all(len(one) == 1 for one in containers):
        return False
    kept = [{name: _without_given(name, one[0].get(name)) for name in OF_ROLES} for one in containers]
    return any(one != kept[0] for one in kept[1:])


def put_as_roles(
    used: Sequence[Role],
    objects: Objects,
    draft: JobDraft,
    *,
    all_train: bool = False,
    mpi: bool = False,
    begun: Begun | None = None,
    runs: Runs | None = None,
) -> None:
    """Sets the fields of a job with a role for each of `used`. The first one with GPUs sets the fields of the job.

    With `mpi`, the command of the job is that of the role that ends it, and pods without a command wait for mpirun.
    """
    report = draft.report
    found: list[Group] = []
    holding = _holding(used, mpi=mpi)
    for at, role in enumerate(used):
        own = draft_of(draft, at)
        if role not in holding:
            own.spec["gpus_per_worker"] = 0
            if all_train:
                report.refused_at(
                    role.template.path,
                    f"{role.name} requests no GPUs. Its pods would have no RANK, which only workers with GPUs have.",
                    "roles",
                )
        pods = PodTemplate(role.template, objects, own)
        container = pods.put(command=False)
        if container is None:
            return
        waits = mpi and not role.ends_job and serves_ssh(container)
        if runs is not None:
            own.command(*runs(role), Fate.APPROXIMATED)
        elif waits:
            report.mapped(container.at("command"), "launch", "The worker waits for mpirun.")
        elif (script := commands.of_container(container, own)) is not None:
            text = script[0].replace("/etc/mpi/hostfile", "$FAIRLOT_HOSTFILE") if mpi else script[0]
            if mpi and "/etc/mpi/" in text:
                report.refused_at(
                    script[1], "The command reads a file in /etc/mpi, where Fairlot has none. The list of hosts is"
                    " $FAIRLOT_HOSTFILE.", "command",
                )  # fmt: skip
            pods.command(begun(role, text, script[1]) if begun else text, script[1], script[2])
        report.mapped(
            role.counted_at, f"roles[{at}].workers", f"{role.count} of the workers are {role.name}."
        )
        found.append(Group(role.name, role.count, role.template.path, own.spec, role.ends_job, waits))
    launcher = next((one for one in found if mpi and one.ends_job), None)
    join(found, draft, "The pods differ, so each kind of them is a role.", command_of=launcher)


def serves_ssh(container: Fields) -> bool:
    """Returns whether a container only waits for logins."""
    words = " ".join([*container.texts("command"), *container.texts("args")])
    return not words or "sshd" in words or words.startswith("sleep ")


def _holding(used: Sequence[Role], *, mpi: bool) -> list[Role]:
    """Returns the roles whose workers hold GPUs: those that request some. If none does, those that train."""
    if asking := [role for role in used if holds_gpus(role)]:
        return asking
    training = [role for role in used if role.name.lower() not in HELPERS and not (mpi and role.ends_job)]
    return training or list(used)


def holds_gpus(role: Role) -> bool:
    """Returns whether the pods of a role request GPUs."""
    return any(has_gpus(one) for one in role.template.section("spec").sections("containers"))


def _alike(first: Role, role: Role, one: Fields, other: Fields, draft: JobDraft) -> bool:
    """Returns whether two roles differ in their command alone. Otherwise refuses the first difference."""
    ignored = {
        "name",
        "command",
        "args",
        "ports",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle",
    }
    for name in sorted({*one, *other} - ignored):
        if _without_given(name, one.get(name)) != _without_given(name, other.get(name)):
            draft.report.refused_at(
                other.at(name),
                f"{role.name} differs from {first.name}. Pods without GPUs differ only in their commands, and all"
                " pods have the same mounts. Make them the same, or submit two jobs.",
            )
            return False
    specs = [role.template.section("spec") for role in (first, role)]
    for name in ("volumes", "initContainers", "nodeSelector", "hostNetwork", "hostPID", "hostIPC"):
        if specs[0].get(name) != specs[1].get(name):
            draft.report.refused_at(
                specs[1].at(name), f"{role.name} differs from {first.name} in this field."
            )
            return False
    if len(specs[1].items("containers")) > 1:
        draft.report.refused_at(specs[1].at("containers"), "A worker is one container.")
        return False
    return True


def _without_given(name: str, value: Any) -> Any:
    """Returns the value without variables that Fairlot sets itself, in which roles usually differ."""
    if name != "env" or not isinstance(value, list):
        return value
    kept = [one for one in value if not isinstance(one, dict) or str(one.get("name")) not in commands.GIVEN]
    return kept or None


def _by_rank(scripts: list[tuple[Role, str]]) -> str:
    lines, begin = [], 0
    for at, (role, text) in enumerate(scripts):
        end = begin + role.count
        if at == len(scripts) - 1:
            lines.append("else")
        else:
            lines.append(f'{"if" if at == 0 else "elif"} [ "$RANK" -lt {end} ]; then')
        lines.append(text)
        begin = end
    return "\n".join([*lines, "fi"])
