"""The audit trail has who signed in and out, and who failed to, and no attacker can fill it."""

from __future__ import annotations

import pytest
from django.conf import LazySettings
from django.test import Client
from django.urls import reverse

from accounting.models import AuditEvent, User
from portal.account import lockout
from portal.account.forms import OwnPasswordForm
from tests.make import user
from tests.portal.account.test_lockout import HOME, MALLORY, OFFICE, PASSWORD, guess, later, log_in

WINDOW = lockout.WINDOW


@pytest.fixture
def dora(db: None) -> User:
    return user("dora", password=PASSWORD)


def trail() -> list[tuple[str, str, str, dict[str, object]]]:
    """Returns (verb, who did it, whose login, values) of each event about logins."""
    events = AuditEvent.objects.filter(verb__startswith="login.").order_by("id")
    return [(event.verb, event.actor_name, event.target_name, event.after) for event in events]


def test_the_trail_has_who_signed_in_and_out_and_from_where(dora: User) -> None:
    browser = Client()
    assert log_in(address=OFFICE, browser=browser) == 302
    assert browser.post(reverse("logout"), REMOTE_ADDR=OFFICE).status_code == 302
    assert (
        browser.post(reverse("logout"), REMOTE_ADDR=OFFICE).status_code == 302
    )  # nobody is signed in any more
    assert trail() == [
        ("login.sign_in", "dora", "dora", {"from": OFFICE}),
        ("login.sign_out", "dora", "dora", {"from": OFFICE}),
    ]


def test_wrong_passwords_and_locks_of_a_user_are_recorded_and_unknown_names_are_not(dora: User) -> None:
    guess(8, address=MALLORY)
    guess(3, "a password in the wrong field", address=HOME)
    said = {"from": MALLORY, "for": "sign-in"}
    assert trail() == [
        ("login.fail", "Fairlot", "dora", said | {"tries": 1}),
        ("login.lock_out", "Fairlot", "dora", said | {"tries": 5}),
        ("login.refuse", "Fairlot", "dora", said),
    ]
    later(WINDOW)
    guess(1, address=MALLORY)
    assert trail()[3:] == [("login.fail", "Fairlot", "dora", said | {"tries": 1})]


def test_an_attacker_with_many_networks_leaves_few_events(
    dora: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockout, "MANY_OF_USER", 9)
    for n in range(110):
        guess(1 if n else 5, address=f"10.0.{n}.1")
        guess(1, address=f"10.0.{n}.1")
    assert [(verb, values.get("tries")) for verb, _, _, values in trail()] == [
        ("login.fail", 1),
        ("login.lock_out", 5),
        ("login.refuse", None),
        ("login.fail", 10),
        ("login.lock_out", 100),
    ]


def test_a_wrong_old_password_is_recorded_too(dora: User) -> None:
    browser = Client()
    log_in(address=OFFICE, browser=browser)
    form = {
        "old_password": "wrong",
        "new_password1": "a much better one",
        "new_password2": "a much better one",
    }
    page = browser.post(reverse("password_change"), form, REMOTE_ADDR=OFFICE)
    assert isinstance(page.context["form"], OwnPasswordForm)
    values = {"from": OFFICE, "for": "change of the password", "tries": 1}
    assert trail()[1:] == [("login.fail", "Fairlot", "dora", values)]


def test_the_address_of_an_untrusted_proxy_is_not_recorded(dora: User, settings: LazySettings) -> None:
    settings.BEHIND_PROXY, settings.FAIRLOT_TRUSTED_PROXIES = True, 0
    assert log_in(address="10.0.0.1") == 302
    assert trail() == [("login.sign_in", "dora", "dora", {})]


def test_only_operators_and_admins_see_sign_ins(dora: User) -> None:
    olga = user("olga", portal_role=User.PortalRole.OPERATOR)
    log_in(address=OFFICE)
    assert AuditEvent.objects.visible_to(olga).filter(verb="login.sign_in").exists()
    assert not AuditEvent.objects.visible_to(dora).filter(verb="login.sign_in").exists()
