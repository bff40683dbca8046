"""Workers with different commands, such as a master and its workers. The command of the job asks for the rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.kubernetes import commands
from scheduling.importers.kubernetes.objects import Objects
from scheduling.importers.kubernetes.pods import PodTemplate
from scheduling.importers.report import Fate


@dataclass(frozen=True)
class Role:
    """A number of equal pods. The pods of the first role get the lowest ranks."""

    name: str
    count: int
    template: Fields
    counted_at: str  # the source of the number


def put_roles(roles: Sequence[Role], objects: Objects, draft: JobDraft) -> None:
    """Sets the fields of a job whose workers are the pods of all roles. Refuses roles that differ in more than the
    command."""
    report = draft.report
    used = [role for role in roles if role.count > 0]
    if not used:
        report.refused_at(roles[0].counted_at if roles else "spec", "There are no pods to run.", "workers")
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
    known = [(role, script) for role, script in scripts if script is not None]
    if len(known) < len(scripts):
        return
    if len({script[0] for _, script in known}) == 1:
        text, source, said = known[0][1]
        leading.command(text, source, said)
    else:
        text = _by_rank([(role, script[0]) for role, script in known])
        said = "Each worker runs the command of its role, which follows from RANK."
        leading.command(text, known[0][1][1], said, Fate.APPROXIMATED)


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
                f"{role.name} differs from {first.name}. All workers of a job have the same image, variables, resources"
                " and mounts. Make them the same, or submit two jobs.",
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
