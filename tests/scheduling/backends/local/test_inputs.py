"""A local job reads the files of earlier jobs that its pipeline gives it, and cannot change them."""

from __future__ import annotations

import os

from scheduling.backends.base import End, Input
from tests.scheduling.local_rig import Rig

READ = 'cat "$FAIRLOT_INPUT_PREPARE/checkpoint/model" "$FAIRLOT_INPUT_PREPARE/work/rank-0/table"'
SPOIL = 'echo spoilt > "$FAIRLOT_INPUT_PREPARE/checkpoint/model"'


def test_a_job_reads_the_files_of_an_earlier_one_and_cannot_change_them(rig: Rig) -> None:
    script = 'echo weights > "$FAIRLOT_CHECKPOINT_DIR/model"; echo rows > table'
    first = rig.start(rig.gang(script, job=41))
    assert rig.wait(first).end is End.SUCCEEDED
    later = rig.start(rig.gang(f"{READ}; {SPOIL} || echo kept", job=42, inputs=[Input("prepare", 41)]))
    assert rig.wait(later).end is End.SUCCEEDED, rig.log(job=42)
    said = rig.log(job=42).split()
    assert said[:2] == ["weights", "rows"]
    if rig.backend.isolation.namespaces:
        assert "Read-only file system" in rig.log(job=42)
        assert said[-1] == "kept"


def test_a_job_does_not_see_files_that_it_was_not_given(rig: Rig) -> None:
    first = rig.start(rig.gang("echo mine > table", job=41))
    assert rig.wait(first).end is End.SUCCEEDED
    place = rig.files(41).folder / "work" / "rank-0" / "table"
    other = rig.start(rig.gang(f"cat {place} || echo hidden; env | grep INPUT", job=42))
    rig.wait(other)
    if rig.backend.isolation.namespaces:
        assert rig.log(job=42).splitlines()[-1] == "hidden"


def test_a_job_whose_input_is_missing_or_a_link_does_not_start(rig: Rig) -> None:
    first = rig.start(rig.gang("true", job=41))
    assert rig.wait(first).end is End.SUCCEEDED
    work = rig.files(41).folder / "work"
    for number, spoil in enumerate(
        (lambda: work.rename(work.with_name("old")), lambda: os.symlink("/etc", work))
    ):
        spoil()
        later = rig.start(rig.gang("true", job=50 + number, inputs=[Input("prepare", 41)]))
        seen = rig.wait(later)
        assert (seen.end, seen.message) == (
            End.START_FAILED,
            "the files of job 41 are not on this machine any more",
        )
