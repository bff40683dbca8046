"""Requirements are installed once for a job, before its command starts; a failure ends the job with pip's words."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from scheduling.backends.base import End, Phase
from scheduling.spec.job_spec import JobSpec, SpecError
from tests.scheduling.local_rig import Rig

ABOUT = "demo_pack-1.0.dist-info"


def wheel(folder: Path, code: str = "X = 42") -> None:
    """Writes a package that pip can install without a network."""
    files = {
        "demo_pack.py": f"{code}\n",
        f"{ABOUT}/METADATA": "Metadata-Version: 2.1\nName: demo-pack\nVersion: 1.0\n",
        f"{ABOUT}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{ABOUT}/entry_points.txt": "[console_scripts]\ndemo-pack = demo_pack:main\n",
    }
    digests = {
        name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        for name, text in files.items()
    }
    record = "".join(f"{name},sha256={digests[name]},{len(text)}\n" for name, text in files.items())
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "demo_pack-1.0-py3-none-any.whl", "w") as archive:
        for name, text in (files | {f"{ABOUT}/RECORD": f"{record}{ABOUT}/RECORD,,\n"}).items():
            archive.writestr(name, text)


@pytest.fixture
def offline(rig: Rig) -> dict[str, Any]:
    """Returns fields of a gang whose pip finds only the package `demo-pack`."""
    rig.files().make()
    place = rig.files().folder / "home" / "wheels"  # where the job can read
    wheel(place, "X = 42\ndef main(): print('a program of the package')")
    return {"environment": {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(place)}}


USE = "python -c 'import demo_pack; print(demo_pack.X)' && demo-pack"


def test_requirements_are_there_before_the_command_and_stay_for_the_next_attempt(
    rig: Rig, offline: dict[str, Any]
) -> None:
    first = rig.start(rig.gang(USE, workers=2, requirements="demo-pack==1.0\n", **offline))
    assert rig.wait(first).end is End.SUCCEEDED, rig.log()
    logs = [rig.log(rank=rank) for rank in range(2)]
    assert all("42\na program of the package\n" in log for log in logs)
    assert sum(log.count("Fairlot: installing the requirements") for log in logs) == 1, (
        "two workers installed"
    )
    second = rig.start(rig.gang(USE, epoch=2, requirements="demo-pack==1.0\n", **offline))
    assert rig.wait(second).end is End.SUCCEEDED, rig.log()
    assert rig.log().count("42\n") == 2
    logs = [rig.log(rank=rank) for rank in range(2)]
    assert sum(log.count("Fairlot: installing the requirements") for log in logs) == 1


def test_requirements_that_pip_refuses_end_the_job_before_its_command(
    rig: Rig, offline: dict[str, Any]
) -> None:
    gang = rig.start(rig.gang("echo began", requirements="no-such-package==9", **offline))
    assert rig.wait(gang).end is End.FAILED
    assert "No matching distribution found for no-such-package==9" in rig.log()
    assert rig.log().endswith("Fairlot: the requirements could not be installed; pip says why above\n")
    assert "began" not in rig.log()


def test_an_installation_that_was_killed_is_done_again_from_its_beginning(
    rig: Rig, offline: dict[str, Any]
) -> None:
    first = rig.start(rig.gang("true", requirements="demo-pack", **offline))
    assert rig.wait(first).end is End.SUCCEEDED, rig.log()
    place = rig.files().folder / "home" / ".local" / "job-requirements"
    [folder] = [path for path in place.iterdir() if path.is_dir()]
    folder.rename(folder.with_suffix(".new"))  # as if it had been killed before its last step
    (folder.with_suffix(".new") / "demo_pack.py").write_text("X = 'half'")
    second = rig.start(rig.gang(USE, epoch=2, requirements="demo-pack", **offline))
    assert rig.wait(second).end is End.SUCCEEDED, rig.log()
    assert "42\n" in rig.log()


def test_a_stop_during_the_installation_ends_it(rig: Rig) -> None:
    where = {"environment": {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "100"}}
    gang = rig.start(rig.gang("true", requirements="demo-pack", **where))
    rig.wait(gang, Phase.RUNNING)
    rig.wait_for_log("installing the requirements")
    rig.stop(gang)
    assert rig.wait(gang).end is End.STOPPED


@pytest.mark.parametrize(
    "text",
    ["-r other.txt", "--index-url https://evil", "-e .", "--extra-index-url=x", "./here", "/etc/x.whl", "x @ file:///y",
     "a\n-f links", ".", "..", "~/x", "x==${SECRET}", "x\x1b", "numpy --find-links y"],
)  # fmt: skip
def test_requirements_that_read_files_or_change_the_index_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="requirements: line"):
        JobSpec.parse({"name": "x", "command": "x", "requirements": text})


@pytest.mark.parametrize(
    "text",
    ["", "numpy", "# a comment -r x ./y\ntorch==2.3.1 ; python_version > '3'\r\nx[a,b]~=1.0",
     "x==1 --hash=sha256:aa", "x @ https://example.org/x-1.0.whl", "--only-binary :all:\nscikit-learn>=1,<2"],
)  # fmt: skip
def test_usual_requirements_are_accepted_and_survive_yaml(text: str) -> None:
    spec = JobSpec.parse({"name": "x", "command": "x", "requirements": text})
    assert JobSpec.from_yaml(spec.to_yaml()) == spec
