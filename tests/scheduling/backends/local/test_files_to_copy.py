"""A session that is started again gets the files of the earlier one, once, however often its start is interrupted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scheduling.backends.base import End, FilesToCopy, Phase
from scheduling.backends.files_to_copy import with_copy
from tests.scheduling.local_rig import Rig

COPY = FilesToCopy(41, limit_bytes=2**30, with_home=True)
WRITE = (
    "echo cells > Untitled.ipynb; mkdir -p deep/er; echo x > deep/er/x; chmod 555 deep/er; ln -s Untitled.ipynb last;"
    ' echo weights > "$FAIRLOT_CHECKPOINT_DIR/model"; echo old > ~/.history'
)
SHOW = 'cat Untitled.ipynb last deep/er/x "$FAIRLOT_CHECKPOINT_DIR/model" ~/.history | tr "\\n" " "'


def test_a_session_finds_the_files_of_the_earlier_one_and_changes_only_its_own(rig: Rig) -> None:
    assert rig.wait(rig.start(rig.gang(WRITE, job=41))).end is End.SUCCEEDED
    change = f"{SHOW}; echo more >> Untitled.ipynb"
    again = rig.start(rig.gang(change, job=42, copies=COPY))
    assert rig.wait(again).end is End.SUCCEEDED, rig.log(job=42)
    assert "cells cells x weights old" in rig.log(job=42)
    folder = rig.files(41).folder / "work" / "rank-0"
    assert (folder / "Untitled.ipynb").read_text() == "cells\n", "the earlier session keeps its own"
    later = rig.start(rig.gang("cat Untitled.ipynb", job=42, epoch=2, copies=COPY))
    assert rig.wait(later).end is End.SUCCEEDED, rig.log(job=42)
    assert rig.log(job=42).endswith("cells\nmore\n"), "a later attempt does not undo what the program wrote"
    assert rig.log(job=42).count("copying") == 1


def test_a_copy_that_was_killed_is_made_again_by_the_next_attempt(rig: Rig, open_folder: Path) -> None:
    assert rig.wait(rig.start(rig.gang(WRITE, job=41))).end is End.SUCCEEDED
    slow = open_folder / "cp"  # copies all of the folder, and never ends
    slow.write_text('#!/bin/sh\n/bin/cp "$@"\necho half\nexec sleep 600\n')
    slow.chmod(0o755)
    path = {"PATH": f"{open_folder}:/usr/bin:/bin"}
    first = rig.start(rig.gang("echo began", job=42, copies=COPY, environment=path))
    rig.wait(first, Phase.RUNNING)
    rig.wait_for_log("half", job=42)
    rig.stop(first, grace=0.0)
    rig.wait(first)
    second = rig.start(rig.gang(SHOW, job=42, epoch=2, copies=COPY))
    assert rig.wait(second).end is End.SUCCEEDED, rig.log(job=42)
    assert "began" not in rig.log(job=42)
    assert rig.log(job=42).endswith("cells cells x weights old ")


def test_the_home_folder_of_another_owner_stays_where_it_is(rig: Rig) -> None:
    assert rig.wait(rig.start(rig.gang(WRITE, job=41))).end is End.SUCCEEDED
    others = FilesToCopy(41, limit_bytes=2**30, with_home=False)
    hidden = f'ls -A ~; cat Untitled.ipynb; cat {rig.files(41).folder}/home/.history || echo "not seen"'
    assert rig.wait(rig.start(rig.gang(hidden, job=42, copies=others))).end is End.SUCCEEDED
    assert "cells" in rig.log(job=42)
    assert "\n.history" not in rig.log(job=42)
    if rig.backend.isolation.namespaces:
        assert rig.log(job=42).endswith("not seen\n")


def test_too_many_files_and_missing_ones_end_the_start_with_a_reason(rig: Rig) -> None:
    big = "head -c 3000000 /dev/urandom > data"
    assert rig.wait(rig.start(rig.gang(big, job=41))).end is End.SUCCEEDED
    small = FilesToCopy(41, limit_bytes=2**20, with_home=True)
    assert rig.wait(rig.start(rig.gang("echo began", job=42, copies=small))).end is End.FAILED
    assert "at most 1024 KiB are copied. Start without them." in rig.log(job=42)
    assert "began" not in rig.log(job=42)
    gone = rig.wait(rig.start(rig.gang("true", job=43, copies=FilesToCopy(7, 2**30, with_home=True))))
    assert (gone.end, gone.message) == (
        End.START_FAILED,
        "the files of job 7 are not on this machine any more",
    )


@pytest.mark.parametrize("fails", [False, True])
def test_the_script_runs_the_command_only_after_a_complete_copy(
    rig: Rig, tmp_path: Path, fails: bool
) -> None:
    """In pods this script copies checkpoints."""
    source, target = tmp_path / "inputs", tmp_path / "checkpoint"
    target.mkdir()
    if not fails:
        source.mkdir()
        (source / "model 1").write_text("weights")
        (source / ".fairlot-files-of-3").write_text("")
    gang = rig.gang("", command=["echo", "began", "--", "$HOME"])
    wrapped = with_copy(gang, COPY, [(str(source), str(target))], notes_in=str(target))
    done = subprocess.run(list(wrapped.command), capture_output=True, text=True, check=False)
    assert done.returncode == int(fails), done
    assert ("began -- $HOME\n" in done.stdout) is not fails
    left = sorted(path.name for path in target.iterdir())
    assert left == ([] if fails else [".fairlot-files-of-41", "model 1"])
    if fails:
        assert "cannot be copied, as cp says above" in done.stderr
