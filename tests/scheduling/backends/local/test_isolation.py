"""What a local job can do to other teams and to the portal is exactly what the table in docs/local-jobs.md says.

A job of another team, the thief (thief.py), tries every row of the table, and the result is compared with the table.
The jobs run under root with and without namespaces and, in a separate process, under an ordinary user.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduling.backends.base import End, Phase, SecretFolder, Secrets
from scheduling.backends.local import isolation, processes
from scheduling.backends.local.isolation import Isolation
from tests.scheduling.local_rig import Rig, until

ROOT = Path(__file__).resolve().parents[4]
THIEF = Path(__file__).parents[2].joinpath("thief.py")
TABLE = ROOT / "docs" / "local-jobs.md"
MODES = ("root, with namespaces", "root, without", "ordinary user, with namespaces", "ordinary user, without")
VICTIM, OTHER_TEAM, ORDINARY = 2_011_000_001, 2_011_000_002, 2_011_000_003  # UIDs
MARK = "isolation-test-environment"
# The victim's program: leaves files where a careless job would leave them, and waits.
VICTIMS = """
echo secret >"$HOME/note"; echo secret >note; echo secret >"$FAIRLOT_CHECKPOINT_DIR/state"
umask 000; echo open >/tmp/$OPEN; echo open >/dev/shm/$OPEN
echo in place; exec sleep 600
"""


def table() -> dict[str, dict[str, bool]]:
    """Returns the table of docs/local-jobs.md as {row: {mode: whether a job can do what the row says}}.

    A mode is a column of the table, such as "root, with namespaces".
    """
    rows = [line.strip("| ").split(" | ") for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    head = next(row for row in rows if row[0] == "can a job …")
    assert tuple(head[1:]) == MODES
    return {
        row[0]: {mode: cell == "yes" for mode, cell in zip(MODES, row[1:], strict=True)}
        for row in rows
        if len(row) == len(head) and row[1] in {"yes", "no"}
    }


class Scene:
    """A local backend with the folders of a portal. One team's job, the victim, and another team's job, the thief, run
    there."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.open = folder, name
        self.portal = folder / "portal"
        for place in ("secrets", "postgres", "code"):
            (self.portal / "var" / place).mkdir(parents=True)
            (self.portal / "var" / place).chmod(0o755 if place == "code" else 0o700)
        self.secret = self.portal / "var" / "secrets" / "key"
        for path in (self.secret, self.portal / "var" / "postgres" / "data", folder / "only-ours"):
            path.write_text("secret")
            path.chmod(0o600)
        (folder / "volume").mkdir()
        (folder / "volume" / "data").write_text("for everybody")
        (folder / "dev").mkdir()
        (folder / "dev" / "nvidia0").write_text("stands in for a GPU")
        (folder / "dev" / "nvidia0").chmod(0o666)
        self.rig = Rig(folder / "jobs")
        self.rig.places = replace(
            self.rig.places,
            hidden=[self.portal],
            secret=[self.secret],
            code=[self.portal],
            dev=folder / "dev",
        )
        self.rig.backend = self.rig.another_backend()

    def steal(self) -> dict[str, Any]:
        """Runs both jobs and returns what the thief found.

        The result says for each row of the table whether an attempt worked, and lists the attempts that worked.
        """
        rig = self.rig
        with ExitStack() as stack:
            portal = subprocess.Popen(["sleep", "600"], env={"PASSWORD": f"{MARK}-{self.open}-portal"})
            stack.callback(portal.wait)
            stack.callback(portal.kill)
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
            abstract.bind(f"\0{self.open}")
            abstract.listen()
            secrets = Secrets(
                {"TOKEN": f"{MARK}-{self.open}-job"}, [SecretFolder("hf", "/secrets/hf", {"token": "secret"})]
            )
            stack.callback(rig.end_everything)
            victim = rig.start(
                rig.gang(VICTIMS, uid=VICTIM, secrets=secrets, environment={"OPEN": self.open})
            )
            rig.wait_for_log("in place")
            rig.wait(victim, Phase.RUNNING)
            sleepers = [each.pid for each in rig.processes_of(victim)]
            portals = [os.getpid(), portal.pid, rig.supervisor(victim)]
            targets = self._targets(sleepers, portals, listener.getsockname()[1])
            environment = {"THIEF": THIEF.read_text(), "TARGETS": json.dumps(targets, default=str)}
            # The thief waits for the file `go`, so that its own supervisor has written all files that it tries to
            # change.
            script = 'while ! test -e go; do sleep 0.05; done; exec python -c "$THIEF"'
            thief = rig.start(rig.gang(script, job=2, uid=OTHER_TEAM, environment=environment))
            rig.wait(thief, Phase.RUNNING)
            (rig.files(2).folder / "work" / "rank-0" / "go").touch()
            supervisors = [portals[-1], rig.supervisor(thief)]
            seen = rig.wait(thief)
            rig.end_everything()
            until(lambda: not any(map(processes.look, supervisors)), "the supervisors' end")
            assert seen.end is End.SUCCEEDED, f"{seen}\n{rig.log(2)}"
            found: dict[str, Any] = json.loads(rig.log(2).partition("FOUND ")[2])
            return found

    def _targets(self, sleepers: list[int], portal: list[int], port: int) -> list[tuple[str, str, object]]:
        victim, own, status = self.rig.files(1).folder, self.rig.files(2).folder, self.rig.root / ".status"
        its_folders = [victim / name for name in ("home", "work/rank-0", "checkpoint", "tmp")]
        its_files = [victim / name for name in ("home/note", "work/rank-0/note", "checkpoint/state")]
        kept = [own / name for name in ("gang.json", "desired.json", "run.lock", "supervisor.log", "logs")]
        kept += [status, status / "2-1.json", self.rig.root / ".beats", own / "logs/rank-0.log"]
        rows: list[tuple[str, str, list[Any]]] = [
            ("read or change another team's job folder", "read_or_write", [*its_folders, *its_files]),
            (
                "read or change another team's logs",
                "read_or_write",
                [victim / "logs/rank-0.log", victim / "logs"],
            ),
            (
                "read the secrets of another",
                "read",
                [victim / "secrets/1/files/hf/token", victim / "secrets/1"],
            ),
            ("read the secrets of another", "read_environment", [f"{MARK}-{self.open}-job"]),
            ("signal or trace another", "signal", sleepers),
            ("signal or trace another", "trace", sleepers),
            ("read what another team's job leaves", "read", [f"/tmp/{self.open}", f"/dev/shm/{self.open}"]),
            ("see that another", "see", sleepers),
            ("read another team's volume", "read", [self.folder / "volume"]),
            ("connect to loopback", "connect", [port]),
            ("connect to abstract", "connect_abstract", [self.open]),
            ("read `var/secrets`", "read_or_write", [self.secret, self.secret.parent]),
            ("read `var/secrets`", "read_or_write", [self.portal / "var" / "postgres" / "data"]),
            (
                "read the environment of a process of the portal",
                "read_environment",
                [f"{MARK}-{self.open}-portal"],
            ),
            ("signal or trace processes of the portal", "signal", portal),
            ("signal or trace processes of the portal", "trace", portal),
            ("change the portal's code", "write", [self.portal, self.portal / "var/code", sys.prefix, ROOT]),
            ("read or change the supervisor's files", "read_or_write", kept),
            ("read or change the supervisor's files", "write", [own, victim, self.rig.root]),
            ("read files elsewhere", "read", [self.folder / "only-ours"]),
            ("use a GPU", "read", [self.folder / "dev" / "nvidia0"]),
            ("gain root", "regain", [str(self.secret)]),
        ]
        return [(row_named(begin), kind, target) for begin, kind, targets in rows for target in targets]


def row_named(begin: str) -> str:
    """Returns the name of the only row of the table that begins with `begin`."""
    [row] = [row for row in table() if row.startswith(begin)]
    return row


FORCED = {
    MODES[1]: Isolation(users=True, namespaces=False, why_no_namespaces="a test wants none"),
    MODES[3]: Isolation(
        users=False, namespaces=False, why_no_users="-", why_no_namespaces="a test wants none"
    ),
}


def main(mode: str, folder: str, name: str) -> None:
    """Runs the thief in one mode, and prints, as JSON, what it can do and how the backend isolates its jobs.

    `mode`: a column of the table, such as "root, with namespaces". The process must already run as root or as an
    ordinary user, as the mode requires. `folder` and `name` are passed to `Scene`.
    """
    scene = Scene(Path(folder), name)
    if mode in FORCED:
        isolation.force(scene.rig.places, FORCED[mode])
    found = scene.rig.backend.isolation
    json.dump(
        scene.steal() | {"users": found.users, "namespaces": found.namespaces, "why": found.why_not},
        sys.stdout,
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_thief_can_do_exactly_what_the_table_says(mode: str, open_folder: Path) -> None:
    command = [sys.executable, "-m", __name__, mode, str(open_folder / "scene"), open_folder.name]
    if mode.startswith("root"):
        if os.getuid() != 0:
            pytest.skip("needs root")
    elif os.getuid() == 0:
        os.chown(open_folder, ORDINARY, ORDINARY)
        command = ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups", *command]
    try:
        done = subprocess.run(
            [*opening(sys.base_prefix, ROOT), *command], cwd=ROOT, capture_output=True, text=True, check=False
        )
    finally:
        for place in ("/tmp", "/dev/shm"):
            (Path(place) / open_folder.name).unlink(missing_ok=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    wanted = mode.endswith("with namespaces")
    if wanted and not found["namespaces"]:
        pytest.skip(f"no namespaces on this machine: {found['why']}")
    assert (found["users"], found["namespaces"]) == (mode.startswith("root"), wanted)
    expected = {row: cells[mode] for row, cells in table().items()}
    assert found["rows"] == expected, found["worked"]


def opening(*needed: object) -> list[str]:
    """Returns the words to put before a command so that the command can reach the paths `needed`, even if a folder
    above them is closed to other users.

    The folder stays closed for all other processes. Returns [] if no folder is closed, or if this process is not root.
    """
    closed = {
        path: above
        for path in map(Path, map(str, needed))
        if (above := isolation.closed_ancestor(path)) is not None
    }
    if not closed or os.getuid() != 0:
        return []
    steps = ["set -e"]
    for number, path in enumerate(closed):
        steps += [f"mkdir -p /run/fairlot-test-{number}", f"mount --bind '{path}' /run/fairlot-test-{number}"]
    steps += [f"mount -t tmpfs -o mode=755 tmpfs '{above}'" for above in set(closed.values())]
    for number, path in enumerate(closed):
        steps += [f"mkdir -p '{path}'", f"mount --move /run/fairlot-test-{number} '{path}'"]
    return ["unshare", "--mount", "sh", "-c", "\n".join([*steps, 'exec "$@"']), "sh"]


if __name__ == "__main__":
    main(*sys.argv[1:])
