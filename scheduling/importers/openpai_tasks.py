"""How tasks of OpenPAI find each other: the variables that OpenPAI sets, as shell expressions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduling.importers.documents import shown
from scheduling.importers.roles import hosts_of

VARIABLE = re.compile(r"(?<![A-Za-z0-9_])PAI_\w+", re.ASCII)
# Names of variables about hosts and ports. A program that finds them empty fails, or does something else.
OF_TASKS = re.compile(r"HOST_IP|HOST_LIST|_PORT|PORT_LIST", re.ASCII)
# Variables with the same value in each job.
ALIKE = {
    "PAI_CURRENT_CONTAINER_IP": '"$(hostname -i | cut -d " " -f 1)"',
    "PAI_JOB_NAME": '"$FAIRLOT_JOB_ID"',
    "PAI_WORK_DIR": '"$PWD"',
    "PAI_USER_NAME": '"$LOGNAME"',
}


@dataclass(frozen=True)
class Tasks:
    """The tasks of a job, as the commands of one task role see them.

    - `own`: the name of this task role.
    - `counts`: by task role, the number of its tasks.
    - `ports`: by task role, the labels of its ports.
    - `are_roles`: whether the task roles are roles of the job; otherwise the tasks are workers without roles.
    """

    own: str
    counts: Mapping[str, int]
    ports: Mapping[str, Sequence[str]]
    are_roles: bool

    def given(self, script: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
        """Returns, by variable of OpenPAI in a script, the shell expression for its value. Also returns the names of
        those that nothing sets, each with the reason, or "" if it names no host or port."""
        found, missing = {}, []
        for name in dict.fromkeys(VARIABLE.findall(script)):
            value = self._value(name)
            if value is None:
                missing.append((name, self._why(name)))
            else:
                found[name] = value
        return found, missing

    def _value(self, name: str) -> str | None:
        index = '"$FAIRLOT_ROLE_INDEX"' if self.are_roles else '"$RANK"'
        plain = {
            **ALIKE,
            "PAI_TASK_INDEX": index,
            "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": index,
            "PAI_CURRENT_TASK_ROLE_NAME": self.own,
            "PAI_CURRENT_TASK_ROLE_TASK_COUNT": str(self.counts[self.own]),
            "PAI_TASK_ROLE_COUNT": str(len(self.counts)),
            "PAI_TASK_ROLE_LIST": ",".join(self.counts),
        }
        if name in plain:
            return plain[name]
        found = re.fullmatch(r"PAI_CONTAINER_HOST_(?:(\w+)_)?PORT(?:_LIST)?", name, re.ASCII)
        if found and found[1] in (None, *self.ports[self.own][:1]):
            return self._own_port()
        for role, count in self.counts.items():
            quoted = re.escape(role)
            if name == f"PAI_TASK_ROLE_TASK_COUNT_{role}":
                return str(count)
            if name == f"PAI_TASK_ROLE_{role}_HOST_LIST":
                return self._addresses(role)
            if found := re.fullmatch(rf"PAI_HOST_IP_{quoted}_(\d+)", name, re.ASCII):
                return self._part(role, int(found[1]), of_port=False)
            for pattern in (
                rf"PAI_PORT_LIST_{quoted}_(\d+)(?:_(\w+))?",
                rf"PAI_{quoted}_(\d+)(?:_(\w+))?_PORT",
            ):
                found = re.fullmatch(pattern, name, re.ASCII)
                if found and found[2] in (None, *self.ports[role][:1]):
                    return self._part(role, int(found[1]), of_port=True)
        return None

    def _addresses(self, role: str) -> str | None:
        if self.are_roles:
            return f'"${hosts_of(role)}"'
        return '"$MASTER_ADDR:$MASTER_PORT"' if self.counts[role] == 1 else None

    def _part(self, role: str, index: int, *, of_port: bool) -> str | None:
        """Returns the host or the port of a task."""
        if index >= self.counts[role]:
            return None
        if not self.are_roles:
            first = '"$MASTER_PORT"' if of_port else '"$MASTER_ADDR"'
            return first if index == 0 else None
        return self._nth(role, str(index + 1), of_port=of_port)

    def _own_port(self) -> str | None:
        if self.are_roles:
            return self._nth(self.own, "$((FAIRLOT_ROLE_INDEX + 1))", of_port=True)
        return '"$MASTER_PORT"' if self.counts[self.own] == 1 else None

    def _nth(self, role: str, number: str, *, of_port: bool) -> str:
        part = "s/.*://" if of_port else "s/:[0-9]*$//"
        return f"\"$(echo {self._addresses(role)} | cut -d , -f {number} | sed '{part}')\""

    def _why(self, name: str) -> str:
        if not OF_TASKS.search(name):
            return ""
        for role, labels in self.ports.items():
            for label in labels[1:]:
                if name.endswith((f"_{label}", f"_{label}_PORT")):
                    return (
                        f"A worker has one port for others, and {shown(role)} asks for {shown(label)} as well"
                    )
        return "No task or port has this name"


def needs_roles(script: str, name: str, count: int) -> bool:
    """Returns whether a script of a job with one task role asks for the addresses of tasks other than the first."""
    return count > 1 and any(
        one == f"PAI_TASK_ROLE_{name}_HOST_LIST"
        or ((found := re.search(rf"_{re.escape(name)}_(\d+)", one, re.ASCII)) and int(found[1]) > 0)
        for one in VARIABLE.findall(script)
        if OF_TASKS.search(one)
    )
