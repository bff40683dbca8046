"""Starts a test cluster from the shell and runs it until Ctrl-C: `python -m tests.cluster FOLDER [NODES [REAL]]`.

kwok simulates NODES nodes. REAL further nodes (0, 1 or 2; needs root) run containers. The last line of output is the
path of the admin's kubeconfig.
"""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.cluster import machine
from tests.cluster.controlplane import ControlPlane
from tests.cluster.credentials import ADMIN
from tests.cluster.nodes import A100, V100
from tests.cluster.realnode import RealNode

REAL = {"real-0": A100, "real-1": V100}


def main(folder: str, nodes: str = "0", real: str = "0") -> None:
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(Path(folder)).started())
        if int(nodes):
            plane.add_nodes(int(nodes))
        if int(real):
            machine.prepare()
        for name, product in list(REAL.items())[: int(real)]:
            stack.enter_context(RealNode(plane, name, product=product).started())
        print(plane.kubeconfig(ADMIN), flush=True)  # noqa: T201 - what the caller waits for
        signal.pause()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        # The exception unwinds the stack, which stops all components.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    main(*sys.argv[1:])
