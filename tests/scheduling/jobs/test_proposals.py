"""Uploaded files propose what a job with them is called, runs and installs."""

from __future__ import annotations

import pytest

from scheduling.core.code_archives import Bounds, Entry, pack
from scheduling.jobs.proposals import Proposals, proposals_of

BOUNDS = Bounds(sent=2**20, unpacked=2**20, files=100)


def proposed(*paths: str, sent_as: str = "", requirements: bytes = b"rich\n") -> Proposals:
    entries = [Entry(path, requirements if path.endswith(".txt") else b"x") for path in paths]
    return proposals_of(pack(entries, BOUNDS).content, sent_as)


@pytest.mark.parametrize(
    ("paths", "command"),
    [
        (["train.py", "model.py"], "python train.py"),
        (["main.py", "lib/train.py"], "python main.py"),
        (["run.sh", "a.py", "b.py"], "bash run.sh"),
        (["fit it.py", "notes.md"], "python 'fit it.py'"),
        (["my project/train.py"], "cd 'my project' && python train.py"),
        (["a/b/train.py", "a/b/c/model.py"], "cd a/b && python train.py"),
        (["train.py", "main.py"], ""),
        (["a.py", "b.py"], ""),
        (["a/train.py", "b/model.py"], ""),
        (["notes.md"], ""),
    ],
)
def test_only_one_obvious_entry_becomes_the_command(paths: list[str], command: str) -> None:
    assert proposed(*paths).command == command


@pytest.mark.parametrize(
    ("sent_as", "paths", "name"),
    [
        ("nebula.tar.gz", ["project/train.py"], "nebula"),
        ("Nebula 2.ZIP", ["train.py"], "Nebula 2"),
        ("", ["project/train.py"], "project"),
        ("", ["train.py", "model.py"], "train"),
        ("fit.py", ["fit.py"], "fit"),
        ("/", ["notes.md"], ""),
        ("two\nlines", ["notes.md"], ""),
        (200 * "x", ["train.py"], 120 * "x"),
    ],
)
def test_the_name_is_that_of_what_was_sent(sent_as: str, paths: list[str], name: str) -> None:
    assert proposed(*paths, sent_as=sent_as).name == name


@pytest.mark.parametrize(
    ("content", "requirements"),
    [
        (b"\xef\xbb\xbfrich\r\nhumanize\r\n", "rich\nhumanize"),
        (b"# nothing yet\n\n", ""),
        (b"\xff\xfe", ""),
        (b"a\0b", ""),
        (b"rich\n" * 20_000, ""),
        (b"r" * 300_000, ""),
    ],
)
def test_requirements_are_the_text_of_their_file_if_a_job_may_have_it(
    content: bytes, requirements: str
) -> None:
    assert proposed("train.py", "requirements.txt", requirements=content).requirements == requirements
    assert (
        proposed("code/train.py", "code/requirements.txt", requirements=content).requirements == requirements
    )
    assert proposed("train.py", "docs/requirements.txt", requirements=content).requirements == ""
