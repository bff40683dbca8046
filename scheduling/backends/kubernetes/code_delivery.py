"""Brings a job's code into its pods: the archive is a Secret of the gang, and a short script unpacks it.

The Secret is written, owned and deleted like those of secret files (secret_objects.py), so it needs no other rights.
The image needs sh, base64, tar and gzip, which nearly every image has.
"""

from __future__ import annotations

import base64
from dataclasses import replace

from scheduling.backends.base import Gang, SecretFolder

NAME, PLACE, KEY = "fairlot-code", "/fairlot-code", "code.tar.gz.base64"
# $1 is the archive, the rest is the command. The copy is new in each pod, as its files are.
UNPACK = """
FAIRLOT_CODE_DIR=$(mktemp -d "${TMPDIR:-/tmp}/code.XXXXXX") && base64 -d "$1" | tar -xzf - -C "$FAIRLOT_CODE_DIR" &&
    cd "$FAIRLOT_CODE_DIR" || {
    echo "Fairlot: the code cannot be unpacked. The image needs mktemp, base64, tar, gzip and a writable /tmp." >&2
    exit 1
}
export FAIRLOT_CODE_DIR
shift
exec "$@"
"""


def with_code(gang: Gang) -> Gang:
    """Returns the gang with its code as a secret file, and with a command that unpacks it first. Returns a gang without
    code unchanged."""
    if gang.code is None:
        return gang
    text = base64.encodebytes(gang.code.content).decode()
    folder = SecretFolder(NAME, PLACE, {KEY: text})
    secrets = replace(gang.secrets, folders=[*gang.secrets.folders, folder])
    return replace(gang, secrets=secrets).run_by("/bin/sh", "-c", UNPACK, "fairlot", f"{PLACE}/{KEY}")
