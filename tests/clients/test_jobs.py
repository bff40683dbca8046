"""Commands for jobs, against the portal."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
import yaml
from django.db.models.functions import Now

from fairlot_client.cli.following import exit_code_of_job
from fairshare.model import Reason
from portal.api.jobs import endpoints
from portal.jobs import log_group
from scheduling.backends.base import LogChunk
from scheduling.models import Job
from tests.portal.jobs.test_jobs import owe
from tests.portal.jobs.test_log_group import wrote
from tests.portal.scene import Scene


@dataclass
class Log:
    """Logs in memory, which stand in for those of a backend."""

    text: bytes = b""
    complete: bool = False
    ranks: list[int] = field(default_factory=list)

    def read_log(self, *, job_id: int, rank: int, offset: int, limit: int, last_attempt: int) -> LogChunk:
        self.ranks.append(rank)
        piece = self.text[offset : offset + 4]
        at_end = offset + len(piece) == len(self.text)
        return LogChunk(rank, offset, offset + len(piece), piece, complete=self.complete and at_end)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    monkeypatch.setattr(endpoints, "backend_for", lambda cluster: made)
    return made


def latest() -> Job:
    return Job.objects.latest("pk")


class TestSubmit:
    def test_the_id_goes_to_stdout_and_talk_to_stderr(self, scene: Scene, fairlot) -> None:
        done = fairlot(
            scene.people.bob, "submit", "-g", 1, "-e", "LR=0.1", "-l", "a=b", "--gpu-type", "V100",
            "--set", "checkpoint_grace_seconds=60", "--", "python", "train.py", "--epochs", "9 0",
        )  # fmt: skip
        job = latest()
        assert (done.exit_code, done.stdout) == (0, f"{job.pk}\n")
        assert f"fairlot logs -f {job.pk}" in done.stderr
        spec = job.spec
        assert (job.name, spec["command"]) == ("train", "python train.py --epochs '9 0'")
        assert (spec["variables"], spec["labels"], spec["generations"]) == (
            {"LR": "0.1"},
            {"a": "b"},
            ["V100"],
        )
        assert (job.owner, spec["checkpoint_grace_seconds"]) == (scene.people.bob, 60)

    def test_options_count_more_than_a_file_and_the_command_is_shell_text(
        self, scene: Scene, fairlot, tmp_path
    ) -> None:
        file = tmp_path / "job.yaml"
        file.write_text("name: no\ncommand: sleep 1\nvariables: {A: '1', B: 'on'}\n")
        done = fairlot(scene.people.bob, "submit", "-f", file, "-e", "A=2", "-o", "json", "sleep 2; true")
        assert json.loads(done.stdout)["spec"]["command"] == "sleep 2; true"
        assert (latest().name, latest().spec["variables"]) == ("no", {"A": "2", "B": "on"})
        again = fairlot(scene.people.bob, "submit", "-f", "-", input="name: stdin\ncommand: 'true'\n")
        assert (again.exit_code, latest().name) == (0, "stdin")

    def test_lines_of_a_script_are_options(self, scene: Scene, fairlot, tmp_path) -> None:
        script = tmp_path / "train.sh"
        script.write_text(
            "#!/bin/sh\n# Trains.\n#FAIRLOT --workers 2 -e A=1  # two\n#FAIRLOT -e B=2 --priority 3\n\necho hi\n"
            "#FAIRLOT --workers 9\n"
        )
        assert fairlot(scene.people.bob, "submit", "--priority", 4, script).exit_code == 0
        job = latest()
        assert (job.name, job.workers, job.priority) == ("train", 2, 4)
        assert (job.spec["variables"], job.spec["command"]) == (
            {"A": "1", "B": "2"},
            script.read_text().strip(),
        )

    @pytest.mark.parametrize(
        ("text", "code", "said"),
        [
            ("#FAIRLOT --wokers 2\ntrue\n", 2, "line 1: No such option '--wokers'"),
            (
                "#!/bin/sh\n#FAIRLOT --env A\ntrue\n",
                2,
                "line 2: Invalid value for '-e' / '--env': \"A\" has no key",
            ),
            ("#FAIRLOT --name 'a\ntrue\n", 2, "line 1: No closing quotation"),
            ("#!/usr/bin/perl\nprint\n", 2, "is a script for perl. Accepted: bash"),
        ],
    )
    def test_a_wrong_script_is_refused(
        self, scene: Scene, fairlot, *, tmp_path, text: str, code: int, said: str
    ) -> None:
        script = tmp_path / "train.sh"
        script.write_text(text)
        before = Job.objects.count()
        done = fairlot(scene.people.bob, "submit", script)
        assert (done.exit_code, done.stdout, Job.objects.count()) == (code, "", before)
        assert said in " ".join(done.stderr.split())

    def test_nothing_to_run_says_what_is_accepted(self, scene: Scene, fairlot) -> None:
        done = fairlot(scene.people.bob, "submit", "--gpus", 1)
        assert done.exit_code == 2
        assert "Give a command after --, the path of a script, or -f FILE." in done.stderr

    def test_an_option_is_not_taken_for_a_command(self, scene: Scene, fairlot) -> None:
        done = fairlot(scene.people.bob, "submit", "--", "--gpus", "1", "true")
        assert (done.exit_code, "Options stand before the command" in done.stderr) == (2, True)

    def test_the_portal_names_each_wrong_field(self, scene: Scene, fairlot) -> None:
        done = fairlot(scene.people.bob, "submit", "-w", 0, "--set", "colour=red", "true")
        assert (done.exit_code, done.stdout) == (2, "")
        assert "workers: must be a whole number from 1 to 4096" in done.stderr
        assert "colour: is not a field of a job spec" in done.stderr

    def test_a_check_submits_nothing(self, scene: Scene, fairlot) -> None:
        before = Job.objects.count()
        done = fairlot(scene.people.bob, "submit", "--check", "-o", "json", "true")
        assert json.loads(done.stdout)["verdict"] in {"now", "later"}
        assert "cost per hour" in fairlot(scene.people.bob, "submit", "--check", "true").stdout
        assert Job.objects.count() == before


class TestRun:
    @pytest.mark.parametrize(("state", "exit_code", "expected"), [("succeeded", 0, 0), ("failed", 3, 3)])
    def test_the_log_is_followed_and_the_exit_code_is_that_of_the_job(
        self, scene: Scene, fairlot, *, log: Log, state: str, exit_code: int, expected: int
    ) -> None:
        steps = iter([b"one\n", b"one\ntwo \xf0\x9f\x8e\x89\n"])

        def pause() -> None:
            log.text = next(steps, log.text)
            if log.text.endswith(b"\x89\n"):
                log.complete = True
                Job.objects.filter(pk=latest().pk).update(state=state, exit_code=exit_code, ended_at=Now())

        done = fairlot(scene.people.bob, "run", "true", pause=pause)
        assert (done.stdout, done.exit_code) == ("one\ntwo 🎉\n", expected)
        assert f"Job {latest().pk} is queued" in done.stderr
        assert f"Job {latest().pk} {state}" in done.stderr

    @pytest.mark.parametrize(
        ("terminal", "answer", "state"),
        [(False, None, "queued"), (True, "detach\n", "queued"), (True, "cancel\n", "cancelled")],
    )
    def test_ctrl_c_asks_at_a_terminal_only(
        self, scene: Scene, fairlot, *, log: Log, terminal: bool, answer: str | None, state: str
    ) -> None:
        def pause() -> None:
            raise KeyboardInterrupt

        log.complete = True
        done = fairlot(scene.people.bob, "run", "true", pause=pause, terminal=terminal, input=answer)
        assert (done.exit_code, latest().state) == (130, state)
        assert ("goes on. Follow it: fairlot logs -f" in done.stderr) == (state == "queued")
        assert ("Cancel job" in done.output) == terminal

    def test_an_error_of_fairlot_is_no_exit_code_of_a_job(self, scene: Scene, fairlot) -> None:
        done = fairlot(scene.people.bob, "run", "--gpus", 0, "true")
        assert done.exit_code == 125
        assert "gpus_per_worker: must be" in done.stderr

    @pytest.mark.parametrize(
        ("state", "code", "expected"),
        [
            ("succeeded", None, 0),
            ("failed", -9, 137),
            ("failed", None, 1),
            ("failed", 256, 1),
            ("cancelled", 0, 1),
        ],
    )
    def test_each_end_of_a_job_has_an_exit_code(self, state: str, code: int | None, expected: int) -> None:
        assert exit_code_of_job({"state": state, "exit_code": code}) == expected


class TestReading:
    def test_a_list_has_filters_and_forms(self, scene: Scene, fairlot) -> None:
        bob = scene.people.bob
        shown = fairlot(bob, "list").stdout.splitlines()
        assert shown[0].split() == ["ID", "NAME", "STATE", "GPUS", "TEAM", "OWNER", "SUBMITTED", "REASON"]
        assert [line.split()[0] for line in shown[1:]] == fairlot(bob, "list", "-o", "name").stdout.split()
        mine = json.loads(fairlot(bob, "list", "--mine", "-o", "json").stdout)
        assert {job["owner"] for job in mine} == {"bob"}
        assert (
            yaml.safe_load(fairlot(bob, "list", "-q", "supernova-next", "-o", "yaml").stdout)[0]["gpus"] == 8
        )
        assert "genome" not in fairlot(bob, "list", "--all").output

    def test_a_list_is_sorted_and_has_the_chosen_columns(self, scene: Scene, fairlot) -> None:
        bob = scene.people.bob
        scene.world.submit(bob, scene.people.astro, gpus=1, name="small", labels={"exp": "e1", "flag": ""})
        shown = fairlot(bob, "list", "--sort", "gpus", "--columns", "name,gpus,label:exp,label:flag").stdout
        assert [line.split() for line in shown.splitlines()] == [
            ["NAME", "GPUS", "EXP", "FLAG"],
            ["small", "1", "e1", "flag"],
            ["supernova", "4"],
            ["supernova-next", "8"],
        ]
        assert fairlot(bob, "list", "--sort=-gpus", "--columns", "name").stdout.split()[1:][-1] == "small"
        assert "label:KEY" in fairlot(bob, "list", "--columns", "moon").stderr
        assert "label:KEY" in fairlot(bob, "list", "--sort", "moon").stderr

    def test_a_list_is_grouped(self, scene: Scene, fairlot) -> None:
        bob = scene.people.bob
        shown = fairlot(bob, "list", "--group-by", "owner", "--team", "astro").stdout
        assert [line.split() for line in shown.splitlines()] == [
            ["GROUP", "JOBS", "GPUS", "IN", "USE"],
            ["alice", "1", "8", "0"],
            ["bob", "1", "4", "4"],
        ]
        assert fairlot(bob, "list", "--group-by", "owner", "--mine", "-o", "name").stdout == "bob\n"
        assert "label:KEY" in fairlot(bob, "list", "--group-by", "moon").stderr
        assert "Leave out one" in fairlot(bob, "list", "--group-by", "owner", "--sort", "name").stderr

    def test_views_are_saved_listed_used_and_removed(self, scene: Scene, fairlot) -> None:
        alice = scene.people.alice
        saved = fairlot(
            alice, "view", "save", "Waiting", "state=waiting&sort=name", "--team", "astro", "-o", "json"
        )
        view = json.loads(saved.stdout)["id"]
        assert "Waiting" in fairlot(scene.people.bob, "view", "list").stdout
        for name in ("waiting", view):
            done = fairlot(scene.people.bob, "list", "--view", name, "--columns", "name")
            assert done.stdout.split() == ["NAME", "supernova-next"]
        assert fairlot(alice, "view", "remove", view).exit_code == 0
        assert "no views" in fairlot(alice, "list", "--view", "waiting").stderr

    def test_a_limit_says_that_there_is_more(self, scene: Scene, fairlot) -> None:
        done = fairlot(scene.people.bob, "list", "--limit", 1)
        assert len(done.stdout.splitlines()) == 2
        assert "Shown: 1. There are more" in done.stderr
        assert fairlot(scene.people.bob, "list", "--all").stderr == ""

    def test_a_job_is_found_by_its_name(self, scene: Scene, fairlot) -> None:
        for words in (["show", "supernova"], ["show", scene.job.pk]):
            done = fairlot(scene.people.bob, *words)
            assert done.stdout.splitlines()[0].split() == ["id", str(scene.job.pk)]
        assert "SUPERNOVA" not in done.stdout
        unknown = fairlot(scene.people.bob, "show", "genome")
        assert (unknown.exit_code, "Names and ids: fairlot list." in unknown.stderr) == (4, True)

    def test_a_job_shows_its_gpu_types_time_and_cost(self, scene: Scene, fairlot) -> None:
        Job.objects.filter(pk=scene.job.pk).update(steps_done="59.000", failures=2)
        shown = dict(
            line.split("  ", maxsplit=1)
            for line in fairlot(scene.people.bob, "show", scene.job.pk).stdout.splitlines()
            if not line.startswith(" ")
        )
        shown = {title: text.strip() for title, text in shown.items()}
        assert (shown["ran on"], shown["steps"], shown["failures"]) == ("A100, V100", "59", "2")
        assert float(shown["GPU-hours"]) > 0
        assert {"GPU types", "cost"} <= shown.keys()
        answer = json.loads(fairlot(scene.people.bob, "show", scene.job.pk, "-o", "json").stdout)
        rows = answer["cost"]["generations"]
        assert sum(float(row["gpu_seconds"]) for row in rows) == pytest.approx(
            float(answer["cost"]["gpu_seconds"])
        )
        [(currency, total)] = answer["cost"]["costs"].items()
        assert {row["currency"] for row in rows} == {currency}
        assert sum(float(row["cost"]) for row in rows) == pytest.approx(float(total))
        fresh = fairlot(scene.people.bob, "submit", "-n", "fresh", "true").stdout.strip()
        assert not {"GPU-hours", "cost"} & set(fairlot(scene.people.bob, "show", fresh).stdout.split())

    @pytest.mark.parametrize("command", [["list"], ["list", "--group-by", "team"], ["sweep", "list"]])
    def test_a_filter_that_names_nobody_says_so(self, scene: Scene, fairlot, command: list[str]) -> None:
        bob = scene.people.bob
        for words, said in (
            (["--team", "nope"], "There is no team with this name that you may see."),
            (["--team", "bio"], "There is no team with this name that you may see."),
            (["--owner", "nobody"], "There is no user with this name that you may see."),
            (["--owner", "charlie"], "There is no user with this name that you may see."),
        ):
            done = fairlot(bob, *command, *words)
            assert (done.exit_code, done.stdout, said in done.stderr) == (4, "", True), words
        for words in (["--team", "astro"], ["--owner", "bob"], ["--owner", "alice"]):
            assert fairlot(bob, *command, *words).exit_code == 0
        assert fairlot(scene.people.olga, *command, "--owner", "charlie").exit_code == 0
        assert fairlot(scene.people.olga, *command, "--owner", "nobody").exit_code == 4

    def test_a_name_of_several_jobs_is_refused_unless_one_goes_on(self, scene: Scene, fairlot) -> None:
        bob = scene.people.bob
        first, second = (fairlot(bob, "submit", "-n", "twin", "true").stdout.strip() for _ in range(2))
        refused = fairlot(bob, "cancel", "twin")
        assert refused.exit_code == 2
        assert f"{second}, {first}" in refused.stderr
        assert fairlot(bob, "cancel", first).exit_code == 0
        assert fairlot(bob, "show", "twin", "-o", "name").stdout == f"{second}\n"
        assert fairlot(bob, "cancel", "twin").exit_code == 0
        assert set(Job.objects.filter(name="twin").values_list("state", flat=True)) == {"cancelled"}

    def test_why_says_what_helps(self, scene: Scene, fairlot) -> None:
        done = fairlot(scene.people.alice, "why", "supernova-next")
        assert {"state", "why"} <= {line.split()[0] for line in done.stdout.splitlines() if line[0] != " "}

    def test_why_says_the_place_in_the_queue_and_who_is_ahead(self, scene: Scene, fairlot) -> None:
        first = fairlot(scene.people.bob, "submit", "-n", "first", "true").stdout.strip()
        other = fairlot(scene.people.charlie, "submit", "-n", "secret plan", "-g", 2, "true").stdout.strip()
        job = fairlot(scene.people.bob, "submit", "-n", "second", "true").stdout.strip()
        Job.objects.filter(pk__in=[first, other, job]).update(reason=int(Reason.SHARE_IN_USE))
        owe(scene, scene.people.charlie)
        shown = fairlot(scene.people.bob, "why", job).stdout
        assert "Place 3 of 3 waiting jobs" in shown
        assert "2 of 2 of Astro" in shown
        assert f"ahead: {first} first (bob, 1 GPU)" in shown
        assert "ahead: 1 of other teams (2 GPUs)" in shown
        assert "secret plan" not in shown

    def test_events_and_the_log_of_each_rank(self, scene: Scene, fairlot, log: Log) -> None:
        log.text = b"step 1\nstep 2\n"
        done = fairlot(scene.people.alice, "logs", "--rank", 1, "supernova-next")
        assert (done.stdout, set(log.ranks)) == ("step 1\nstep 2\n", {1})
        assert fairlot(scene.people.alice, "logs", "--rank", 2, "supernova-next").exit_code == 4

    def test_the_logs_of_all_workers_are_merged_and_searched(
        self, scene: Scene, fairlot, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held = wrote([(0, 0, False, "one\n"), (1, 1, False, "two\n"), (0, 1, False, "three\n")])
        monkeypatch.setattr(log_group, "backend_for", lambda cluster: held)

        def logs(*words: object) -> tuple[int, str]:
            done = fairlot(scene.people.alice, "logs", *words, "supernova-next")
            return done.exit_code, done.stdout

        assert logs("--all") == (0, "0| one\n1| two\n0| three\n")
        assert logs("-t", "-r", 1) == (0, "1970-01-01T00:00:01.001Z         two\n")
        assert logs("--grep", "O", "-a") == (0, "0| one\n1| two\n")
        assert logs("--grep", "^(one|t.*e)$", "--regex", "-C", 1) == (0, ":one\n-three\n--\n-one\n:three\n")
        assert logs("--grep", "four") == (1, "")
        for wrong in (("-a", "-r", 1), ("--regex",), ("-C", 2), ("-f", "--grep", "x")):
            assert logs(*wrong)[0] == 2, wrong
        events = json.loads(fairlot(scene.people.bob, "events", "supernova", "-o", "json").stdout)
        assert len(events) > 1
        assert "EVENT" in fairlot(scene.people.bob, "events", "supernova").stdout

    def test_the_log_of_a_worker_with_a_role_is_found_by_its_name(
        self, scene: Scene, fairlot, log: Log
    ) -> None:
        log.text = b"ready\n"
        roles = [{"name": "worker", "workers": 2}, {"name": "ps", "gpus_per_worker": 0}]
        Job.objects.filter(name="supernova-next").update(spec=scene.job.spec | {"roles": roles})
        assert fairlot(scene.people.alice, "logs", "-w", "ps/0", "supernova-next").stdout == "ready\n"
        assert set(log.ranks) == {2}
        refused = fairlot(scene.people.alice, "logs", "-w", "ps/1", "supernova-next")
        assert (refused.exit_code, "It has: worker/0, worker/1, ps/0." in refused.stderr) == (4, True)

    def test_watching_shows_again_until_ctrl_c(self, scene: Scene, fairlot) -> None:
        looks = iter([None])

        def pause() -> None:
            if next(looks, "end"):
                raise KeyboardInterrupt

        done = fairlot(scene.people.bob, "list", "-o", "name", "--watch", pause=pause)
        lines = done.stdout.split()
        assert (done.exit_code, len(lines)) == (0, 2 * Job.objects.filter(tenant=scene.people.astro).count())

    def test_control_characters_in_names_do_not_reach_the_terminal(self, scene: Scene, fairlot) -> None:
        Job.objects.filter(pk=scene.job.pk).update(name="a\x1b[31mb\u202e")
        done = fairlot(scene.people.bob, "list")
        assert "a\ufffd[31mb\ufffd" in done.stdout


class TestChanging:
    def test_a_job_is_cloned_with_changes(self, scene: Scene, fairlot) -> None:
        done = fairlot(
            scene.people.bob, "clone", "supernova", "-n", "again", "-e", "MORE=1", "--even-if-never"
        )
        job = latest()
        assert (done.stdout, job.name, job.gpus_per_worker) == (f"{job.pk}\n", "again", 4)
        assert job.spec["variables"] == {"SUPERNOVA": "1987A", "MORE": "1"}

    def test_a_clone_gets_a_free_name_and_another_command(self, scene: Scene, fairlot) -> None:
        bob = scene.people.bob
        first = fairlot(bob, "submit", "-n", "train", "-e", "A=1", "true").stdout.strip()
        for words, name, command in (
            ([], "train 2", "true"),
            (["--", "python", "train.py", "--epochs", "90"], "train 3", "python train.py --epochs 90"),
            (["--set", "name=mine", "-e", "B=2", "--", "false"], "mine", "false"),
        ):
            done = fairlot(bob, "clone", first, *words)
            assert done.exit_code == 0, done.output
            job = latest()
            assert (job.name, job.spec["command"], job.cloned_from_id) == (name, command, int(first))
        assert job.spec["variables"] == {"A": "1", "B": "2"}

    def test_several_jobs_are_cancelled_and_one_had_ended(self, scene: Scene, fairlot) -> None:
        bob = scene.people.bob
        first, second = (fairlot(bob, "submit", "true").stdout.strip() for _ in range(2))
        Job.objects.filter(pk=first).update(state="succeeded", ended_at=Now())
        done = fairlot(bob, "cancel", first, second)
        assert (done.exit_code, Job.objects.get(pk=second).state) == (0, "cancelled")
        assert f"Job {first} had already ended: it succeeded." in done.stderr
        assert f"Cancelled job {second}." in done.stderr

    def test_a_job_becomes_preemptible_and_back(self, scene: Scene, fairlot) -> None:
        job = fairlot(scene.people.bob, "submit", "true").stdout.strip()
        for words, expected in ((["preemptible", job], True), (["preemptible", "--off", job], False)):
            assert fairlot(scene.people.bob, *words).exit_code == 0
            assert Job.objects.get(pk=job).preemptible is expected

    def test_jobs_of_other_teams_do_not_exist(self, scene: Scene, fairlot) -> None:
        for words in (["show"], ["why"], ["logs"], ["events"], ["cancel"], ["clone"]):
            done = fairlot(scene.people.charlie, *words, scene.job.pk)
            assert (done.exit_code, done.stdout) == (4, "")
            assert f"There is no job {scene.job.pk} that you may see." in done.stderr
