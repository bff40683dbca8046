"""The jobs of a team share what one of them installs; a failure ends the job with pip's words."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import re
import signal
import tarfile
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.backends import opening
from scheduling.backends.base import End, Gang, GangRole, Observation, Phase, Secrets, Worker
from scheduling.backends.local import environments, processes, reports, sandbox
from scheduling.backends.local.environment_builder import Builder, Failed
from scheduling.backends.local.files import read_json
from scheduling.backends.local.worker import CannotStart
from scheduling.backends.local.worker import Worker as LocalWorker
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.spec.requirements import normalised
from tests.scheduling.local_rig import USER, Rig

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


TEXT = "demo-pack==1.0\n"
USE = "python -c 'import demo_pack; print(demo_pack.X)' && demo-pack"
INSTALLING = "Fairlot: installing the requirements"


@pytest.fixture
def offline(open_folder: Path) -> dict[str, Any]:
    """Returns fields of a gang whose pip finds only the package `demo-pack`."""
    wheel(open_folder / "wheels", "X = 42\ndef main(): print('a program of the package')")
    return {"environment": {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(open_folder / "wheels")}}


def environments_in(rig: Rig) -> list[Path]:
    """Returns the folders of all installed environments."""
    return sorted(rig.places.jobs.glob(".environments/*/packages"))


def told(rig: Rig, gang: Gang) -> str:
    """Returns what the backend said about the environment of the gang's attempt."""
    status = read_json(rig.files(gang.job_id).status(gang.epoch)) or {}
    return "".join(event.text for event in reports.cluster_events(status))


def test_a_second_job_of_the_team_reuses_what_the_first_installed(rig: Rig, offline: dict[str, Any]) -> None:
    first = rig.start(rig.gang(USE, workers=2, requirements=TEXT, **offline))
    assert rig.wait(first).end is End.SUCCEEDED, rig.log()
    logs = [rig.log(rank=rank) for rank in range(2)]
    assert all("42\na program of the package\n" in log for log in logs)
    assert sum(log.count(INSTALLING) for log in logs) == 1, "two workers installed"
    assert re.fullmatch(r"The environment with the requirements was made in [\d.]+ s.", told(rig, first))
    same = "# the same\r\n\n  demo-pack==1.0  # in other words\ndemo-pack==1.0"
    second = rig.start(rig.gang(USE, job=2, requirements=same, **offline))
    assert rig.wait(second).end is End.SUCCEEDED, rig.log(job=2)
    assert rig.log(job=2) == "42\na program of the package\n"
    assert told(rig, second) == "The environment with the requirements was reused."
    assert len(environments_in(rig)) == 1


def test_jobs_that_start_together_wait_for_one_installation(rig: Rig, offline: dict[str, Any]) -> None:
    gangs = [rig.gang(USE, job=job, requirements=TEXT, **offline) for job in range(1, 5)]
    for gang in gangs:
        rig.start(gang)
    assert {rig.wait(gang).end for gang in gangs} == {End.SUCCEEDED}
    logs = [rig.log(job=gang.job_id) for gang in gangs]
    assert [log.count(INSTALLING) for log in logs].count(1) == 1, logs
    assert sum("was made in" in told(rig, gang) for gang in gangs) == 1


def test_a_job_can_change_neither_its_environment_nor_that_of_another_team(
    rig: Rig, offline: dict[str, Any]
) -> None:
    if not rig.backend.isolation.keeps_apart:
        pytest.skip("nothing keeps jobs apart on this machine")
    other = rig.start(rig.gang("true", uid=USER + 1, requirements=TEXT, **offline))
    assert rig.wait(other).end is End.SUCCEEDED, rig.log()
    [theirs] = environments_in(rig)
    program = f"""if True:
        import demo_pack, os, pathlib
        ours = pathlib.Path(demo_pack.__file__)
        for path in (ours, ours.parent / "new.py", ours.parent.parent / "new", pathlib.Path({str(theirs)!r}, "x")):
            for attempt in (lambda: path.write_text("evil"), lambda: path.unlink(), lambda: path.chmod(0o777)):
                try:
                    attempt()
                except OSError:
                    continue
                print("could change", path)
        try:
            print("could read", os.listdir({str(theirs)!r}))
        except OSError:
            print("done")
    """
    thief = rig.start(rig.python(program, job=2, requirements=TEXT, **offline))
    assert rig.wait(thief).end is End.SUCCEEDED, rig.log(job=2)
    assert rig.log(job=2).endswith("\ndone\n")
    assert "could" not in rig.log(job=2)
    assert len(environments_in(rig)) == 2, "two teams shared an environment"


def test_an_installation_cannot_read_the_files_and_secrets_of_jobs(rig: Rig, open_folder: Path) -> None:
    if not rig.backend.isolation.keeps_apart:
        pytest.skip("nothing keeps jobs apart on this machine")
    (open_folder / "spy" / "demo").mkdir(parents=True)
    (open_folder / "spy" / "setup.py").write_text("""
import os, sys
for place in filter(None, os.environ["PIP_SPIES"].split(":")):
    try:
        sys.stderr.write(f"saw {os.listdir(place)}\\n")
    except OSError:
        pass
sys.exit(f"TOKEN={os.environ.get('TOKEN')}")
""")
    first = rig.start(rig.gang("echo mine > note", secrets=Secrets({"TOKEN": "hidden"})))
    assert rig.wait(first).end is End.SUCCEEDED
    with tarfile.open(open_folder / "demo_spy-1.0.tar.gz", "w:gz") as archive:
        archive.add(open_folder / "spy", "demo_spy-1.0")
    variables = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(open_folder),
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_SPIES": str(rig.files().folder / "work" / "rank-0"),
    }
    gang = rig.gang("echo began", job=2, requirements="demo-spy", environment=variables, uid=USER + 1)
    assert rig.wait(rig.start(gang)).end is End.FAILED
    assert "TOKEN=None" in rig.log(job=2), rig.log(job=2)
    assert "saw" not in rig.log(job=2)


def test_requirements_that_pip_refuses_end_the_job_before_its_command(
    rig: Rig, offline: dict[str, Any]
) -> None:
    seen = rig.wait(rig.start(rig.gang("echo began", requirements="no-such-package==9", **offline)))
    assert (seen.end, seen.exit_code) == (End.FAILED, 1)
    assert seen.message == "the requirements could not be installed; the log has pip's reason"
    assert "No matching distribution found for no-such-package==9" in rig.log()
    assert rig.log().endswith("Fairlot: the requirements could not be installed; pip says why above\n")
    assert "began" not in rig.log()
    assert environments_in(rig) == []


def test_jobs_that_waited_for_a_failed_installation_end_with_its_last_lines(
    rig: Rig, offline: dict[str, Any]
) -> None:
    place, text = folder_of(rig, "no-such-package==9", offline), "no-such-package==9"
    lock = environments.open_for_use(place, None)
    with opening.folder(place) as folder, opening.opened(lock):
        fd = opening.open_file("build.lock", os.O_RDWR | os.O_CREAT, folder=folder)
        with opening.opened(fd):
            fcntl.flock(fd, fcntl.LOCK_EX)  # as the process that installs
            gang = rig.start(rig.gang("echo began", requirements=text, **offline))
            rig.wait_for_log("waiting for another job")
            failed = {"at": processes.stamp(), "lines": "pip: no such package\n"}
            opening.replace_file("failed.json", json.dumps(failed).encode(), folder=folder)
    assert rig.wait(gang).end is End.FAILED
    assert rig.log().endswith("The end of its log:\npip: no such package\n")
    assert INSTALLING not in rig.log()
    again = rig.start(rig.gang("echo began", job=2, requirements=text, **offline))
    assert rig.wait(again).end is End.FAILED
    assert INSTALLING in rig.log(job=2), "a later job does not try again"


def folder_of(rig: Rig, text: str, fields: dict[str, Any]) -> Path:
    """Returns the folder of the environment that a gang of the rig's team with these requirements uses."""
    return environments.folder_for(
        rig.places.jobs,
        requirements=normalised(text),
        path=rig.backend.environments["python"],
        variables=environments.for_pip(fields["environment"]),
        uid=USER if rig.has_users else None,
    )


@pytest.mark.parametrize("remains", ["building/work/packages", "sealing"])
def test_an_installation_that_was_killed_is_done_again_from_its_beginning(
    rig: Rig, offline: dict[str, Any], remains: str
) -> None:
    half = folder_of(rig, TEXT, offline) / remains
    half.mkdir(parents=True)
    (half / "demo_pack.py").write_text("X = 'half'")
    (half / "more.py").write_text("")
    gang = rig.start(rig.gang(USE, requirements=TEXT, **offline))
    assert rig.wait(gang).end is End.SUCCEEDED, rig.log()
    assert "42\n" in rig.log()
    [packages] = environments_in(rig)
    assert not (packages / "more.py").exists()
    assert not half.exists()


def test_a_job_of_the_team_that_puts_links_into_an_installation_reaches_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installation runs as root where teams have users, and their jobs may enter its folders."""
    uid, place = USER if os.geteuid() == 0 else None, tmp_path / "jobs" / "place"
    place.mkdir(parents=True)
    victim, folder = tmp_path / "key", tmp_path / "secrets"
    victim.write_text("secret")
    victim.chmod(0o600)
    folder.mkdir(mode=0o700)
    before = [(found.st_uid, found.st_mode) for found in map(os.stat, (victim, folder))]
    prepare = sandbox.prepare_folders

    def prepare_and_attack(building: Path, uid: int | None) -> None:
        prepare(building, uid)
        for name, target in (("requirements.txt", victim), ("packages", folder)):
            left = building / "work" / name
            if left.is_dir():
                left.rmdir()
            left.unlink(missing_ok=True)
            left.symlink_to(target)

    def starts(*_: object) -> None:
        raise CannotStart("as far as this test goes")

    monkeypatch.setattr(sandbox, "prepare_folders", prepare_and_attack)
    monkeypatch.setattr(LocalWorker, "start", starts)
    order = {
        "folder": str(place), "root": str(tmp_path), "job_id": 1, "python": "python", "variables": {}, "path": "",
        "requirements": "demo-pack\n", "log_limit_bytes": 100, "epoch": 1, "marker": "x",
        "confinement": {"uid": uid, "view": None},
    }  # fmt: skip
    with pytest.raises(Failed, match="as far as"):
        Builder(order)._install()
    assert victim.read_text() == "secret"
    assert [(found.st_uid, found.st_mode) for found in map(os.stat, (victim, folder))] == before


def test_packages_that_were_replaced_by_a_link_become_no_environment(tmp_path: Path) -> None:
    place = tmp_path / "place"
    (place / "building" / "work").mkdir(parents=True)
    (place / "building" / "work" / "packages").symlink_to(tmp_path)
    with pytest.raises(environments.Unsuitable, match="replaced"):
        environments.publish(place, {}, None)
    assert not environments.is_ready(place)


def test_roles_share_the_packages_if_their_python_is_the_same(
    rig: Rig, offline: dict[str, Any], open_folder: Path
) -> None:
    other = open_folder / "python"
    other.write_text("#!/bin/sh\necho 'Python 2.7 for linux'\n")
    other.chmod(0o755)
    rig.backend.environments = {**rig.backend.environments, "old": f"{open_folder}:/usr/bin:/bin"}
    workers = [Worker(rank, f"node-{rank}", (), (), None) for rank in range(2)]

    def ends(job: int, second: str) -> Observation:
        roles = [
            GangRole(name, 1, holds_gpus=False, command=["/bin/sh", "-c", USE], environment_name=python,
                     environment={})
            for name, python in (("first", "python"), ("second", second))
        ]  # fmt: skip
        gang = rig.gang("exit 9", job=job, gpus=workers, roles=roles, requirements=TEXT, **offline)
        return rig.wait(rig.start(gang))

    assert ends(1, "python").end is End.SUCCEEDED, rig.log()
    assert "42" in rig.log(rank=1)
    seen = ends(2, "old")
    assert seen.end is End.START_FAILED
    assert "the roles have Python 2.7 for linux and Python 3" in seen.message


SLOW = {"environment": {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "100"}}


@pytest.mark.parametrize("how", ["stop", "freeze"])
def test_a_stop_during_the_installation_ends_it(rig: Rig, how: str) -> None:
    gang = rig.start(rig.gang("true", requirements="demo-pack", **SLOW))
    rig.wait_for_log("installing the requirements")
    rig.wait(gang, Phase.STARTING)
    getattr(rig, how)(gang)
    assert rig.wait(gang).end is End.STOPPED
    assert rig.processes_of(gang) == []


def test_a_job_installs_when_the_job_that_did_so_was_killed(rig: Rig) -> None:
    first = rig.start(rig.gang("true", requirements="demo-pack", **SLOW))
    rig.wait_for_log("installing the requirements")
    second = rig.start(rig.gang("true", job=2, requirements="demo-pack", **SLOW))
    rig.wait_for_log("waiting for another job", job=2)
    os.kill(rig.supervisor(first), signal.SIGKILL)
    rig.wait_for_log("installing the requirements", job=2)
    assert rig.wait(first).end is End.LOST
    rig.stop(second)
    assert rig.wait(second).end is End.STOPPED


def test_the_environments_that_were_not_used_for_longest_are_deleted_but_none_in_use(
    rig: Rig, offline: dict[str, Any]
) -> None:
    rig.backend.environments_limit_bytes = 0
    used = rig.start(rig.gang(f"{USE}; sleep 600", requirements=TEXT, **offline))
    rig.wait_for_log("42\n")
    other = rig.start(rig.gang(USE, job=2, requirements="demo-pack", **offline))
    assert rig.wait(other).end is End.SUCCEEDED, rig.log(job=2)
    assert len(environments_in(rig)) == 2, "an environment in use was deleted"
    third = rig.start(rig.gang(USE, job=3, requirements="demo_pack", **offline))
    assert rig.wait(third).end is End.SUCCEEDED, rig.log(job=3)
    kept = {folder_of(rig, text, offline) / "packages" for text in (TEXT, "demo_pack")}
    assert set(environments_in(rig)) == kept
    rig.stop(used)
    assert rig.wait(used).end is End.STOPPED


@given(
    st.lists(
        st.sampled_from(["a==1", "b", "c[x]>=2 ; python_version > '3'", "# why", "", "  ", "d \\\n  ==1"])
    ),
    st.randoms(use_true_random=False),
)
def test_requirements_that_mean_the_same_are_the_same_text(lines: list[str], random: Random) -> None:
    shuffled = random.sample(lines, len(lines))
    spaced = "\r\n".join(f"  {line}  # note" if line.isalpha() else line for line in [*shuffled, "", *lines])
    assert normalised(spaced) == normalised("\n".join(lines))
    assert normalised(normalised(spaced)) == normalised(spaced)
    assert normalised("\n".join([*lines, "e"])) != normalised("\n".join(lines))


@pytest.mark.parametrize(
    "text",
    ["-r other.txt", "--index-url https://evil", "-e .", "--extra-index-url=x", "./here", "/etc/x.whl", "x @ file:///y",
     "a\n-f links", ".", "..", "~/x", "x==${SECRET}", "x\x1b", "numpy --find-links y",
     "x @ fi\\\nle:///y", "-\\\n-index-url=https://evil"],
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
