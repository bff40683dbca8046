"""Commands for sessions, services, schedules, clusters, reports, limits, requests, teams and secrets."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal

import pytest
import yaml

from accounting.core.clock import now_from_database
from accounting.models import Membership, Price, Quota, Request
from fairlot_client.client import Fairlot
from scheduling.models import IdleRule, Job, Node, Schedule, Secret, Service
from tests.portal.scene import Scene, with_a_session

READS = [
    ("bob", "whoami", "astro (member"),
    ("bob", "service list", "ready|0/"),
    ("bob", "service show {service}", "ready"),
    ("bob", "service events {service}", "TIME"),
    ("bob", "service metrics {service}", "OVER TIME"),
    ("bob", "schedule list", "WHEN"),
    ("bob", "schedule show {schedule}", "means"),
    ("bob", "schedule runs {schedule}", "OUTCOME"),
    ("bob", "session list", "supernova-notes"),
    ("bob", "session show supernova-notes", "idle timeout"),
    ("bob", "top", "bob"),
    ("bob", "top --by job", "JOB"),
    ("bob", "top --by team --cluster lab", "ENTITLED"),
    ("bob", "top --by team --generation V100 --node v100 --team astro", "astro"),
    ("bob", "top --period day", "bob"),
    ("olga", "top --period week --by team", "bio"),
    ("bob", "node list", "v100-0"),
    ("bob", "share", "V100"),
    ("bob", "trades", "PRICE"),
    ("bob", "usage", "Total"),
    ("bob", "usage --by job --csv", ","),
    ("alice", "statement --format csv", ","),
    ("alice", "limits", "KIND"),
    ("alice", "budgets --team astro -o json", "["),
    ("alice", "request list", "WANTED"),
    ("alice", "request show {request}", "reason"),
    ("alice", "team members", "manager"),
    ("bob", "secret list", "KEYS"),
    ("bob", "volumes", "READ ONLY"),
    ("olga", "cluster list", "lab"),
    ("olga", "cluster policy lab", "gandiva"),
    ("olga", "node show lab v100-0", "ready"),
    ("bob", "api GET /me", "bob"),
]


def words(scene: Scene, line: str) -> list[str]:
    ids = {name: getattr(scene, name).pk for name in ("service", "schedule", "request")}
    return line.format(**ids).split()


@pytest.mark.parametrize(("user", "line", "said"), READS, ids=lambda one: one)
def test_reading_commands_show_a_table_and_no_error(
    scene: Scene, fairlot, user: str, line: str, said: str
) -> None:
    with_a_session(scene)
    done = fairlot(getattr(scene.people, user), *words(scene, line))
    assert done.exit_code == 0, done.stderr
    assert any(one in done.stdout for one in said.split("|"))


@pytest.mark.parametrize("line", ["top", "share", "usage", "service show {service}", "schedule list"])
def test_they_also_write_json_and_yaml_with_the_same_data(scene: Scene, fairlot, line: str) -> None:
    as_json = fairlot(scene.people.bob, *words(scene, line), "-o", "json").stdout
    as_yaml = fairlot(scene.people.bob, *words(scene, line), "-o", "yaml").stdout
    ignored = {"begins", "ends"}  # of a period that ends now
    data, same = json.loads(as_json), yaml.safe_load(as_yaml)
    if isinstance(data, dict):
        data, same = (
            {k: v for k, v in one.items() if k not in ignored | {"generations"}} for one in (data, same)
        )
    assert data
    assert json.dumps(data) == json.dumps(same)


def test_top_counts_each_gpu_once_and_hides_other_teams(scene: Scene, fairlot) -> None:
    for user in (scene.people.bob, scene.people.olga):
        rows = json.loads(fairlot(user, "top", "-o", "json").stdout)
        assert sum(row["gpus"] for row in rows) == sum(Node.objects.values_list("gpus", flat=True)) == 8
    shown = fairlot(scene.people.charlie, "top").stdout
    assert "others" in shown
    assert "bob" not in shown


def test_other_teams_services_and_schedules_do_not_exist(scene: Scene, fairlot) -> None:
    for line in (
        "service show {service}",
        "schedule run {schedule}",
        "service remove {service}",
        "request show {request}",
    ):
        done = fairlot(scene.people.charlie, *words(scene, line))
        assert (done.exit_code, done.stdout) == (4, "")


class TestSessions:
    def test_one_is_opened_waited_for_and_stopped(self, scene: Scene, fairlot) -> None:
        bob = scene.people.bob

        def pause() -> None:
            Job.objects.filter(pk=Job.objects.latest("pk").pk).update(
                state="failed", end_message="no space", ended_at="2026-11-27T00:00Z"
            )

        opened = ["session", "open", "--port", 8000, "--hours", 3]
        done = fairlot(bob, *opened, "--no-wait", "sleep", 9)
        assert done.exit_code == 0, done.stderr
        job = Job.objects.latest("pk")
        assert (done.stdout, job.session.longest_hours) == (f"http://testserver/sessions/{job.pk}/\n", 3)
        assert fairlot(bob, "session", "keep", job.pk).exit_code == 0
        assert fairlot(bob, "session", "stop", "sleep").exit_code == 0
        assert Job.objects.get(pk=job.pk).state == "cancelled"
        ended = fairlot(bob, *opened, "sleep", 9, pause=pause)
        assert ended.exit_code == 1
        assert "has ended: no space" in ended.stderr

    def test_an_ended_one_starts_again_with_its_files(self, scene: Scene, fairlot) -> None:
        bob = scene.people.bob
        opened = ["session", "open", "--port", 8000, "--hours", 3, "--no-wait"]
        assert fairlot(bob, *opened, "sleep", 9).exit_code == 0
        earlier = Job.objects.latest("pk")
        refused = fairlot(bob, "session", "again", earlier.pk, "--no-wait")
        assert refused.exit_code != 0
        assert "has not ended" in refused.stderr
        Job.objects.filter(pk=earlier.pk).update(
            state="failed",
            ended_at="2026-11-27T00:00Z",
            first_started_at="2026-11-27T00:00Z",
            first_generation=scene.people.v100,
        )
        done = fairlot(bob, "session", "again", earlier.pk, "--no-wait")
        assert done.exit_code == 0, done.stderr
        session = Job.objects.latest("pk").session
        assert (session.files_from, session.longest_hours) == (earlier, 3)
        done = fairlot(bob, "session", "again", earlier.pk, "--no-wait", "--without-files")
        assert done.exit_code == 0, done.stderr
        assert Job.objects.latest("pk").session.files_from is None
        done = fairlot(bob, *opened, "--files-from", earlier.pk, "sleep", 9)
        assert done.exit_code == 0, done.stderr
        assert Job.objects.latest("pk").session.files_from == earlier

    def test_vs_code_needs_no_command(self, scene: Scene, fairlot) -> None:
        done = fairlot(
            scene.people.bob, "session", "open", "--kind", "vscode", "--no-wait", "--even-if-never"
        )
        assert done.exit_code == 0, done.stderr
        job = Job.objects.latest("pk")
        assert (job.name, job.session.kind) == ("vscode", "vscode")
        assert "code-server" in job.spec["command"]

    def test_a_session_without_a_port_is_refused(self, scene: Scene, fairlot) -> None:
        done = fairlot(scene.people.bob, "session", "open", "serve")
        assert (done.exit_code, "port: " in done.stderr) == (2, True)


class TestServices:
    def test_one_is_created_scaled_updated_stopped_and_removed(self, scene: Scene, fairlot) -> None:
        bob = scene.people.bob
        made = fairlot(
            bob, "service", "create", "--port", 8000, "-n", "chat", "--replicas", 1, "serve"
        ).stdout.strip()
        service = Service.objects.get(pk=made)
        one = fairlot(bob, "service", "scale", "chat", 1)
        assert f"Service {made} has 1 replica from now on." in one.stdout + one.stderr
        for line in (
            "scale chat 2",
            "update chat -e A=1",
            "rollback chat 1",
            "stop chat",
            "start chat",
            "remove chat",
        ):
            done = fairlot(bob, "service", *line.split())
            assert done.exit_code == 0, (line, done.stderr)
        service.refresh_from_db()
        assert service.replicas == 2
        assert service.removed_at
        spec = service.revisions.get(number=2).spec
        assert (spec["command"], spec["variables"]) == ("serve", {"A": "1"})


class TestSchedules:
    def test_one_is_created_paused_resumed_run_and_deleted(self, scene: Scene, fairlot) -> None:
        bob = scene.people.bob
        terms = ["--when", "30 2 * * *", "--zone", "Europe/Berlin", "--overlap", "allow"]
        made = fairlot(bob, "schedule", "create", *terms, "-n", "nightly", "true").stdout.strip()
        schedule = Schedule.objects.get(pk=made)
        assert fairlot(bob, "schedule", "pause", "nightly").exit_code == 0
        schedule.refresh_from_db()
        assert (schedule.time_zone, schedule.paused_at is None) == ("Europe/Berlin", False)
        assert fairlot(bob, "schedule", "resume", "nightly").exit_code == 0
        job = fairlot(bob, "schedule", "run", "nightly").stdout.strip()
        assert Job.objects.get(pk=job).name.startswith("nightly")
        assert fairlot(bob, "schedule", "delete", "nightly").exit_code == 0
        schedule.refresh_from_db()
        assert schedule.deleted_at

    def test_a_wrong_expression_is_explained(self, scene: Scene, fairlot) -> None:
        done = fairlot(scene.people.bob, "schedule", "create", "--when", "at night", "true")
        assert (done.exit_code, "Accepted forms: " in done.stderr) == (1, True)


def test_a_node_is_drained_and_returned(scene: Scene, fairlot) -> None:
    olga = scene.people.olga
    Job.objects.filter(pk=scene.waiting.pk).update(workers=1, gpus_per_worker=4)
    asked = fairlot(olga, "node", "drain", "lab", "a100-0", "v100-0", "--reason", "new fan", "--dry-run")
    assert ("supernova" in asked.stdout, Node.objects.get(name="a100-0").state) == (True, "ready")
    assert "A100: 4 GPUs in use now, 0 after the drain." in asked.stderr
    assert f"The waiting job {scene.waiting.pk} supernova-next" in asked.stderr
    assert "Warning: no node of the cluster stays in use" in asked.stderr
    assert "could start on no other node." in asked.stderr
    done = fairlot(olga, "node", "drain", "lab", "a100-0", "--reason", "new fan")
    assert (done.exit_code, Node.objects.get(name="a100-0").state) == (0, "drained")
    assert fairlot(olga, "node", "undrain", "lab", "a100-0").exit_code == 0
    assert Node.objects.get(name="a100-0").state == "ready"
    assert fairlot(scene.people.bob, "node", "drain", "lab", "a100-0", "--reason", "mine").exit_code == 4


def test_limits_are_set_and_removed(scene: Scene, fairlot) -> None:
    ada = scene.people.ada
    made = fairlot(ada, "limit", "set", "bio", "gpus", 3, "--user", "charlie", "-o", "name").stdout.strip()
    assert Quota.objects.get(pk=made).user == scene.people.charlie
    assert fairlot(ada, "limit", "remove", made).exit_code == 0
    assert made not in fairlot(ada, "limits", "--team", "bio", "-o", "name").stdout.split()


def test_members_list_the_limits_on_them(scene: Scene, fairlot) -> None:
    made = fairlot(
        scene.people.alice, "limit", "set", "astro", "queued_jobs", 7, "--user", "bob", "-o", "name"
    )
    listed = fairlot(scene.people.bob, "limits", "--mine", "-o", "name").stdout.split()
    assert listed == [str(scene.quota.pk), made.stdout.strip()]


def test_limits_of_the_team_bind_its_members_too(scene: Scene, fairlot) -> None:
    ada, bob, alice = scene.people.ada, scene.people.bob, scene.people.alice
    made = fairlot(ada, "limit", "set", "astro", "gpus", 6, "-o", "name").stdout.strip()
    other = fairlot(ada, "limit", "set", "bio", "gpus", 6, "-o", "name").stdout.strip()
    each = fairlot(alice, "limit", "set", "astro", "gpus", 5, "--each-user", "-o", "name").stdout.strip()
    for words in ((), ("--mine",)):
        rows = json.loads(fairlot(bob, "limits", *words, "-o", "json").stdout)
        shown = {str(row["id"]): row for row in rows}
        assert {made, each} <= shown.keys()
        assert other not in shown
        assert (float(shown[made]["used"]), shown[made]["used_in"]) == (4, "astro")
    assert "whole team" in fairlot(bob, "limits").stdout
    assert "each member" in fairlot(bob, "limits").stdout
    of_team = fairlot(bob, "limits", "--team", "astro")
    assert of_team.exit_code == 4
    assert "managers of Astro may do this" in of_team.stderr
    assert "limits that bind you" in of_team.stderr
    unknown = fairlot(bob, "limits", "--team", "bio")
    assert (unknown.exit_code, "There is no team with this name that you may see." in unknown.stderr) == (
        4,
        True,
    )
    assert made in fairlot(alice, "limits", "-o", "name").stdout.split()
    clusters = fairlot(bob, "cluster", "list")
    assert (clusters.exit_code, "Only admins and operators may do this." in clusters.stderr) == (4, True)


def test_requests_are_made_and_decided(scene: Scene, fairlot) -> None:
    alice, ada = scene.people.alice, scene.people.ada
    tickets = fairlot(alice, "request", "tickets", 300, "--reason", "paper", "-o", "name").stdout.strip()
    limit = fairlot(alice, "request", "limit", "gpus", 64, "--reason", "paper", "-o", "name").stdout.strip()
    assert Request.objects.get(pk=tickets).tenant == scene.people.astro
    assert fairlot(ada, "request", "approve", tickets, "--answer", "granted").exit_code == 0
    assert fairlot(alice, "request", "withdraw", limit).exit_code == 0
    other = fairlot(alice, "request", "tickets", 301, "--reason", "more", "-o", "name").stdout.strip()
    assert fairlot(ada, "request", "decline", other, "--answer", "no").exit_code == 0
    states = [Request.objects.get(pk=pk).state for pk in (tickets, limit, other)]
    assert states == ["approved", "withdrawn", "declined"]


class TestTeams:
    def test_members_are_added_changed_and_removed(self, scene: Scene, fairlot) -> None:
        alice = scene.people.alice
        assert fairlot(alice, "team", "add", "astro", "charlie", "--role", "viewer").exit_code == 0
        assert fairlot(alice, "team", "change", "astro", "charlie", "--tickets", 7).exit_code == 0
        found = Membership.objects.get(tenant=scene.people.astro, user=scene.people.charlie)
        assert (found.role, found.tickets) == ("viewer", 7)
        assert fairlot(alice, "team", "remove", "astro", "charlie").exit_code == 0

    def test_a_dry_run_shows_shares_and_changes_nothing(self, scene: Scene, fairlot) -> None:
        ada, astro = scene.people.ada, scene.people.astro
        before = astro.tickets
        done = fairlot(ada, "team", "tickets", "astro", 500, "--dry-run")
        assert (done.exit_code, "SHARE NOW" in done.stdout) == (0, True)
        astro.refresh_from_db()
        assert astro.tickets == before
        assert fairlot(ada, "team", "tickets", "astro", 500).exit_code == 0
        assert fairlot(ada, "team", "create", "Chem", "--tickets", 10, "-o", "name").stdout == "chem\n"
        assert fairlot(ada, "team", "archive", "chem").exit_code == 0
        assert fairlot(ada, "team", "archive", "chem", "--undo").exit_code == 0
        astro.refresh_from_db()
        assert astro.tickets == 500

    def test_who_is_in_no_or_several_teams_must_name_one(self, scene: Scene, fairlot) -> None:
        done = fairlot(scene.people.olga, "share")
        assert (done.exit_code, "Give a team with --team. Yours: none." in done.stderr) == (2, True)


def test_the_value_of_a_secret_comes_from_stdin_only(scene: Scene, fairlot) -> None:
    bob = scene.people.bob
    made = fairlot(bob, "secret", "create", "token", "-o", "name", input="s3cret\n")
    assert Secret.objects.filter(pk=made.stdout.strip(), name="token").exists()
    assert "s3cret" not in made.output
    typed = fairlot(bob, "secret", "replace", made.stdout.strip(), input="other\n", terminal=True)
    assert typed.exit_code == 0
    assert fairlot(bob, "secret", "delete", made.stdout.strip()).exit_code == 0


def test_the_api_is_called_with_a_query_and_a_body(scene: Scene, fairlot) -> None:
    bob = scene.people.bob
    done = fairlot(bob, "api", "get", "/api/v1/jobs", "-q", "q=supernova-next")
    assert [job["name"] for job in json.loads(done.stdout)["items"]] == ["supernova-next"]
    body = json.dumps({"spec": {"name": "raw", "command": "true"}})
    assert json.loads(fairlot(bob, "api", "POST", "jobs", "-d", "-", input=body).stdout)["name"] == "raw"
    assert fairlot(bob, "api", "POST", "jobs", "-d", "-", input="{").exit_code == 2
    assert fairlot(bob, "api", "GET", "/moons").exit_code == 4


def test_gpus_are_reserved_in_advance(scene: Scene, fairlot) -> None:
    olga = scene.people.olga
    begins = now_from_database() + timedelta(days=1)
    asked = ["reservation", "create", "lab", "bio", "--name", "course", "--gpu-type", "V100", "--gpus", 2, "--from",
             begins.isoformat(), "--until", (begins + timedelta(hours=1)).isoformat()]  # fmt: skip
    tried = fairlot(olga, *asked, "--dry-run").stdout
    assert "COST AT MOST" in tried
    assert scene.job.name in tried
    made = fairlot(olga, *asked, "-o", "name").stdout.strip()
    assert made in fairlot(scene.people.charlie, "reservation", "list", "-o", "name").stdout.split()
    assert "v100-0 (2)" in fairlot(olga, "reservation", "show", made).stdout
    assert fairlot(olga, "reservation", "cancel", made).exit_code == 0
    assert fairlot(scene.people.charlie, "reservation", "cancel", made).exit_code == 4


def test_an_admin_plans_a_price_and_takes_it_back(scene: Scene, fairlot) -> None:
    ada = scene.people.ada
    made = fairlot(
        ada, "price", "set", "V100", "2.50", "--borrowed", "1", "--from", "2100-01-01T00:00Z", "-o", "name"
    )
    price = Price.objects.get(pk=made.stdout.strip())
    assert (price.per_gpu_hour, price.borrowed, price.idle) == (Decimal("2.5"), 1, None)
    states = [one["state"] for one in json.loads(fairlot(ada, "price", "list", "-o", "json").stdout)
              if one["generation"] == "V100"]  # fmt: skip
    assert states == ["planned", "now"]
    assert fairlot(scene.people.olga, "price", "remove", price.pk).exit_code == 4
    assert fairlot(ada, "price", "remove", price.pk).exit_code == 0
    assert not Price.objects.filter(pk=price.pk).exists()
    refused = fairlot(ada, "price", "set", "", "2")
    assert "Name a GPU type." in refused.stderr
    begun = Price.objects.filter(generation__name="V100").get().pk
    assert "has begun" in fairlot(ada, "price", "remove", begun).stderr


def test_a_manager_reads_who_changed_what(scene: Scene, fairlot, monkeypatch) -> None:
    alice = scene.people.alice
    assert fairlot(alice, "team", "change", "astro", "bob", "--tickets", 7).exit_code == 0
    shown = fairlot(alice, "audit", "--object", "Astro", "--kind", "members", "--by", "alice").stdout
    assert "Changed a member" in shown
    asked: list[object] = []
    monkeypatch.setattr(
        Fairlot, "export_audit_events", lambda self, *form, **query: asked.extend([*form, query]) or b""
    )
    assert fairlot(alice, "audit", "--action", "member.change", "--export", "jsonl").exit_code == 0
    assert asked == ["audit.jsonl", {"verb": "member.change"}]
    assert fairlot(scene.people.bob, "audit").exit_code == 4


def test_an_operator_previews_sets_and_removes_an_idle_rule(scene: Scene, fairlot) -> None:
    olga = scene.people.olga
    asked = ["idle-rule", "set", "stop", "20", "--team", "astro", "--grace", "5"]
    tried = fairlot(olga, *asked, "--dry-run").stdout
    assert "with idle GPUs" in tried
    assert not IdleRule.objects.exists()
    made = fairlot(olga, *asked, "-o", "name").stdout.strip()
    listed = fairlot(olga, "idle-rule", "list").stdout
    assert "astro" in listed
    assert "20 min" in listed
    assert fairlot(olga, "idle-rule", "remove", made).exit_code == 0
    assert fairlot(scene.people.alice, *asked).exit_code == 4
