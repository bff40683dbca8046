"""A test cluster for the shell: `python -m tests.cluster FOLDER [NODES]`, until Ctrl-C.

The last line says where the admin's kubeconfig is.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.cluster.controlplane import ControlPlane
from tests.cluster.credentials import ADMIN


def main(folder: str, nodes: str = "0") -> None:
    with ControlPlane(Path(folder)).started() as plane:
        if int(nodes):
            plane.add_nodes(int(nodes))
        print(plane.kubeconfig(ADMIN), flush=True)  # noqa: T201 - what the caller waits for
        signal.pause()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # unwinds, so that all is stopped
    main(*sys.argv[1:])
