"""The scripts that prepare a pod install requirements with the image's Python, and name the newest checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from scheduling.backends.base import Gang, Worker
from scheduling.backends.kubernetes.preparation import resume_report, with_requirements, with_resume
from scheduling.backends.local import checkpoints
from scheduling.backends.local.files import JobFiles
from tests.scheduling.backends.local.test_requirements import wheel

PYTHON = str(Path(sys.executable).parent)
PROGRAMS = ("sh", "mktemp", "cat")


def gang(script: str, **changes: str) -> Gang:
    return Gang(
        job_id=1, epoch=1, token=uuid.uuid4(), generation="A100", command=["/bin/sh", "-c", script, "name", "a b"],
        environment_name="image", environment={}, progress_pattern="", grace_seconds=1, log_limit_bytes=1,
        workers=[Worker(0, "node", (0,), (), None)], **changes,
    )  # fmt: skip


def run(made: Gang, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the gang's command as a pod would."""
    environment = {"PATH": "/usr/bin:/bin", **variables}
    return subprocess.run(made.command, env=environment, capture_output=True, text=True, check=False)


class TestRequirements:
    def test_the_command_finds_the_packages_and_their_programs(self, tmp_path: Path) -> None:
        wheel(tmp_path / "wheels", "X = 42\ndef main(): print('a program of the package')")
        made = with_requirements(
            gang('python -c "import demo_pack; print(demo_pack.X)"; demo-pack; echo "$1"; exit 3',
                 requirements="# $HOME\ndemo-pack==1.0 ; python_version > '3'")
        )  # fmt: skip
        packages = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}
        where = Path(__file__).parents[4] / ".environments" / "python" / "bin"
        done = run(made, PATH=f"{where}:/usr/bin:/bin", TMPDIR=str(tmp_path), **packages)
        assert done.returncode == 3, done.stderr
        assert done.stdout.endswith("are installed\n42\na program of the package\na b\n")

    def test_an_image_without_pip_fails_and_says_so(self, tmp_path: Path) -> None:
        for name in PROGRAMS:
            (tmp_path / name).symlink_to(f"/usr/bin/{name}")
        (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "python").chmod(0o755)
        done = run(with_requirements(gang("echo began", requirements="x")), PATH=str(tmp_path))
        assert (done.returncode, done.stdout) == (1, "")
        assert "the image has no Python with pip" in done.stderr

    def test_a_gang_without_requirements_stays_as_it_is(self) -> None:
        plain = gang("true", requirements="# nothing\n")
        assert with_requirements(plain) is plain


class TestResume:
    @pytest.mark.parametrize(
        ("pattern", "names", "newest"),
        [
            ("step-*.pt", ["step-2.pt", "step-10.pt"], "step-10.pt"),
            ("step-*.pt", ["step-10.pt", "step-2.pt"], "step-2.pt"),
            ("step-*", ["step-1", "step-2.tmp", "step-3.partial", "other-4"], "step-1"),
            ("c-*/DONE", ["c-1/DONE", "c-2/", "c-3/other"], "c-1"),
            ("c-*", ["c-1", "c-2/"], "c-2"),
            ("c-*", ["c 1", "d"], ""),
            ("c-*", ["c-a b"], "c-a b"),
            ("c-*", [], ""),
        ],
    )
    def test_the_newest_complete_checkpoint_is_named_as_on_local_clusters(
        self, tmp_path: Path, pattern: str, names: list[str], newest: str
    ) -> None:
        folder = tmp_path / "1" / "checkpoint"
        folder.mkdir(parents=True)
        begin = time.time() - 1000
        for age, name in enumerate(names):
            path = folder / name
            (path if name.endswith("/") else path.parent).mkdir(exist_ok=True)
            if not name.endswith("/"):
                path.write_text("")
            os.utime(path, (begin + 10 * age,) * 2)
        (folder / "c-link").symlink_to("/etc/passwd")
        assert checkpoints.newest(JobFiles(tmp_path, 1), pattern) == newest
        made = with_resume(gang('echo "[$FAIRLOT_RESUME_FROM]$1"', checkpoint=pattern))
        done = run(made, FAIRLOT_CHECKPOINT_DIR=str(folder))
        path = str(folder / newest) if newest else ""
        told = f"Fairlot: resuming from {newest}\n" if newest else ""
        assert (done.stdout, done.stderr) == (f"{told}[{path}]a b\n", "")
        message = tmp_path / "message"
        for said, written in ((message, newest), (tmp_path / "none" / "message", "")):
            report = [*resume_report(gang("", checkpoint=pattern)), "report", str(said)]
            variables = {"PATH": "", "FAIRLOT_CHECKPOINT_DIR": str(folder)}
            assert (
                subprocess.run(report, env=variables, stderr=subprocess.DEVNULL, check=False).returncode == 0
            )
            assert not written or said.read_text() == written

    def test_a_gang_that_names_no_checkpoints_stays_as_it_is(self) -> None:
        plain = gang("true")
        assert with_resume(plain) is plain
        assert not resume_report(plain)
