"""Credentials for the test cluster: random tokens, the signing key of service accounts, and kubeconfig files."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

# The tests' own user. Tested code never gets this user's token.
ADMIN = "test-admin"
# The user as whom the API server signs in to the kubelets of real nodes (realnode.py).
KUBELET_CLIENT = "kube-apiserver-kubelet-client"
# Kubernetes itself grants rights to these names, except to kwok, whose rights are in kwok-rights.yaml.
COMPONENTS: Mapping[str, Sequence[str]] = {
    ADMIN: ["system:masters"],
    "system:kube-controller-manager": [],
    "system:kube-scheduler": [],
    "kwok": ["system:nodes"],  # the group of the kubelets that kwok simulates
    # The kubelets of real nodes (realnode.py).
    "system:node:real-0": ["system:nodes"],
    "system:node:real-1": ["system:nodes"],
}


class Credentials:
    """The credentials of a test cluster, in a folder that only this user can read. Tokens survive restarts."""

    def __init__(self, folder: Path, users: Mapping[str, Sequence[str]]) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700)
        self.groups = {**COMPONENTS, **users}
        self.tokens = {name: secrets.token_urlsafe(32) for name in self.groups}
        self.token_file = self._write("tokens.csv", "".join(map(self._line, self.groups)))
        self.signing_key = folder / "service-accounts.key"
        self.signing_key.touch(mode=0o600)
        subprocess.run(
            ["openssl", "genrsa", "-out", self.signing_key, "2048"], check=True, capture_output=True
        )
        self.kubelet_client = folder / "kubelet-client.crt"
        self._certify(self.kubelet_client)

    def kubeconfig(self, user: str, token: str, *, server: str, authority: Path) -> Path:
        """Writes a kubeconfig for one user and returns its path."""
        name = "".join(letter if letter.isalnum() else "-" for letter in user)
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "test", "cluster": {"server": server, "certificate-authority": str(authority)}}
            ],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        return self._write(f"{name}.kubeconfig", yaml.safe_dump(content))

    def _certify(self, path: Path) -> None:
        """Writes a self-signed certificate for the API server, which kubelets trust, and its key in the same folder."""
        key = path.with_suffix(".key")
        key.touch(mode=0o600)
        argv: list[str | Path] = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec"]
        argv += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", f"/CN={KUBELET_CLIENT}", "-days", "30"]
        subprocess.run([*argv, "-keyout", key, "-out", path], check=True, capture_output=True)

    def _line(self, user: str) -> str:
        groups = ",".join(self.groups[user])
        return f'{self.tokens[user]},{user},{user},"{groups}"\n'

    def _write(self, name: str, content: str) -> Path:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(content)
        return path
