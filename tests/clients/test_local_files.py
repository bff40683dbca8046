"""What `fairlot submit` makes of a file on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlot_client.cli.local_files import left_behind
from scheduling.models import Job, Schedule
from tests.clients.test_files_and_sweeps import CRON_JOB
from tests.portal.scene import Scene

K8S_JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec: {template: {spec: {restartPolicy: Never, containers: [
  {name: main, image: python, command: [python, -c, pass], resources: {limits: {nvidia.com/gpu: 1}}}]}}}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder in which the commands run."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def latest() -> Job:
    return Job.objects.latest("pk")


@pytest.mark.parametrize("name", ["train.py", "src/train.py"])
def test_a_python_file_is_uploaded_and_run(scene: Scene, fairlot, here: Path, name: str) -> None:
    (here / "src").mkdir()
    (here / name).write_text("#FAIRLOT --priority 3 -e A=1\nprint(1)\n")
    done = fairlot(scene.people.bob, "submit", "-e", "B=2", name, "--epochs", 9)
    assert done.exit_code == 0, done.output
    assert f"Uploaded the file {name}." in done.stderr
    assert "The job runs: python train.py --epochs 9" in done.stderr
    job = latest()
    assert (job.name, job.priority, job.spec["command"]) == ("train", 3, "python train.py --epochs 9")
    assert job.spec["variables"] == {"A": "1", "B": "2"}
    assert job.spec["code"]["upload"].startswith("sha256:")


def test_a_python_file_in_the_uploaded_folder_is_run_by_python(scene: Scene, fairlot, here: Path) -> None:
    (here / "lib").mkdir()
    (here / "lib" / "fit.py").write_text("print(1)\n")
    for words in (["--code", ".", "lib/fit.py"], ["--code", "lib", "fit.py"]):
        assert fairlot(scene.people.bob, "submit", *words).exit_code == 0
        assert latest().spec["command"] == f"python {words[-1]}"
    assert fairlot(scene.people.bob, "submit", "--code", ".", "--", "lib/fit").exit_code == 0
    assert latest().spec["command"] == "lib/fit"


def test_a_shell_script_needs_no_first_line(scene: Scene, fairlot, here: Path) -> None:
    (here / "ns.sh").write_text("echo hi\n")
    assert fairlot(scene.people.bob, "submit", "ns.sh").exit_code == 0
    assert (latest().name, latest().spec["command"]) == ("ns", "echo hi")


def test_yaml_as_the_only_argument_is_a_specification(scene: Scene, fairlot, here: Path) -> None:
    (here / "job.yaml").write_text("name: own\ncommand: sleep 1\n")
    (here / "nightly.yml").write_text(CRON_JOB)
    assert fairlot(scene.people.bob, "submit", "--priority", 2, "job.yaml").exit_code == 0
    assert (latest().name, latest().priority) == ("own", 2)
    done = fairlot(scene.people.bob, "submit", here / "nightly.yml")
    assert done.stdout == f"{Schedule.objects.latest('pk').pk}\n"
    both = fairlot(scene.people.bob, "submit", "-f", "job.yaml", "nightly.yml")
    assert (both.exit_code, "Give one of them" in both.stderr) == (2, True)


def test_a_file_of_another_system_is_checked_like_a_job(scene: Scene, fairlot, here: Path) -> None:
    (here / "once.yaml").write_text(K8S_JOB)
    before = Job.objects.count()
    shown = fairlot(scene.people.bob, "submit", "--check", "once.yaml").stdout
    assert {"job", "verdict", "cost"} <= {line.split()[0] for line in shown.splitlines()}
    answer = json.loads(fairlot(scene.people.bob, "submit", "--check", "-o", "json", "once.yaml").stdout)
    assert (answer["verdict"] in {"now", "later"}, Job.objects.count()) == (True, before)
    (here / "two.yaml").write_text(f"{K8S_JOB}---{CRON_JOB}")
    several = json.loads(fairlot(scene.people.bob, "submit", "--check", "-o", "json", "two.yaml").stdout)
    assert [one["job"] for one in several] == ["once", "nightly"]


def test_run_follows_the_one_job_of_a_foreign_file(scene: Scene, fairlot, here: Path) -> None:
    (here / "once.yaml").write_text(K8S_JOB)

    def leave() -> None:
        raise KeyboardInterrupt

    assert fairlot(scene.people.bob, "run", "once.yaml", pause=leave).exit_code == 130
    assert latest().name == "once"
    (here / "nightly.yaml").write_text(CRON_JOB)
    refused = fairlot(scene.people.bob, "run", "nightly.yaml")
    assert (refused.exit_code, "becomes a schedule" in refused.stderr) == (2, True)


@pytest.mark.parametrize("content", [b"what is this", b"\xff\xfe\x00", b""])
def test_a_file_that_cannot_run_is_refused(scene: Scene, fairlot, here: Path, content: bytes) -> None:
    (here / "notes.txt").write_bytes(content)
    before = Job.objects.count()
    for command in (["submit"], ["run"], ["schedule", "create", "--when", "0 4 * * *"]):
        done = fairlot(scene.people.bob, *command, "notes.txt")
        assert done.exit_code == 2, done.output
        assert "notes.txt is a file here, and neither a script" in " ".join(done.stderr.split())
    assert Job.objects.count() == before


def test_a_long_command_is_not_taken_for_a_path(scene: Scene, fairlot) -> None:
    assert fairlot(scene.people.bob, "submit", f"echo {'x' * 5000}").exit_code == 0


def test_a_command_that_needs_files_from_here_says_so(scene: Scene, fairlot, here: Path) -> None:
    (here / "train.py").write_text("print(1)\n")
    command = ["submit", "--", "python", "train.py"]
    warned = fairlot(scene.people.bob, *command)
    assert (warned.exit_code, latest().spec.get("code")) == (0, None)
    assert "train.py is a file here. A job gets files only with --code or --git." in warned.stderr
    for answer, has_code in (("y\n", True), ("n\n", False)):
        done = fairlot(scene.people.bob, *command, terminal=True, input=answer)
        assert (done.exit_code, bool(latest().spec.get("code"))) == (0, has_code), done.output
    for words in (["--code", "."], ["-C", "/data"]):
        assert "is a file here" not in fairlot(scene.people.bob, "submit", *words, *command[1:]).stderr


def test_only_programs_below_this_folder_are_left_behind(here: Path) -> None:
    (here / "src").mkdir()
    for name in ("train.py", "src/eval.py", "data.csv", "run.sh"):
        (here / name).touch()
    (here.parent / "out.py").touch()
    text = f"# see run.sh\npython train.py train.py src/eval.py ../out.py {here}/run.sh missing.py < data.csv"
    assert left_behind(text) == ["train.py", "src/eval.py"]
    assert left_behind("cat xtrain.py train.pyc $DIR/train.py") == []
