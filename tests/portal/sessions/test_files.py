"""Pages and the API say what happens to the files of a session, and bring them along when it starts again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.urls import reverse
from django.utils import timezone

from portal.models import Scope
from portal.tokens.actions import create_token
from scheduling.models import Job, Session
from tests.portal.sessions.test_sessions import Browser, lab  # noqa: F401 - a fixture
from tests.scheduling.sessions.test_files import ended, measured
from tests.scheduling.sessions.test_sessions import begin, run
from tests.scheduling.world import World

pytestmark = pytest.mark.django_db


@pytest.fixture
def earlier(lab: World, jobs_folder: Path) -> Session:  # noqa: F811
    """Returns an ended session of Bob's, whose program wrote two files."""
    session = ended(lab)
    folder = jobs_folder / f"cluster-{lab.cluster.pk}" / str(session.pk) / "work" / "rank-0"
    folder.mkdir(parents=True)
    (folder / "Untitled.ipynb").write_bytes(b"x" * 2048)
    (folder / "data.csv").write_bytes(b"y" * 1024)
    return session


def posted(page: object) -> dict[str, str]:
    draft = page.context["draft"]  # type: ignore[attr-defined]
    return {
        "name": "notes", "command": "serve", "port": "8888", "idle_minutes": "60", "longest_hours": "4",
        "yaml": draft.yaml, "agreed": draft.agreed, "request_key": "k", "tenant": str(draft.tenant.pk),
        "kind": "notebook", "again": str(page.context["earlier"].session.pk),  # type: ignore[attr-defined]
        "copy_files": "on", "even_if_never": "on",
    }  # fmt: skip


def test_a_session_started_again_brings_its_files_unless_the_user_says_otherwise(
    lab: World,  # noqa: F811
    browser_of: Browser,
    earlier: Session,
) -> None:
    browser = browser_of(lab.people.bob)
    page = browser.get(reverse("session_new"), {"again": earlier.pk})
    shown = " ".join(page.content.decode().replace("\N{NO-BREAK SPACE}", " ").split())
    assert 'name="copy_files" value="on" checked' in shown
    assert "2 files, 3.0 KiB" in shown
    assert "Untitled.ipynb" in shown
    form = posted(page)
    sent = browser.post(reverse("session_new"), form)
    made = Session.objects.latest("pk")
    assert (sent.status_code, made.files_from) == (302, earlier.job), sent.content.decode()
    assert f"notes (session {earlier.pk})" in browser.get(sent.url).content.decode()
    without = form | {"request_key": "l"}
    del without["copy_files"]
    browser.post(reverse("session_new"), without)
    assert Session.objects.latest("pk").files_from is None
    rewritten = browser.post(reverse("session_new"), without | {"do": "form"})
    assert not rewritten.context["earlier"].is_wanted


def test_the_form_says_why_files_cannot_be_brought(
    lab: World,  # noqa: F811
    browser_of: Browser,
    earlier: Session,
    settings: LazySettings,
) -> None:
    browser = browser_of(lab.people.bob)
    form = posted(browser.get(reverse("session_new"), {"again": earlier.pk}))
    settings.FAIRLOT_SESSION_FILES_MIB = 1
    measured(earlier, work=2**21)
    page = browser.get(reverse("session_new"), {"again": earlier.pk})
    assert "The session starts without them. The files take" in page.content.decode()
    refused = browser.post(reverse("session_new"), form)
    assert refused.status_code == 422
    assert "are copied" in refused.context["earlier"].problem
    assert browser.get(reverse("session_new"), {"again": earlier.pk + 999}).status_code == 404
    stranger = browser_of(lab.people.charlie)
    assert stranger.post(reverse("session_new"), form).status_code == 404


def test_the_page_says_before_the_stop_what_happens_to_the_files_and_later_until_when_they_are_kept(
    lab: World,  # noqa: F811
    browser_of: Browser,
    earlier: Session,
) -> None:
    browser = browser_of(lab.people.bob)
    running = browser.get(reverse("session", args=[run(lab).pk])).content.decode()
    assert running.count("Its files are kept for 30 days after it stops") == 2, "on the page, and at Stop"
    after = browser.get(reverse("session", args=[earlier.pk])).content.decode()
    assert "They are kept until" in after
    assert "Start again copies the" in after
    Job.objects.filter(pk=earlier.pk).update(files_removed_at=timezone.now())
    gone = browser.get(reverse("session", args=[earlier.pk])).content.decode()
    assert "The files of the session have been deleted." in gone
    assert "copies the" not in gone


def test_the_api_copies_the_files_of_an_ended_session(
    lab: World,  # noqa: F811
    browser_of: Browser,
    earlier: Session,
) -> None:
    _, text = create_token(actor=lab.people.bob, name="t", scopes=[Scope.WORK], days=1)
    browser, headers = browser_of(lab.people.bob), {"Authorization": f"Bearer {text}"}

    def post(files_from: int) -> tuple[int, dict[str, object]]:
        spec = {"name": "notes", "command": "sleep 9", "port": 8000}
        body = json.dumps({"spec": spec, "files_from": files_from})
        answer = browser.post("/api/v1/sessions", body, "application/json", headers=headers)
        return answer.status_code, answer.json()

    status, made = post(earlier.pk)
    assert (status, made["files_from"]) == (201, earlier.pk), made
    assert "kept for 30 days" in str(made["files_sentence"])
    old = browser.get(f"/api/v1/sessions/{earlier.pk}", headers=headers).json()
    assert old["files_sentence"] == ""
    assert old["files_kept_until"] > old["created_at"]
    status, said = post(begin(lab).pk)
    assert status in {409, 422}
    assert "has not ended" in json.dumps(said)
    assert post(earlier.pk + 999)[0] == 404
