"""The script that unpacks a job's code in a pod starts the command in the files, or says what the image lacks."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

from scheduling.backends.base import CodeArchive, Gang, Worker
from scheduling.backends.kubernetes.code_delivery import KEY, PLACE, with_code
from scheduling.core.code_archives import Bounds, pack_files

LONG = "a" * 90 + "/" + "b" * 90


def gang(script: str, code: CodeArchive | None) -> Gang:
    return Gang(
        job_id=1, epoch=1, token=uuid.uuid4(), generation="A100", command=["/bin/sh", "-c", script, "name", "a b"],
        environment_name="image", environment={}, progress_pattern="", grace_seconds=1, log_limit_bytes=1,
        workers=[Worker(0, "node", (0,), (), None)], code=code,
    )  # fmt: skip


def run(made: Gang, place: Path, path: str = "/usr/bin:/bin") -> subprocess.CompletedProcess[str]:
    """Runs the gang's command as a pod would, with the Secret's files in `place`."""
    [folder] = made.secrets.folders
    assert folder.path == PLACE
    (place / KEY).write_text(folder.files[KEY])
    command = [part.replace(f"{PLACE}/{KEY}", str(place / KEY)) for part in made.command]
    environment = {"PATH": path, "TMPDIR": str(place)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_command_starts_in_a_copy_of_the_code(tmp_path: Path) -> None:
    files = [("go.sh", b"#!/bin/sh\ncat lib/x\n"), ("lib/x", b"7\n"), (LONG, b"long")]
    packed = pack_files(files, Bounds(10**6, 10**6, 10))
    script = './go.sh; cat a*/b*; test "$PWD" = "$FAIRLOT_CODE_DIR" && echo " $1" && echo x > new; exit 3'
    done = run(with_code(gang(script, CodeArchive(packed.digest, packed.content))), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, "7\nlong a b\n", "")


def test_an_image_that_lacks_the_programs_fails_and_says_so(tmp_path: Path) -> None:
    packed = pack_files([("x", b"1")], Bounds(10**6, 10**6, 10))
    made = with_code(gang("echo began", CodeArchive(packed.digest, packed.content)))
    done = run(made, tmp_path, path="/nowhere")
    assert done.returncode == 1
    assert "The image needs mktemp, base64, tar" in done.stderr
    assert "began" not in done.stdout


def test_a_gang_without_code_stays_as_it_is() -> None:
    plain = gang("true", None)
    assert with_code(plain) is plain
