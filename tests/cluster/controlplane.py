"""A real Kubernetes control plane without machines: etcd, API server, controller manager, scheduler, and kwok's nodes.

    with ControlPlane(folder).started() as plane:
        plane.add_nodes(20)
        plane.admin.apply(manifests)
        kubeconfig = plane.kubeconfig("system:serviceaccount:fairlot:worker")

All components listen on loopback and store their data below `folder`. Each keeps its port when it restarts. RBAC
decides what each user may do, and the audit log records each request.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.api import Api, Object
from tests.cluster.binaries import program
from tests.cluster.component import Component, answers, free_port
from tests.cluster.credentials import ADMIN, Credentials
from tests.cluster.nodes import add_nodes, gpu_node, stages

HERE = Path(__file__).resolve().parent
NOT_HERE = ("nodeipam", "cloud-node-lifecycle")  # controllers for clusters with a network or a cloud


@dataclass(frozen=True)
class Limits:
    """Rate limits of Kubernetes components, raised for tests.

    Kubernetes' defaults (20/30 and 50/100 requests per second/burst, and 5 Job syncs at a time) would slow down every
    test.
    """

    controller_manager_qps: int = 500
    controller_manager_burst: int = 1000
    job_syncs: int = 20
    scheduler_qps: int = 500
    scheduler_burst: int = 1000


DEFAULTS_OF_KUBERNETES = Limits(20, 30, 5, 50, 100)


class ControlPlane:
    """A control plane. `users` maps the names of users, who sign in with tokens, to their groups.

    Service accounts are not in `users`; they come from manifests. `apiserver`, `controller_manager` and `scheduler` are
    additional flags for these components, such as `{"max-requests-inflight": 5000}`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        users: Mapping[str, Sequence[str]] | None = None,
        limits: Limits | None = None,
        apiserver: Mapping[str, Any] | None = None,
        controller_manager: Mapping[str, Any] | None = None,
        scheduler: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self.credentials = Credentials(self.folder / "credentials", users or {})
        self.certificates = self.folder / "certificates"
        self.audit_log = self.folder / "audit.log"
        self.limits = limits or Limits()
        self.etcd = self._etcd()
        port = free_port()
        self.server = f"https://127.0.0.1:{port}"
        self.apiserver = self._apiserver(port, apiserver or {})
        self.controller_manager = self._controller_manager(controller_manager or {})
        self.scheduler = self._scheduler(scheduler or {})
        self.kwok = self._kwok()
        self.components = (self.etcd, self.apiserver, self.controller_manager, self.scheduler, self.kwok)
        self._apis: dict[str, Api] = {}

    @contextmanager
    def started(self) -> Iterator[ControlPlane]:
        try:
            self.start()
            yield self
        finally:
            self.stop()

    def start(self) -> None:
        for component in self.components:
            # Builds the program first, because a build between two starts would take minutes.
            program(component.name)
        # Each component starts when the one before it serves. An API server that starts without etcd panics minutes
        # later, and a controller manager that starts without an API server gives up.
        for component in (self.etcd, self.apiserver):
            component.start()
        self.admin.apply(HERE / "kwok-rights.yaml")
        for component in (self.controller_manager, self.scheduler):
            component.start()

    def stop(self) -> None:
        for api in self._apis.values():
            api.close()
        self._apis.clear()
        for component in reversed(self.components):
            component.stop()

    @property
    def admin(self) -> Api:
        """Returns the tests' client, which has all rights. The code under test never uses it."""
        return self.api(ADMIN)

    def api(self, user: str) -> Api:
        """Returns a client for this user, with a token that does not expire."""
        if user not in self._apis:
            self._apis[user] = Api(self.kubeconfig(user))
        return self._apis[user]

    def kubeconfig(self, user: str, *, seconds: int = 24 * 3600) -> Path:
        """Returns the path of a kubeconfig with exactly this user's rights.

        `user` is one of `users`, or a service account by its user name `system:serviceaccount:NAMESPACE:NAME`. A
        service account's token expires after `seconds` (at least 600).
        """
        if user.startswith("system:serviceaccount:"):
            token = self._service_account_token(user, seconds)
        else:
            token = self.credentials.tokens[user]
        return self._kubeconfig(user, token)

    def add_nodes(self, count: int, *, prefix: str = "gpu", **node: Any) -> list[str]:
        """Creates nodes that are ready for pods and returns their names. `node` contains arguments of `gpu_node`."""
        if not self.kwok.running:
            self.kwok.start()
        made = (gpu_node(f"{prefix}-{number:04d}", **node) for number in range(count))
        return add_nodes(self.admin, made)

    def audited(self, **wanted: str) -> list[Object]:
        """Returns the audit events whose user, verb, resource, namespace and name equal the given values."""
        found = []
        for line in self.audit_log.read_text().splitlines():
            event = json.loads(line)
            about = event.get("objectRef", {})
            said = {name: about.get(name) for name in ("resource", "subresource", "namespace", "name")}
            # A request with a wrong token has no user name.
            said |= {"user": event["user"].get("username"), "verb": event["verb"]}
            if all(said[name] == value for name, value in wanted.items()):
                found.append(event)
        return found

    def _kubeconfig(self, user: str, token: str | None = None) -> Path:
        return self.credentials.kubeconfig(
            user,
            token or self.credentials.tokens[user],
            server=self.server,
            authority=self.certificates / "apiserver.crt",
        )

    def _service_account_token(self, user: str, seconds: int) -> str:
        namespace, name = user.split(":")[2:]
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token: str = self.admin.create(path, asked)["status"]["token"]
        return token

    def _etcd(self) -> Component:
        url, peer = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
        self.etcd_url = url
        flags: dict[str, Any] = {
            "data-dir": self.folder / "etcd",
            "listen-client-urls": url,
            "advertise-client-urls": url,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "log-level": "warn",
            # A crash of the process loses nothing; only a crash of the machine would lose writes.
            "unsafe-no-fsync": True,
        }
        return Component(
            "etcd", self.folder, flags, answers(f"{url}/health", '{"health":"true","reason":""}')
        )

    def _apiserver(self, port: int, more: Mapping[str, Any]) -> Component:
        key = self.credentials.signing_key
        flags: dict[str, Any] = {
            "etcd-servers": self.etcd_url,
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": port,
            "cert-dir": self.certificates,
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            "token-auth-file": self.credentials.token_file,
            "authorization-mode": "RBAC",
            "kubelet-client-certificate": self.credentials.kubelet_client,
            "kubelet-client-key": self.credentials.kubelet_client.with_suffix(".key"),
            "kubelet-preferred-address-types": "InternalIP",  # no DNS server knows the names of the nodes
            "service-cluster-ip-range": "10.96.0.0/16",
            "endpoint-reconciler-type": "none",  # pods could not reach a loopback address
            "allow-privileged": True,
            "audit-policy-file": HERE / "audit-policy.yaml",
            "audit-log-path": self.audit_log,
            "profiling": False,
        }
        authority = self.certificates / "apiserver.crt"
        return Component(
            "kube-apiserver",
            self.folder,
            flags | dict(more),
            answers(f"{self.server}/readyz", "ok", authority=authority),
        )

    def _controller_manager(self, more: Mapping[str, Any]) -> Component:
        limits = self.limits
        serving, ready = self._serving("kube-controller-manager", "healthz")
        flags: dict[str, Any] = {
            **serving,
            "kubeconfig": self._kubeconfig("system:kube-controller-manager"),
            "leader-elect": False,
            "use-service-account-credentials": True,
            "service-account-private-key-file": self.credentials.signing_key,
            "root-ca-file": self.certificates / "apiserver.crt",
            "controllers": ",".join(["*", *(f"-{name}" for name in NOT_HERE)]),
            "kube-api-qps": limits.controller_manager_qps,
            "kube-api-burst": limits.controller_manager_burst,
            "concurrent-job-syncs": limits.job_syncs,
            "profiling": False,
        }
        return Component("kube-controller-manager", self.folder, flags | dict(more), ready)

    def _scheduler(self, more: Mapping[str, Any]) -> Component:
        serving, ready = self._serving("kube-scheduler", "readyz")
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "enableProfiling": False,
            "clientConnection": {
                "kubeconfig": str(self._kubeconfig("system:kube-scheduler")),
                "qps": self.limits.scheduler_qps,
                "burst": self.limits.scheduler_burst,
            },
        }
        path = self.folder / "scheduler.yaml"
        path.write_text(yaml.safe_dump(config))
        flags: dict[str, Any] = {**serving, "config": path}
        return Component("kube-scheduler", self.folder, flags | dict(more), ready)

    def _kwok(self) -> Component:
        config = self.folder / "stages.yaml"
        config.write_text(stages())
        address = f"127.0.0.1:{free_port()}"
        flags: dict[str, Any] = {
            "kubeconfig": self._kubeconfig("kwok"),
            "config": config,
            "manage-nodes-with-annotation-selector": "kwok.x-k8s.io/node=fake",
            "node-lease-duration-seconds": 40,
            "node-ip": "10.0.0.1",
            "server-address": address,
        }
        return Component("kwok", self.folder, flags, answers(f"http://{address}/readyz", "ok"))

    def _serving(self, name: str, health: str) -> tuple[dict[str, Any], Any]:
        """Returns a pair: the flags that make a component serve its health endpoint, and a function that checks the
        endpoint."""
        port, certificates = free_port(), self.folder / f"{name}-certificates"
        flags = {"bind-address": "127.0.0.1", "secure-port": port, "cert-dir": certificates}
        url = f"https://127.0.0.1:{port}/{health}"
        return flags, answers(url, "ok", authority=certificates / f"{name}.crt")


@contextmanager
def control_plane(name: str, **settings: Any) -> Iterator[ControlPlane]:
    """Yields a running control plane in a temporary folder, which is deleted afterwards.

    `settings` are arguments of ControlPlane.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"fairlot-{name}-"))
    try:
        with ControlPlane(folder, **settings).started() as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)
