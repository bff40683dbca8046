"""Makes the roles of a job from groups of workers that differ. Each is drafted by itself; then they are joined."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduling.importers.draft import JobDraft
from scheduling.importers.report import Fate, Report

# Fields of a job that roles have themselves.
OWN = {"command", "environment", "variables", "cpu", "memory", "gpus_per_worker"}
OF_ENTRY = ("variables", "cpu", "memory")


class RoleReport(Report):
    """Adds lines about a role to the report of its job."""

    def __init__(self, report: Report, at: int) -> None:
        super().__init__()
        self._whole, self._at = report, at

    def add(self, fate: Fate, source: str, target: str, text: str) -> None:
        self._whole.add(fate, source, self._of_role(target), text)

    def withdraw(self, source: str, target: str) -> None:
        self._whole.withdraw(source, self._of_role(target))

    def _of_role(self, target: str) -> str:
        return f"roles[{self._at}].{target}" if target.partition(".")[0] in OWN else target

    def remark(self, fate: Fate, source: str, target: str, text: str) -> None:
        self._whole.remark(fate, source, target, text)

    def covers(self, path: str) -> bool:
        return self._whole.covers(path)

    @property
    def refused(self) -> bool:
        return self._whole.refused


@dataclass(frozen=True)
class Group:
    """Equal workers that become a role.

    - `source`: the field of the foreign text that describes them.
    - `spec`: the fields of a job of these workers alone. `gpus_per_worker` is 0 if they hold no GPUs.
    - `ends_job`: whether their end ends the job.
    - `waits`: whether they have no command, because mpirun starts programs in them.
    """

    name: str
    workers: int
    source: str
    spec: dict[str, Any] = field(default_factory=dict)
    ends_job: bool = False
    waits: bool = False

    @property
    def role(self) -> str:
        return role_name(self.name)

    @property
    def holds_gpus(self) -> bool:
        return bool(self.spec.get("gpus_per_worker") != 0)

    @property
    def entry(self) -> dict[str, Any]:
        """Returns the item of the field `roles`."""
        own = {name: self.spec[name] for name in OF_ENTRY if name in self.spec}
        if "gpus_per_worker" in self.spec:
            own["gpus_per_worker"] = self.spec["gpus_per_worker"]
        if not self.waits and "command" in self.spec:
            own["command"] = self.spec["command"]
        if "environment" in self.spec:
            own["environment"] = self.spec["environment"]
        return (
            {"name": self.role, "workers": self.workers} | own | ({"ends_job": True} if self.ends_job else {})
        )


def role_name(name: str) -> str:
    """Returns the name that a role for workers of this name has."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:20].strip("-")
    return plain if plain[:1].isalpha() else f"role-{plain}"[:20].strip("-")


def hosts_of(name: str) -> str:
    """Returns the variable with the addresses of the role for workers of this name, as host:port,host:port."""
    return f"FAIRLOT_HOSTS_{role_name(name).upper().replace('-', '_')}"


def draft_of(draft: JobDraft, at: int) -> JobDraft:
    """Returns an empty draft for the role with this position in the job of `draft`."""
    return JobDraft(RoleReport(draft.report, at), known_generations=draft.known)


def join(groups: Sequence[Group], draft: JobDraft, text: str, *, command_of: Group | None = None) -> None:
    """Sets the fields of a job whose workers are those of all groups. At least one must hold GPUs.

    The first one with GPUs sets the image and the GPUs of the job. Its command is that of `command_of`, or else of the
    same one. `text` is the line about the roles.
    """
    lead = next(one for one in groups if one.holds_gpus)
    _share(groups, draft)
    for name, spec in (
        ("environment", lead.spec),
        ("gpus_per_worker", lead.spec),
        ("command", (command_of or lead).spec),
    ):
        if name in spec:
            draft.spec[name] = spec[name]
    draft.put_without_covering("roles", [one.entry for one in groups], lead.source, text)


def _share(groups: Sequence[Group], draft: JobDraft) -> None:
    """Sets the fields of the job in which roles cannot differ, from all of them. Refuses different values."""
    for one in groups:
        for name in sorted(one.spec.keys() - OWN):
            value, kept = one.spec[name], draft.spec.get(name)
            if kept is None:
                draft.spec[name] = value
            elif isinstance(kept, list):
                draft.spec[name] = kept + [item for item in value if item not in kept]
            elif isinstance(kept, dict):
                draft.spec[name] = kept | value
            elif name == "time_limit_hours":
                draft.spec[name] = min(kept, value)
            elif kept != value:
                draft.report.refused_at(
                    one.source, f"{one.name} differs from other workers in the field {name}.", name
                )
