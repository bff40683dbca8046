"""What the arguments of a command line mean where they name files on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

SPECIFICATIONS = (".yaml", ".yml", ".json")
SHELLS = (".sh", ".bash", ".zsh", ".ksh")
PROGRAM = re.compile(r"(?<![\w./~$*{}-])[\w.][\w./-]*\.(?:py|ipynb|sh|bash|R|r|jl|pl|lua)(?![\w./-])")


def text_of(path: str) -> str | None:
    """Returns the text of a file on this machine. None if there is no such file, or if it is not UTF-8 text."""
    if not os.path.isfile(path):  # a path that is too long for Path.is_file is a command
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def opened(file: Any, words: Sequence[str]) -> tuple[Any, tuple[str, ...]]:
    """Returns the file of -f and the words of the command. A YAML or JSON file that is the only word counts as -f.

    Raises UsageError if -f is also given.
    """
    if len(words) != 1 or not words[0].endswith(SPECIFICATIONS) or not os.path.isfile(words[0]):
        return file, tuple(words)
    if file is not None:
        raise click.UsageError(f"{words[0]} and {file.name} are both specifications. Give one of them.")
    read: Any = click.File().convert(words[0], None, click.get_current_context(silent=True))
    return read, ()


def is_python(words: Sequence[str], folder: Path | None = None) -> bool:
    """Returns whether the command is a Python file, here or in the folder that is uploaded, with its arguments."""
    if not words or not words[0].endswith(".py"):
        return False
    return os.path.isfile(words[0]) or (folder is not None and os.path.isfile(folder / words[0]))


def refuse_unknown(words: Sequence[str]) -> None:
    """Raises UsageError if the command is one file on this machine: the job would not find it."""
    if len(words) == 1 and os.path.isfile(words[0]):
        name = words[0]
        raise click.UsageError(
            f"{name} is a file here, and neither a script, nor a job specification, nor a file of another system that "
            f"Fairlot converts. To run it, bring it and say with which program: fairlot submit --code {name} -- "
            f"PROGRAM {Path(name).name}."
        )


def left_behind(command: str) -> list[str]:
    """Returns the programs in a shell command that are files below the current folder. The job does not get them."""
    lines = [line for line in command.splitlines() if not line.lstrip().startswith("#")]
    found = dict.fromkeys(one for line in lines for one in PROGRAM.findall(line))
    return [name for name in found if os.path.isfile(name) and ".." not in Path(name).parts]
