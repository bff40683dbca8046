"""The program of a test's notebook session: describes each request that it gets, and echoes WebSocket messages.

It needs only Python's standard library.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import json
import os
import signal

RIGHT = f"token {os.environ['FAIRLOT_SESSION_TOKEN']}"
HANDSHAKE = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
TEXT, CLOSE = 0x81, 0x88  # first byte of the last frame of a text message and of a close message


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.headers.get("Upgrade", "").lower() == "websocket":
            self._talk()
        else:
            self._tell(b"")

    def do_POST(self) -> None:
        self._tell(self.rfile.read(int(self.headers["Content-Length"])))

    def log_message(self, *args: object) -> None:
        """Logs nothing, because the log is for the program's own output."""

    def _tell(self, body: bytes) -> None:
        told = {
            "method": self.command,
            "path": self.path,
            "body": body.decode(),
            "is_right": self._is_right(),
            "cookie": self.headers.get("Cookie", ""),
            "epoch": os.environ["FAIRLOT_EPOCH"],
        }
        text = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _is_right(self) -> bool:
        return hmac.compare_digest(self.headers.get("Authorization", ""), RIGHT)

    def _talk(self) -> None:
        digest = hashlib.sha1(self.headers["Sec-WebSocket-Key"].encode() + HANDSHAKE).digest()  # noqa: S324
        self.send_response(101 if self._is_right() else 401)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(digest).decode())
        self.end_headers()
        self.close_connection = True
        while (kind := self._frame()[0]) != CLOSE:
            assert kind == TEXT, kind

    def _frame(self) -> tuple[int, bytes]:
        """Reads a frame of at most 125 bytes and sends it back. Returns its first byte and its unmasked content."""
        kind, length = self.rfile.read(2)
        mask = self.rfile.read(4)
        said = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(length & 0x7F)))
        self.wfile.write(bytes([kind, len(said)]) + said)
        return kind, said


def stop(*_: object) -> None:
    os.write(1, b"told to stop\n")
    os._exit(0)


signal.signal(signal.SIGTERM, stop)
http.server.ThreadingHTTPServer(("", int(os.environ["PORT"])), Handler).serve_forever()
