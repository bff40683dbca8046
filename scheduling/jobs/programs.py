"""Whether a command's program is there, as far as a script can be read without running it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator

from scheduling.clusters.backend_factory import paths_of
from scheduling.models import Cluster
from scheduling.spec.job_spec import JobSpec, SpecError

# What the shell itself does, or reads as part of its language; their names are no programs'.
SHELLS_OWN = {
    "!", ".", ":", "[", "{", "alias", "bg", "break", "case", "cd", "command", "continue", "do", "done",
    "echo", "eval", "exec", "exit", "export", "false", "fc", "fg", "for", "getopts", "hash", "if",
    "jobs", "kill", "local", "printf", "pwd", "read", "readonly", "return", "set", "shift", "source", "test",
    "time", "times", "trap", "true", "type", "ulimit", "umask", "unalias", "unset", "until", "wait",
    "while",
}  # fmt: skip
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
# After these a line goes on whatever became of its first program.
GOES_ON = re.compile(r"[()]*(\|\|?|\|&|;+|&)[()]*")
UNREADABLE = re.compile(r"[$`*?\[\](){}~|&;<>\\]")


def check_program(cluster: Cluster, spec: JobSpec) -> None:
    """SpecError when the environment has no program that the command cannot do without."""
    paths = paths_of(cluster, spec.environment)
    if paths is None or "PATH" in {**spec.variables, **spec.secrets}:  # an image, or folders not known here
        return
    for program in programs_of(spec.command):
        if shutil.which(program, path=paths) is None:
            where = f"the environment {spec.environment or 'that is usual here'}"
            raise SpecError(
                {
                    "command": f"{program} is not installed in {where} (PATH: {paths}). Choose another environment, or "
                    "install it from the command first"
                }
            )


def has_program(cluster: Cluster, name: str) -> bool:
    """Whether the usual environment has it; of images nothing is known, which counts as yes."""
    paths = paths_of(cluster, "")
    return paths is None or shutil.which(name, path=paths) is not None


def programs_of(command: str) -> Iterator[str]:
    """What a script runs in any case: what it becomes by exec first, or the one thing that it does.

    A script of several lines goes on after a program that is not there, and may install one on its way.
    """
    lines = [line.strip() for line in command.replace("\\\n", " ").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if len(lines) != 1 and not (lines and lines[0].startswith("exec ")):
        return
    try:
        lexer = shlex.shlex(lines[0], posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:  # goes on in the next line
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
        if not is_relative:  # its working folder is not made yet
            yield words[0]
