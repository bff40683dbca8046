"""Reads a command line as the program does, without running the command."""

from __future__ import annotations

import re
import shlex
from contextlib import ExitStack
from typing import Any

import click

from fairlot_client.cli.main import cli

REDIRECTION = re.compile(r" [<>] [\w.]+$")


def parsed(line: str) -> tuple[str, dict[str, Any]]:
    """Returns the path of the command in a line of a shell, and its arguments.

    Raises UsageError if the command line does not accept the line.
    """
    program, *words = shlex.split(REDIRECTION.sub("", line))
    assert program == "fairlot"
    with ExitStack() as stack:
        context = stack.enter_context(cli.make_context("fairlot", words))
        while isinstance(context.command, click.Group):
            rest = [*context._protected_args, *context.args]
            name, command, rest = context.command.resolve_command(context, rest)
            assert command is not None
            context = stack.enter_context(command.make_context(name, rest, parent=context))
        return context.command_path, context.params
