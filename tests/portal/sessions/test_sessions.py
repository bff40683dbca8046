"""Users start, open, prolong and stop sessions on pages and in the API."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounting.core.clock import now_from_database
from accounting.models import Membership, User
from portal.models import Scope
from portal.sessions.visits import Admitted, Barred, admit, enter, invite
from portal.tokens.actions import create_token
from scheduling.backends.base import Phase
from scheduling.jobs.secrets import create_secret
from scheduling.models import Job, Lease, Session
from scheduling.sessions.actions import note_use, start_session, stop_session
from scheduling.spec.job_spec import JobSpec
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db

Browser = Callable[[User], Client]


@pytest.fixture
def lab() -> World:
    return world(v100=4)


def begin(lab: World, name: str = "notes", **fields: Any) -> Session:
    return start_session(
        actor=lab.people.bob,
        tenant=lab.people.astro,
        cluster=lab.cluster,
        spec=JobSpec(name=name, command="serve", port=8000, **fields),
    )


def make_ready(lab: World, session: Session) -> None:
    lab.fill()
    lab.carry_out()
    Lease.objects.filter(job=session.job).update(ready_since=now_from_database(), address="127.0.0.1:9")


def test_the_form_begins_a_notebook_and_leads_to_its_page(lab: World, browser_of: Browser) -> None:
    browser = browser_of(lab.people.bob)
    page = browser.get(reverse("session_new"))
    assert "exec jupyter lab" in page.content.decode()
    assert "--ip=127.0.0.1" in page.content.decode(), "on this machine for this machine alone"
    fields = page.context["draft"].fields
    form = {
        "name": "my notes", "command": fields.command, "port": fields.port, "idle_minutes": "30",
        "longest_hours": "4", "yaml": page.context["draft"].yaml, "agreed": page.context["draft"].agreed,
        "tenant": str(lab.people.astro.pk), "request_key": "once",
    }  # fmt: skip
    wrong = browser.post(reverse("session_new"), form | {"idle_minutes": "soon", "workers": "2"})
    assert wrong.status_code == 422
    assert set(wrong.context["limits"].problems) == {"idle_minutes"}
    assert "workers" in wrong.context["draft"].problems
    for _ in range(2):
        sent = browser.post(reverse("session_new"), form)
        session = Session.objects.get()
        assert sent.url == reverse("session", args=[session.pk])
    assert (session.idle_minutes, session.longest_hours, session.job.name) == (30, 4, "my notes")
    assert "my notes" in browser.get(reverse("sessions")).content.decode()
    assert "my notes" not in browser_of(lab.people.charlie).get(reverse("sessions")).content.decode()


def test_without_jupyter_the_form_says_so_and_offers_what_is_there(
    lab: World, browser_of: Browser, settings: LazySettings
) -> None:
    settings.FAIRLOT_ENVIRONMENTS = {"python": "/usr/bin:/bin"}
    page = browser_of(lab.people.bob).get(reverse("session_new"))
    assert "JupyterLab is not installed for jobs on the machine that runs Fairlot" in page.content.decode()
    assert "python -m http.server" in page.context["draft"].fields.command


def test_the_form_offers_vs_code_and_refuses_it_where_it_is_not_installed(
    lab: World, browser_of: Browser
) -> None:
    browser = browser_of(lab.people.bob)
    page = browser.get(reverse("session_new"), {"kind": "vscode"})
    draft = page.context["draft"]
    assert "exec code-server" in draft.fields.command
    assert 'value="vscode"' in page.content.decode()
    assert "VS Code is not installed for jobs on the machine" in page.content.decode(), (
        "before it is submitted"
    )
    notebook = browser.get(reverse("session_new")).content.decode()
    assert "VS Code (not installed)" in notebook
    assert "VS Code is not installed" not in notebook
    form = {
        "name": "code", "command": draft.fields.command, "port": "8888", "idle_minutes": "60", "longest_hours": "4",
        "yaml": draft.yaml, "agreed": draft.agreed, "request_key": "k", "tenant": str(lab.people.astro.pk),
        "kind": "vscode",
    }  # fmt: skip
    sent = browser.post(reverse("session_new"), form)
    assert sent.status_code == 422
    refused = (
        "code-server is not installed in the default environment. No environment of this cluster has it."
    )
    assert refused in sent.context["draft"].problems["command"]
    browser.post(reverse("session_new"), form | {"command": "exec sh -c 'exit 3'"})
    session = Session.objects.get()
    assert session.kind == "vscode"
    again = browser.get(reverse("session_new"), {"again": session.pk})
    assert 'value="vscode"' in again.content.decode(), "Retry keeps the kind"


def test_the_form_names_the_environment_that_has_vs_code(
    lab: World, browser_of: Browser, settings: LazySettings, tmp_path: Path
) -> None:
    browser = browser_of(lab.people.bob)
    settings.FAIRLOT_ENVIRONMENTS = {"python": "/usr/bin", "editors": str(tmp_path)}
    program = tmp_path / "openvscode-server"
    program.touch(mode=0o755)
    page = browser.get(reverse("session_new"), {"kind": "vscode"})
    draft = page.context["draft"]
    assert "VS Code is not installed in this environment. Choose the environment <strong>editors" in (
        page.content.decode()
    )
    assert "exec openvscode-server" in draft.fields.command
    form = {
        "name": "code", "command": draft.fields.command, "port": "8888", "idle_minutes": "60", "longest_hours": "4",
        "yaml": draft.yaml, "agreed": draft.agreed, "request_key": "k", "tenant": str(lab.people.astro.pk),
        "kind": "vscode",
    }  # fmt: skip
    refused = browser.post(reverse("session_new"), form).context["draft"].problems["command"]
    assert "Choose the environment editors, which has it" in refused
    assert browser.post(reverse("session_new"), form | {"environment": "editors"}).status_code == 302
    program.rename(tmp_path / "code-server")
    settings.FAIRLOT_ENVIRONMENTS = {"editors": str(tmp_path), "python": "/usr/bin"}
    page = browser.get(reverse("session_new"), {"kind": "vscode"})
    assert "exec code-server" in page.context["draft"].fields.command
    assert "VS Code is not installed" not in page.content.decode()


def test_where_images_decide_the_form_says_so(lab: World, browser_of: Browser) -> None:
    lab.cluster.backend = "kubernetes"
    lab.cluster.save()
    html = browser_of(lab.people.bob).get(reverse("session_new"), {"kind": "vscode"}).content.decode()
    assert "The image that you choose must contain openvscode-server or code-server" in html
    assert "not installed" not in html


def test_a_session_without_a_command_gets_that_of_its_kind(lab: World) -> None:
    _, token = create_token(actor=lab.people.bob, name="t", scopes=Scope.values, days=1)

    def post(**fields: object) -> tuple[int, dict[str, Any]]:
        body = {"spec": {}, "even_if_never": True} | fields
        answer = Client().post(
            "/api/v1/sessions",
            json.dumps(body),
            content_type="application/json",
            HTTP_AUTHORIZATION=f"Bearer {token}",
        )
        return answer.status_code, answer.json()

    status, made = post(kind="vscode", spec={"name": "mine", "gpus_per_worker": 1})
    assert (status, made["kind"], made["name"]) == (201, "vscode", "mine")
    spec = Job.objects.get(pk=made["id"]).spec
    assert (spec["port"], "code-server" in spec["command"]) == (8888, True)
    status, made = post()
    assert (status, made["kind"], made["name"]) == (201, "notebook", "notebook")
    assert "jupyter lab" in Job.objects.get(pk=made["id"]).spec["command"]
    assert post(kind="terminal")[0] == 422


def test_a_command_without_its_program_is_refused_at_its_field(lab: World, browser_of: Browser) -> None:
    browser = browser_of(lab.people.bob)
    page = browser.get(reverse("session_new"))
    assert "JupyterLab is not installed" not in page.content.decode()
    form = {
        "name": "n",
        "command": "exec no-such-lab",
        "port": "8888",
        "idle_minutes": "60",
        "longest_hours": "4",
    }
    form |= {"yaml": page.context["draft"].yaml, "agreed": page.context["draft"].agreed, "request_key": "k"}
    sent = browser.post(reverse("session_new"), form | {"tenant": str(lab.people.astro.pk)})
    assert sent.status_code == 422
    assert "no-such-lab is not installed" in sent.context["draft"].problems["command"]
    assert not Session.objects.exists()


def test_the_form_has_no_field_for_the_one_worker_unless_the_yaml_asks_for_more(
    lab: World, browser_of: Browser
) -> None:
    browser = browser_of(lab.people.bob)
    html = browser.get(reverse("session_new")).content.decode()
    assert '<label for="workers">' not in html
    assert '<label for="gpus_per_worker">GPUs</label>' in html
    edited = {"page": "session", "yaml": "name: n\ncommand: serve\nport: 8000\n", "agreed": ""}
    convert = f"{reverse('convert_spec')}?from=yaml"
    assert '<label for="workers">' not in browser.post(convert, edited).content.decode()
    edited["yaml"] += "workers: 2\n"
    assert '<label for="workers">' in browser.post(convert, edited).content.decode()


def test_the_job_page_of_a_session_speaks_of_its_port_and_of_no_steps(
    lab: World, browser_of: Browser
) -> None:
    session = begin(lab)
    lab.fill()
    lab.carry_out()
    lease, page = lab.lease(session.job), reverse("job", args=[session.pk])
    lab.see(lease, Phase.RUNNING, address="127.0.0.1:20009", why_not_ready="port 20009: Connection refused")
    html = browser_of(lab.people.bob).get(page).content.decode()
    assert "The program is not ready: port 20009: Connection refused. The program must listen on" in html
    for words in ("Speed by GPU type", ">Progress<", "reports no progress"):
        assert words not in html
    Job.objects.filter(pk=session.pk).update(steps_done=7)
    html = browser_of(lab.people.bob).get(page).content.decode()
    assert "7 completed steps" in html
    assert ">Progress<" in html


def test_the_page_leads_in_warns_keeps_and_stops(lab: World, browser_of: Browser) -> None:
    session = begin(lab)
    browser = browser_of(lab.people.bob)
    page = reverse("session", args=[session.pk])
    door = reverse("session_open", args=[session.pk])
    assert door not in browser.get(page).content.decode(), "it only waits"
    make_ready(lab, session)
    assert door in browser.get(page).content.decode()
    assert "Keep session running" not in browser.get(page).content.decode()
    now = now_from_database()
    Lease.objects.filter(job=session.job).update(running_from=now - timedelta(minutes=55))
    Session.objects.update(warned_at=now)
    assert "Keep session running" in browser.get(page).content.decode()
    assert browser.post(reverse("session_keep", args=[session.pk])).url == page
    assert "Keep session running" not in browser.get(page).content.decode()
    assert browser.post(reverse("session_stop", args=[session.pk])).url == page
    assert Job.objects.get(pk=session.pk).state == Job.State.CANCELLING
    lab.carry_out()
    assert "The session has ended. Stopped by bob" in browser.get(page).content.decode()
    assert browser.get(door).url == page
    failed = {"state": Job.State.FAILED, "end_code": "", "end_detail": {}}
    for code, message, meaning in (
        (3, "exited with code 3", "The last lines of its log say why."),
        (127, "exited with code 127", "A program was not found."),
    ):
        Job.objects.filter(pk=session.pk).update(exit_code=code, end_message=message, **failed)
        shown = browser.get(page).content.decode()
        assert f"The session has ended. Its program {message}. {meaning}" in shown


def test_a_viewer_sees_it_and_may_do_nothing_with_it(lab: World, browser_of: Browser) -> None:
    session = begin(lab)
    make_ready(lab, session)
    Membership.objects.create(user=lab.people.charlie, tenant=lab.people.astro, role=Membership.Role.VIEWER)
    browser = browser_of(lab.people.charlie)
    shown = browser.get(reverse("session", args=[session.pk])).content.decode()
    assert "may open this session" in shown
    assert reverse("session_open", args=[session.pk]) not in shown
    assert reverse("session_stop", args=[session.pk]) not in shown
    assert browser.get(reverse("session_open", args=[session.pk])).status_code == 403
    for name in ("session_keep", "session_stop"):
        browser.post(reverse(name, args=[session.pk]))
    session.refresh_from_db()
    assert session.used_at is None
    assert Job.objects.get(pk=session.pk).state == Job.State.RUNNING


def test_without_host_names_the_page_says_whom_to_ask(
    lab: World, browser_of: Browser, settings: LazySettings
) -> None:
    settings.FAIRLOT_SESSIONS_URL = ""
    session = begin(lab)
    make_ready(lab, session)
    page = reverse("session", args=[session.pk])
    browser = browser_of(lab.people.bob)
    assert "FAIRLOT_SESSIONS_URL" in browser.get(page).content.decode()
    assert browser.get(reverse("session_open", args=[session.pk])).url == page


def test_the_list_asks_as_little_for_many_as_for_one(
    lab: World, browser_of: Browser, django_assert_num_queries: Callable[..., object]
) -> None:
    begin(lab)
    browser = browser_of(lab.people.bob)
    with CaptureQueriesContext(connection) as first:
        browser.get(reverse("sessions"))
    for number in range(5):
        begin(lab, f"more-{number}")
    with django_assert_num_queries(len(first)):
        browser.get(reverse("sessions"))


def test_a_user_who_has_to_sign_in_first_reaches_the_sessions_page(lab: World) -> None:
    session = begin(lab)
    sent = Client().get(reverse("session_open", args=[session.pk]))
    assert sent.url == f"{reverse('login')}?next={reverse('session', args=[session.pk])}"


def test_programs_of_fairlots_own_user_serve_this_machine_only(
    lab: World, browser_of: Browser, settings: LazySettings
) -> None:
    session = begin(lab)
    make_ready(lab, session)
    login = browser_of(lab.people.bob).session.session_key
    ticket = invite(actor=lab.people.bob, session=session, login=login)
    key = enter(session_id=session.pk, ticket=ticket)
    assert key is not None

    def from_(*, is_local: bool) -> object:
        return admit(session_id=session.pk, key=key, is_local=is_local)

    assert isinstance(from_(is_local=True), Admitted)
    assert from_(is_local=False) is Barred.ELSEWHERE
    settings.FAIRLOT_LOCAL_BEYOND_LOOPBACK = True
    assert isinstance(from_(is_local=False), Admitted)


def test_a_session_with_secrets_of_its_owner_opens_to_nobody_else(lab: World, browser_of: Browser) -> None:
    people = lab.people
    create_secret(actor=people.bob, name="mine", values={"value": "x"})
    plain, with_secrets = begin(lab), begin(lab, secrets={"TOKEN": "mine"})
    for session in (plain, with_secrets):
        make_ready(lab, session)

    def sees(user: User, session: Session) -> tuple[bool, int]:
        browser = browser_of(user)
        door = reverse("session_open", args=[session.pk])
        page = browser.get(reverse("session", args=[session.pk])).content.decode()
        return door in page, browser.get(door).status_code

    assert sees(people.alice, plain) == (True, 302)
    assert sees(people.alice, with_secrets) == (False, 403)
    assert sees(people.bob, with_secrets) == (True, 302)
    assert sees(people.olga, plain) == (False, 403)
    stop_session(actor=people.alice, session=with_secrets)
    with_secrets.job.refresh_from_db()
    assert with_secrets.job.state == Job.State.CANCELLING


def test_who_loses_the_right_to_a_session_is_not_admitted_any_more(lab: World, browser_of: Browser) -> None:
    people = lab.people
    session = begin(lab)
    make_ready(lab, session)
    login = browser_of(people.alice).session.session_key
    key = enter(session_id=session.pk, ticket=invite(actor=people.alice, session=session, login=login))
    assert key is not None
    assert isinstance(admit(session_id=session.pk, key=key, is_local=True), Admitted)
    Membership.objects.filter(user=people.alice).update(role=Membership.Role.MEMBER)
    assert admit(session_id=session.pk, key=key, is_local=True) is Barred.HIDDEN


def test_the_api_begins_lists_keeps_and_stops(lab: World) -> None:
    _, token = create_token(actor=lab.people.bob, name="t", scopes=Scope.values, days=1)
    _, strangers = create_token(actor=lab.people.charlie, name="t", scopes=Scope.values, days=1)
    bob, charlie = ({"HTTP_AUTHORIZATION": f"Bearer {text}"} for text in (token, strangers))
    client = Client()
    spec = {"name": "notes", "command": "python serve.py", "port": 8000}

    def post(path: str, body: object) -> tuple[int, dict[str, object]]:
        answer = client.post(path, json.dumps(body), content_type="application/json", **bob)
        return answer.status_code, answer.json()

    status, made = post("/api/v1/sessions", {"spec": spec, "idle_timeout_minutes": 30})
    assert (status, made["state"], made["idle_timeout_minutes"], made["ready"]) == (201, "queued", 30, False)
    status, _ = post("/api/v1/sessions", {"spec": spec | {"workers": 2}})
    assert status == 422
    session = Session.objects.get()
    make_ready(lab, session)
    one = f"/api/v1/sessions/{session.pk}"
    shown = client.get(one, **bob).json()
    assert shown["ready"] is True
    assert shown["idle_ends_at"] is not None
    assert [item["id"] for item in client.get("/api/v1/sessions", **bob).json()["items"]] == [session.pk]
    assert client.get("/api/v1/sessions", **charlie).json()["items"] == []
    assert client.post(f"{one}/keep", **charlie).status_code == 404
    assert client.delete(one, **charlie).status_code == 404
    note_use(session_id=session.pk)
    assert post(f"{one}/keep", {})[0] == 200
    assert client.delete(one, **bob).status_code == 204
    assert client.delete(one, **bob).status_code == 204
    assert Job.objects.get(pk=session.pk).state == Job.State.CANCELLING
