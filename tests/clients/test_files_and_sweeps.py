"""Commands for code, files, sweeps, foreign files and edits, against the portal."""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlot_client.cli.code import packed
from fairlot_client.cli.commands.sweeps import value_of
from fairlot_client.cli.spec import joined
from fairlot_client.errors import ConnectionFailed
from scheduling.backends.local import removal
from scheduling.backends.local.files import JobFiles
from scheduling.clusters.backend_factory import backend_for
from scheduling.models import CodeUpload, Draft, Job, JobTemplate, Pipeline, Schedule, Service, Sweep
from scheduling.pipelines.definition import Definition
from scheduling.spec.job_spec import JobSpec
from scheduling.spec.placeholders import insert
from scheduling.sweeps.commands import check_places, spec_of_member
from tests.portal.scene import Scene


def test_code_is_packed_without_what_programs_make_again(tmp_path: Path) -> None:
    for name in ("train.py", "lib/model.py", ".git/config", "lib/__pycache__/model.pyc", ".venv/bin/python"):
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(name)
    with tarfile.open(fileobj=io.BytesIO(packed(tmp_path))) as archive:
        assert archive.getnames() == ["lib/model.py", "train.py"]
    with tarfile.open(fileobj=io.BytesIO(packed(tmp_path / "train.py"))) as archive:
        assert archive.getnames() == ["train.py"]


def test_submit_uploads_code_once_for_equal_contents(scene: Scene, fairlot, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('step 1')")
    for _ in range(2):
        done = fairlot(scene.people.bob, "submit", "--code", tmp_path, "--", "python", "train.py")
        assert done.exit_code == 0, done.output
    [upload] = CodeUpload.objects.all()
    assert upload.tenant == scene.people.astro
    assert Job.objects.latest("pk").spec["code"]["upload"] == upload.digest


def test_submit_of_code_without_a_command_takes_what_the_files_propose(
    scene: Scene, fairlot, tmp_path: Path
) -> None:
    folder = tmp_path / "nebula"
    folder.mkdir()
    done = fairlot(scene.people.bob, "submit", "--code", tmp_path / "nebula")
    assert (done.exit_code, "contains no files" in done.stderr) == (2, True)
    (folder / "notes.txt").write_text("no program")
    done = fairlot(scene.people.bob, "submit", "--code", folder)
    assert (done.exit_code, "There is nothing to run" in done.stderr) == (2, True)
    (folder / "train.py").write_text("import humanize")
    (folder / "requirements.txt").write_text("humanize==4.9.0")
    done = fairlot(scene.people.bob, "submit", "--code", folder)
    assert done.exit_code == 0, done.output
    spec = Job.objects.latest("pk").spec
    taken = spec["name"], spec["command"], spec["requirements"]
    assert taken == ("nebula", "python train.py", "humanize==4.9.0")
    assert "The job runs: python train.py" in done.stderr
    assert f"Uploaded 3 files of {folder}." in done.stderr


def test_submit_of_code_with_a_command_installs_its_requirements_like_the_form(
    scene: Scene, fairlot, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import humanize")
    (tmp_path / "requirements.txt").write_text("humanize==4.9.0")
    (tmp_path / "other.txt").write_text("humanize==4.10.0")

    def submitted(*options: object) -> tuple[str, str]:
        done = fairlot(scene.people.bob, "submit", "--code", tmp_path, *options, "--", "python", "train.py")
        assert done.exit_code == 0, done.output
        job = Job.objects.latest("pk")
        assert (job.name, job.spec["command"]) == ("train", "python train.py")
        return job.spec["requirements"], done.stderr

    installed, said = submitted()
    assert installed == "humanize==4.9.0"
    assert "installs the packages of requirements.txt first. Add --no-requirements" in said
    installed, said = submitted("--no-requirements")
    assert (installed, "installs" in said) == ("", False)
    assert submitted("-r", tmp_path / "other.txt")[0] == "humanize==4.10.0"
    done = fairlot(
        scene.people.bob, "submit", "--no-requirements", "-r", tmp_path / "other.txt", "--", "true"
    )
    assert (done.exit_code, "cannot be combined" in done.stderr) == (2, True)


def test_code_and_git_cannot_be_combined(scene: Scene, fairlot, tmp_path: Path) -> None:
    done = fairlot(scene.people.bob, "submit", "--code", tmp_path, "--git", "https://x.org/a", "--", "true")
    assert (done.exit_code, "cannot be combined" in done.stderr) == (2, True)


def test_edit_changes_only_what_is_given(scene: Scene, fairlot) -> None:
    done = fairlot(scene.people.bob, "edit", scene.job.pk, "--priority", 9, "-l", "project=apollo")
    assert done.exit_code == 0, done.output
    scene.job.refresh_from_db()
    assert (scene.job.priority, scene.job.spec["labels"]) == (9, {"project": "apollo"})
    assert fairlot(scene.people.bob, "edit", scene.job.pk).exit_code == 2
    assert fairlot(scene.people.charlie, "edit", scene.job.pk, "--priority", 1).exit_code == 4


def test_a_time_limit_is_given_in_hours_or_with_a_unit_and_changed_later(scene: Scene, fairlot) -> None:
    bob = scene.people.bob
    for said, hours in (("90m", 1.5), ("36h", 36), ("1.5d", 36), ("7200s", 2), ("0.5", 0.5)):
        assert fairlot(bob, "submit", "--time-limit", said, "--", "true").exit_code == 0
        job = Job.objects.latest("pk")
        assert (job.time_limit_hours, job.spec["time_limit_hours"]) == (hours, hours)
    assert "0.5 h on GPUs" in fairlot(bob, "show", job.pk).stdout
    refused = fairlot(bob, "submit", "--time-limit", "1:30", "--", "true")
    assert (refused.exit_code, "Write a number of hours" in refused.stderr) == (2, True)
    assert fairlot(bob, "edit", scene.job.pk, "--time-limit", "30h").exit_code == 0
    assert "stops at" in fairlot(bob, "show", scene.job.pk).stdout
    assert fairlot(bob, "edit", scene.job.pk, "--no-time-limit").exit_code == 0
    scene.job.refresh_from_db()
    assert scene.job.time_limit_hours is None


def test_a_sweep_is_previewed_created_listed_and_cancelled(scene: Scene, fairlot) -> None:
    bob = scene.people.bob
    words = ("--grid", "lr=0.1,0.01", "--grid", "name=a,b", "--at-once", 2, "--", "train {lr} {name}")
    done = fairlot(bob, "sweep", "create", "--dry-run", *words)
    said = " ".join(done.stderr.split())
    assert "4 members with 1 GPU each, at most 2 at once." in said
    assert "If each runs 1 h (no run time is known; enter the expected hours for a better estimate):" in said
    assert "4 GPU-hours, 12.00 EUR on A100, 4.80 EUR on V100." in said
    assert "train 0.1 a" in done.stdout
    done = fairlot(bob, "sweep", "create", "-n", "tune", *words)
    sweep = Sweep.objects.latest("pk")
    assert (done.exit_code, done.stdout) == (0, f"{sweep.pk}\n")
    assert (sweep.size, sweep.at_once) == (4, 2)
    assert "tune" in fairlot(bob, "sweep", "list").stdout
    assert json.loads(fairlot(bob, "sweep", "show", "tune", "-o", "json").stdout)["size"] == 4
    assert "lr=0.01 name=b" in fairlot(bob, "sweep", "members", "tune").stdout
    assert "lr,name" in fairlot(bob, "sweep", "members", "tune", "--csv").stdout.replace('"', "")
    assert fairlot(scene.people.charlie, "sweep", "show", sweep.pk).exit_code == 4
    assert fairlot(bob, "sweep", "cancel", "tune").exit_code == 0
    assert Sweep.objects.get(pk=sweep.pk).state == Sweep.State.CANCELLED


TEXT = st.text("a'\"\\$`;# {}n\n", max_size=5)
WORDS = st.lists(
    st.lists(TEXT | st.sampled_from(["{name}", "{{name}}", "${name}", "{index}"]), max_size=4).map("".join),
    min_size=1,
    max_size=3,
)


@given(words=WORDS, value=TEXT)
@settings(max_examples=100, deadline=None)
def test_the_words_of_a_sweep_arrive_with_the_values_whatever_they_contain(
    words: list[str], value: str
) -> None:
    command = joined(["printf", "%s|", "+", *words], ["name", "index"])
    base = JobSpec.model_construct(name="try", command=command, roles=[], variables={})
    check_places(base, [{"name": value}])
    ran = subprocess.run(
        ["/bin/sh", "-c", spec_of_member(base, 0, {"name": value}).command],
        capture_output=True,
        check=True,
        env={},
    )
    texts = {"name": value, "index": "0"}
    assert ran.stdout.decode() == "".join(f"{insert(word, texts)}|" for word in ["+", *words])


def test_a_parameter_among_the_words_of_a_command_or_script_is_one_word(
    scene: Scene, fairlot, tmp_path: Path
) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/bash\necho $1\n")
    create = ("sweep", "create", "--grid", "name=a b,x;y", "-n", "quoted")
    for words, stored, shown in (
        (
            ["python", "-c", "print('hi')", "--name={name}"],
            "'print('\"'\"'hi'\"'\"')' --name={name}",
            "--name='a b'",
        ),
        ([script, "{name}"], f"{script} {{name}}", f"{script} 'x;y'"),
        (["echo {name}"], "echo {name}", "echo 'a b'"),
    ):
        done = fairlot(scene.people.bob, *create, "--dry-run", "-o", "json", "--", *words)
        assert shown in [one["command"][-len(shown) :] for one in json.loads(done.stdout)], done.output
        assert fairlot(scene.people.bob, *create, "--", *words).exit_code == 0
        assert Sweep.objects.latest("pk").spec["command"].endswith(stored)
    refused = fairlot(scene.people.bob, *create, "--", "echo '{name}'")
    assert refused.exit_code != 0
    assert "Write {name} without quotes" in " ".join(refused.stderr.split())


def test_the_rules_that_stop_a_sweep_or_its_members_are_options(scene: Scene, fairlot) -> None:
    rules = ("--metric", "loss", "--stop-at", 0.1, "--stop-cancels", "--median-after", 500)
    done = fairlot(scene.people.bob, "sweep", "create", "-n", "ruled", "--count", 2, *rules, "--", "train")
    assert done.exit_code == 0, done.output
    made = Sweep.objects.get(name="ruled")
    assert (made.stop_at, made.stop_cancels, made.median_after) == (0.1, True, 500)
    assert "median after  500" in fairlot(scene.people.bob, "sweep", "show", "ruled").stdout


@pytest.mark.parametrize(
    ("words", "parameters"),
    [
        (["--count", 3], {"kind": "array", "count": 3}),
        (
            ["--random", "lr=loguniform(1e-5, 0.1)", "--random", "o=choice:a:b", "--count", 2, "--seed", 7],
            {
                "kind": "random",
                "random": {
                    "lr": {"distribution": "log_uniform", "low": 1e-5, "high": 0.1},
                    "o": {"distribution": "choice", "values": ["a", "b"]},
                },
                "count": 2,
                "seed": 7,
            },
        ),
    ],
)
def test_parameters_of_sweeps_have_several_forms(scene: Scene, fairlot, words, parameters) -> None:
    done = fairlot(scene.people.bob, "sweep", "create", *words, "--", "train")
    assert done.exit_code == 0, done.output
    assert Sweep.objects.latest("pk").parameters == parameters


@pytest.mark.parametrize(
    ("text", "value"),
    [("3.9", 3.9), ("3.10", "3.10"), ("1e-5", 1e-5), ("007", "007"), ("2024_01", "2024_01"), ("nan", "nan")],
)
def test_a_typed_value_is_a_number_only_if_that_does_not_change_it(text: str, value: object) -> None:
    assert repr(value_of(text)) == repr(value)


def test_a_foreign_file_is_converted_with_its_report(scene: Scene, fairlot, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH --gres=gpu:2\npython train.py\n")
    done = fairlot(scene.people.bob, "convert", script)
    assert "gpus_per_worker: 2" in done.stdout
    assert not Job.objects.filter(name="train").exists()
    done = fairlot(scene.people.bob, "convert", script, "--submit")
    assert (done.exit_code, done.stdout) == (0, f"{Job.objects.get(name='train').pk}\n")
    script.write_text("what is this")
    assert fairlot(scene.people.bob, "convert", script).exit_code == 1


def test_what_a_foreign_file_has_become_is_written_in_the_chosen_form(
    scene: Scene, fairlot, tmp_path: Path
) -> None:
    bob, file = scene.people.bob, tmp_path / "apps.json"
    apps = [{"id": name, "cmd": "x", "portDefinitions": [{"port": 80}]} for name in ("one", "two")]
    file.write_text(json.dumps({"id": "/shop", "apps": apps}))
    made = fairlot(bob, "submit", "-o", "yaml", "-f", file)
    assert made.exit_code == 0, made.stderr
    assert [one["name"] for one in yaml.safe_load_all(made.stdout)] == ["shop-one", "shop-two"]
    file.write_text("#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH --gres=gpu:2\npython train.py\n")
    checked = json.loads(fairlot(bob, "submit", "--check", "-o", "json", file).stdout)
    assert (checked["job"], Job.objects.filter(name="train").count()) == ("train", 0)
    for words in (["submit"], ["convert", "--submit"]):
        shown = json.loads(fairlot(bob, *words, "-o", "json", file).stdout)
        assert shown["id"] == Job.objects.filter(name="train").latest("pk").pk


def test_an_array_of_slurm_becomes_a_sweep(scene: Scene, fairlot, tmp_path: Path) -> None:
    script = tmp_path / "sweep.sbatch"
    script.write_text(
        "#!/bin/bash\n#SBATCH -J many\n#SBATCH --array=0-3%2\npython x.py $SLURM_ARRAY_TASK_ID\n"
    )
    shown = fairlot(scene.people.bob, "convert", script)
    assert "many is a sweep of 4 members, 2 at once. Create it with --submit." in shown.stderr
    assert fairlot(scene.people.bob, "submit", "--gpus", 1, script).exit_code == 0
    asked = fairlot(scene.people.bob, "submit", "--check", script)
    assert (asked.exit_code, "many becomes a sweep." in asked.stderr) == (0, True)
    assert {"job", "verdict", "cost"} <= {line.split()[0] for line in asked.stdout.splitlines()}
    assert "many, one member" in asked.stdout
    assert not Sweep.objects.filter(name="many").exists()
    made = fairlot(scene.people.bob, "submit", script)
    sweep = Sweep.objects.get(name="many")
    assert made.stdout == f"{sweep.pk}\n"
    assert (sweep.size, sweep.at_once, sweep.parameters["kind"]) == (4, 2, "array")


CRON_JOB = """
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: "30 4 * * *"
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [
    {name: main, image: python, command: [python, a.py], resources: {limits: {nvidia.com/gpu: 1}}}]}}}}
"""
COMPOSE = """
services:
  web:
    image: nginx
    command: serve --port 80
    ports: ["80:80"]
    restart: always
    deploy: {replicas: 2, resources: {reservations: {devices: [{driver: nvidia, count: 1, capabilities: [gpu]}]}}}
"""


@pytest.mark.parametrize(("text", "made"), [(CRON_JOB, Schedule), (COMPOSE, Service)])
def test_submit_converts_a_file_of_another_system(
    scene: Scene, fairlot, tmp_path: Path, text: str, made: Any
) -> None:
    file, kind = tmp_path / "foreign.yaml", made._meta.model_name
    file.write_text(text)
    known = set(made.objects.values_list("pk", flat=True))
    done = fairlot(scene.people.bob, "submit", "-f", file)
    [new] = made.objects.exclude(pk__in=known)
    assert (done.exit_code, done.stdout) == (0, f"{new.pk}\n"), done.stderr
    assert f"Created {kind} {new.pk}" in done.stderr


def test_submit_says_why_a_foreign_file_is_refused_and_reads_its_own_as_before(
    scene: Scene, fairlot, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(CRON_JOB.replace("restartPolicy: Never", "hostNetwork: true"))
    refused = fairlot(scene.people.bob, "submit", "-f", file)
    assert (refused.exit_code, "hostNetwork" in refused.stderr) == (1, True)
    file.write_text("name: own\ncommand: python a.py\n")
    assert fairlot(scene.people.bob, "submit", "-f", file).exit_code == 0
    assert Job.objects.filter(name="own").exists()


def test_put_uploads_code_that_specifications_name(scene: Scene, fairlot, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)")
    done = fairlot(scene.people.bob, "files", "put", tmp_path / "code", "--team", "astro")
    digest = done.stdout.strip()
    assert digest.startswith("sha256:"), done.stderr
    again = fairlot(scene.people.bob, "files", "put", tmp_path / "code", "-o", "json")
    assert json.loads(again.stdout)["digest"] == digest
    job = fairlot(
        scene.people.bob, "submit", "--set", f"code={{upload: {digest}}}", "--", "python", "train.py"
    )
    assert job.exit_code == 0, job.stderr


def test_a_chain_of_skypilot_becomes_a_pipeline(scene: Scene, fairlot, tmp_path: Path) -> None:
    file = tmp_path / "chain.yaml"
    task = "name: %s\nresources: {accelerators: A100}\nrun: ./a.sh\n"
    file.write_text(f"name: chain\n---\n{task % 'a'}---\n{task % 'b'}")
    shown = fairlot(scene.people.bob, "convert", file)
    assert "chain is a pipeline of 2 steps. Create it with --submit." in shown.stderr
    assert [step.name for step in Definition.from_yaml(shown.stdout).steps] == ["a", "b"]
    made = fairlot(scene.people.bob, "convert", file, "--submit")
    assert made.stdout == f"{Pipeline.objects.get(name='chain').pk}\n"


class Files:
    """The files of a job in memory, which stand in for those of a backend."""

    def __init__(self, client, pieces: list[bytes], *, breaks: bool = False) -> None:
        self.pieces, self.breaks = pieces, breaks
        client.save = self.save

    def save(self, call, to) -> int:
        count = sum(to.write(piece) for piece in self.pieces)
        if self.breaks:
            raise ConnectionFailed("The download broke off")
        return count


def test_a_download_that_breaks_off_leaves_no_file_of_that_name(
    scene: Scene, fairlot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairlot_client.client import Fairlot  # noqa: PLC0415 - tests of the start-up look at what is imported

    to = tmp_path / "model.pt"
    for breaks in (True, False):
        monkeypatch.setattr(
            Fairlot,
            "save",
            lambda self, call, out, breaks=breaks: Files(self, [b"ab", b"c"], breaks=breaks).save(call, out),
        )
        done = fairlot(scene.people.bob, "files", "get", scene.job.pk, "work/model.pt", to)
        assert (done.exit_code == 0, to.exists()) == (not breaks, not breaks)
    assert to.read_bytes() == b"abc"


def test_the_results_of_a_job_are_listed_and_downloaded(
    scene: Scene, fairlot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairlot_client.client import Fairlot  # noqa: PLC0415 - tests of the start-up look at what is imported

    asked: list[str] = []

    def save(self: Fairlot, call, out) -> int:
        asked.append(call.path)
        return out.write(b"zip")

    bob, number = scene.people.bob, scene.job.pk
    files = JobFiles(backend_for(scene.job.cluster).root, number)
    removal.remove(files)
    files.make()
    (files.folder / "work" / "rank-0").mkdir(parents=True)
    (files.folder / "work" / "rank-0" / "results.csv").write_text("a,b")
    assert "work/rank-0/results.csv" in fairlot(bob, "files", "results", number).stdout
    removal.remove(files)
    monkeypatch.setattr(Fairlot, "save", save)
    monkeypatch.chdir(tmp_path)
    for words, place in (((), f"job-{number}-results.zip"), (("mine.zip",), "mine.zip")):
        done = fairlot(bob, "files", "get", number, "--results", *words)
        assert done.exit_code == 0, done.output
        assert (tmp_path / place).read_bytes() == b"zip"
    assert asked == [f"/jobs/{number}/results/archive"] * 2
    assert fairlot(bob, "files", "get", number).exit_code == 2
    assert fairlot(bob, "files", "get", number, "--results", "a", "b").exit_code == 2


PIPELINE = "name: digits\nsteps:\n  a: {command: go}\n  b: {needs: [a], command: go}\n"


def test_a_pipeline_is_submitted_listed_cancelled_and_run_again(
    scene: Scene, fairlot, tmp_path: Path
) -> None:
    bob, file = scene.people.bob, tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE)
    done = fairlot(bob, "pipeline", "submit", file)
    made = Pipeline.objects.latest("pk")
    assert (done.exit_code, done.stdout) == (0, f"{made.pk}\n")
    assert "2 pending" in fairlot(bob, "pipeline", "list").stdout
    shown = fairlot(bob, "pipeline", "show", "digits").stdout
    assert re.search(r"^STEP +STATE +GPUS +WAITED +ON GPUS +GPU-HOURS +COST", shown, re.MULTILINE)
    assert re.search(r"^a +pending +1 +0\.00", shown, re.MULTILINE)
    assert Definition.from_yaml(
        fairlot(bob, "pipeline", "show", made.pk, "--yaml").stdout
    ) == Definition.from_yaml(PIPELINE)
    assert fairlot(bob, "pipeline", "rerun", "digits").exit_code == 1
    assert fairlot(scene.people.charlie, "pipeline", "show", made.pk).exit_code == 4
    assert fairlot(bob, "pipeline", "cancel", "digits").exit_code == 0
    assert fairlot(bob, "pipeline", "rerun", "--from", "b", "digits").exit_code == 0
    file.write_text(PIPELINE.replace("[a]", "[z]"))
    done = fairlot(bob, "pipeline", "submit", file)
    assert (done.exit_code != 0, "z is no step of this pipeline" in done.stderr) == (True, True)


def test_a_job_that_needs_another_becomes_a_pipeline_of_one_step(scene: Scene, fairlot) -> None:
    done = fairlot(scene.people.bob, "submit", "--needs", scene.job.pk, "-n", "after", "--", "go")
    made = Pipeline.objects.latest("pk")
    assert (done.exit_code, done.stdout, made.name) == (0, f"{made.pk}\n", "after")
    assert made.steps.get().needs.get().job == scene.job
    done = fairlot(scene.people.bob, "submit", "--needs", scene.other.pk, "--", "go")
    assert f"job {scene.other.pk} is no job of Astro" in done.stderr


def test_a_draft_is_kept_incomplete_completed_in_the_portal_and_submitted(scene: Scene, fairlot) -> None:
    bob = scene.people.bob
    done = fairlot(bob, "submit", "--draft", "--name", "later", "--gpus", 2)
    assert done.exit_code == 0, done.output
    draft = Draft.objects.get()
    assert done.stdout == f"{draft.pk}\n"
    assert "command" in fairlot(bob, "drafts", "show", draft.pk).stdout
    assert fairlot(bob, "drafts", "submit", draft.pk).exit_code == 2
    assert fairlot(scene.people.alice, "drafts", "show", draft.pk).exit_code == 4
    done = fairlot(bob, "submit", "--draft", "--name", "ready", "--", "go")
    done = fairlot(bob, "drafts", "submit", done.stdout.strip())
    assert Job.objects.get(pk=int(done.stdout)).name == "ready"
    assert [one["name"] for one in json.loads(fairlot(bob, "drafts", "list", "-o", "json").stdout)] == [
        "later"
    ]
    assert fairlot(bob, "drafts", "delete", draft.pk).exit_code == 0
    assert not Draft.objects.exists()


def test_a_template_is_published_listed_used_and_withdrawn(scene: Scene, fairlot, tmp_path: Path) -> None:
    alice, bob = scene.people.alice, scene.people.bob
    (tmp_path / "job.yaml").write_text("name: base\ncommand: train {lr}\n")
    (tmp_path / "parameters.yaml").write_text("- {name: lr, type: number, default: 0.1, description: rate}\n")
    files = ("-f", tmp_path / "job.yaml", "--parameters", tmp_path / "parameters.yaml", "-d", "Trains it.")
    assert fairlot(alice, "templates", "publish", "Base", *files).exit_code == 2
    done = fairlot(alice, "templates", "publish", "Base", *files, "--team", "astro")
    assert done.exit_code == 0, done.output
    template = JobTemplate.objects.get()
    assert done.stdout == f"{template.pk}\n"
    assert fairlot(alice, "templates", "publish", "--version-of", "Base", *files, "--for-all").exit_code == 2
    assert fairlot(alice, "templates", "publish", "--version-of", "Base", *files).exit_code == 0
    assert [one["version"] for one in json.loads(fairlot(bob, "templates", "list", "-o", "json").stdout)] == [
        2
    ]
    assert "lr (number) = 0.1 rate" in fairlot(bob, "templates", "show", "Base", "--version", 1).stdout
    done = fairlot(bob, "submit", "--template", "Base", "-P", "lr=0.5", "--team", "astro")
    assert done.exit_code == 0, done.output
    assert Job.objects.get(pk=int(done.stdout)).spec["command"] == "train 0.5"
    assert "values.lr" in fairlot(bob, "submit", "--template", "Base", "-P", "lr=x").stderr
    for wrong in (("-P", "lr=1"), ("--template", "Base", "--gpus", 2), ("--template", "Base", "--check")):
        assert fairlot(bob, "submit", *wrong).exit_code == 2, wrong
    assert fairlot(alice, "templates", "withdraw", "Base").exit_code == 0
    assert fairlot(bob, "submit", "--template", "Base").exit_code == 4
    (tmp_path / "parameters.yaml").write_text("lr: number\n")
    assert "must be a list" in fairlot(alice, "templates", "publish", "B", *files, "--team", "astro").stderr
