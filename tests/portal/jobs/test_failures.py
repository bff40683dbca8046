"""The page of a failed job, session or replica shows its last output and the meaning of its exit code."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from fairlot_client.cli.commands.programs import SERVICE
from portal.jobs.failure import MOST_BYTES, MOST_LINES, meaning_of, readable
from scheduling.backends.base import End, Phase
from scheduling.backends.local.files import JobFiles
from scheduling.clusters.backend_factory import backend_for
from scheduling.core.event_texts import end_text_of
from scheduling.models import Job, Lease, Service, Session
from scheduling.services.actions import change_service, roll_back_service
from scheduling.services.replicas import step_service
from scheduling.sessions.actions import start_session
from scheduling.spec.job_spec import JobSpec
from tests.portal.scene import Scene

LOG = (
    b"loading\n\x1b[31mTraceback\x1b[0m <b>\n  0%\r 50%\r100%\r\n\x1b]0;title\x07sh: 1: jupyter: not found\n"
)
LINES = ["loading", "Traceback <b>", "100%", "sh: 1: jupyter: not found"]


@given(st.binary(max_size=3 * MOST_BYTES))
def test_whatever_a_program_wrote_reads_as_few_plain_lines(data: bytes) -> None:
    lines = readable(data)
    assert len(lines) <= MOST_LINES
    assert all(char == "\t" or char.isprintable() or not char.isascii() for line in lines for char in line)


def test_colours_and_overwritten_lines_are_left_out() -> None:
    assert readable(LOG) == LINES
    assert readable("a\u202eb\u2066c\n\n".encode()) == ["abc"]
    assert readable(b"".join(b"%d\n" % number for number in range(100))) == [str(n) for n in range(80, 100)]


@pytest.mark.parametrize(
    ("code", "said"),
    [(126, "cannot run"), (127, "was not found"), (137, "memory ran out"), (139, "SIGSEGV"), (143, "SIGTERM"),
     (129, "SIGHUP"), (1, ""), (2, ""), (0, ""), (None, ""), (128, ""), (255, "")],
)  # fmt: skip
def test_exit_codes_that_mean_the_same_everywhere_are_worded(code: int | None, said: str) -> None:
    assert said in meaning_of(code)
    assert bool(meaning_of(code)) is bool(said)


@pytest.fixture
def bob(scene: Scene, jobs_folder: Path, browser_of: Any) -> Client:
    return browser_of(scene.people.bob)


def write_log(job: Job, log: bytes) -> None:
    path = JobFiles(backend_for(job.cluster).root, job.pk).log(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(log)


def fail(scene: Scene, job: Job, log: bytes, code: int = 127, end: End = End.FAILED) -> None:
    write_log(job, log)
    lease = Lease.objects.get(job=job, state__in=Lease.HOLDING)
    gone = {"end": end, "ended_age": 0.0, "exit_code": code, "message": f"exited with code {code}"}
    scene.world.see(lease, Phase.ENDED, **gone)


def test_a_failed_job_shows_its_last_lines_on_its_page_and_in_its_answer(scene: Scene, bob: Client) -> None:
    assert bob.get(f"/api/v1/jobs/{scene.job.pk}").json()["last_lines"] == []
    fail(scene, scene.job, LOG)
    shown = bob.get(f"/api/v1/jobs/{scene.job.pk}").json()
    assert (shown["state"], shown["last_lines"]) == ("failed", LINES)
    assert shown["exit_meaning"].startswith("A program was not found.")
    html = bob.get(f"/jobs/{scene.job.pk}/").content.decode()
    assert "Traceback &lt;b&gt;" in html
    assert shown["exit_meaning"] in html
    assert f"?clone={scene.job.pk}" in html


def test_a_long_log_shows_its_end_alone(scene: Scene, bob: Client) -> None:
    fail(scene, scene.job, b"x" * 100_000 + b"\n" + b"y" * 300 + b"\nlast\n", code=1)
    assert bob.get(f"/api/v1/jobs/{scene.job.pk}").json()["last_lines"] == ["y" * 300, "last"]


def test_a_removed_or_unreadable_log_does_not_break_the_page(scene: Scene, bob: Client) -> None:
    fail(scene, scene.job, b"gone\n")
    log = JobFiles(backend_for(scene.job.cluster).root, scene.job.pk).log(0)
    log.unlink()
    log.mkdir()
    assert bob.get(f"/api/v1/jobs/{scene.job.pk}").json()["last_lines"] == []
    assert bob.get(f"/jobs/{scene.job.pk}/").status_code == 200


def made_room(scene: Scene) -> None:
    gone = {"end": End.SUCCEEDED, "ended_age": 0.0, "exit_code": 0}
    scene.world.see(scene.world.lease(scene.other), Phase.ENDED, **gone)


def run(scene: Scene) -> None:
    scene.world.fill()
    scene.world.carry_out()


@pytest.mark.parametrize("kind", ["notebook", "vscode"])
def test_a_failed_session_says_why_and_begins_again_as_it_was(scene: Scene, bob: Client, kind: str) -> None:
    made_room(scene)
    people = scene.people
    spec = JobSpec(name="notes", command="exec jupyter lab", port=8888)
    where = {"actor": people.bob, "tenant": people.astro, "cluster": scene.world.cluster}
    session: Session = start_session(**where, spec=spec, kind=kind, idle_minutes=45)
    run(scene)
    fail(scene, session.job, LOG)
    html = bob.get(f"/sessions/{session.pk}/").content.decode()
    assert "jupyter: not found" in html
    assert f"/sessions/new/?again={session.pk}" in html
    assert "Retry" in html
    assert "Traceback &lt;b&gt;" in html
    shown = bob.get(f"/api/v1/sessions/{session.pk}").json()
    assert (shown["last_lines"], shown["exit_meaning"]) == (LINES, meaning_of(127))
    form = bob.get(f"/sessions/new/?again={session.pk}")
    assert f'name="kind" value="{kind}"' in form.content.decode()
    assert (form.context["draft"].fields.name, form.context["limits"].idle_minutes) == ("notes", "45")
    assert bob.get("/sessions/new/?again=0").status_code == 404


def test_a_service_shows_how_its_latest_replica_failed(scene: Scene, bob: Client) -> None:
    made_room(scene)
    service = scene.service
    assert bob.get(f"/api/v1/services/{service.pk}").json()["last_failure"] is None
    step_service(service_id=service.pk)
    run(scene)
    replica = Job.objects.filter(service=service, state=Job.State.RUNNING).earliest("pk")
    fail(scene, replica, LOG)
    told = bob.get(f"/api/v1/services/{service.pk}").json()["last_failure"]
    assert (told["name"], told["last_lines"], told["exit_meaning"]) == (replica.name, LINES, meaning_of(127))
    html = bob.get(f"/services/{service.pk}/").content.decode()
    assert "jupyter: not found" in html
    assert told["exit_meaning"] in html


@pytest.mark.parametrize("backend", ["local", "kubernetes"])
def test_what_is_not_ready_shows_its_log_and_where_it_must_listen(
    scene: Scene, bob: Client, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    made_room(scene)
    people, service = scene.people, scene.service
    change_service(actor=people.bob, service=service, replicas=1)
    spec = JobSpec(name="notes", command="serve", port=8000, readiness_path="/up")
    session: Session = start_session(
        actor=people.bob, tenant=people.astro, cluster=scene.world.cluster, spec=spec
    )
    step_service(service_id=service.pk)
    run(scene)
    replica = Job.objects.get(service=service)
    for job, log in ((replica, LOG), (session.job, b"")):
        if log:
            write_log(job, log)
        lease = scene.world.lease(job)
        facts = {"address": "127.0.0.1:23494", "why_not_ready": "port 23494: Connection refused"}
        scene.world.see(lease, Phase.RUNNING, **facts)
    if backend == "kubernetes":
        held = backend_for(scene.world.cluster)
        for module in ("portal.jobs.failure", __name__):
            monkeypatch.setattr(f"{module}.backend_for", lambda _: held)
        scene.world.cluster.backend = backend
        scene.world.cluster.save()
    where = {
        "local": "the port in the environment variable PORT (now 23494), at 127.0.0.1.",
        "kubernetes": "port 8000, which the environment variable PORT contains, at all addresses (0.0.0.0)",
    }[backend]
    shown = bob.get(f"/api/v1/services/{service.pk}").json()
    assert "not ready: port 23494: Connection refused. The program must listen on" in shown["trouble"]
    html = bob.get(f"/services/{service.pk}/").content.decode()
    assert where in html
    assert "jupyter: not found" in html
    assert f"Whole log of {replica.name}" in html
    shown = bob.get(f"/api/v1/sessions/{session.pk}").json()
    assert where in shown["sentence"]
    assert "It must answer GET /up there with a status from 200 to 399." in shown["sentence"]
    assert shown["last_lines"] == []
    html = bob.get(f"/sessions/{session.pk}/").content.decode()
    assert where in html
    assert "The log of the program is empty so far." in html
    write_log(session.job, LOG)
    assert bob.get(f"/api/v1/sessions/{session.pk}").json()["last_lines"] == LINES
    assert "jupyter: not found" in bob.get(f"/sessions/{session.pk}/").content.decode()
    facts = {"address": "127.0.0.1:23494", "ready_age": 0.0}
    for job in (replica, session.job):
        scene.world.see(scene.world.lease(job), Phase.RUNNING, **facts)
    for page in (f"/services/{service.pk}/", f"/sessions/{session.pk}/"):
        html = bob.get(page).content.decode()
        assert "jupyter: not found" not in html
        assert "must listen" not in html


def test_a_crash_loop_is_shown_also_while_its_replica_is_ready(scene: Scene, bob: Client) -> None:
    made_room(scene)
    service = scene.service
    change_service(actor=scene.people.bob, service=service, replicas=1)
    for attempt in range(4):
        step_service(service_id=service.pk)
        run(scene)
        replica = Job.objects.get(service=service, attempt=attempt + 1)
        scene.world.see(scene.world.lease(replica), Phase.RUNNING, address="127.0.0.1:9", ready_age=0.0)
        step_service(service_id=service.pk)
        if attempt < 3:
            fail(scene, replica, LOG)
            earlier = now_from_database() - timedelta(minutes=6)
            Job.objects.filter(pk=replica.pk).update(ended_at=earlier)
    shown = bob.get(f"/api/v1/services/{service.pk}").json()
    assert "Replica supernova-api-0 ended by itself 3 times within an hour" in " ".join(shown["sentences"])
    assert (shown["ready"], shown["last_failure"]["name"]) == (1, "supernova-api-0-3")
    html = bob.get(f"/services/{service.pk}/").content.decode()
    assert "1 of 1 replica is ready. Replica supernova-api-0 ended by itself 3 times within an hour" in html
    assert "jupyter: not found" in html


def test_a_replica_that_ended_without_an_error_shows_its_last_lines_too(scene: Scene, bob: Client) -> None:
    made_room(scene)
    step_service(service_id=scene.service.pk)
    run(scene)
    replica = Job.objects.filter(service=scene.service, state=Job.State.RUNNING).earliest("pk")
    fail(scene, replica, b"nothing to do\n", code=0, end=End.SUCCEEDED)
    told = bob.get(f"/api/v1/services/{scene.service.pk}").json()["last_failure"]
    assert (told["last_lines"], told["exit_meaning"]) == (["nothing to do"], "")


@pytest.mark.parametrize("crashes", [True, False])
def test_a_revision_that_was_rolled_back_shows_the_log_of_its_replica(
    scene: Scene, bob: Client, crashes: bool
) -> None:
    """A replica that was never ready shows its log as one that ended by itself does."""
    made_room(scene)
    service, people = scene.service, scene.people
    change_service(actor=people.bob, service=service, replicas=1, max_unavailable=1)

    def ready(job: Job) -> None:
        scene.world.see(scene.world.lease(job), Phase.RUNNING, address="127.0.0.1:9", ready_age=0.0)
        step_service(service_id=service.pk)

    step_service(service_id=service.pk)
    run(scene)
    good = Job.objects.get(service=service)
    ready(good)
    page, one = f"/services/{service.pk}/", f"/api/v1/services/{service.pk}"
    broken = JobSpec(name=service.name, command="broken", port=8000)
    change_service(actor=people.bob, service=service, spec=broken)
    for _ in range(2):
        step_service(service_id=service.pk)
        run(scene)
    bad = Job.objects.get(service=service, revision__number=2)
    if crashes:
        fail(scene, bad, LOG)
    else:
        write_log(bad, LOG)
    Service.objects.filter(pk=service.pk).update(progress_at=now_from_database() - timedelta(hours=1))
    step_service(service_id=service.pk)
    run(scene)
    ready(Job.objects.filter(service=service, revision__number=1).latest("pk"))
    html = bob.get(page).content.decode()
    assert "1 of 1 replica is ready" in html
    note, row = html.split('id="replicas-title"')[0], html.split('id="revision-2"')[1].split("</details>")[0]
    assert "Revision 2 failed, and the service was rolled back to revision 1" in note
    for part in (note, row):
        assert "jupyter: not found" in part
        assert f"/jobs/{bad.pk}/log/" in part
        assert ("ended by itself: exited with code 127" in part) is crashes
        assert ("never became ready" in part) is not crashes
    assert "Try revision 2 again" in row
    shown = bob.get(one).json()
    assert shown["last_failure"] | {"ended_at": None} == {
        "job_id": bad.pk,
        "name": bad.name,
        "revision": 2,
        "ended_at": None,
        "end_message": end_text_of(Job.objects.get(pk=bad.pk)),
        "exit_meaning": meaning_of(127) if crashes else "",
        "last_lines": LINES,
    }
    assert [one["failed_job_id"] for one in shown["revisions"]] == [bad.pk, None]
    lines = dict(SERVICE)["last failure"](shown)  # fairlot service show
    assert lines.splitlines()[0].startswith(f"job {bad.pk} {bad.name}, revision 2: ")
    assert lines.splitlines()[1:] == LINES
    assert dict(SERVICE)["last failure"](shown | {"last_failure": None}) == ""

    change_service(actor=people.bob, service=service, spec=broken.model_copy(update={"command": "better"}))
    html = bob.get(page).content.decode()
    assert "was rolled back" not in html.split('id="replicas-title"')[0], "another rollout began"
    assert "jupyter: not found" in html.split('id="revision-2"')[1], "its row still says why"
    roll_back_service(actor=people.bob, service=service, number=1)
    html = bob.get(page).content.decode()
    assert "Use revision 3" in html
    assert "Roll back to revision" not in html
    said = bob.post(f"{page}rollback/", {"revision": "3"}, follow=True).content.decode()
    assert "changes to revision 3" in said
    assert "bob changed the service from revision 1 to 3" in said
    assert "Roll back to revision 1" in said


def test_others_see_nothing_of_it(scene: Scene, bob: Client, browser_of: Any) -> None:
    fail(scene, scene.job, LOG)
    assert browser_of(scene.people.charlie).get(f"/api/v1/jobs/{scene.job.pk}").status_code == 404
