"""The command line accepts every command that the documentation shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.clients.parsing import parsed

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "clients" / "python" / "README.md"]
# What stands for a value of the reader's.
VALUES = {
    "NUMBER": "3",
    "JOB": "17",
    "SESSION": "17",
    "SERVICE": "3",
    "SCHEDULE": "3",
    "SWEEP": "3",
    "PIPELINE": "3",
}


def shown() -> set[str]:
    """Returns the whole commands in code blocks and code spans. Names of commands, such as `fairlot submit`, are left
    out."""
    found = set()
    for page in PAGES:
        text = page.read_text()
        for code in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            found |= {line.strip() for line in code.splitlines() if line.startswith("fairlot ")}
            found |= set(re.findall(r"\$\((fairlot .*)\)", code))
        spans = re.findall(r"`(fairlot [^`\n]+)`", text)
        found |= {span for span in spans if "COMMAND" not in span and span not in NAMES}
    return {line.partition(r" \|")[0] for line in found}


NAMES = {"fairlot submit", "fairlot run", "fairlot files", "fairlot why", "fairlot show"}


def test_the_documentation_shows_commands() -> None:
    assert len(shown()) > 35


@pytest.mark.parametrize("line", sorted(shown()))
def test_it_is_accepted(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("job.yaml", "parameters.yaml", "pipeline.yaml", "train.sh", "train.sbatch"):
        Path(name).write_text("name: test\ncommand: 'true'\n")
    words = [VALUES.get(word, word) for word in shlex.split(line)]
    parsed(line if {"<", ">"} & {*words} else shlex.join(words))
