"""A program that calls names whose DNS answers change, and prints to which addresses each call connected.

test_safe_http.py runs the program in a separate network namespace with `unshare`. There the loopback interface also has
a public address, and the program itself is the DNS server.
"""

from __future__ import annotations

import json
import socket
import socketserver
import struct
import subprocess
import tempfile
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address

from django.conf import settings

PUBLIC, LOOPBACK = "93.184.216.34", "127.0.0.1"
A, AAAA = 1, 28
# The DNS answers for each name, one list per look-up; the last list repeats.
NAMES: dict[str, list[list[str]]] = {
    "flips.example.org": [[PUBLIC], [LOOPBACK]],
    "both.example.org": [[PUBLIC, LOOPBACK]],
    "loopback.example.org": [[LOOPBACK]],
    "metadata.example.org": [["169.254.169.254"]],
    "azure.example.org": [["168.63.129.16"]],
    "mapped.example.org": [["::ffff:127.0.0.1"]],
    "translated.example.org": [["::ffff:0:127.0.0.1"]],
    "compatible.example.org": [["::127.0.0.1"]],
    "nat64.example.org": [["64:ff9b::7f00:1"]],
    "local-nat64.example.org": [["64:ff9b:1::7f00:1"]],
    "sixtofour.example.org": [["2002:7f00:1::1"]],
    "site.example.org": [["fec0::1"]],
}
asked: Counter[str] = Counter()
connected: Counter[str] = Counter()


class NameServer(socketserver.BaseRequestHandler):
    """A DNS server that answers A and AAAA queries from NAMES. Each look-up of a name sends one query of each type."""

    def handle(self) -> None:
        packet, line = self.request
        labels, at = [], 12
        while packet[at]:
            labels.append(packet[at + 1 : at + 1 + packet[at]].decode())
            at += 1 + packet[at]
        name, (kind, _) = ".".join(labels), struct.unpack(">HH", packet[at + 1 : at + 5])
        turns = NAMES.get(name, [[]])
        addresses = [ip_address(one) for one in turns[min(asked[f"{name} {kind}"], len(turns) - 1)]]
        asked[f"{name} {kind}"] += 1
        found = [one.packed for one in addresses if (one.version == 4) == (kind == A)]
        head = struct.pack(">HHHHHH", struct.unpack(">H", packet[:2])[0], 0x8180, 1, len(found), 0, 0)
        records = [struct.pack(">HHHIH", 0xC00C, kind, 1, 0, len(one)) + one for one in found]
        line.sendto(head + packet[12 : at + 5] + b"".join(records), self.client_address)


class Redirects(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        connected[f"{self.server.server_address[0]}:80"] += 1  # type: ignore[index]
        self.send_response(302)
        self.send_header("Location", f"http://{LOOPBACK}/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Does nothing, so that log messages do not appear in the program's output."""


def listen(address: str) -> None:
    """Counts connections to port 443 and closes them without TLS, so that every call fails."""
    server = socket.create_server((address, 443))

    def accept() -> None:
        while True:
            line, _ = server.accept()
            connected[f"{address}:443"] += 1
            line.close()

    threading.Thread(target=accept, daemon=True).start()


def main() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "addr", "add", f"{PUBLIC}/32", "dev", "lo"], check=True)
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as resolver:
        resolver.write(f"nameserver {LOOPBACK}\noptions timeout:2 attempts:1\n")
        resolver.flush()
        subprocess.run(["mount", "--bind", resolver.name, "/etc/resolv.conf"], check=True)
        names = socketserver.ThreadingUDPServer((LOOPBACK, 53), NameServer)
        redirects = [ThreadingHTTPServer((address, 80), Redirects) for address in (PUBLIC, LOOPBACK)]
        for server in (names, *redirects):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        for address in (PUBLIC, LOOPBACK):
            listen(address)
        settings.configure(FAIRLOT_WEBHOOKS_TO_PRIVATE=False)
        print(json.dumps(calls()))  # noqa: T201
        subprocess.run(["umount", "/etc/resolv.conf"], check=True)


def calls() -> dict[str, object]:
    """Calls a webhook at each name in NAMES, and a few special ones.

    Returns, for each call, its result and the addresses to which it connected. Also returns the number of look-ups of
    flips.example.org.
    """
    from accounting.notifications.safe_http import NotReachable, post  # noqa: PLC0415 - needs the settings

    told: dict[str, object] = {}

    def call(label: str, url: str) -> None:
        connected.clear()
        try:
            post(url, b"{}", {})
            said = "taken"
        except NotReachable as error:
            said = str(error)
        told[label] = {"said": said, "connected": sorted(connected)}

    for name in NAMES:
        call(name, f"https://{name}/hook")
    call("flips again", "https://flips.example.org/hook")
    told["look-ups of flips"] = asked[f"flips.example.org {A}"]
    settings.FAIRLOT_WEBHOOKS_TO_PRIVATE = True
    call("redirects", f"http://{PUBLIC}/hook")
    call("metadata, private allowed", "https://metadata.example.org/hook")
    return told


if __name__ == "__main__":
    main()
