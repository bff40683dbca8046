"""The probe is a trial run that finds out how jobs can be isolated on this machine.

If the probe gives no answer, no job starts. If it finds that the machine refuses a kind of isolation, Fairlot shows the
reason.
"""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest

from scheduling.backends.base import BackendError
from scheduling.backends.local import isolation, sandbox, shim
from scheduling.backends.local.isolation import HostPaths, Isolation
from tests.scheduling.local_rig import Rig

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no users for jobs")
# A probe that succeeds without mounts, and has the given trouble when it is asked for mounts.
PROBE = """
import json, os, signal, sys
if json.load(sys.stdin)["confinement"]["view"] is not None:
    {trouble}
json.dump({{"exposed": [], "unreachable": [], "closed_devices": []}}, sys.stdout)
"""
NO_ANSWERS = {
    "hangs": "signal.pause()",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "breaks": "raise MemoryError",
}


@pytest.mark.parametrize("trouble", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_no_answer_is_asked_again_and_nothing_weaker_runs_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    places = HostPaths(jobs=tmp_path / "jobs")
    script = tmp_path / "probe.py"
    monkeypatch.setattr(isolation, "SHIM", script)
    monkeypatch.setattr(isolation, "PROBE_SECONDS", 2.0)
    script.write_text(PROBE.format(trouble=trouble))
    for ask in (isolation.known, isolation.last):
        with pytest.raises(OSError, match="could not be checked"):
            ask(places)
    script.write_text(PROBE.format(trouble="pass"))
    assert isolation.known(places).namespaces
    assert isolation.last(places).namespaces


def test_a_job_is_not_started_while_there_is_no_answer(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_known", {})
    with monkeypatch.context() as patched:
        patched.setattr(isolation, "PROBE_SECONDS", 0.001)
        with pytest.raises(BackendError, match="could not be checked"):
            rig.start(rig.gang("true"))
    rig.wait(rig.start(rig.gang("true")))


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.EPERM, sandbox.REFUSED), (errno.ENOMEM, 1), (errno.EAGAIN, 1), (errno.ENOSPC, 1)],
)
def test_only_what_the_machine_does_not_allow_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, code: int
) -> None:
    def fail(_: object) -> None:
        # A child process of the probe reports errors in this encoding.
        raise sandbox._decoded(sandbox._encoded(OSError(number, "a reason")))

    monkeypatch.setattr(sandbox, "probe", fail)
    monkeypatch.setattr("sys.stdin", io.StringIO("{}"))
    with pytest.raises(SystemExit) as ended:
        shim.check()
    assert (ended.value.code, capsys.readouterr().err) == (code, "a reason\n")


def test_a_process_of_the_probe_that_was_killed_says_nothing_of_the_machine() -> None:
    assert sandbox._decoded(b"").errno in sandbox.PASSING


@pytest.mark.parametrize(
    ("said", "is_refusal"),
    [
        ("unshare failed: Operation not permitted", True),
        ("unshare failed: No space left on device", True),  # the error if user.max_user_namespaces is 0
        ("write failed /proc/self/uid_map: Operation not permitted", True),
        ("unshare failed: Cannot allocate memory", False),
        ("unshare failed: Resource temporarily unavailable", False),
    ],
)
def test_a_launcher_that_was_short_of_something_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, is_refusal: bool
) -> None:
    launcher = ["sh", "-c", f"echo 'unshare: {said}' >&2; exit 1"]
    monkeypatch.setattr(isolation, "launcher", lambda it: launcher)
    (tmp_path / "jobs").mkdir()
    places, wanted = HostPaths(jobs=tmp_path / "jobs"), Isolation(users=False, namespaces=True)
    if is_refusal:
        assert isolation._try(places, wanted) == (None, f"unshare: {said}")
        return
    with pytest.raises(OSError, match="could not be checked"):
        isolation._try(places, wanted)


def without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    real = isolation._try
    refused = (None, "a test wants none")
    monkeypatch.setattr(isolation, "_try", lambda places, it: refused if it.namespaces else real(places, it))


@needs_root
def test_a_closed_folder_above_the_jobs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_namespaces(monkeypatch)
    closed = tmp_path / "closed"
    closed.mkdir(0o700)
    found = isolation.known(HostPaths(jobs=closed / "jobs"))
    assert not found.keeps_apart
    # If several folders are closed, the outermost is named; this may be one above the test's folder.
    above = isolation.closed_ancestor(closed / "jobs")
    assert (
        f"the folder {above} contains the folders of jobs, but is closed to other users" in found.why_no_users
    )


@needs_root
def test_user_ids_that_a_container_does_not_have_are_named(tmp_path: Path) -> None:
    found = isolation.known(HostPaths(jobs=tmp_path / "jobs", uids=range(2**32 - 2, 2**32)))
    assert not found.keeps_apart
    assert "no user ID 4294967295; set FAIRLOT_LOCAL_UIDS" in found.why_no_users
