"""A local job starts in a fresh copy of its code, whatever an earlier attempt left there."""

from __future__ import annotations

import gzip
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduling.backends.base import CodeArchive, End
from scheduling.backends.local import code_files
from scheduling.core.code_archives import Bounds, pack_files
from tests.scheduling.local_rig import USER, Rig

BOUNDS = Bounds(10**6, 10**6, 100)
FILES = [("train.py", b"import lib.model\nprint('step', lib.model.X)\n"), ("lib/model.py", b"X = 7\n"),
         ("go.sh", b"#!/bin/sh\necho went\n")]  # fmt: skip


def archive(*files: tuple[str, bytes]) -> CodeArchive:
    packed = pack_files(files, BOUNDS)
    return CodeArchive(packed.digest, packed.content)


def test_the_command_starts_in_a_copy_of_the_code_that_the_job_may_change(rig: Rig) -> None:
    script = 'python train.py && ./go.sh && test "$PWD" = "$FAIRLOT_CODE_DIR" && echo more >> train.py && stat -c %u .'
    gang = rig.start(rig.gang(script, workers=2, code=archive(*FILES)))
    assert rig.wait(gang).end is End.SUCCEEDED, rig.log()
    user = USER if rig.has_users else os.getuid()
    for rank in range(2):
        assert rig.log(rank=rank) == f"step 7\nwent\n{user}\n"
    stored = rig.files().folder / code_files.NAME
    assert stored.stat().st_uid == os.getuid()
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600


def test_each_attempt_gets_the_code_as_it_was_uploaded_and_keeps_other_files(rig: Rig) -> None:
    spoil = "rm -rf lib; ln -s /tmp lib; echo broken > train.py; mkdir -p x; mv go.sh go; mkdir go.sh; echo kept > out"
    code = archive(*FILES)
    first = rig.start(rig.gang(spoil, code=code))
    assert rig.wait(first).end is End.SUCCEEDED, rig.log()
    second = rig.start(rig.gang("python train.py && ./go.sh && cat out", epoch=2, code=code))
    assert rig.wait(second).end is End.SUCCEEDED, rig.log()
    assert rig.log() == "step 7\nwent\nkept\n"
    assert not Path("/tmp/model.py").exists(), "a link that the job left was followed"


def test_a_job_whose_stored_archive_was_changed_does_not_start(rig: Rig) -> None:
    files, code = rig.files(), archive(*FILES)
    gang = rig.gang("true", code=CodeArchive("sha256:" + "0" * 64, code.content))
    rig.start(gang)
    seen = rig.wait(gang)
    assert seen.end is End.START_FAILED
    assert "was changed on this machine" in seen.message
    assert not (files.folder / "work" / "rank-0" / "train.py").exists()


def test_an_archive_that_a_crash_cut_off_is_written_again(rig: Rig) -> None:
    files, code = rig.files(), archive(*FILES)
    files.make()
    (files.folder / code_files.NAME).write_bytes(code.content[:40])
    gang = rig.start(rig.gang("python train.py", code=code))
    assert rig.wait(gang).end is End.SUCCEEDED, rig.log()


def test_a_code_folder_that_cannot_be_written_fails_the_start_and_says_why(rig: Rig) -> None:
    first = rig.start(rig.gang("cd .. && rm -rf code && mkdir code && chmod 0 code", code=archive(*FILES)))
    assert rig.wait(first).end is End.SUCCEEDED
    if os.getuid() == 0 and not rig.has_users:
        pytest.skip("root may write anywhere")
    second = rig.start(rig.gang("true", epoch=2, code=archive(*FILES)))
    seen = rig.wait(second)
    assert seen.end is End.START_FAILED
    assert "the job's code cannot be unpacked" in seen.message


class Killed(BaseException):
    """Stands for the end of the process at this step."""


class Step:
    """Makes the call number `last` of the kernel that changes files raise Killed."""

    def __init__(self, last: int, patch: pytest.MonkeyPatch) -> None:
        self.left = last
        for name in ("mkdir", "rename", "fchmod", "unlink"):
            patch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any, **names: Any) -> None:
            self.left -= 1
            if self.left == 0:
                raise Killed
            real(*args, **names)

        return call


def test_unpacking_can_be_killed_at_every_step_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = pack_files([("a/b", b"1"), ("a/c", b"22"), ("d", b"#!x")], BOUNDS)
    whole, steps, killed = gzip.decompress(packed.content), 0, True
    while killed:
        steps += 1
        into = tmp_path / f"{steps}" / "code"
        into.parent.mkdir()
        with monkeypatch.context() as patch:
            Step(steps, patch)
            try:
                code_files.unpack(whole, into)
                killed = False
            except Killed:
                killed = True
        code_files.unpack(whole, into)
        found = {str(path.relative_to(into)): path.read_bytes() for path in into.rglob("*") if path.is_file()}
        assert found == {"a/b": b"1", "a/c": b"22", "d": b"#!x"}, f"after step {steps}"
    assert steps > 5
