"""The parts that all pages share: sign-in, the security policy, times in the user's time zone, and error pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse

from accounting.actions import create_user
from accounting.core import wording as amounts
from accounting.core.clock import zone_named
from accounting.models import AuditEvent, User
from fairshare import policies
from portal.tokens.actions import create_token, reset_password
from scheduling.models import Job
from tests.make import user
from tests.portal.scene import Scene

PASSWORD = "correct horse battery staple"
TEMPLATES = sorted((settings.BASE_DIR / "templates").rglob("*.html"))
PAGES = ("home", "jobs", "cluster", "preferences", "password_change")


@pytest.fixture
def dora(db: None) -> User:
    return user("dora", password=PASSWORD)


def log_in(browser: Client, password: str):
    return browser.post(reverse("login"), {"username": "dora", "password": password})


@pytest.mark.parametrize("name", PAGES)
def test_strangers_are_asked_to_log_in(db: None, name: str) -> None:
    answer = Client().get(reverse(name))
    assert answer.status_code == 302
    assert answer["Location"].startswith(reverse("login"))


def test_a_part_that_refreshes_after_the_session_ended_sends_the_whole_page_to_the_login(db: None) -> None:
    answer = Client().get(reverse("jobs"), headers={"HX-Request": "true", "HX-Target": "section#jobs-table"})
    assert answer.status_code == 401
    assert answer["HX-Redirect"] == reverse("login")


def test_a_password_that_an_admin_set_is_changed_first(db: None) -> None:
    ada = user("ada", portal_role=User.PortalRole.ADMIN)
    made = create_user(actor=ada, username="dora")
    own, browser = "staple battery horse correct", Client()
    for handed_over in (made.password, None):
        password = handed_over or reset_password(actor=ada, user=made.user).password
        log_in(browser, password)
        for method, name in (("get", "home"), ("get", "jobs"), ("post", "preferences")):
            assert getattr(browser, method)(reverse(name))["Location"] == reverse("password_change")
        part = browser.get(reverse("jobs"), headers={"HX-Request": "true"})
        assert part["HX-Redirect"] == reverse("password_change")
        assert "An admin has set your password." in browser.get(reverse("password_change")).content.decode()
        assert browser.get("/healthz").status_code == 200
        _, secret = create_token(actor=User.objects.get(username="dora"), name="ci", scopes=(), days=1)
        assert Client().get("/api/v1/me", headers={"authorization": f"Bearer {secret}"}).status_code == 200
        form = {"old_password": password, "new_password1": own, "new_password2": own}
        assert browser.post(reverse("password_change"), form).status_code == 302
        assert browser.get(reverse("home")).status_code == 200
        browser.logout()


def test_a_password_that_a_user_or_a_command_chose_stays(dora: User) -> None:
    create_user(actor=None, username="eve", password=PASSWORD)  # as a command does
    assert not User.objects.filter(must_change_password=True).exists()
    browser = Client()
    log_in(browser, PASSWORD)
    assert browser.get(reverse("home")).status_code == 200


def test_logging_in_and_out(dora: User) -> None:
    browser = Client()
    assert log_in(browser, PASSWORD)["Location"] == reverse("home")
    assert browser.get(reverse("home")).status_code == 200
    assert browser.get(reverse("logout")).status_code == 405
    assert browser.post(reverse("logout"))["Location"] == reverse("login")
    assert browser.get(reverse("home")).status_code == 302


def test_five_wrong_passwords_lock_the_login_even_for_the_right_one(dora: User) -> None:
    browser = Client()
    answers = [log_in(browser, "wrong") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 429]
    locked = log_in(browser, PASSWORD)
    assert locked.status_code == 429
    assert "Try again in 15 minutes" in locked.content.decode()
    assert locked["Retry-After"] == "900"


def test_posts_without_the_token_are_refused_in_style(dora: User) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(dora, backend="django.contrib.auth.backends.ModelBackend")
    answer = browser.post(reverse("preferences"), {"theme": "dark", "time_zone": "UTC"})
    assert answer.status_code == 403
    assert "reload the page" in answer.content.decode()


@pytest.mark.parametrize("name", PAGES)
def test_the_security_policy_allows_no_inline_script_and_nothing_from_elsewhere(
    dora: User, name: str
) -> None:
    browser = Client()
    browser.force_login(dora, backend="django.contrib.auth.backends.ModelBackend")
    policy = browser.get(reverse(name))["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "style-src 'self'" in policy
    assert not re.search(r"https?:|\*", policy)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(settings.BASE_DIR)))
def test_templates_hold_nothing_that_the_policy_forbids(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"<style\b|<[^>]+\s(style|on[a-z]+|hx-on\S*)=", text)
    assert not re.search(r"<script(?![^>]*\s(?:src=|type=.application/json))", text)
    assert not re.search(r"""(src|href)=["'](https?:)?//""", text)
    assert "js:" not in text


# Names of variables with text that people write, which may be of any length and without spaces.
WRITTEN = re.compile(
    r"name|tenant|team|owner|user|reason|note|text|label|why|title|trouble|cluster|generation"
)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(settings.BASE_DIR)))
def test_cells_of_tables_break_what_people_write_wherever_it_is_too_long(path: Path) -> None:
    for attributes, body in re.findall(r"<t[dh]\b([^>]*)>(.*?)</t[dh]>", path.read_text()):
        if "break" in attributes or "number" in attributes:
            continue
        shown = re.sub(r"<[^>]*\bbreak\b[^>]*>.*?<|<[^>]+>", " ", body)
        assert not [one for one in re.findall(r"\{\{ ([^}]+) \}\}", shown) if WRITTEN.search(one)], body


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(settings.BASE_DIR)))
def test_fields_of_a_time_name_its_zone(path: Path) -> None:
    """Each label of a date and time field names the time zone.

    The schedule form (timing.html) is an exception, because it has a separate field for the time zone.
    """
    for label in re.findall(r"<label[^>]*>(.*?)</label>\s*<input [^>]*datetime-local", path.read_text()):
        assert "{% zone %}" in label or path.name == "timing.html"


def test_preferences_are_kept_audited_and_used(dora: User) -> None:
    browser = Client()
    browser.force_login(dora, backend="django.contrib.auth.backends.ModelBackend")
    answer = browser.post(reverse("preferences"), {"theme": "dark", "time_zone": "Asia/Tokyo"}, follow=True)
    page = answer.content.decode()
    assert 'data-theme="dark"' in page
    assert "Your preferences have been saved." in page
    assert AuditEvent.objects.filter(verb="user.set_preferences", actor=dora).count() == 1
    wrong = browser.post(reverse("preferences"), {"theme": "dark", "time_zone": "Mars/Olympus"})
    assert wrong.status_code == 422
    assert "Use a name such as" in wrong.content.decode()


def test_the_order_of_own_jobs_is_asked_for_where_a_policy_goes_by_it(
    dora: User, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = Client()
    browser.force_login(dora, backend="django.contrib.auth.backends.ModelBackend")
    form = {"theme": "dark", "time_zone": "Asia/Tokyo", "job_order": "even"}
    monkeypatch.setitem(policies._IN_FORCE, "gandiva_fair", 1)
    page = browser.post(reverse("preferences"), form, follow=True).content.decode()
    assert "job_order" not in page
    monkeypatch.setitem(policies._IN_FORCE, "gandiva_fair", 2)
    page = browser.get(reverse("preferences")).content.decode()
    assert re.search(r'name="job_order" value="strict"[^>]* checked', page)
    page = browser.post(reverse("preferences"), form, follow=True).content.decode()
    assert re.search(r'name="job_order" value="even"[^>]* checked', page)
    assert browser.post(reverse("preferences"), form | {"job_order": "best"}).status_code == 422


def test_times_are_shown_in_the_zone_of_the_user(scene: Scene, browser_of) -> None:
    User.objects.filter(pk=scene.people.bob.pk).update(time_zone="Asia/Tokyo")
    page = browser_of(User.objects.get(pk=scene.people.bob.pk)).get(reverse("jobs")).content.decode()
    assert re.search(r'<time datetime="[^"]+\+00:00" title="[^"]+ JST" data-ago>', page)
    alice = browser_of(scene.people.alice).get(reverse("jobs")).content.decode()
    assert "JST" not in alice, "a zone must not leak into the next request"


def test_an_unknown_zone_is_shown_as_utc() -> None:
    assert str(zone_named("Mars/Olympus")) == str(zone_named("../../etc/passwd")) == "UTC"


def test_the_admin_entry_is_for_operators(scene: Scene, browser_of) -> None:
    entry = f'href="{reverse("administration")}"'
    assert entry in browser_of(scene.people.olga).get("/").content.decode()
    assert entry not in browser_of(scene.people.bob).get("/").content.decode()


def test_the_team_entry_is_for_managers(scene: Scene, browser_of) -> None:
    link = f'href="{reverse("teams")}"'
    assert link in browser_of(scene.people.alice).get("/").content.decode()
    assert link not in browser_of(scene.people.bob).get("/").content.decode()


def test_a_missing_page_has_the_portals_style(dora: User) -> None:
    browser = Client()
    browser.force_login(dora, backend="django.contrib.auth.backends.ModelBackend")
    answer = browser.get("/no/such/page")
    assert answer.status_code == 404
    assert "Page not found" in answer.content.decode()


def test_the_page_for_broken_things_needs_no_database() -> None:
    from portal.errors import server_error  # noqa: PLC0415

    answer = server_error(None)
    assert answer.status_code == 500
    assert "Server error" in answer.content.decode()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (7200, "2 h"), (7500, "2 h 05 min"),
     (90000, "1 d 1 h")],
)  # fmt: skip
def test_durations_read_as_people_say_them(seconds: float, words: str) -> None:
    assert amounts.duration(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"), (0.0001, "<0.001"), (0.00578, "0.006"), (0.0213, "0.021"), (0.2, "0.2"), (-0.0051, "−0.005"),
        (1.264, "1.26"), (99.96, "100"), (12345.6, "12\xa0346"),
    ],
)  # fmt: skip
def test_amounts_are_short_and_never_a_false_nothing(value: float, words: str) -> None:
    assert amounts.number(value) == words


def test_the_home_of_who_runs_the_portal_tells_of_everybodys_jobs(scene: Scene, browser_of) -> None:
    url = reverse("home")
    everybodys = browser_of(scene.people.olga).get(url)
    assert everybodys.context["counts"].all == Job.objects.count() == 3
    assert b"genome" in everybodys.content
    assert browser_of(scene.people.bob).get(url).context["counts"].all == 1
