"""A stand-in for a Kubernetes API server, with a TLS certificate, for answers that a real server would not give."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from scheduling.backends.kubernetes.rights import POLICIES, POLICIES_VERSION

TOKEN = "a-token-that-must-not-be-seen"
USER = "system:serviceaccount:fairlot:fairlot"


@dataclass
class Answer:
    code: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class StandIn:
    """The answers of the stand-in, which tests can change.

    `allows` decides whether the client has a right. If `instead` is set, it is the answer to every request.
    """

    server: str
    authority: str  # the server's certificate, as PEM
    allows: Callable[[dict[str, str]], bool] = lambda right: right["verb"] != "*"
    instead: Answer | None = None
    identity: str = "the-uid-of-kube-system"
    version: str = "v1.36.3"
    podgroups: str = ""  # the offered version of the PodGroup API; "" if the server has no such API
    asked: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)

    def kubeconfig(self, *, token: str = TOKEN, **cluster: Any) -> str:
        authority = base64.b64encode(self.authority.encode()).decode()
        reached = {"server": self.server, "certificate-authority-data": authority} | {
            name.replace("_", "-"): value for name, value in cluster.items()
        }
        text: str = yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "here", "cluster": reached}],
                "users": [{"name": "fairlot", "user": {"token": token}}],
                "contexts": [{"name": "fairlot", "context": {"cluster": "here", "user": "fairlot"}}],
                "current-context": "fairlot",
            }
        )
        return text

    def answer(self, path: str, said: dict[str, Any]) -> Answer:
        if self.instead is not None:
            return self.instead
        match path.partition("?")[0].rpartition("/")[2]:
            case "selfsubjectreviews":
                found: dict[str, Any] = {"status": {"userInfo": {"username": USER}}}
            case "selfsubjectaccessreviews":
                found = {"status": {"allowed": self.allows(said["spec"]["resourceAttributes"])}}
            case "version":
                found = {"gitVersion": self.version}
            case "kube-system":
                found = {"metadata": {"uid": self.identity}}
            case "scheduling.k8s.io" if self.podgroups:
                found = {"versions": [{"version": self.podgroups}]}
            case self.podgroups:
                found = {"resources": [{"name": "podgroups", "verbs": ["create", "get"]}]}
            case "namespaces" if said:
                return Answer(403, b'{"message": "ValidatingAdmissionPolicy denied request"}')
            case "validatingadmissionpolicies":
                labels = {"app.kubernetes.io/version": str(POLICIES_VERSION)}
                found = {
                    "items": [{"metadata": {"name": name, "labels": labels}} for name in sorted(POLICIES)]
                }
            case "validatingadmissionpolicybindings":
                specs = [{"policyName": name, "validationActions": ["Deny"]} for name in sorted(POLICIES)]
                found = {"items": [{"spec": spec} for spec in specs]}
            case _:
                found = {"items": []}
        return Answer(200, json.dumps(found).encode())


@contextmanager
def stand_in(folder: Path) -> Iterator[StandIn]:
    """Runs the server on a loopback address during the block, and yields its answers, which the test may change."""
    certificate, key = self_signed()
    pem = folder / "stand-in.pem"
    pem.write_bytes(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            said = json.loads(self.rfile.read(length)) if length else {}
            plays.asked.append(self.path)
            plays.tokens.add(self.headers.get("Authorization", ""))
            answer = plays.answer(self.path, said)
            self.send_response(answer.code)
            for name, value in ({"Content-Length": str(len(answer.body))} | answer.headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *args: object) -> None:
            """Discards the request log."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Ignores errors of clients that reject the certificate and disconnect, because tests cause such errors on
            purpose."""

        def get_request(self) -> tuple[Any, Any]:
            connection, address = super().get_request()
            return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    with Server(("127.0.0.1", 0), Handler) as server:
        plays = StandIn(f"https://127.0.0.1:{server.server_port}", certificate.decode())
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield plays
        finally:
            server.shutdown()
            thread.join()


def self_signed() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stand-in")])
    now = datetime.now(UTC)
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(alternative, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM), private
