"""What all commands share: the client, the form of the output, and how errors end the program."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fairlot_client.cli.config import access_of
from fairlot_client.errors import (
    ApiError,
    ConnectionFailed,
    FairlotError,
    NotAccepted,
    NotAllowed,
    NotFound,
    NotSignedIn,
    Unavailable,
)

if TYPE_CHECKING:
    from fairlot_client.client import Fairlot

R = TypeVar("R")

# Exit codes, as docs/cli.md lists them.
FAILED, USAGE, NO_ACCESS, NOT_FOUND, UNREACHABLE, INTERRUPTED = 1, 2, 3, 4, 5, 130
OF_RUN = 125  # `run`, whose other codes are those of the job


class App:
    """The state of one call of the program."""

    def __init__(self, *, context: str | None, no_color: bool = False) -> None:
        self.context = context
        self.no_color = no_color or bool(os.environ.get("NO_COLOR"))
        self.output = "table"
        self._client: Fairlot | None = None

    @property
    def client(self) -> Fairlot:
        """Returns the client of the chosen portal. Its modules are imported here, at the first use."""
        if self._client is None:
            access = access_of(self.context)
            self._client = connect(access.url, access.token)
        return self._client

    def quick_client(self) -> Fairlot:
        """Returns a client for the completion of the shell, which gives up soon."""
        access = access_of(self.context)
        return connect(access.url, access.token, timeout=3, retries=0)

    def pause(self, seconds: float) -> None:
        """Waits before the next look at something that changes."""
        time.sleep(seconds)

    def is_interactive(self) -> bool:
        """Returns whether a person can answer a question."""
        return sys.stdin.isatty() and sys.stderr.isatty()


def connect(url: str, token: str, **options: Any) -> Fairlot:
    from fairlot_client.client import Fairlot  # noqa: PLC0415 - the program must start quickly

    return Fairlot(url, token, **options)


def app_of(context: click.Context) -> App:
    """Returns the App of this call, also while a command line is only completed."""
    root = context.find_root()
    if root.obj is None:
        root.obj = App(
            context=root.params.get("context") or os.environ.get("FAIRLOT_CONTEXT"),
            no_color=bool(root.params.get("no_color")),
        )
    return root.obj  # type: ignore[no-any-return]


def with_app(command: Callable[..., R]) -> Callable[..., R]:
    """Passes the App to a command as its first argument."""

    def called(*args: Any, **kwargs: Any) -> R:
        return command(app_of(click.get_current_context()), *args, **kwargs)

    return update_wrapper(called, command)


def talk(text: str) -> None:
    """Says something to the person, on stderr. Data goes to stdout."""
    click.echo(printable(text), err=True)


def printable(text: str) -> str:
    """Returns the text without control characters, which could change what a terminal shows."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)


class NoneSeen(click.ClickException):
    """Raised if the user sees no object with the given name."""

    exit_code = NOT_FOUND


def exit_code_of(error: FairlotError) -> int:
    match error:
        case NotSignedIn() | NotAllowed():
            return NO_ACCESS
        case NotFound():
            return NOT_FOUND
        case NotAccepted():
            return USAGE
        case ConnectionFailed() | Unavailable():
            return UNREACHABLE
        case ApiError():
            return FAILED
    return FAILED


class Root(click.Group):
    """The program itself. It turns errors into messages with exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        app = app_of(ctx)
        if app.no_color:
            ctx.color = False
        try:
            return super().invoke(ctx)
        except FairlotError as error:
            talk(f"Error: {error}")
            ctx.exit(exit_code_of(error))
        except KeyboardInterrupt:
            talk("Interrupted.")
            ctx.exit(INTERRUPTED)
