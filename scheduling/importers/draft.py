"""Builds a job specification from a foreign text, with a line of the report for each field that is set."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from scheduling.importers import credentials
from scheduling.importers.amounts import NoAmount, as_amount
from scheduling.importers.credentials_in_scripts import credential_in_script
from scheduling.importers.gpus import choose, is_slice, vendor_of
from scheduling.importers.last_check import nobody_fills
from scheduling.importers.reading import parameter_in, template_in, templated
from scheduling.importers.report import Fate, Report, Work, WorkKind
from scheduling.spec.attachments import LEAST_MEMORY, NAME
from scheduling.spec.job_spec import RESERVED_VARIABLES, VARIABLE_NAME, JobSpec, SpecError

GIVEN = "Fairlot sets this variable itself."
# Programs that start others on hosts, and their options that name the hosts.
LAUNCHER = re.compile(r"\b(?:mpirun|mpiexec|horovodrun|deepspeed|pdsh|clush)\b", re.ASCII)
ON_HOSTS = re.compile(
    r"\s(?:(?P<file>--?(?:hostfile|machinefile))|-H|--?hosts?)(?:=|[ \t]+)[\"']?(?P<hosts>[^\s\"']+)",
    re.ASCII,
)
LOCAL = re.compile(r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0)(?::\d+)?", re.ASCII)


PLACEHOLDER = re.compile(r"<[^>]{0,80}>|\[[^\]]{1,80}\]")  # in the name of an image


class JobDraft:
    """A job specification that is being built. Each method sets a field and adds the line that says from where."""

    def __init__(self, report: Report, *, known_generations: Sequence[str] = ()) -> None:
        self.report = report
        self.known = known_generations
        self.spec: dict[str, Any] = {}
        self._sources: dict[str, str] = {}
        self.of_vendor: tuple[str, str] | None = None  # who makes the GPUs that are asked for, and where
        self.usual: set[str] = set()  # fields with a value that was chosen because the text has none

    def __contains__(self, field: str) -> bool:
        return field in self.spec

    def put(self, field: str, value: Any, source: str, text: str = "", fate: Fate = Fate.MAPPED) -> None:
        """Sets a field. A value that is a template, such as {{ image }} or ${TAG}, is refused."""
        if isinstance(value, str) and field != "command":
            if template := template_in(value):
                self.report.refused_at(source, templated(template), field)
                return
            if field in {"environment", "name"} and (parameter := parameter_in(value)):
                self.report.refused_at(source, nobody_fills(parameter), field)
                return
            if field == "environment" and (missing := PLACEHOLDER.search(value)):
                said = f"The name of the image contains the placeholder {missing[0][:60]}. Write what it stands for."
                self.report.refused_at(source, said, field)
                return
        self.spec[field] = value
        self._sources[field] = source
        self.report.add(fate, source, field, text or "Taken over.")

    def put_without_covering(self, field: str, value: Any, source: str, text: str) -> None:
        """Sets a field from others inside `source`, which still need a line that says what became of them."""
        self.spec[field] = value
        self._sources[field] = source
        self.report.remark(Fate.MAPPED, source, field, text)

    def name(self, value: str, source: str) -> None:
        """Sets the name. Characters that names must not have become blanks."""
        plain = " ".join("".join(char if char.isprintable() else " " for char in value).split())[:120].strip()
        if plain == value:
            self.put("name", plain, source)
        elif plain:
            self.put("name", plain, source, "Shortened, or without characters that a name must not have.",
                     Fate.APPROXIMATED)  # fmt: skip
        else:
            self.report.dropped(source, "The name is empty.")

    def command(self, script: str, source: str, text: str = "", fate: Fate = Fate.MAPPED) -> None:
        """Sets the command, a script of /bin/sh. A script with a credential or a template is refused."""
        if found := credential_in_script(script):
            self.report.refused_at(
                source,
                f"The command contains a credential ({found[:60]}). Store it as a secret, and let the command read it"
                " from a variable that the field secrets sets.",
                "command",
            )
        elif (template := template_in(script)) and template.startswith("<%"):
            self.report.refused_at(source, templated(template), "command")
        else:
            self.put("command", script, source, text, fate)
            if template:
                self.report.remark(
                    Fate.APPROXIMATED, source, "command",
                    f"The command contains {template[:60]}. It stays as it is: nothing fills it in.",
                )  # fmt: skip

    def variable(self, name: str, value: str, source: str, text: str = "", fate: Fate = Fate.MAPPED) -> None:
        """Sets an environment variable. A credential becomes a reference to a secret, without its value."""
        if not VARIABLE_NAME.fullmatch(name):
            self.report.dropped(
                source, "The name of the variable has characters that Fairlot does not accept."
            )
        elif name in RESERVED_VARIABLES or name.startswith("FAIRLOT_"):
            self.report.dropped(source, GIVEN)
        elif credentials.is_confidential(name, value):
            self.secret(
                name, credentials.secret_name(name), source,
                f"The value is left out, because it is confidential. Store it as the secret"
                f" {credentials.secret_name(name)}, which the job reads.", Fate.APPROXIMATED,
            )  # fmt: skip
        elif template := template_in(value):
            self.report.refused_at(source, templated(template), f"variables.{name}")
        elif name in self.spec.get("secrets", {}):
            self.report.dropped(source, f"A secret already sets {name}.")
        else:
            self._replaced(f"variables.{name}", self.spec.get("variables", {}).get(name, value) != value)
            self.spec.setdefault("variables", {})[name] = value
            self._sources[f"variables.{name}"] = source
            self.report.add(fate, source, f"variables.{name}", text or "Taken over.")

    def _replaced(self, field: str, differs: bool) -> None:
        """Says that an earlier entry for a variable has no effect, if another value comes after it."""
        source = self._sources.get(field)
        if differs and source is not None:
            self.report.withdraw(source, field)
            self.report.remark(
                Fate.DROPPED,
                source,
                "",
                "A later entry sets the same variable to another value. That one counts.",
            )

    def secret(self, name: str, reference: str, source: str, text: str, fate: Fate = Fate.MAPPED) -> None:
        """Lets a secret set an environment variable. `reference` is the secret's name, or name/key."""
        if not VARIABLE_NAME.fullmatch(name) or name in RESERVED_VARIABLES or name.startswith("FAIRLOT_"):
            self.report.dropped(source, "Fairlot does not accept a variable of this name.")
            return
        self._replaced(f"variables.{name}", self.spec.get("variables", {}).pop(name, None) is not None)
        self._replaced(f"secrets.{name}", self.spec.get("secrets", {}).get(name, reference) != reference)
        self.spec.setdefault("secrets", {})[name] = reference
        self._sources[f"secrets.{name}"] = source
        self.report.add(fate, source, f"secrets.{name}", text)

    def secret_files(self, name: str, path: str, source: str, text: str, fate: Fate = Fate.MAPPED) -> None:
        """Mounts a secret as a folder."""
        self._mount("secret_files", name, path, source=source, text=text, fate=fate)

    def volume(self, name: str, path: str, source: str, text: str = "") -> None:
        """Mounts a volume. It has to be granted by an operator, so the line always says so."""
        said = f"An operator must have granted your team a volume with the name {name}."
        text = f"{text} {said}".strip()
        self._mount("volumes", name, path, source=source, text=text, fate=Fate.APPROXIMATED)

    def _mount(self, field: str, name: str, path: str, *, source: str, text: str, fate: Fate) -> None:
        if not NAME.fullmatch(name):
            self.report.refused_at(
                source, f"{name[:60]!r} is not a name that Fairlot accepts for this.", field
            )
            return
        mounts = self.spec.setdefault(field, [])
        one = {"name": name, "path": path.rstrip("/")}
        if one not in mounts:
            mounts.append(one)
        self._sources.setdefault(f"{field}.{mounts.index(one)}", source)
        self.report.add(fate, source, f"{field}[{mounts.index(one)}]", text)

    def amount(self, field: str, number: int, source: str, text: str = "", fate: Fate = Fate.MAPPED) -> None:
        """Sets memory or shared memory to a number of bytes."""
        if number < LEAST_MEMORY:
            self.report.refused_at(
                source, "The amount of memory is less than 1 MiB. Is the unit missing?", field
            )
            return
        try:
            self.put(field, as_amount(number), source, text, fate)
        except NoAmount as error:
            self.report.refused_at(source, str(error), field)

    def generations(self, names: Sequence[str], source: str) -> None:
        """Accepts the GPU types that the foreign names mean, in addition to those that are accepted already."""
        accepted: list[str] = list(self.spec.get("generations", []))
        for name in names:
            if (template := template_in(name)) or (parameter := parameter_in(name)):
                self.report.refused_at(
                    source, templated(template) if template else nobody_fills(parameter), "generations"
                )
                return
            if is_slice(name):
                self.report.refused_at(
                    source, f"{name[:60]} is a part of a GPU. Fairlot gives whole GPUs only.", "generations"
                )
                return
            found = choose(name, self.known)
            accepted += [one for one in found.names if one and one not in accepted]
            text = f"{name[:60]} means {' or '.join(found.names)}." if [name] != list(found.names) else ""
            fate = Fate.MAPPED if found.exact else Fate.APPROXIMATED
            self.put("generations", accepted, source, f"{text} {found.why}".strip(), fate)

    def vendor(self, vendor: str, source: str) -> None:
        """Accepts only GPU types of a vendor, "amd" or "intel". Refuses if the cluster has none of it."""
        label = {"amd": "AMD", "intel": "Intel"}[vendor]
        named: list[str] = self.spec.get("generations", [])
        if named:
            return
        fitting = [one for one in self.known if vendor_of(one) == vendor]
        if fitting:
            self.put_without_covering(
                "generations", fitting, source, f"The types of the cluster that are of {label}."
            )
        elif self.known:
            said = f"GPUs of {label} are requested. The cluster has {', '.join(self.known[:12])}."
            self.report.refused_at(source, said, "generations")
        else:
            self.report.remark(
                Fate.APPROXIMATED, source, "generations",
                f"GPUs of {label} are requested. Fairlot knows GPUs by their type: choose a type of {label}.",
            )  # fmt: skip

    def labels(self, labels: Mapping[str, str], sources: Mapping[str, str]) -> None:
        """Takes over labels, up to the number that a job may have."""
        for key, value in labels.items():
            kept = self.spec.get("labels", {})
            try:
                JobSpec.parse({"name": "x", "command": "x", "labels": {**kept, key: value}})
            except SpecError:
                self.report.dropped(
                    sources[key], "A job has at most ten labels, in the syntax of Kubernetes."
                )
            else:
                self.spec["labels"] = {**kept, key: value}
                self.report.mapped(sources[key], f"labels.{key}")

    def withdraw(self, field: str, text: str) -> None:
        """Takes back the value of a field. What it came from gets a line with this text."""
        del self.spec[field]
        if source := self._sources.pop(field, ""):
            self.report.withdraw(source, field)
            self.report.mapped(source, field, text)

    def default(self, field: str, value: Any, text: str) -> None:
        """Sets a field about which the foreign text says nothing, unless it is set already."""
        if field not in self.spec:
            self.spec[field] = value
            self.report.defaulted(field, text)

    def finish(self, kind: WorkKind = WorkKind.JOB, options: Mapping[str, Any] | None = None) -> list[Work]:
        """Returns the work as a list of one. If the specification is invalid, returns an empty list, and the report has
        a refused line for each problem."""
        if "command" not in self.spec and self.report.refused:
            return []
        self._refuse_other_hosts()
        try:
            spec = JobSpec.parse(self.spec)
            if kind is WorkKind.SERVICE and (endless := spec.problems_of_endless()):
                raise SpecError(endless)
        except SpecError as error:
            for path, text in error.problems.items():
                self.report.refused_at(self._source_of(path), f"{path} {text}.".strip(), path)
            return []
        fields = {name: self.spec[name] for name in JobSpec.model_fields if name in self.spec}
        return [Work(kind, fields, options or {})]

    def _refuse_other_hosts(self) -> None:
        """Refuses a command that starts programs on other hosts, unless other fields are refused already."""
        several = int(self.spec.get("workers", 1)) > 1 or "roles" in self.spec
        for part in re.split(r"(?<!\\)\n|[;&|]", str(self.spec.get("command", ""))):
            launcher = LAUNCHER.search(part)
            if launcher is None:
                continue
            for found in ON_HOSTS.finditer(part, launcher.end()):
                hosts, file = found["hosts"], found["file"]
                if self.spec.get("launch") and (file or hosts.startswith("$")):
                    continue
                elsewhere = not LOCAL.fullmatch(hosts) if several else "," in hosts and not file
                if elsewhere and not self.report.refused:
                    self.report.refused_at(
                        self._sources.get("command", ""),
                        f"{launcher[0]} starts programs on other hosts. Only jobs with launch: mpi let a worker log in"
                        " to others, of which mpirun finds a list in $FAIRLOT_HOSTFILE. Start the program with torchrun"
                        " in every worker, or write a specification with launch: mpi.",
                        "command",
                    )

    def _source_of(self, path: str) -> str:
        parts = re.split(r"\.", path)
        for length in range(len(parts), 0, -1):
            if source := self._sources.get(".".join(parts[:length])):
                return source
        return ""
