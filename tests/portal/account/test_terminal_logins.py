"""A program on a terminal gets a token after its user has allowed it in the browser, once, and nobody else gets it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db.models.functions import Now
from django.test import Client

from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent
from portal.models import ApiToken, TerminalLogin
from portal.tokens.actions import find_token, reset_password
from portal.tokens.terminal_logins import MOST_FROM_A_NETWORK, decide_login, read_code
from tests.portal.scene import Scene

JSON = "application/json"


def begin(name: str = "laptop") -> dict[str, Any]:
    return Client().post("/api/v1/login", {"name": name}, JSON).json()


def ask(begun: dict[str, Any]) -> dict[str, str]:
    return Client().post("/api/v1/login/token", {"device_code": begun["device_code"]}, JSON).json()


def allow(scene: Scene, begun: dict[str, Any], **given: Any) -> TerminalLogin:
    given = {"allowed": True, "scopes": ["work"], "days": 30} | given
    return decide_login(actor=scene.people.bob, user_code=begun["user_code"], **given)


def test_a_program_gets_a_token_once_after_its_user_has_allowed_it(scene: Scene, browser_of) -> None:
    begun = begin()
    assert ask(begun) == {"state": "waiting", "token": ""}
    browser = browser_of(scene.people.bob)
    page = browser.get(begun["url"].removeprefix(settings.PUBLIC_URL)).content.decode()
    assert "fairlot on laptop" in page
    assert begun["user_code"] in page
    assert begun["device_code"] not in page

    form = {"code": begun["user_code"].lower().replace("-", " "), "scopes": ["work"], "days": "30"}
    assert browser.post("/account/tokens/terminal/", form)["Location"] == "/account/tokens/"
    answer = ask(begun)
    token = find_token(answer["token"])
    assert (answer["state"], token.user, token.name, token.scopes) == (
        "allowed",
        scene.people.bob,
        "fairlot on laptop",
        ["work"],
    )
    assert ask(begun) == {"state": "expired", "token": ""}
    assert AuditEvent.objects.filter(verb="terminal_login.allow", actor=scene.people.bob).exists()


def test_the_page_of_an_unknown_code_says_why_nothing_asks(browser_of, scene: Scene) -> None:
    browser, code = browser_of(scene.people.bob), begin()["user_code"]
    told = "No login waits with this code."
    assert told in browser.get("/account/tokens/terminal/?code=BBBB-BBBB").content.decode()
    assert told not in browser.get(f"/account/tokens/terminal/?code={code}").content.decode()
    assert told not in browser.get("/account/tokens/terminal/").content.decode()


def test_a_denied_program_gets_nothing(scene: Scene, browser_of) -> None:
    begun = begin()
    browser_of(scene.people.bob).post("/account/tokens/terminal/", {"code": begun["user_code"], "deny": "1"})
    assert ask(begun) == {"state": "denied", "token": ""}
    with pytest.raises(Refused, match="No login waits"):
        allow(scene, begun)


def test_only_people_who_are_signed_in_decide_and_only_once(scene: Scene, browser_of) -> None:
    begun = begin()
    answer = Client().post("/account/tokens/terminal/", {"code": begun["user_code"]})
    assert answer["Location"].startswith("/account/login/")
    allow(scene, begun)
    late = browser_of(scene.people.charlie).post("/account/tokens/terminal/", {"code": begun["user_code"]})
    assert late.status_code == 422
    assert find_token(ask(begun)["token"]).user == scene.people.bob


def test_codes_end(scene: Scene) -> None:
    early, late = begin(), begin()
    allow(scene, late)
    TerminalLogin.objects.update(created_at=Now() - timedelta(minutes=11))
    with pytest.raises(Refused, match="Codes end after ten minutes"):
        allow(scene, early)
    assert (ask(early)["state"], ask(late)["state"]) == ("expired", "expired")
    TerminalLogin.objects.update(created_at=Now() - timedelta(hours=2))
    begin()
    assert TerminalLogin.objects.count() == 1, "old ones are deleted"


def test_what_was_allowed_ends_when_all_tokens_are_revoked(scene: Scene) -> None:
    begun = begin()
    allow(scene, begun)
    reset_password(actor=scene.people.ada, user=scene.people.bob)
    assert ask(begun) == {"state": "expired", "token": ""}


def test_nothing_is_allowed_with_a_password_that_has_been_changed_meanwhile(scene: Scene) -> None:
    begun = begin()
    reset_password(actor=scene.people.ada, user=type(scene.people.bob).objects.get(pk=scene.people.bob.pk))
    with pytest.raises(NotAllowed, match="Your password was changed"):
        allow(scene, begun)  # with what was read before the change
    assert ask(begun) == {"state": "waiting", "token": ""}


def test_a_user_who_was_deactivated_gives_no_token(scene: Scene) -> None:
    begun = begin()
    allow(scene, begun)
    type(scene.people.bob).objects.filter(pk=scene.people.bob.pk).update(is_active=False)
    before = ApiToken.objects.count()
    assert ask(begun) == {"state": "denied", "token": ""}
    assert ApiToken.objects.count() == before


def test_one_network_cannot_fill_the_table(scene: Scene) -> None:
    for _ in range(MOST_FROM_A_NETWORK):
        begin()
    full = Client().post("/api/v1/login", {}, JSON)
    assert (full.status_code, "Try again" in full.json()["detail"]) == (429, True)
    TerminalLogin.objects.update(network="192.0.2.7")
    assert Client().post("/api/v1/login", {}, JSON).status_code == 201


@pytest.mark.parametrize("typed", ["bcdf-ghjk", " BCDF GHJK", "bcdfghjk!", "BCDF-GHJKLM"])
def test_a_typed_code_is_read_as_it_is_meant(typed: str) -> None:
    assert read_code(typed) == "BCDF-GHJK"
