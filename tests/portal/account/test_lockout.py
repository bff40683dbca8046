"""The limits on wrong passwords lock out a client that guesses passwords, and nobody else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from unittest.mock import patch

import httpx
import pytest
from django.conf import LazySettings
from django.db import connections
from django.db.models import F
from django.test import Client
from django.urls import reverse

from accounting.models import AuditEvent, User
from portal.account import forms, lockout
from portal.edge.threads import close_all
from portal.models import PasswordTries
from portal.tasks import forget_password_tries
from portal.tokens.actions import reset_password
from tests.make import user

PASSWORD = "correct horse battery staple"
HOME, OFFICE, MALLORY = "198.51.100.7", "203.0.113.1", "192.0.2.66"
LOGIN = "/account/login/"
BrowserOf = Callable[[User], Client]


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowers two limits on wrong passwords so that tests reach them quickly: 12 for a network, 9 for a user name.

    The limit for one user name from one network stays 5.
    """
    monkeypatch.setattr(lockout, "MOST_OF_NETWORK", 12)
    monkeypatch.setattr(lockout, "MANY_OF_USER", 9)


@pytest.fixture
def dora(db: None) -> User:
    return user("dora", password=PASSWORD)


@pytest.fixture
def ada(db: None) -> User:
    return user("ada", password=PASSWORD, portal_role=User.PortalRole.ADMIN)


def log_in(
    username: str = "dora", password: str = PASSWORD, *, address: str, browser: Client | None = None
) -> int:
    """Signs in and returns the HTTP status: 302 for the right password, 200 for a wrong one, 429 if locked."""
    data = {"username": username, "password": password}
    return (browser or Client()).post(reverse("login"), data, REMOTE_ADDR=address).status_code


def guess(times: int, username: str = "dora", *, address: str, browser: Client | None = None) -> list[int]:
    return [log_in(username, "wrong", address=address, browser=browser) for _ in range(times)]


def later(by: timedelta) -> None:
    """Moves the start of each counter's time window `by` into the past, as if this time had passed."""
    PasswordTries.objects.update(since=F("since") - by)


def test_no_client_locks_an_admin_out_from_another_address(ada: User) -> None:
    assert guess(7, "ada", address=MALLORY) == [200, 200, 200, 200, 429, 429, 429]
    assert log_in("ada", address=MALLORY) == 429
    assert log_in("ada", address=OFFICE) == 302


def test_tries_during_a_lock_do_not_prolong_it(dora: User) -> None:
    guess(5, address=HOME)
    later(timedelta(minutes=14))
    assert guess(3, address=HOME) == [429] * 3
    later(timedelta(minutes=1))
    assert log_in(address=HOME) == 302


def test_clients_at_the_same_address_cannot_lock_out_a_known_browser(dora: User) -> None:
    own = Client()
    assert log_in(address=OFFICE, browser=own) == 302
    own.post(reverse("logout"))
    guess(6, address=OFFICE)
    guess(6, "nobody", address=OFFICE)
    guess(3, "noone", address=OFFICE)
    assert log_in(address=OFFICE) == 429
    assert log_in(address=OFFICE, browser=own) == 302


def test_a_known_browser_may_guess_neither_endlessly_nor_for_other_users(dora: User, ada: User) -> None:
    own = Client()
    log_in(address=OFFICE, browser=own)
    own.post(reverse("logout"))
    assert guess(6, address=OFFICE, browser=own) == [200, 200, 200, 200, 429, 429]
    # The lock of a browser holds from every address. Below, a forged cookie does not evade a lock either.
    assert log_in(address=HOME, browser=own) == 429
    guess(5, "ada", address=OFFICE)
    assert log_in("ada", address=OFFICE, browser=own) == 429
    own.cookies[lockout.COOKIE] = own.cookies[lockout.COOKIE].value + "x"
    assert lockout.COOKIE in own.cookies
    guess(5, address=OFFICE, browser=own)
    assert log_in(address=OFFICE, browser=own) == 429


def test_one_address_cannot_try_one_password_on_many_names(dora: User) -> None:
    answers = [log_in(f"name-{n}", "Summer2026", address=MALLORY) for n in range(14)]
    assert answers == [200] * 12 + [429] * 2
    assert log_in(address=MALLORY) == 429
    assert log_in(address=HOME) == 302


def test_the_addresses_of_one_ipv6_network_count_together(dora: User) -> None:
    for n in range(5):
        log_in(password="wrong", address=f"2001:db8:1:2::{n:x}")
    assert log_in(address="2001:db8:1:2:ffff::1") == 429
    assert log_in(address="2001:db8:1:3::1") == 302


def test_many_addresses_that_guess_for_one_user_get_one_try_each_and_lock_no_one_out(dora: User) -> None:
    for n in range(lockout.MANY_OF_USER + 1):
        log_in(password="wrong", address=f"10.0.0.{n}")
    assert guess(2, address="10.9.9.9") == [429, 429]
    assert log_in(address=HOME) == 302


def test_a_login_clears_only_the_users_own_mistakes(dora: User) -> None:
    guess(4, address=HOME)
    guess(7, "nobody", address=HOME)
    assert log_in(address=HOME) == 302
    assert guess(4, address=HOME) == [200] * 4
    network = PasswordTries.objects.get(username="", network=HOME)
    # 5 for "nobody" until its own lock, and 4 for dora. Refused attempts do not count.
    assert network.failures == 9


def test_known_and_unknown_names_are_answered_alike(dora: User) -> None:
    def answers(name: str, address: str) -> list[tuple[int, str]]:
        browser, found = Client(), []
        for _ in range(6):
            data = {"username": name, "password": "wrong"}
            answer = browser.post(reverse("login"), data, REMOTE_ADDR=address)
            page = answer.content.decode().replace(name, "NAME")
            found.append((answer.status_code, lockout_free(page)))
        return found

    inactive = user("gone", password=PASSWORD)
    User.objects.filter(pk=inactive.pk).update(is_active=False)
    assert answers("dora", HOME) == answers("nope", OFFICE) == answers("gone", MALLORY)


def lockout_free(page: str) -> str:
    """Returns the page without its CSRF token, which differs on every request."""
    return "\n".join(line for line in page.splitlines() if "csrf" not in line)


def test_unchecked_passwords_do_not_count_as_wrong(dora: User) -> None:
    browser = Client(raise_request_exception=False)
    with patch.object(forms.AuthenticationForm, "clean", side_effect=OSError("no memory")):
        assert {log_in(address=HOME, browser=browser) for _ in range(9)} == {500}
    assert log_in(address=HOME) == 302


def test_a_try_that_was_not_checked_takes_back_no_other(dora: User) -> None:
    guess(3, address=HOME)
    with patch.object(forms.AuthenticationForm, "clean", side_effect=OSError("no memory")):
        assert log_in(address=HOME, browser=Client(raise_request_exception=False)) == 500
    counters = PasswordTries.objects.values_list("username", "network", "failures")
    assert set(counters) == {("dora", HOME, 3), ("", HOME, 3), ("dora", "", 3)}
    assert guess(2, address=HOME) == [200, 429]


def test_new_names_from_a_locked_network_fill_no_table(dora: User) -> None:
    for n in range(lockout.MOST_OF_NETWORK):
        log_in(f"name-{n}", "wrong", address=MALLORY)
    before = PasswordTries.objects.count()
    assert {log_in(f"more-{n}", "wrong", address=MALLORY) for n in range(9)} == {429}
    assert PasswordTries.objects.count() == before


def test_the_old_password_cannot_be_guessed_in_a_session_taken_over(
    dora: User, browser_of: BrowserOf
) -> None:
    thief = browser_of(dora)

    def change(old: str) -> int:
        new = {"new_password1": "another good one 42", "new_password2": "another good one 42"}
        data = {"old_password": old} | new
        return thief.post(reverse("password_change"), data, REMOTE_ADDR=MALLORY).status_code

    assert [change("wrong") for _ in range(5)] == [200] * 5
    assert change(PASSWORD) == 200  # even the right password is refused
    later(timedelta(minutes=15))
    assert change(PASSWORD) == 302


@pytest.mark.django_db(transaction=True)
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # Django leaves request bodies to the garbage collector
def test_a_client_behind_a_proxy_locks_out_no_other_client_of_it(settings: LazySettings) -> None:
    """Wrong passwords from one client behind a trusted proxy lock out only this client, even if it forges addresses.

    The test calls the whole ASGI application, so that the client's address comes from X-Forwarded-For. The proxy
    appends the real address of the client to this header, so forged addresses are to the left of the real one.
    """
    from portal.asgi import application  # noqa: PLC0415 - needs the settings of the tests

    user("ada", password=PASSWORD, portal_role=User.PortalRole.ADMIN)
    settings.BEHIND_PROXY, settings.FAIRLOT_TRUSTED_PROXIES = True, 1

    async def log_in(address: str, password: str) -> int:
        transport = httpx.ASGITransport(application, client=("172.18.0.1", 5000))
        headers = {"X-Forwarded-For": address}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers
        ) as http:
            token = re.search(r'csrfmiddlewaretoken" value="([^"]+)"', (await http.get(LOGIN)).text)[1]
            data = {"username": "ada", "password": password, "csrfmiddlewaretoken": token}
            return (await http.post(LOGIN, data=data)).status_code

    async def attack() -> None:
        for n in range(5):
            last = await log_in(f"10.0.0.{n}, {MALLORY}", "wrong")
        assert last == 429
        assert await log_in(f"10.0.0.9, {MALLORY}", PASSWORD) == 429
        assert await log_in(f"{MALLORY}, {HOME}", PASSWORD) == 302

    asyncio.run(attack())
    close_all()


@pytest.mark.django_db(transaction=True)
def test_tries_at_the_same_moment_do_not_pass_together() -> None:
    user("dora", password=PASSWORD)

    def one(_: int) -> int:
        try:
            return log_in(password="wrong", address=MALLORY)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, range(16)))
    assert answers.count(200) == 4
    assert PasswordTries.objects.get(username="dora", network=MALLORY).failures == 16
    assert PasswordTries.objects.get(username="", network=MALLORY).failures == 5


def test_a_new_password_by_an_admin_unlocks(dora: User, ada: User) -> None:
    guess(5, address=HOME)
    made = reset_password(actor=ada, user=dora)
    assert log_in(password=made.password, address=HOME) == 302
    assert AuditEvent.objects.get(verb="user.reset_password").after == {
        "tokens_revoked": 0,
        "login_locks_lifted": 1,
    }


def test_admins_see_locks_and_lift_them(dora: User, ada: User, browser_of: BrowserOf) -> None:
    guess(6, address=HOME)
    guess(5, "hunter2-typed-as-name", address=OFFICE)
    for n in range(lockout.MOST_OF_NETWORK):
        log_in(f"name-{n}", "x", address=MALLORY)
    admin = browser_of(ada)
    page = admin.get(reverse("admin_locks")).content.decode()
    for text in ("dora", HOME, OFFICE, MALLORY, "all users", lockout.STRANGE):
        assert text in page
    assert "hunter2" not in page  # people may have typed their password into the field for the name
    locks = {lock.place: lock for lock in lockout.locks()}
    assert (locks[HOME].tries, locks[HOME].until - locks[HOME].since) == (6, timedelta(minutes=15))
    for place in (HOME, OFFICE, MALLORY):
        assert admin.post(reverse("admin_lock_lift", args=[locks[place].pk])).status_code == 302
    assert log_in(address=HOME) == log_in(address=MALLORY) == 302
    events = AuditEvent.objects.filter(verb="login.unlock").order_by("id")
    assert [(e.actor, e.target_name, e.after) for e in events] == [
        (ada, "dora", {"address": HOME, "tries": 6}),
        (ada, OFFICE, {"address": OFFICE, "tries": 5}),
        (ada, MALLORY, {"address": MALLORY, "tries": 12}),
    ]
    assert admin.post(reverse("admin_lock_lift", args=[locks[HOME].pk])).status_code == 422


def test_only_admins_see_and_lift_locks(dora: User, browser_of: BrowserOf) -> None:
    guess(5, address=HOME)
    (lock,) = lockout.locks()
    olga = user("olga", portal_role=User.PortalRole.OPERATOR)
    for browser in (browser_of(dora), browser_of(olga)):
        assert browser.get(reverse("admin_locks")).status_code == 404
        assert browser.post(reverse("admin_lock_lift", args=[lock.pk])).status_code == 404
    assert lockout.locks() == [lock]


def test_stored_failures_are_bounded(dora: User) -> None:
    for name in ("x" * 151, "x" * 256, "x" * 100_000):
        assert log_in(name, "wrong", address=HOME) == 200
    assert log_in("a\0b", "wrong", address=HOME) == 400
    assert set(PasswordTries.objects.values_list("username", flat=True)) == {"x" * 150, ""}
    guess(30, address=HOME)
    assert PasswordTries.objects.count() == 5
    later(timedelta(minutes=15))
    guess(1, address=OFFICE)
    forget_password_tries()
    assert set(PasswordTries.objects.values_list("network", flat=True)) <= {OFFICE, ""}
