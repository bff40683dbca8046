"""Other processes cannot inspect a process of a job between its fork and the start of the job's program."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scheduling.backends.local import isolation, sandbox
from scheduling.backends.local.isolation import HostPaths, Isolation
from tests.scheduling.backends.local.test_isolation import ORDINARY, ROOT, opening

GET_DUMPABLE = 3  # from sys/prctl.h
KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING = 0, ctypes.c_int(-3)


def main(folder: str) -> None:
    """Acts as a supervisor: forks a process into new namespaces, and prints, as JSON, what this process finds.

    - "at birth": `dumpable()` right after the fork.
    - "score": its OOM score adjustment right after the fork.
    - "later": `dumpable()` after its mounts.
    - "shared": the files that it then sees in a folder that stands in for the machine's /dev/shm.
    """
    shared = Path(folder) / "shared"
    (shared / "left").write_text("of others")
    sandbox.SHARED = (*sandbox.SHARED, str(shared))
    places = HostPaths(jobs=Path(folder) / "jobs")
    job = places.jobs / "1"
    job.mkdir(parents=True)
    sandbox.prepare_folders(job, None)
    view = places.confinement(Isolation(users=False, namespaces=True), job, None)["view"]
    assert view is not None
    view["temporary"] = []  # the test's folder stays visible, unless SHARED hides it
    sandbox.prctl(sandbox.PR_SET_CHILD_SUBREAPER, 1)
    namespaces = sandbox.Namespaces(view)
    told, tell = os.pipe()
    if namespaces.fork() == 0:
        found = {"at birth": dumpable(), "score": Path("/proc/self/oom_score_adj").read_text().strip()}
        namespaces.enter()
        sandbox.drop_privileges(None)
        os.write(tell, json.dumps(found | {"later": dumpable(), "shared": os.listdir(shared)}).encode())
        os._exit(0)
    os.close(tell)
    with os.fdopen(told) as file:
        sys.stdout.write(file.read())
    namespaces.end()


def dumpable() -> int:
    """Returns 1 if processes of the same user may inspect this process, else 0 (PR_GET_DUMPABLE)."""
    return int(ctypes.CDLL(None).prctl(GET_DUMPABLE, 0, 0, 0, 0))


@pytest.mark.parametrize("user", ["root", "an ordinary user"])
def test_no_process_of_the_same_user_can_inspect_a_starting_one(user: str, tmp_path: Path) -> None:
    """Other processes of the same user cannot inspect a process that was just forked for a job.

    The forked process still has the supervisor's open files, and sees the whole machine.
    """
    (tmp_path / "shared").mkdir()
    command = [sys.executable, "-m", __name__, str(tmp_path)]
    if user != "root":
        prefix = isolation.launcher(Isolation(users=False, namespaces=True))
        command = [*prefix, *command]
        if os.geteuid() == 0:
            for path in (tmp_path, tmp_path / "shared"):
                os.chown(path, ORDINARY, ORDINARY)
            command = ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups", *command]
    elif os.geteuid() != 0:
        pytest.skip("needs root")
    done = subprocess.run(
        [*opening(sys.base_prefix, ROOT, tmp_path), *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip(f"no namespaces on this machine: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"at birth": 0, "score": "500", "later": 0, "shared": []}


def test_a_process_that_is_to_go_earlier_than_jobs_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose OOM score adjustment is higher than that of jobs keeps it. In a container an ordinary user may
    not lower it."""
    written: list[str] = []
    monkeypatch.setattr(Path, "write_text", lambda path, text: written.append(text))
    for score, expected in (("0", ["500"]), ("900", [])):
        monkeypatch.setattr(Path, "read_text", lambda path, score=score: f"{score}\n")
        written.clear()
        sandbox.raise_oom_score()
        assert written == expected


def test_a_job_has_its_own_session_keyring(tmp_path: Path) -> None:
    """The session keyring of the user who started Fairlot may hold keys, so a job must not inherit it."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)
    told, tell = os.pipe()

    def serial() -> int:
        return int(libc.syscall(number, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0))

    if number is None or serial() < 0:
        pytest.skip("this machine forbids or lacks keyrings")
    if os.fork() == 0:
        sandbox.drop_privileges(None)
        os.write(tell, str(serial()).encode())
        os._exit(0)
    os.close(tell)
    os.wait()
    with os.fdopen(told) as file:
        assert int(file.read()) not in {serial(), -1}


if __name__ == "__main__":
    main(*sys.argv[1:])
