"""Code from Git repositories, and what reports say about it."""

from __future__ import annotations

from typing import Any

import pytest

from scheduling.importers.registry import convert
from scheduling.importers.report import Conversion, Fate
from scheduling.spec.job_spec import JobSpec


def skypilot(workdir: str) -> Conversion:
    return convert(f"name: a\nresources: {{accelerators: A100}}\nworkdir: {workdir}\nrun: ./a.sh\n")


def dstack(repos: str) -> Conversion:
    return convert(f"type: task\nname: a\nrepos: {repos}\ncommands: [./a.sh]\nresources: {{gpu: 1}}\n")


def ray(folder: str) -> Conversion:
    return convert(f"entrypoint: python a.py\nruntime_env: {{working_dir: {folder}}}\n")


HUB = "https://github.com/a/b"


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (skypilot(f"{{url: {HUB}.git, ref: main}}"), {"git": f"{HUB}.git", "ref": "main"}),
        (skypilot("{url: 'git@github.com:a/b.git'}"), {"git": f"{HUB}.git"}),
        (skypilot("{url: 'ssh://git@github.com/a/b.git'}"), {"git": f"{HUB}.git"}),
        (dstack(f"['{HUB}:/code']"), {"git": HUB}),
        (dstack(f"[{{url: {HUB}, branch: dev, path: /code}}, {HUB}2]"), {"git": HUB, "ref": "dev"}),
        (ray(f"{HUB}/archive/HEAD.zip"), {"git": HUB}),
        (ray(f"{HUB}/archive/refs/heads/dev.zip"), {"git": HUB, "ref": "dev"}),
    ],
)
def test_a_repository_becomes_the_code(found: Conversion, code: dict[str, Any]) -> None:
    (work,) = found.works
    assert work.spec["code"] == code
    assert JobSpec.parse(dict(work.spec)).code is not None


@pytest.mark.parametrize(
    ("found", "source", "says"),
    [
        (skypilot("."), "workdir", "section Code"),
        (skypilot("{url: 'file:///x'}"), "workdir.url", "plain address"),
        (dstack("['.']"), "repos[0]", "section Code"),
        (dstack(f"[{HUB}, {HUB}2]"), "repos[1]", "one place"),
        (ray("s3://x/y.zip"), "runtime_env.working_dir", "section Code"),
    ],
)
def test_what_is_no_repository_is_dropped_with_what_to_do(found: Conversion, source: str, says: str) -> None:
    (line,) = [line for line in found.report if line.source == source]
    assert (line.fate, says in line.text) == (Fate.DROPPED, True)


def test_an_impossible_branch_is_refused() -> None:
    assert skypilot(f"{{url: {HUB}, ref: 'a..b'}}").refused
