"""Terminals through the portal: real shells in a real job, reached over the portal's WebSocket."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings, settings
from django.db.models import F
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from accounting.actions import change_membership
from accounting.models import AuditEvent, Membership, User
from portal.models import Scope
from portal.terminals import sockets, talk
from portal.tokens.actions import create_token
from scheduling.backends.kubernetes.terminals import elsewhere
from scheduling.execution.operations import perform_operations
from scheduling.execution.reconcile import observe
from scheduling.jobs.submitting import submit_job
from scheduling.models import Job, Terminal
from scheduling.spec.job_spec import JobSpec
from scheduling.tasks import close_terminals
from scheduling.terminals import actions
from tests.portal.sessions.test_proxy import lab, port, signed_in  # noqa: F401 - fixtures
from tests.scheduling.world import World
from tests.waiting import PATIENCE, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


class Line:
    """A client at a terminal."""

    def __init__(self, link: ClientConnection) -> None:
        self.link = link
        self.shown = ""
        self.told: list[dict[str, Any]] = []
        self.pings = 0
        self.closed: int | None = None

    def read(self, seconds: float = 0.05) -> None:
        try:
            message = self.link.recv(timeout=seconds)
        except TimeoutError:
            return
        except ConnectionClosed:
            self.closed = self.link.close_code
            return
        if isinstance(message, bytes):
            self.shown += message.decode(errors="replace")
            with suppress(ConnectionClosed):  # there may be more messages from before
                self.link.send(json.dumps({"read": len(message)}))
        elif "ping" in (told := json.loads(message)):
            self.pings += 1
            with suppress(ConnectionClosed):  # as above
                self.link.send(json.dumps({"pong": told["ping"]}))
        else:
            self.told.append(told)

    def type(self, keys: str) -> None:
        self.link.send(keys.encode())

    def wait_for(self, pattern: str) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            self.read()
            assert self.closed is None, (self.shown, self.told)
            return re.search(pattern, self.shown)

        match = wait_for(found, what=lambda: f"{pattern!r}; shown: {self.shown!r}")
        assert match is not None
        return match

    def key(self) -> str:
        """Waits until the terminal is open, and returns its key."""
        wait_for(lambda: self.read() or self.told, what="the first message")
        return str(self.told[0]["terminal"])

    def refusal(self) -> str:
        self.until_closed()
        return str(self.told[0]["refused"])

    def until_closed(self) -> dict[str, Any]:
        wait_for(lambda: self.read() or self.closed is not None, what=lambda: f"the end; {self.told}")
        return self.told[-1]


def cookie_of(user: User) -> str:
    name = settings.SESSION_COOKIE_NAME
    return f"{name}={signed_in(user).cookies[name].value}"


class Desk:
    """Opens terminals in Bob's job, as browsers and programs do."""

    def __init__(self, lab: World, port: int, job: Job) -> None:  # noqa: F811
        self.lab, self.port, self.job = lab, port, job
        self.lines: list[Line] = []
        self.stack = ExitStack()

    def open(
        self,
        user: User | None,
        *,
        origin: str = "",
        token: str = "",
        host: str = "127.0.0.1",
        **asked: object,
    ) -> Line:
        headers = {}
        if user is not None:
            headers["Cookie"] = cookie_of(user)
        if token:
            headers["Authorization"] = f"Bearer {token}"
        query = "&".join(f"{name}={value}" for name, value in asked.items())
        opening = connect(
            f"ws://{host}:{self.port}/jobs/{self.job.pk}/terminal/socket?{query}",
            sock=socket.create_connection(("127.0.0.1", self.port)),
            additional_headers=headers,
            origin=None if token else origin or f"http://127.0.0.1:{self.port}",  # type: ignore[arg-type]
            max_size=None,
            open_timeout=PATIENCE,
        )
        self.lines.append(Line(self.stack.enter_context(opening)))
        return self.lines[-1]

    def is_refused(self, user: User | None, **more: Any) -> bool:
        try:
            self.open(user, **more)
        except InvalidStatus as refused:
            return refused.response.status_code == 403
        return False


@pytest.fixture
def job(lab: World) -> Job:  # noqa: F811
    return running(lab, "echo up; exec sleep 600")


def running(lab: World, command: str) -> Job:  # noqa: F811
    spec = JobSpec(name="long", command=command, gpus_per_worker=1, checkpoint_grace_seconds=1)
    job = submit_job(actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=spec)

    def runs() -> bool:
        lab.fill()
        perform_operations(cluster=lab.cluster, log_limit_bytes=10_000_000)
        observe(lab.cluster)
        job.refresh_from_db()
        return job.state == Job.State.RUNNING

    wait_for(runs, what=lambda: f"running; {job.state}")
    return job


@pytest.fixture
def desk(lab: World, port: int, job: Job) -> Iterator[Desk]:  # noqa: F811
    made = Desk(lab, port, job)
    yield made
    for line in made.lines:
        with suppress(OSError):
            line.link.socket.shutdown(2)
    made.stack.close()


def events(verb: str) -> list[dict[str, Any]]:
    return [
        {"actor": one.actor_name, "target": one.target_id, "team": one.tenant_id} | one.after
        for one in AuditEvent.objects.filter(verb=verb).order_by("pk")
    ]


def test_the_owner_and_a_manager_open_terminals_and_the_audit_trail_says_so(desk: Desk) -> None:
    people, number = desk.lab.people, str(desk.job.pk)
    line = desk.open(people.bob, rows=31, columns=99)
    line.key()
    line.type("stty size; echo $FAIRLOT_JOB_ID.\n")
    line.wait_for(rf"31 99\s+{number}\.")
    line.link.send(json.dumps({"size": [20, 50]}))
    line.type("stty size\n")
    line.wait_for("20 50")
    line.type("exit 3\n")
    assert line.until_closed() == {"ended": "the shell ended", "code": 3}
    known = {"actor": "bob", "target": number, "team": people.astro.pk, "worker": 0, "from": "127.0.0.1"}
    assert events("terminal.open") == [known]
    wait_for(lambda: events("terminal.close"), what="the event of the end")
    (closed,) = events("terminal.close")
    assert closed.pop("seconds") >= 0
    assert closed == known | {"reason": "the shell ended"}
    assert "stty" not in json.dumps(closed), "what was typed is not recorded"
    desk.open(people.alice).key()
    assert events("terminal.open")[-1]["actor"] == "alice"


def test_others_are_refused_and_may_not_even_know_that_the_job_exists(
    desk: Desk, settings: LazySettings
) -> None:
    people = desk.lab.people
    assert desk.is_refused(people.charlie)
    assert desk.is_refused(None)
    assert desk.open(people.olga).refusal().startswith("Only the owner and managers")
    assert desk.open(people.ada).refusal().startswith("Only the owner and managers")
    settings.FAIRLOT_TERMINALS_FOR_OPERATORS = True
    desk.open(people.olga).key()
    assert not events("terminal.close")
    member = Membership.objects.get(user=people.bob)
    change_membership(actor=people.alice, membership=member, role=Membership.Role.VIEWER)
    assert desk.open(people.bob).refusal().startswith("Only the owner and managers")


def test_a_page_of_another_site_gets_no_terminal(desk: Desk) -> None:
    bob = desk.lab.people.bob
    for origin in (
        "http://evil.example", f"http://127.0.0.1:{desk.port + 1}", f"http://session-1.localhost:{desk.port}", "null",
    ):  # fmt: skip
        assert desk.is_refused(bob, origin=origin)
    # DNS rebinding: the attacker's name leads here, and its page is of that name.
    assert desk.is_refused(bob, origin=f"http://evil.example:{desk.port}", host="evil.example")
    assert not Terminal.objects.exists()


def test_a_token_needs_the_scope_to_work(desk: Desk) -> None:
    bob = desk.lab.people.bob
    _, reads = create_token(actor=bob, name="reads", scopes=[], days=1)
    assert desk.is_refused(None, token=reads)
    assert desk.is_refused(None, token="fairlot_000000000000_wrong")
    _, works = create_token(actor=bob, name="works", scopes=[Scope.WORK], days=1)
    desk.open(None, token=works).key()


def test_a_member_who_is_removed_loses_the_open_terminal_and_its_shell(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talk, "CHECK_SECONDS", 0.2)
    people = desk.lab.people
    line = desk.open(people.bob)
    key = line.key()
    line.type("echo $$.\n")
    line.wait_for(r"\d+\.")
    member = Membership.objects.get(user=people.bob)
    change_membership(actor=people.alice, membership=member, role=Membership.Role.VIEWER)
    assert line.until_closed()["ended"] == "no longer allowed"
    assert line.closed == 1008
    wait_for(lambda: events("terminal.close"), what="the event of the end")
    change_membership(
        actor=people.alice, membership=Membership.objects.get(user=people.bob), role=Membership.Role.MEMBER
    )
    assert desk.open(people.bob, terminal=key).refusal() == "The terminal has ended."


def test_a_logout_and_an_idle_user_end_it_too(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, settings: LazySettings
) -> None:
    monkeypatch.setattr(talk, "CHECK_SECONDS", 0.2)
    line = desk.open(desk.lab.people.bob)
    line.key()
    from django.contrib.sessions.models import Session  # noqa: PLC0415

    Session.objects.all().delete()
    assert line.until_closed()["ended"] == "no longer allowed"
    settings.FAIRLOT_TERMINAL_IDLE_MINUTES = 0.01
    assert desk.open(desk.lab.people.bob).until_closed()["ended"] == "nothing was typed for too long"


def test_a_connection_that_dies_finds_its_shell_again_and_nobody_elses(desk: Desk) -> None:
    people = desk.lab.people
    line = desk.open(people.bob)
    key = line.key()
    line.type("mark=kept\n")
    line.wait_for("mark=kept")
    line.link.socket.shutdown(2)
    assert desk.open(people.alice, terminal=key).refusal() == "The terminal has ended."
    again = desk.open(people.bob, terminal=key)
    assert again.key() == key
    assert again.told[0]["new"] is False
    again.type("echo $mark.\n")
    again.wait_for(r"kept\.")
    thief = desk.open(people.bob, terminal=key)
    thief.key()
    assert again.until_closed()["ended"] == "opened elsewhere"
    assert len(events("terminal.open")) == 1
    assert not events("terminal.close")


def test_a_client_that_vanished_loses_its_connection_and_finds_its_shell_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 2 * talk.PING_SECONDS < 60
    monkeypatch.setattr(talk, "PING_SECONDS", 0.2)
    bob = desk.lab.people.bob
    asks_for_none = desk.open(bob)
    asks_for_none.key()
    line = desk.open(bob, pings=1)
    key = line.key()
    wait_for(lambda: line.read() or line.pings > 3, what="pings")
    line.type("mark=kept\n")
    line.wait_for("mark=kept")

    def only_listen() -> None:  # as if the client's answers were lost
        while True:
            line.link.recv(timeout=PATIENCE)

    with pytest.raises(ConnectionClosed):
        only_listen()
    again = desk.open(bob, terminal=key, pings=1)
    again.key()
    again.type("echo $mark.\n")
    again.wait_for(r"kept\.")
    asks_for_none.type("echo st''ays\n")
    asks_for_none.wait_for("stays")
    assert asks_for_none.pings == 0
    assert not events("terminal.close")


def test_terminals_of_a_job_and_openings_of_a_user_are_limited(desk: Desk, settings: LazySettings) -> None:
    bob = desk.lab.people.bob
    settings.FAIRLOT_TERMINALS_PER_JOB = 2
    for _ in range(2):
        desk.open(bob).key()
    assert "has 2 open terminals" in desk.open(bob).refusal()
    settings.FAIRLOT_TERMINALS_PER_JOB = 100
    for _ in range(actions.MOST_OPENED - 2):
        terminal = actions.open_terminal(actor=bob, job=desk.job, worker=0, origin="")
        actions.close_terminal(terminal=terminal.pk, reason="a test")
    assert f"You opened {actions.MOST_OPENED} terminals" in desk.open(bob).refusal()
    assert len(events("terminal.open")) == actions.MOST_OPENED


def test_a_flood_of_output_waits_until_the_client_has_shown_it(desk: Desk) -> None:
    line = desk.open(desk.lab.people.bob)
    line.key()
    line.type("echo sta''rt; yes 0123456789abcdef\n")
    line.wait_for("start")
    got = 0
    with suppress(TimeoutError):  # it comes to rest, although `yes` never does
        while True:
            got += len(line.link.recv(timeout=3))
            assert got <= talk.MOST_UNREAD + talk.CHUNK
    assert got > talk.MOST_UNREAD / 2
    line.type("\x03")
    line.link.send(json.dumps({"read": got}))
    line.type("echo en''d\n")
    line.wait_for("end")


def test_a_client_that_reads_nothing_loses_its_terminal_all_the_same(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def say_nothing(_: talk.Talk) -> None:
        await asyncio.Event().wait()  # as sending does once the client's buffers are full

    monkeypatch.setattr(talk, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(sockets, "GOODBYE_SECONDS", 0.2)
    monkeypatch.setattr(talk.Talk, "say_goodbye", say_nothing)
    desk.open(desk.lab.people.bob).key()
    member = Membership.objects.get(user=desk.lab.people.bob)
    change_membership(actor=desk.lab.people.alice, membership=member, role=Membership.Role.VIEWER)
    wait_for(lambda: events("terminal.close"), what="the event of the end")
    assert events("terminal.close")[0]["reason"] == "no longer allowed"


def test_a_text_that_makes_no_sense_harms_nobody(desk: Desk) -> None:
    line = desk.open(desk.lab.people.bob)
    line.key()
    for text in (
        "[" * 100_000,
        "{}" * 1_000_000,
        "5",
        '{"size": [1e999, 1]}',
        '{"read": []}',
        '{"size": [0, -5]}',
    ):
        line.link.send(text)
    line.type("echo still he''re\n")
    line.wait_for("still here")


def test_a_terminal_ends_with_its_job(desk: Desk) -> None:
    line = desk.open(desk.lab.people.bob)
    line.key()
    line.type("trap '' HUP TERM\n")
    signed_in(desk.lab.people.bob).post(reverse("job_cancel", args=[desk.job.pk]))
    perform_operations(cluster=desk.lab.cluster, log_limit_bytes=10_000_000)
    assert line.until_closed()["ended"] in {"the shell ended", "the job ended"}

    def ended() -> bool:
        observe(desk.lab.cluster)
        desk.job.refresh_from_db()
        return desk.job.has_ended

    wait_for(ended, what="the end of the job")
    assert desk.open(desk.lab.people.bob).refusal() == "The job is not running."


def test_a_terminal_whose_web_process_died_is_noted_as_ended_when_it_was_last_seen(desk: Desk) -> None:
    bob = desk.lab.people.bob
    lost = actions.open_terminal(actor=bob, job=desk.job, worker=0, origin="192.0.2.7")
    kept = actions.open_terminal(actor=bob, job=desk.job, worker=0, origin="192.0.2.7")
    hour = timedelta(hours=1)
    Terminal.objects.filter(pk=lost.pk).update(
        opened_at=F("opened_at") - hour, seen_at=F("seen_at") - hour / 2
    )
    for _ in range(2):
        close_terminals()
    (closed,) = events("terminal.close")
    assert closed["reason"] == "the connection was lost"
    assert 1790 <= closed["seconds"] <= 1810
    assert list(Terminal.objects.open()) == [kept]
    Terminal.objects.filter(pk=lost.pk).update(closed_at=F("closed_at") - timedelta(days=2))
    close_terminals()
    assert list(Terminal.objects.all()) == [kept]


def test_the_page_has_the_terminal_for_those_who_may_open_it(desk: Desk) -> None:
    people, address = desk.lab.people, reverse("job_terminal", args=[desk.job.pk])
    actions.open_terminal(actor=people.alice, job=desk.job, worker=0, origin="")
    page = signed_in(people.bob).get(address)
    assert 'data-terminal="' in page.content.decode()
    (row,) = page.context["shells"]
    assert (row.terminal.user, row.is_own, row.is_attached, row.may_end) == (people.alice, False, True, True)
    policy = page.headers["Content-Security-Policy"]
    nonce = re.search(r'data-nonce="([^"]+)"', page.content.decode())
    assert nonce is not None
    assert f"'nonce-{nonce[1]}'" in policy
    assert "script-src 'self'; " in policy
    assert "unsafe-inline" not in policy.replace("style-src-attr 'unsafe-inline'", "")
    assert "No terminal for you here" in signed_in(people.olga).get(address).content.decode()
    assert signed_in(people.charlie).get(address).status_code == 404


def test_a_visit_comes_back_to_the_shell_that_waits_and_shows_what_it_printed(desk: Desk) -> None:
    bob, address = desk.lab.people.bob, reverse("job_terminal", args=[desk.job.pk])
    browser = signed_in(bob)
    assert browser.get(address).context["own"] is None
    line = desk.open(bob, earlier=1)
    key = line.key()
    assert "earlier" not in line.told[0]
    line.type("echo bef''ore\n")
    line.wait_for("before")
    elsewhere = browser.get(address)
    assert "data-elsewhere" in elsewhere.content.decode(), "a second tab takes nothing away"
    line.link.close()
    wait_for(
        lambda: Terminal.objects.filter(left_at__isnull=False).exists(), what="the note that it was left"
    )
    page = browser.get(address)
    assert f'data-shell="{key}"' in page.content.decode()
    assert "data-elsewhere" not in page.content.decode()
    again = desk.open(bob, terminal=key, earlier=1)
    assert again.key() == key
    assert again.told[0]["earlier"] > 0
    again.wait_for("before")
    assert Terminal.objects.get().left_at is None
    plain = desk.open(bob, terminal=key)
    plain.key()
    assert "earlier" not in plain.told[0], "a client that does not ask for it"
    assert len(events("terminal.open")) == 1


def test_a_manager_sees_who_has_a_shell_and_ends_it_and_the_trail_says_so(desk: Desk) -> None:
    people, number = desk.lab.people, desk.job.pk
    line = desk.open(people.bob)
    key = line.key()
    address = reverse("job_terminal_end", args=[number, key])
    assert signed_in(people.charlie).post(address).status_code == 404
    assert signed_in(people.charlie).get(f"/api/v1/jobs/{number}/terminals").status_code == 404
    seen = signed_in(people.olga).get(reverse("job_terminal", args=[number]))
    assert "No terminal for you here" in seen.content.decode()
    assert [row.may_end for row in seen.context["shells"]] == [True], "operators may cancel the job"
    sent = signed_in(people.alice).post(address)
    assert sent.url.endswith(f"?worker=0&ended={key}")
    assert line.until_closed()["ended"] in {"the shell ended", "no longer allowed"}
    (closed,) = events("terminal.close")
    assert closed["actor"] == "alice"
    assert closed["user"] == "bob"
    assert closed["reason"] == "ended by alice"
    assert signed_in(people.alice).post(address).status_code == 302
    assert len(events("terminal.close")) == 1, "it is noted once"


def test_the_api_lists_and_ends_shells(desk: Desk) -> None:
    people, path = desk.lab.people, f"/api/v1/jobs/{desk.job.pk}/terminals"
    line = desk.open(people.bob)
    key = line.key()
    _, works = create_token(actor=people.bob, name="works", scopes=[Scope.WORK], days=1)
    _, of_ada = create_token(actor=people.ada, name="works", scopes=[], days=1)

    def call(method: str, path: str, token: str) -> Any:
        return getattr(Client(), method)(path, headers={"Authorization": f"Bearer {token}"})

    (shown,) = call("get", path, works).json()["items"]
    assert (shown["id"], shown["user"], shown["own"], shown["attached"], shown["may_end"]) == (
        key, "bob", True, True, True,
    )  # fmt: skip
    assert call("delete", f"{path}/{key}", of_ada).status_code == 403, "the token may not"
    assert call("delete", f"{path}/{key}", works).status_code == 204
    line.until_closed()
    assert call("get", path, works).json() == {"items": []}
    assert call("delete", f"{path}/{key}", works).status_code == 204
    of_another = actions.open_terminal(actor=people.alice, job=desk.job, worker=0, origin="")
    member = Membership.objects.get(user=people.bob)
    Job.objects.filter(pk=desk.job.pk).update(owner=people.alice)
    assert member.role == Membership.Role.MEMBER
    assert call("get", path, works).json() == {"items": []}
    assert call("delete", f"{path}/{of_another.pk}", works).status_code == 403


def test_a_shell_that_waits_ends_when_its_user_may_not_come_back(desk: Desk) -> None:
    bob = desk.lab.people.bob
    line = desk.open(bob)
    key = line.key()
    line.link.close()
    wait_for(
        lambda: Terminal.objects.filter(left_at__isnull=False).exists(), what="the note that it was left"
    )
    close_terminals()
    assert Terminal.objects.open().exists()
    member = Membership.objects.get(user=bob)
    change_membership(actor=desk.lab.people.alice, membership=member, role=Membership.Role.VIEWER)
    close_terminals()
    (closed,) = events("terminal.close")
    assert closed["reason"] == "no longer allowed"
    change_membership(actor=desk.lab.people.alice, membership=member, role=Membership.Role.MEMBER)
    assert desk.open(bob, terminal=key).refusal() == "The terminal has ended."


def test_the_page_waits_until_the_job_runs(desk: Desk) -> None:
    bob, address = signed_in(desk.lab.people.bob), reverse("job_terminal", args=[desk.job.pk])
    parts = {"HX-Request": "true", "HX-Target": "div#job-terminal"}
    Job.objects.filter(pk=desk.job.pk).update(state=Job.State.SUSPENDED)
    page = bob.get(address).content.decode()
    assert "The terminal opens when the job runs." in page
    assert "data-terminal=" in page
    assert f'data-live="job:{desk.job.pk}"' in bob.get(address, headers=parts).content.decode()
    Job.objects.filter(pk=desk.job.pk).update(state=Job.State.RUNNING)
    part = bob.get(address, headers=parts).content.decode()
    assert 'data-job="running"' in part
    assert "not running" not in part
    Job.objects.filter(pk=desk.job.pk).update(state=Job.State.SUCCEEDED, ended_at=Now())
    part = bob.get(address, headers=parts).content.decode()
    assert "It ends with the job." in part
    assert "data-live" not in part


def test_a_pod_gets_the_command_of_its_cluster_and_no_terminal() -> None:
    pod = {"metadata": {"name": "fairlot-aaaaaaai-0-x7k2p"}, "spec": {"containers": [{"name": "worker"}]}}
    error = elsewhere("fairlot-astro-1", pod)
    assert error.how == (
        "kubectl --namespace fairlot-astro-1 exec --stdin --tty fairlot-aaaaaaai-0-x7k2p --container worker -- /bin/sh"
    )
