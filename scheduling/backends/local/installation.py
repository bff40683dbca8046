"""The requirements of one attempt: uses the installed environment, or starts the process that installs it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from scheduling.backends.local import environments, processes
from scheduling.backends.local.files import JobFiles
from scheduling.backends.local.sandbox import Bind

SHIM = Path(__file__).with_name("shim.py")


class Installation:
    """Holds the lock that keeps an environment from being deleted, until this process ends.

    `pid` is the process that installs the environment (environment_builder.py); None if it is installed already.
    """

    def __init__(self, files: JobFiles, gang: dict[str, Any], variables: dict[str, str]) -> None:
        """Starts the installation if it is needed. `variables` are those of the job's secrets. Raises OSError."""
        packages: dict[str, Any] = gang["packages"]
        confinement = packages["confinement"]
        self.place = Path(packages["folder"])
        self.lock = environments.open_for_use(self.place, confinement["uid"])
        self.pid: int | None = None
        self._result: int | None = None
        if environments.is_ready(self.place):
            return
        order = packages | {
            "root": str(files.root),
            "job_id": files.job_id,
            "log_limit_bytes": gang["log_limit_bytes"],
            "epoch": gang["epoch"],
            "marker": variables[processes.MARKER],
            "variables": packages["variables"] | environments.for_pip(variables),
            "supervisor": os.getpid(),
        }
        self._result = os.memfd_create("result")
        asked = os.memfd_create("order")
        with open(asked, "wb") as file:
            file.write(json.dumps(order).encode())
            file.flush()
            os.lseek(asked, 0, os.SEEK_SET)
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", str(SHIM), "build"],
                {"LANG": "C.UTF-8"},
                file_actions=[(os.POSIX_SPAWN_DUP2, asked, 0), (os.POSIX_SPAWN_DUP2, self._result, 1)],
            )

    def result(self) -> dict[str, Any]:
        """Returns what the process said at its end (environment_builder.py)."""
        try:
            if self._result is not None:
                os.lseek(self._result, 0, os.SEEK_SET)
                with open(self._result, "rb", closefd=False) as file:
                    found: dict[str, Any] = json.load(file)
                return found
        except ValueError:
            pass
        return {"broken": "the process that installs the requirements was killed"}

    def use(self, gang: dict[str, Any]) -> dict[str, Any]:
        """Lets the workers of `gang` find the packages. Returns what the report of the attempt says about them."""
        environments.note_use(self.place)
        packages = str(self.place / environments.PACKAGES)
        view = gang["confinement"]["view"]
        if view is not None:
            view["binds"].append(Bind(path=packages, writable=False))
        for worker in gang["workers"]:
            known = worker["environment"]
            for variable, first in (("PYTHONPATH", packages), ("PATH", f"{packages}/bin")):
                known[variable] = ":".join(filter(None, (first, known.get(variable, ""))))
        made = self.result()["made"] if self.pid is not None else None
        return {"made": made, "at": processes.stamp()}
