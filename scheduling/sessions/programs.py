"""Commands that start JupyterLab and VS Code in a session, so that they answer to Fairlot's proxy and to nobody else.

Neither shows a login page, because the proxy checks each request and sends the session's token along. Without a token,
which only sessions have, none of them starts: an empty token would admit everybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduling.jobs.programs import environments_with, has_program
from scheduling.models import Cluster, Session

PORT = 8888
_GIVEN = '"${FAIRLOT_SESSION_TOKEN:?only sessions have a token}"'
_JUPYTER = f"""exec jupyter lab --no-browser --allow-root --ip=LISTEN --port="$PORT" \\
  --ServerApp.base_url="$FAIRLOT_BASE_URL" \\
  --ServerApp.allow_remote_access=True \\
  --IdentityProvider.token={_GIVEN}
"""
_OPENVSCODE = f"""exec openvscode-server --accept-server-license-terms --host LISTEN --port "$PORT" \\
  --server-base-path "$FAIRLOT_BASE_URL" \\
  --connection-token {_GIVEN}
"""
# Its hash of a password is what it expects in its cookie, so that the proxy can send it.
_CODE_SERVER = f"""HASHED_PASSWORD={_GIVEN} exec code-server --auth password --bind-addr "LISTEN:$PORT" \\
  --disable-telemetry --disable-update-check .
"""
_EITHER = f"""if command -v openvscode-server >/dev/null; then
{_OPENVSCODE}fi
{_CODE_SERVER}"""


# The programs of each kind. One of them must be installed; the first one is preferred.
PROGRAMS: Mapping[str, Sequence[str]] = {
    Session.Kind.NOTEBOOK: ("jupyter",),
    Session.Kind.VSCODE: ("openvscode-server", "code-server"),
}


def environments_for(kind: str, cluster: Cluster) -> Sequence[str] | None:
    """Returns the environments of a cluster in which a program of the kind is installed, the default one first.

    Returns None in Kubernetes, whose images Fairlot cannot look into.
    """
    is_local = cluster.backend == Cluster.Backend.LOCAL
    return environments_with(cluster, *PROGRAMS[kind]) if is_local else None


def command_for(kind: str, cluster: Cluster | None) -> str:
    """Returns the command that starts a session's program. On a local cluster, the program listens on loopback only."""
    is_local = cluster is None or cluster.backend == Cluster.Backend.LOCAL
    if kind == Session.Kind.VSCODE:
        prefers = cluster is not None and _prefers_openvscode(cluster)
        found = (_OPENVSCODE if prefers else _CODE_SERVER) if is_local else _EITHER
    else:
        found = _JUPYTER
    return found.replace("LISTEN", "127.0.0.1" if is_local else "0.0.0.0")  # noqa: S104 - a pod's own


def _prefers_openvscode(cluster: Cluster) -> bool:
    """Returns whether VS Code starts with openvscode-server on a local cluster: if its default environment has that,
    or has neither program and another environment has it."""
    if has_program(cluster, "openvscode-server"):
        return True
    return not has_program(cluster, "code-server") and bool(environments_with(cluster, "openvscode-server"))


def completed(spec: Mapping[str, Any], kind: str, cluster: Cluster) -> dict[str, Any]:
    """Returns a job specification, as a mapping, with the name, command and port of the kind's program, where it has no
    command."""
    if spec.get("command"):
        return dict(spec)
    program = {"name": kind, "command": command_for(kind, cluster), "port": PORT}
    return program | {name: value for name, value in spec.items() if name != "command"}
