"""Each attempt gets the newest complete checkpoint of its job, whatever a program has left in the checkpoint folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.backends.base import End
from scheduling.backends.local.checkpoints import newest
from scheduling.backends.local.files import JobFiles
from scheduling.spec.job_spec import JobSpec, SpecError
from tests.scheduling.local_rig import Rig


@pytest.fixture
def files(tmp_path: Path) -> JobFiles:
    made = JobFiles(tmp_path, 7)
    made.checkpoints.mkdir(parents=True)
    return made


def write(path: Path, at: int) -> None:
    """Creates an empty file that was modified at the time `at`, in seconds."""
    path.parent.mkdir(exist_ok=True)
    path.touch()
    os.utime(path, (at, at))


def test_the_newest_name_that_matches_and_is_complete_is_chosen(files: JobFiles) -> None:
    names = ("step-9.pt", "step-10.pt", "step-11.pt.tmp", "step-12.partial", "other.pt", "step-bad\n.pt")
    for at, name in enumerate(names):
        write(files.checkpoints / name, at)
    (files.checkpoints / "step-link.pt").symlink_to("step-9.pt")
    os.mkfifo(files.checkpoints / "step-fifo.pt")
    assert newest(files, "step-*.pt") == "step-10.pt"
    assert newest(files, "step-*") == "step-10.pt"
    assert newest(files, "step-?.pt") == "step-9.pt"
    assert newest(files, "epoch-*") == ""


def test_a_folder_is_complete_when_its_marking_file_is_there(files: JobFiles) -> None:
    for at, name in enumerate(("ckpt-1/DONE", "ckpt-2/DONE", "ckpt-3/weights", "ckpt-4.tmp/DONE"), start=1):
        write(files.checkpoints / name, at)
    write(files.checkpoints / "ckpt-file", 9)
    (files.checkpoints / "ckpt-link").symlink_to("ckpt-1")
    assert newest(files, "ckpt-*/DONE") == "ckpt-2"
    (files.checkpoints / "ckpt-3" / "DONE").symlink_to("weights")
    assert newest(files, "ckpt-*/DONE") == "ckpt-2"


def test_a_folder_that_is_missing_or_a_link_has_no_checkpoints(files: JobFiles, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "step-1", 1)
    files.checkpoints.rmdir()
    assert newest(files, "step-*") == ""
    files.checkpoints.symlink_to(tmp_path / "elsewhere")
    assert newest(files, "step-*") == ""


@given(st.text(max_size=12) | st.text("ab*?./-", max_size=12))
def test_no_accepted_pattern_leaves_the_checkpoint_folder(text: str) -> None:
    try:
        pattern = JobSpec.parse({"name": "a", "command": "a", "checkpoint": text}).checkpoint
    except SpecError as error:
        assert "ckpt-*/DONE" in error.problems["checkpoint"]  # noqa: PT017 - either outcome is right
        return
    parts = pattern.split("/")
    assert len(parts) <= 2
    assert not {".", ".."} & set(parts)


def test_all_workers_of_an_attempt_get_the_path_and_the_report_has_the_name(rig: Rig) -> None:
    script = 'echo "[$FAIRLOT_RESUME_FROM]"; [ $RANK = 1 ] || touch "$FAIRLOT_CHECKPOINT_DIR/step-1.pt"'
    first = rig.wait(rig.start(rig.gang(script, workers=2, checkpoint="step-*.pt")))
    assert (first.end, first.resumed_from) == (End.SUCCEEDED, "")
    second = rig.wait(rig.start(rig.gang(script, workers=2, epoch=2, checkpoint="step-*.pt")))
    assert second.resumed_from == "step-1.pt"
    path = rig.files().checkpoints / "step-1.pt"
    assert [rig.log(rank=rank) for rank in (0, 1)] == [f"[]\n[{path}]\n"] * 2
