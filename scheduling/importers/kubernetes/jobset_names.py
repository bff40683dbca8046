"""What JobSet gives its pods: an index among those of their Job, and host names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduling.importers.commands import used_in
from scheduling.importers.draft import JobDraft
from scheduling.importers.kubernetes.pods import has_gpus
from scheduling.importers.kubernetes.roles import Role
from scheduling.importers.report import Fate

INDEX = "JOB_COMPLETION_INDEX"


@dataclass(frozen=True)
class Names:
    """The pods of a JobSet of this name. `pods` has, by role, the number of pods in each of its Jobs."""

    job_set: str
    roles: Sequence[Role]
    pods: Mapping[str, int]
    draft: JobDraft

    def begun(self, role: Role, script: str, source: str) -> str:
        """Returns the script with the address of the first worker in place of its host name, and the index set if the
        script uses it. Refuses names of other pods."""
        text, report = self._with_addresses(script, source), self.draft.report
        if not used_in(script, [INDEX]):
            return text
        before = sum(one.count for one in self.roles[: self.roles.index(role)])
        own = f"$((RANK - {before}))" if before else "$RANK"
        value = f'"${{FAIRLOT_ROLE_INDEX:-{own}}}"'
        if self.pods[role.name] < role.count:
            value = f'"$((${{FAIRLOT_ROLE_INDEX:-{own}}} % {self.pods[role.name]}))"'
        report.remark(Fate.APPROXIMATED, source, "command", f"The command sets {INDEX} to {value}.")
        return f"export {INDEX}={value}\n{text}"

    def check_variables(self) -> None:
        """Refuses variables with the host name of a pod."""
        for role in self.roles:
            for container in role.template.section("spec").sections("containers"):
                for one in container.sections("env"):
                    if one.text("name") != "MASTER_ADDR" and (
                        found := self._pattern.search(one.text("value"))
                    ):
                        self._refuse(found[0], one.path)

    @property
    def _pattern(self) -> re.Pattern[str]:
        names = "|".join(re.escape(role.name) for role in self.roles)
        return re.compile(
            rf"(?<![\w.-]){re.escape(self.job_set)}-(?P<role>{names})-(?P<job>\d+)-(?P<pod>\d+)(?:\.[\w-]+)*",
            re.ASCII,
        )

    def _with_addresses(self, script: str, source: str) -> str:
        text, end = "", 0
        for found in self._pattern.finditer(script) if self.job_set else ():
            is_first = found["role"] == self.roles[0].name and int(found["job"]) == int(found["pod"]) == 0
            is_quoted = script.count("'", 0, found.start()) % 2
            if not is_first or is_quoted or not self._first_has_gpus():
                self._refuse(found[0], source)
                return script
            text, end = f"{text}{script[end : found.start()]}$MASTER_ADDR", found.end()
            said = (
                f"The command has $MASTER_ADDR, the address of the first worker, in place of {found[0][:80]}."
            )
            self.draft.report.remark(Fate.APPROXIMATED, source, "command", said)
        return text + script[end:]

    def _first_has_gpus(self) -> bool:
        return any(map(has_gpus, self.roles[0].template.section("spec").sections("containers")))

    def _refuse(self, host: str, source: str) -> None:
        self.draft.report.refused_at(
            source,
            f"The host name {host[:80]} does not exist in Fairlot. Workers reach the first one at $MASTER_ADDR.",
            "command",
        )
