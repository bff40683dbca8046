"""Reads the #SBATCH lines of a batch script, as sbatch reads them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from scheduling.importers.reading import parameter_in, template_in, templated
from scheduling.importers.report import Report

# sbatch's options with a value.
WITH_VALUE = frozenset({
    "account", "array", "batch", "bb", "bbf", "begin", "chdir", "cluster-constraint", "clusters", "comment",
    "constraint", "container", "container-id", "container-env", "container-image", "container-mounts",
    "container-name", "container-save", "container-workdir", "core-spec", "cores-per-socket", "cpu-freq",
    "cpus-per-gpu", "cpus-per-task", "deadline", "delay-boot", "dependency", "distribution", "error", "exclude",
    "export", "export-file", "extra", "extra-node-info", "gid", "gpu-bind", "gpu-freq", "gpus", "gpus-per-node",
    "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint", "input", "job-name",
    "kill-on-invalid-dep", "licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind", "mem-per-cpu",
    "mem-per-gpu", "mincpus", "mpi", "network", "nodefile", "nodelist", "nodes", "ntasks", "ntasks-per-core",
    "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket", "open-mode", "output", "partition", "power",
    "prefer", "priority", "profile", "qos", "reservation", "segment", "signal", "sockets-per-node", "switches",
    "tasks-per-node", "thread-spec", "threads-per-core", "threads", "time", "time-min", "tmp", "tres-bind",
    "tres-per-task", "tres-per-node", "uid", "wait-all-nodes", "wckey", "wrap", "workdir", "stepmgr",
})  # fmt: skip
WITHOUT_VALUE = frozenset({
    "contiguous", "container-mount-home", "no-container-mount-home", "container-remap-root",
    "no-container-remap-root", "container-writable", "container-readonly", "no-container-entrypoint",
    "container-entrypoint", "hold", "ignore-pbs", "no-requeue", "oversubscribe", "share", "overcommit",
    "parsable", "quiet", "reboot", "requeue", "resv-ports", "spread-job", "test-only", "use-min-nodes",
    "verbose", "wait", "help", "usage", "version",
})  # fmt: skip
# Options whose value is optional, and follows = only (or the short letter at once).
OPTIONAL = frozenset({
    "exclusive", "get-user-env", "nice", "no-kill", "propagate", "immediate",
})  # fmt: skip
LONG = WITH_VALUE | WITHOUT_VALUE | OPTIONAL
SHORT = {
    "A": "account", "a": "array", "b": "begin", "D": "chdir", "M": "clusters", "C": "constraint", "S":
    "core-spec", "c": "cpus-per-task", "d": "dependency", "m": "distribution", "e": "error", "x": "exclude", "B":
    "extra-node-info", "G": "gpus", "i": "input", "J": "job-name", "L": "licenses", "F": "nodefile", "w":
    "nodelist", "N": "nodes", "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "t": "time", "H":
    "hold", "s": "oversubscribe", "O": "overcommit", "Q": "quiet", "v": "verbose", "W": "wait", "h": "help", "V":
    "version", "k": "no-kill", "I": "immediate",
}  # fmt: skip
SAME = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir", "share": "oversubscribe"}
HETEROGENEOUS = re.compile(r"#(?:SBATCH)\s+(?:hetjob|packjob)\b", re.ASCII)
OTHERS = re.compile(r"#(PBS|BSUB|COBALT|DW|BB|OAR|MSUB|FLUX)\b", re.ASCII)


@dataclass(frozen=True)
class Option:
    """An option of an #SBATCH line. `value` is None if the option has no value."""

    name: str
    value: str | None
    source: str


@dataclass
class BatchScript:
    """A batch script: its interpreter, its options and its body without the #SBATCH lines."""

    text: str
    report: Report
    interpreter: tuple[str, ...] = ()
    options: dict[str, Option] = field(default_factory=dict)
    body: str = ""
    first_line: int = 1  # of the body, in the text

    @classmethod
    def read(cls, text: str, report: Report) -> BatchScript | None:
        """Reads a script. Returns None if the report has a reason to refuse it as a whole."""
        script = cls(text, report)
        lines = text.split("\n")
        if lines[0].startswith("#!"):
            script.interpreter = tuple(lines[0][2:].split())
        end = end_of_header(lines)
        for at, line in enumerate(lines, 1):
            if HETEROGENEOUS.match(line) and at <= end:
                report.refused_at(
                    f"line {at}",
                    "The script describes a heterogeneous job. Its parts are not imported: write them as roles of one"
                    " job, or submit one job for each.",
                )
                return None
            if line.startswith("#SBATCH"):
                script._read_line(at, line, ignored=at > end)
            elif (other := OTHERS.match(line)) and at <= end:
                report.dropped(f"line {at}", f"#{other[1]} lines have no effect: this is a script for Slurm.")
        kept = [line for at, line in enumerate(lines, 1) if not line.startswith("#SBATCH") or at > end]
        script.body = "\n".join(kept).strip("\n")
        return script

    def _read_line(self, at: int, line: str, *, ignored: bool) -> None:
        if template := template_in(line):
            self.report.refused_at(f"line {at}", templated(template))
            return
        try:
            words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
        except ValueError:
            self.report.refused_at(f"line {at}", "The quotation marks of this line do not match.")
            return
        for name, value in _options(words):
            source = f"line {at}: {name}"
            if ignored:
                self.report.dropped(
                    source, "Slurm ignores #SBATCH lines after the first command; so does Fairlot."
                )
            elif name.startswith("-") and _known(name.lstrip("-")):
                self._take(Option(_known(name.lstrip("-")), value, source))
            else:
                self.report.dropped(
                    source, "This is no option of sbatch that Fairlot knows. It has no effect."
                )

    def _take(self, option: Option) -> None:
        parameter = parameter_in(option.value or "")
        if parameter and option.name not in {"output", "error", "comment", "mail-user", "export"}:
            self.report.refused_at(option.source, _not_expanded(parameter))
            return
        if earlier := self.options.get(option.name):
            self.report.dropped(earlier.source, f"{option.source.capitalize()} sets this option again.")
        self.options[option.name] = option

    def value(self, name: str) -> str:
        """Returns the value of an option, or "" if the script does not have it."""
        option = self.options.get(name)
        return (option.value or "").strip() if option else ""

    def source(self, name: str) -> str:
        return self.options[name].source

    def __contains__(self, name: str) -> bool:
        return name in self.options

    def drop_the_rest(self) -> None:
        """Adds a line to the report for each option that has none."""
        for option in self.options.values():
            if not self.report.covers(option.source):
                self.report.dropped(option.source, "Fairlot has nothing that corresponds to this option.")


def end_of_header(lines: list[str]) -> int:
    """Returns the number of lines before the first command: up to there sbatch reads options."""
    for at, line in enumerate(lines):
        if line.strip() and not line.lstrip().startswith("#"):
            return at
    return len(lines)


def _not_expanded(parameter: str) -> str:
    return (
        f"Slurm does not replace variables in #SBATCH lines, and neither does Fairlot: {parameter[:60]}. Write the"
        " value."
    )


def _options(words: list[str]) -> Iterator[tuple[str, str | None]]:
    """Returns the names, with their hyphens, and the values of the options in the words of a line."""
    rest = iter(words)
    for word in rest:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            known = _known(name[2:])
            yield name, value if equals else next(rest, "") if known in WITH_VALUE else None
        elif word.startswith("-") and len(word) > 1:
            known, value = _known(word[1]), word[2:].removeprefix("=")
            if known in WITHOUT_VALUE:
                yield from ((f"-{letter}", None) for letter in word[1:])
            else:
                yield word[:2], value or (next(rest, "") if known in WITH_VALUE else None)
        else:
            yield word, None


def _known(name: str) -> str:
    """Returns the full name of an option. Like sbatch, accepts a short letter, and a beginning that only one option
    has. Returns "" if there is no such option."""
    if len(name) == 1:
        return SHORT.get(name, "")
    found = [name] if name in LONG else [one for one in LONG if name and one.startswith(name)]
    return SAME.get(found[0], found[0]) if len(found) == 1 else ""
