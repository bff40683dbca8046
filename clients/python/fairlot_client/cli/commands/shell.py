"""The command that opens a terminal in a running job."""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from fairlot_client.cli import finding
from fairlot_client.cli.app import App, talk, with_app
from fairlot_client.cli.config import access_of
from fairlot_client.cli.output import Column, output_option, show_rows, when
from fairlot_client.errors import ConnectionFailed, FairlotError, NotFound, error_of

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

READ_EVERY = 64 * 1024  # bytes of output that were shown, after which the portal is told
MOST_TRIES = 8  # to connect again; the portal keeps the shell for two minutes
LONGEST_PAUSE = 15.0
USUAL_SIZE = (80, 24)
SHELLS: list[Column] = [
    ("ID", "id"), ("USER", "user"), ("WORKER", "worker"), ("OPENED", when("opened_at")), ("FROM", "opened_from"),
    ("STATE", lambda it: "in use" if it["attached"] else "waits"),
]  # fmt: skip


class Refused(FairlotError):
    """Raised when the portal opens no terminal. The message gives the reason."""


@click.command()
@finding.argument("job")
@click.option("-w", "--worker", default="0", help="Rank of the worker, or ROLE/NUMBER; default 0.")
@click.option("--list", "wants_list", is_flag=True, help="List the open shells of the job.")
@click.option(
    "--attach", metavar="SHELL", help="Attach to an open shell of yours, by the beginning of its id."
)
@click.option("--end", metavar="SHELL", help="End an open shell, by the beginning of its id.")
@output_option
@with_app
def shell(app: App, job: str, worker: str, *, wants_list: bool, attach: str | None, end: str | None) -> None:
    """Open a terminal beside a worker of a running job.

    The shell runs as the job's user, with its variables and GPUs, and ends with the job. The program ends with the exit
    code of the shell. If the connection is lost, it connects to the same shell again.
    """
    number = finding.job_id_of(app, job)
    if wants_list:
        show_rows(app, app.client.list_terminals(number)["items"], SHELLS)
        return
    if end is not None:
        found = _shell_of(app, number, end)
        app.client.end_terminal(number, found["id"])
        talk(f"Ended the shell of {found['user']} beside worker {found['worker']} of job {number}.")
        return
    if sys.platform == "win32":
        raise click.UsageError("Windows has no terminals of this kind. Use the page of the job, or WSL.")
    key = ""
    if attach is not None:
        found = _shell_of(app, number, attach)
        key, worker = found["id"], str(found["worker"])
    rank = int(worker) if worker.isdecimal() else finding.rank_of(app, number, worker)
    access = access_of(app.context)
    talk(f"Connecting to worker {rank} of job {number}.")
    session = _Session(access.url, access.token, number, rank, key)
    tries = 0
    while session.ended is None:
        try:
            session.connect()
            tries = 0
        except ConnectionFailed:
            if not session.key or tries >= MOST_TRIES:
                raise
        if session.ended is None:
            pause = min(LONGEST_PAUSE, 0.5 * 2**tries)
            tries += 1
            talk(f"The connection is lost. Trying again in {pause:g} s; Ctrl-C ends.")
            app.pause(pause)
    code = session.ended.get("code")
    if code is None:
        raise Refused(f"The terminal has ended: {session.ended.get('ended')}.")
    sys.exit(code)


def _shell_of(app: App, job: int, asked: str) -> Any:
    """Returns the one open shell of the job whose id begins with `asked`. Raises UsageError if there is not one."""
    found = [one for one in app.client.list_terminals(job)["items"] if asked and one["id"].startswith(asked)]
    if len(found) != 1:
        many = "several open shells" if found else "no open shell"
        raise click.UsageError(f"{asked}: job {job} has {many} with such an id. See them with --list.")
    return found[0]


class _Session:
    """A terminal, over as many connections as it takes. `ended` is what the portal says at its end."""

    def __init__(self, url: str, token: str, job: int, rank: int, key: str = "") -> None:
        self.key = key
        self.ended: dict[str, Any] | None = None
        self._address = f"{url.replace('http', 'ws', 1)}/jobs/{job}/terminal/socket"
        self._token, self._job, self._rank = token, job, rank
        self._keyboard_is_over = False

    def connect(self) -> None:
        """Carries bytes until the connection ends. Raises FairlotError if there is none."""
        # Imported here, because the program must start quickly.
        from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException  # noqa: PLC0415
        from websockets.sync.client import connect  # noqa: PLC0415

        columns, rows = _size()
        asked: dict[str, object] = {"worker": self._rank, "rows": rows, "columns": columns, "pings": 1}
        asked |= {"terminal": self.key} if self.key else {}
        stack = ExitStack()
        try:
            opening = connect(
                f"{self._address}?{urlencode(asked)}",
                additional_headers={"Authorization": f"Bearer {self._token}"},
                max_size=None,
                compression=None,
            )
            link = stack.enter_context(opening)
        except InvalidStatus as refusal:
            status = refusal.response.status_code
            if status == 403:  # how the portal refuses a WebSocket without saying more
                raise NotFound(
                    404, f"There is no job {self._job}, or the token may not open terminals."
                ) from None
            raise error_of(status, None) from None
        except (OSError, WebSocketException, TimeoutError) as error:
            raise ConnectionFailed(f"{self._address} cannot be reached: {error}") from error
        with stack:
            try:
                self._begin(link)
                self._carry(link)
            except ConnectionClosed:
                return

    def _begin(self, link: ClientConnection) -> None:
        opened = json.loads(link.recv())
        if "refused" in opened:
            raise Refused(opened["refused"])
        self.key = opened["terminal"]

    def _carry(self, link: ClientConnection) -> None:
        # The main thread waits for keys, and for this pipe, through which it learns that the connection has ended.
        over, is_over = os.pipe()
        reader = Thread(target=self._show, args=(link, is_over), daemon=True)
        reader.start()
        try:
            with _raw_terminal(), _on_resize(lambda: _say_size(link)):
                self._pass_keys_on(link, over)
        finally:
            reader.join()
            os.close(over)

    def _pass_keys_on(self, link: ClientConnection, over: int) -> None:
        with selectors.DefaultSelector() as waiting:
            waiting.register(over, selectors.EVENT_READ)
            if not self._keyboard_is_over:
                waiting.register(sys.stdin, selectors.EVENT_READ)
            while not any(key.fd == over for key, _ in waiting.select()):
                data = os.read(sys.stdin.fileno(), 4096)
                self._keyboard_is_over = not data
                if self._keyboard_is_over:
                    waiting.unregister(sys.stdin)
                link.send(data or b"\x04")  # the end of a file, as a keyboard types it

    def _show(self, link: ClientConnection, is_over: int) -> None:
        from websockets.exceptions import ConnectionClosed  # noqa: PLC0415 - as above

        shown = 0
        try:
            for message in link:
                if isinstance(message, str):
                    told = json.loads(message)
                    if "ping" in told:
                        with suppress(ConnectionClosed):  # as below
                            link.send(json.dumps({"pong": told["ping"]}))
                    else:
                        self.ended = told
                    continue
                sys.stdout.buffer.write(message)
                sys.stdout.buffer.flush()
                shown += len(message)
                if shown >= READ_EVERY:
                    with suppress(ConnectionClosed):  # there may be more messages from before
                        link.send(json.dumps({"read": shown}))
                    shown = 0
        except ConnectionClosed:
            return
        finally:
            os.close(is_over)


def _size() -> tuple[int, int]:
    """Returns the columns and rows of the terminal; the usual ones if the output is no terminal. The variables COLUMNS
    and LINES do not count, because they do not change with the window."""
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return USUAL_SIZE
    return (columns, rows) if columns and rows else USUAL_SIZE


def _say_size(link: ClientConnection) -> None:
    columns, rows = _size()
    link.send(json.dumps({"size": [rows, columns]}))


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Passes on each key as it is typed, Ctrl-C too. Does nothing if the input is no terminal."""
    if not sys.stdin.isatty():
        yield
        return
    import termios  # noqa: PLC0415 - Windows does not have these modules
    import tty  # noqa: PLC0415 - as above

    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextmanager
def _on_resize(do: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGWINCH, lambda *_: do())
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
