"""Serves the checkpoints of one job over HTTP, read-only. This program runs in a reader pod (reader_pods.py).

It uses only the standard library, and the modules that `script` sends along with it.

    GET /ready                        204, for the kubelet's probe
    GET /list?path=&after=&limit=     a page of a folder, as JSON
    GET /results?limit=               the newest files, as JSON
    GET /file?path=&offset=           the bytes of a plain file; the header X-Fairlot-File describes it, as JSON

All requests but the first need `Authorization: Bearer SECRET`. The pod knows only the digest of the secret. A path that
leads to nothing is answered by 404, what cannot be read by 409, with a text for users.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from scheduling.backends.file_entries import FileEntry, FileUnreadable, NoSuchFile
from scheduling.backends.results import find_results
from scheduling.backends.safe_folder import Place, list_folder, open_file

PIECE = 256 * 1024
MOST_ENTRIES = 5000  # of a page
MOST_CONNECTIONS = 32
HEAD_SECONDS = 10.0  # in which a request must arrive
SEND_SECONDS = 300.0  # the longest pause of a client that receives a file
DESCRIPTION = "X-Fairlot-File"


class _Idle(Exception):
    """Raised if nobody has asked for a file for too long."""


class Server(ThreadingHTTPServer):
    """Answers requests in threads, at most MOST_CONNECTIONS at once, until it has been idle for `idle_seconds`."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def __init__(self, port: int, place: Place, digest: str, idle_seconds: float) -> None:
        super().__init__(("", port), Handler)
        self.place, self.digest = place, digest
        self._idle_seconds = idle_seconds
        self._used_at = time.monotonic()
        self._busy = 0
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def begin_use(self) -> None:
        with self._lock:
            self._busy += 1

    def end_use(self) -> None:
        with self._lock:
            self._busy -= 1
            self._used_at = time.monotonic()

    def service_actions(self) -> None:
        """Raises _Idle if the server is idle. Its loop calls this twice a second."""
        with self._lock:
            if not self._busy and time.monotonic() - self._used_at > self._idle_seconds:
                raise _Idle

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # the client has left
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers one request, and then closes its connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "fairlot-reader", ""
    timeout = HEAD_SECONDS

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path == "/ready":
            self._say(204)
            return
        kind, _, secret = self.headers.get("Authorization", "").partition(" ")
        digest = hashlib.sha256(secret.encode()).hexdigest()
        if kind != "Bearer" or not hmac.compare_digest(digest, self.server.digest):
            self._say(401, b"A secret is needed.")
            return
        self.server.begin_use()
        try:
            self._answer(path, query)
        finally:
            self.server.end_use()

    def _answer(self, path: str, query: str) -> None:
        try:
            asked = {name: values[-1] for name, values in parse_qs(query, max_num_fields=5).items()}
            if path == "/list":
                self._list(asked)
            elif path == "/results":
                self._results(asked)
            elif path == "/file":
                self._file(asked)
            else:
                self._say(400, b"There is no such address.")
        except NoSuchFile as error:
            self._say(404, str(error).encode())
        except FileUnreadable as error:
            self._say(409, str(error).encode())
        except ValueError as error:  # the query cannot be read
            self._say(400, str(error).encode("utf-8", "replace"))

    def _list(self, asked: dict[str, str]) -> None:
        limit = min(max(1, int(asked.get("limit", MOST_ENTRIES))), MOST_ENTRIES)
        found = list_folder(
            self.server.place, asked.get("path", ""), after=asked.get("after", ""), limit=limit
        )
        content = {"entries": _rows(found.entries), "after": found.after, "is_cut": found.is_cut}
        self._say(200, json.dumps(content).encode(), "application/json")

    def _results(self, asked: dict[str, str]) -> None:
        limit = min(max(1, int(asked.get("limit", MOST_ENTRIES))), MOST_ENTRIES)
        found = find_results(self.server.place, limit)
        content = {"entries": _rows(found.entries), "count": found.count, "is_complete": found.is_complete}
        self._say(200, json.dumps(content).encode(), "application/json")

    def _file(self, asked: dict[str, str]) -> None:
        offset = max(0, int(asked.get("offset", 0)))
        with closing(open_file(self.server.place, asked.get("path", ""), offset)) as opened:
            about = {
                "size": opened.size,
                "stored": opened.stored,
                "age": opened.age,
                "version": opened.version,
                "identity": opened.identity,
            }
            self.connection.settimeout(SEND_SECONDS)
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header(DESCRIPTION, json.dumps(about))
            self.send_header("Transfer-Encoding", "chunked")  # the client then knows whether it has all
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            try:
                while piece := opened.read(PIECE):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")
            except FileUnreadable:
                return  # the answer has no end, so that the client notices

    def _say(self, status: int, body: bytes = b"", kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Logs nothing, because the output of a pod can be read by more people than the files."""


def _rows(entries: Sequence[FileEntry]) -> list[tuple[object, ...]]:
    return [(one.name, one.kind, one.size, one.age, one.why_not) for one in entries]


def script() -> str:
    """Returns this program with the modules that it needs, as the text of one Python script."""
    here = Path(__file__).parent
    sources = {
        "scheduling.backends.file_entries": here.parent / "file_entries.py",
        "scheduling.backends.file_names": here.parent / "file_names.py",
        "scheduling.backends.opening": here.parent / "opening.py",
        "scheduling.backends.safe_folder": here.parent / "safe_folder.py",
        "scheduling.backends.results": here.parent / "results.py",
        "scheduling.backends.kubernetes.reader_program": Path(__file__),
    }
    texts = {name: path.read_text() for name, path in sources.items()}
    return f"MODULES = {texts!r}\n{_LOADER}"


_LOADER = """
import sys
from types import ModuleType

for name, text in MODULES.items():
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        part = ".".join(parts[:depth])
        module = sys.modules.setdefault(part, ModuleType(part))
        module.__path__ = []
        if depth > 1:
            setattr(sys.modules[".".join(parts[: depth - 1])], parts[depth - 1], module)
    module.__file__ = name
    exec(compile(text, name, "exec"), module.__dict__)
module.main()
"""


def main() -> None:
    """Serves until the server is idle or the kubelet ends it. Reads what it serves from variables."""
    given = os.environ
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the first process of a pod ignores it otherwise
    place = Place(Path(given["FAIRLOT_READER_FOLDER"]))
    idle = float(given["FAIRLOT_READER_IDLE_SECONDS"])
    with Server(int(given["PORT"]), place, given["FAIRLOT_READER_DIGEST"], idle) as server, suppress(_Idle):
        server.serve_forever()
