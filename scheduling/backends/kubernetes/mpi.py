"""Lets mpirun log in to the workers of its gang by ssh, with keys that belong to one attempt alone.

The keys and both configurations are a Secret of the gang, which is written, owned and deleted like those of secret
files (secret_objects.py). The image brings sshd, ssh and an account for the user of the pods. Everything else that sshd
needs is in the Secret, so that it runs without root. Kubeflow's MPI operator (v2) works in the same way.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from scheduling.backends.base import Gang, SecretFolder

NAME, PLACE = "fairlot-mpi", "/fairlot-mpi"
PORT = 2222
# Files of a Secret belong to root, so sshd's check of their owners (StrictModes) would refuse them.
SERVER = f"""Port {PORT}
HostKey {PLACE}/host-key
AuthorizedKeysFile {PLACE}/key.pub
StrictModes no
UsePAM no
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowTcpForwarding no
X11Forwarding no
"""
CLIENT = f"""Port {PORT}
IdentityFile {PLACE}/key
IdentitiesOnly yes
UserKnownHostsFile {PLACE}/known-hosts
GlobalKnownHostsFile /dev/null
HostKeyAlias fairlot
StrictHostKeyChecking yes
ConnectionAttempts 10
LogLevel ERROR
"""
# sshd must be called by its absolute path. Programs that are started through it get these variables of the container.
SERVE = f"""
sshd=$(command -v sshd || echo /usr/sbin/sshd)
[ -x "$sshd" ] || {{ echo "Fairlot: the image has no sshd, by which mpirun reaches this worker." >&2; exit 127; }}
exec "$sshd" -D -e -f {PLACE}/sshd-config \\
    -o "SetEnv PATH=$PATH LD_LIBRARY_PATH=${{LD_LIBRARY_PATH:-}} FAIRLOT_CHECKPOINT_DIR=$FAIRLOT_CHECKPOINT_DIR"
"""
COMMAND = ("/bin/sh", "-c", SERVE)
# How each MPI passes options to ssh.
VARIABLES = {
    "OMPI_MCA_plm_rsh_args": f"-F {PLACE}/ssh-config",
    "PRTE_MCA_plm_ssh_args": f"-F {PLACE}/ssh-config",
    "I_MPI_HYDRA_BOOTSTRAP": "ssh",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": f"-F {PLACE}/ssh-config",
    "HYDRA_LAUNCHER_EXTRA_ARGS": f"-F {PLACE}/ssh-config",
}


def with_keys(gang: Gang) -> Gang:
    """Returns the gang with the keys and configurations of ssh as a secret folder. Returns other gangs unchanged.

    The same gang always gets the same keys, because an order to start it may be repeated.
    """
    if not gang.is_mpi or not gang.roles:
        return gang
    folder = SecretFolder(NAME, PLACE, files(gang.mpi_seed))
    return replace(gang, secrets=replace(gang.secrets, folders=[*gang.secrets.folders, folder]))


def files(seed: bytes) -> dict[str, str]:
    """Returns the files by name. `seed` is secret and differs for each attempt."""
    key, host_key = (_key(seed, purpose) for purpose in ("login", "host"))
    return {
        "key": _private(key),
        "key.pub": f"{_public(key)}\n",
        "host-key": _private(host_key),
        "known-hosts": f"fairlot {_public(host_key)}\n",
        "sshd-config": SERVER,
        "ssh-config": CLIENT,
    }


def _key(seed: bytes, purpose: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(seed + purpose.encode()).digest())


def _private(key: Ed25519PrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()


def _public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
