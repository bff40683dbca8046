"""How the command line names jobs and writes amounts and intervals."""

from __future__ import annotations

import pytest

from fairlot_client.cli.output import between, money, plural
from fairlot_client.cli.spec import name_of


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --lr 0.1", "train"),
        ("torchrun --nproc-per-node 2 src/fine.tune.py", "fine.tune"),
        ("bash ./run.sh", "run"),
        ("/opt/bin/train --config a.yaml", "train"),
        ("python -m http.server", "python"),
        ("nvidia-smi", "nvidia-smi"),
        ("./.py", ".py"),
        ("", "job"),
    ],
)
def test_a_job_is_called_after_its_script_or_its_program(command: str, name: str) -> None:
    assert name_of(command.split()) == name


def test_amounts_have_two_decimals_or_as_many_as_they_need() -> None:
    assert [money(one, "EUR") for one in ("3.000000", "3", "0.125000", "12.5")] == [
        "3.00 EUR", "3.00 EUR", "0.125 EUR", "12.50 EUR",
    ]  # fmt: skip
    assert [plural(0, "member"), plural(1, "member"), plural(2, "file")] == [
        "0 members",
        "1 member",
        "2 files",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ([0, 20], "less than a minute"),
        ([0, 61], "0 to 1 minutes"),
        ([119, 121], "about 2 minutes"),
        ([60, 3600], "1 to 60 minutes"),
        ([3600, 7200], "1 to 2 hours"),
        ([7190, 7210], "about 2 hours"),
    ],
)
def test_an_interval_is_never_of_no_time(seconds: list[float], words: str) -> None:
    assert between(seconds) == words
