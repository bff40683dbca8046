"""Checks whether the program that a job's command runs is installed, by reading the command without running it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence

from scheduling.clusters.backend_factory import environments_of, paths_of
from scheduling.models import Cluster
from scheduling.spec.job_spec import JobSpec, SpecError

# The shell's built-ins and keywords, which need no program.
SHELLS_OWN = {
    "!", ".", ":", "[", "{", "alias", "bg", "break", "case", "cd", "command", "continue", "do", "done",
    "echo", "eval", "exec", "exit", "export", "false", "fc", "fg", "for", "getopts", "hash", "if",
    "jobs", "kill", "local", "printf", "pwd", "read", "readonly", "return", "set", "shift", "source", "test",
    "time", "times", "trap", "true", "type", "ulimit", "umask", "unalias", "unset", "until", "wait",
    "while",
}  # fmt: skip
NOWHERE = "No environment of this cluster has it. Ask an admin to install it"
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
# After these operators, a line continues even if its first program fails.
GOES_ON = re.compile(r"[()]*(\|\|?|\|&|;+|&)[()]*")
UNREADABLE = re.compile(r"[$`*?\[\](){}~|&;<>\\]")


def check_program(cluster: Cluster, spec: JobSpec) -> None:
    """Raises SpecError if the job's command is sure to run a program that is missing in its environment.

    Accepts every command if the environment is a container image, or if the spec sets PATH or has requirements, because
    the installed programs are then unknown.
    """
    paths = paths_of(cluster, spec.environment)
    if paths is None or spec.requirements.strip() or "PATH" in {**spec.variables, **spec.secrets}:
        return
    for program in programs_of(spec.command):
        if shutil.which(program, path=paths) is None:
            where = f"the environment {spec.environment}" if spec.environment else "the default environment"
            others = environments_with(cluster, program)
            choose = f"Choose the environment {' or '.join(others)}, which has it" if others else NOWHERE
            raise SpecError(
                {
                    "command": (
                        f"{program} is not installed in {where}. {choose}, or let the command install the program first"
                    )
                }
            )


def has_program(cluster: Cluster, name: str) -> bool:
    """Returns whether the program is installed in the cluster's default environment.

    Returns True if that environment is a container image, because its programs are unknown.
    """
    paths = paths_of(cluster, "")
    return paths is None or shutil.which(name, path=paths) is not None


def environments_with(cluster: Cluster, *names: str) -> Sequence[str]:
    """Returns the environments of a local cluster in which one of the programs is installed, the default one first."""
    return [
        environment
        for environment in environments_of(cluster) or ()
        if any(shutil.which(name, path=paths_of(cluster, environment)) for name in names)
    ]


def programs_of(command: str) -> Iterator[str]:
    """Yields the program that a script certainly runs, if this can be known. Yields at most one program.

    It can be known only if the script has one line, or if its first line is `exec PROGRAM`.
    """
    lines = [line.strip() for line in command.replace("\\\n", " ").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    # Other scripts continue even if a program is missing, and an earlier line may install it.
    if len(lines) != 1 and not (lines and lines[0].startswith("exec ")):
        return
    try:
        lexer = shlex.shlex(lines[0], posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:  # the command continues on the next line
        return
    if any(GOES_ON.fullmatch(word) for word in words):
        return
    while words and (words[0] == "exec" or ASSIGNMENT.fullmatch(words[0])):
        if words[0].startswith("PATH="):
            return
        words = words[1:]
    if (
        words
        and words[0] not in SHELLS_OWN
        and not words[0].startswith("-")
        and not UNREADABLE.search(words[0])
    ):
        is_relative = "/" in words[0] and not os.path.isabs(words[0])
        if not is_relative:  # a relative path starts at the working directory, which does not exist yet
            yield words[0]
