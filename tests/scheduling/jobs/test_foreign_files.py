"""Job files of other systems are found among uploaded code."""

from __future__ import annotations

import pytest

from scheduling.core.code_archives import Bounds, Entry, pack
from scheduling.jobs.foreign_files import MOST_BYTES, MOST_FILES, foreign_files_in

BOUNDS = Bounds(sent=2**24, unpacked=2**24, files=1000)
SLURM = b"#!/bin/bash\n#SBATCH -N 1\ntrue\n"
SKYPILOT = b"resources: {accelerators: A100:1}\nrun: python train.py\n"
COMPOSE = b"services: {app: {image: a, command: b}}\n"


def found(**files: bytes) -> list[tuple[str, str, bool]]:
    """Returns path, format and "is alone" of the job files among `files`. The keyword `a__b_sh` is the file a/b.sh."""
    entries = [Entry(n.replace("__", "/").replace("_", "."), content) for n, content in files.items()]
    made = foreign_files_in(pack(entries, BOUNDS).content)
    return [(one.path, one.label, one.is_alone) for one in made]


def test_each_known_format_is_found_by_its_content() -> None:
    assert found(go=SLURM) == [("go", "Slurm batch script", True)]
    assert found(train_py=b"", go_sbatch=SLURM, task_yaml=SKYPILOT, compose_yml=COMPOSE) == [
        ("compose.yml", "Docker Compose file", False),
        ("go.sbatch", "Slurm batch script", False),
        ("task.yaml", "SkyPilot task", False),
    ]


@pytest.mark.parametrize(
    "files",
    [
        {"train_py": SLURM},
        {"run_sh": b"#!/bin/bash\npython train.py\n"},
        {"params_yaml": b"lr: 0.1\nlayers: [1, 2]\n"},
        {"run_sbatch": b"\xff\xfe" + SLURM},
        {"job_yaml": b"name: own\ncommand: python train.py\n"},
        {"src__run_sbatch": SLURM, "train_py": b""},
    ],
)
def test_code_settings_and_own_specifications_are_no_foreign_files(files: dict[str, bytes]) -> None:
    assert found(**files) == []


def test_the_folder_of_all_files_counts_as_the_top() -> None:
    (file,) = foreign_files_in(pack([Entry("p/run.sbatch", SLURM), Entry("p/src/a.py", b"")], BOUNDS).content)
    assert (file.name, file.folder, file.text) == ("run.sbatch", "p", SLURM.decode())


def test_the_work_of_looking_is_bounded() -> None:
    many = {f"f{at:03}_sh": b"" for at in range(MOST_FILES)}
    assert found(**many, z_sbatch=SLURM) == []
    assert found(a_sh=b"#" * MOST_BYTES, z_sbatch=SLURM) == []
