"""Attacks on accounts: logins, client addresses, the loopback guard, hosts, headers and forms, and use of missing
rights."""

from __future__ import annotations

import dbm.dumb
import os
import pickle
import re
import socket
from pathlib import Path

import httpx

from tests.attack.attacks import CSRF, Target, attack
from tests.waiting import wait_for

HEADERS = (
    "content-security-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
    "permissions-policy",
    "referrer-policy",
    "x-content-type-options",
    "x-frame-options",
)


def _machine(target: Target, address: str) -> httpx.Client:
    """Returns a client that connects from another loopback address, so that the portal takes it for another machine."""
    return target.stranger(transport=httpx.HTTPTransport(local_address=address))


def _guess(
    http: httpx.Client, target: Target, name: str, password: str = "", forged: dict[str, str] | None = None
) -> int:
    """Tries to sign in. Returns the HTTP status: 302 for the right password, 429 while logins are locked.

    Without `password`, the function sends a wrong password. `forged` contains additional HTTP headers.
    """
    form = CSRF.search(http.get("/account/login/").text)
    assert form, "there is no login form"
    data = {"username": name, "password": password or "wrong", "csrfmiddlewaretoken": form[1]}
    return http.post(
        "/account/login/", data=data, headers={"Origin": target.url} | (forged or {})
    ).status_code


@attack("a stranger locks out an admin by wrong passwords")
def lock_out(target: Target) -> None:
    mallory = _machine(target, "127.0.66.1")
    answers = [_guess(mallory, target, "ada") for _ in range(8)]
    assert 429 in answers, f"wrong passwords of an admin were never refused: {answers}"
    right = target.portal.passwords["ada"]
    assert _guess(mallory, target, "ada", right) == 429, "the right password of a locked login passed there"
    assert _guess(_machine(target, "127.0.66.2"), target, "ada", right) == 302, "ada is locked out elsewhere"


@attack("who shares an address with an admin locks the browser in which the admin works")
def lock_out_by_a_shared_address(target: Target) -> None:
    own, neighbour = _machine(target, "127.0.66.3"), _machine(target, "127.0.66.3")
    right = target.portal.passwords["ada"]
    assert _guess(own, target, "ada", right) == 302
    for cookie in list(own.cookies.jar):
        if cookie.name == "fairlot_session":
            own.cookies.jar.clear(cookie.domain, cookie.path, cookie.name)
    for _ in range(8):
        _guess(neighbour, target, "ada")
    assert _guess(own, target, "ada", right) == 302, "a neighbour locked the admin's own browser"


@attack("one address tries a password on many names")
def spraying(target: Target) -> None:
    mallory = _machine(target, "127.0.66.4")
    answers = [_guess(mallory, target, f"name-{number}", "Summer2026") for number in range(53)]
    assert 429 in answers, "53 names were tried from one address without a limit"
    right = target.portal.passwords["olga"]
    assert _guess(_machine(target, "127.0.66.5"), target, "olga", right) == 302


@attack("a forged address in a header gives new tries or blames another address")
def forged_address(target: Target) -> None:
    """Tries headers that claim another client address, to get more password guesses or to lock out another address.

    The attacked portal has no proxy in front. tests/portal/edge/test_addresses.py and test_lockout.py cover proxies.
    """
    mallory, blamed, right = _machine(target, "127.0.66.6"), "127.0.66.10", target.portal.passwords["charlie"]
    assert [_guess(mallory, target, "charlie") for _ in range(5)][-1] == 429
    names = ("X-Forwarded-For", "X-Real-IP", "Forwarded", "X-Client-IP", "True-Client-IP", "CF-Connecting-IP")
    values = ("198.51.100.7", blamed, f"{blamed}, 198.51.100.7", f"for={blamed}")
    for forged in ({name: value} for name in names for value in values):
        status = _guess(mallory, target, "charlie", right, forged=forged)
        assert status in {400, 403, 429}, f"with {forged} a locked address got {status}"
        for _ in range(6):
            _guess(mallory, target, "charlie", forged=forged)
    assert _guess(_machine(target, blamed), target, "charlie", right) == 302, "another address is locked"


@attack("unknown names are told from known ones by the answer of the login")
def names_are_told(target: Target) -> None:
    def seen(name: str, address: str) -> list[tuple[int, str]]:
        http, found = _machine(target, address), []
        for _ in range(7):
            form = CSRF.search(http.get("/account/login/").text)
            assert form
            data = {"username": name, "password": "wrong", "csrfmiddlewaretoken": form[1]}
            answer = http.post("/account/login/", data=data, headers={"Origin": target.url})
            page = re.sub(r'csrfmiddlewaretoken" value="[^"]*"|nonce-?="?[^" ]*', "", answer.text)
            found.append((answer.status_code, page.replace(name, "NAME")))
        return found

    assert seen("bob", "127.0.66.7") == seen("nobody-here", "127.0.66.8"), (
        "a known name is answered otherwise"
    )


@attack("a name of huge length breaks the login or fills the database")
def huge_name(target: Target) -> None:
    mallory = _machine(target, "127.0.66.9")
    for name in ("x" * 151, "x" * 256, "x" * 5_000, "ﬀ" * 140, "\u202e\u0000x"):
        status = _guess(mallory, target, name)
        wanted = {400} if "\0" in name else {200, 429}
        assert status in wanted, f"a name of {len(name)} characters gave {status}"


@attack("a proxy on this machine passes strangers through the loopback guard")
def forwarded(target: Target) -> None:
    for header in (
        "X-Forwarded-For",
        "X-Forwarded-Host",
        "Forwarded",
        "X-Real-IP",
        "Via",
        "X-Forwarded-Proto",
    ):
        for value in ("203.0.113.7", "127.0.0.1"):
            for path in ("/account/login/", "/api/v1/me", "/static/img/mark.svg"):
                answer = target.stranger().get(path, headers={header: value})
                assert answer.status_code in {400, 403}, (
                    f"{path} with {header}: {value} gave {answer.status_code}"
                )
    assert target.stranger().get("/healthz", headers={"X-Forwarded-For": "203.0.113.7"}).status_code == 200


@attack("a page elsewhere whose name leads here (DNS rebinding) reads the portal")
def other_hosts(target: Target) -> None:
    port = target.url.rpartition(":")[2]
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "2130706433",
    ):
        for path in ("/account/login/", "/static/img/mark.svg", "/nosuch", "/api/v1/me"):
            answer = target.person("bob").get(path, headers={"Host": host})
            assert answer.status_code in {400, 404}, f"{host}{path} gave {answer.status_code}"
            assert "bob" not in answer.text


@attack("Host headers that contradict each other or the address")
def host_tricks(target: Target) -> None:
    address, port = "127.0.0.1", int(target.url.rpartition(":")[2])
    tricks = (
        f"GET /account/login/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil.example\r\n",
        "GET http://evil.example/account/login/ HTTP/1.1\r\nHost: evil.example\r\n",
        f"GET /account/login/ HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: 127.0.0.1:{port}\r\n",
        f"GET /account/login/ HTTP/1.1\r\nHost: 127.0.0.1:{port}@evil.example\r\n",
        "GET /account/login/ HTTP/1.1\r\n",
        "GET /account/login/ HTTP/1.0\r\n",
    )
    for trick in tricks:
        with socket.create_connection((address, port), timeout=20) as link:
            link.sendall(f"{trick}Connection: close\r\n\r\n".encode())
            answer = b"".join(iter(lambda: link.recv(65536), b""))
        status = answer.partition(b"\r\n")[0]
        assert b" 200" not in status, f"{trick!r} gave {status!r}"
        assert b"evil.example" not in answer, f"{trick!r} was told back"


@attack("an answer comes without security headers")
def headers_everywhere(target: Target) -> None:
    stranger, bob = target.stranger(), target.person("bob")
    answers = {
        "login": stranger.get("/account/login/"),
        "redirect": stranger.get("/"),
        "not found": bob.get("/nosuch"),
        "static": stranger.get("/static/img/mark.svg"),
        "no static": stranger.get("/static/nosuch.css"),
        "api": bob.get("/api/v1/me"),
        "api, stranger": stranger.get("/api/v1/me"),
        "api, none": bob.get("/api/v1/nosuch"),
        "api, method": bob.get("/api/v1/jobs/1/cancel"),
        "health": stranger.get("/healthz"),
        "bad host": stranger.get("/", headers={"Host": "evil.example"}),
        "forwarded": stranger.get("/", headers={"Via": "1.1 proxy"}),
        "no token": stranger.post("/account/login/"),
        "bad query": bob.get("/jobs/?page=%ff%fe%00"),
        "download": bob.get("/api/v1/openapi.json"),
    }
    with target.person("olga").http.stream("GET", "/live?topics=jobs:*") as stream:
        assert stream.status_code == 200, f"the stream answered {stream.status_code}"
        answers["stream"] = stream
    for kind, answer in answers.items():
        assert answer.status_code < 500, f"{kind} gave {answer.status_code}"
        lacking = [name for name in HEADERS if name not in answer.headers]
        assert not lacking, f"the answer “{kind}” ({answer.status_code}) lacks {lacking}"
        assert "server" not in answer.headers or not re.search(r"\d", answer.headers["server"])


@attack("a form is sent from a page elsewhere")
def forged_forms(target: Target) -> None:
    ada = target.person("ada")
    forged: tuple[dict[str, str], ...] = (
        {},
        {"X-CSRFToken": "x" * 64},
        {"X-CSRFToken": ada.csrf(), "Origin": "https://evil.example"},
        {"X-CSRFToken": ada.csrf(), "Origin": "null"},
        {"X-CSRFToken": "", "Origin": target.url},
        {"Cookie": "fairlot_csrf=" + "a" * 32, "X-CSRFToken": "a" * 32, "Origin": "https://evil.example"},
    )
    for path in (
        "/admin/users/create/",
        "/account/logout/",
        "/account/tokens/",
        "/api/v1/jobs",
        "/admin/locks/1/lift/",
    ):
        for headers in forged:
            answer = ada.http.post(path, data={"username": "mallory", "name": "x"}, headers=headers)
            assert answer.status_code in {401, 403}, f"{path} with {headers} gave {answer.status_code}"
    assert ada.get("/admin/users/").status_code == 200, "a forged form signed the admin out"


@attack("members and operators write what is an admin's")
def beyond_ones_role(target: Target) -> None:
    writes: tuple[tuple[str, dict[str, str]], ...] = (
        ("/admin/users/create/", {"username": "mallory", "portal_role": "admin"}),
        ("/admin/users/1/role/", {"portal_role": "admin"}),
        ("/admin/users/1/password/", {}),
        ("/admin/locks/1/lift/", {}),
        ("/admin/tenants/new/create/", {"name": "Mine", "parent": "top", "tickets": "1"}),
        ("/admin/generations/create/", {"name": "X", "memory_gib": "1"}),
        ("/admin/clusters/attach/", {}),
    )
    for name in ("bob", "alice", "charlie", "olga"):
        person = target.person(name)
        for path, form in writes:
            if name == "olga" and "clusters" in path:
                continue
            answer = person.post(path, data=form)
            assert answer.status_code == 404, f"{path} gave {answer.status_code} to {name}"
        assert person.get("/admin/locks/").status_code == 404, f"{name} sees locks"


@attack("beat runs a planted timetable")
def planted_timetable(target: Target) -> None:
    """Writes a malicious pickle to the file where Celery beat of earlier releases kept its schedule, and restarts
    beat."""
    mark, place = target.var / "planted", target.var / "beat-schedule"
    with dbm.dumb.open(str(place), "n") as shelf:
        for key in (b"entries", b"__version__", b"tz", b"utc_enabled"):
            shelf[key] = pickle.dumps(_Planted(str(mark)))
    before = set(target.portal.kill("beat"))
    wait_for(lambda: mark.exists() or _is_connected(target, before), what="beat sends again")
    assert not mark.exists(), "beat ran what a planted pickle said"


def _is_connected(target: Target, before: set[int]) -> bool:
    """Returns whether a new process of Celery beat, whose pid is not in `before`, has opened a connection.

    Beat connects to the broker only after it has read its schedule.
    """
    try:
        return any(
            os.readlink(descriptor).startswith("socket:")
            for pid in set(target.portal.service_pids("beat")) - before
            for descriptor in Path(f"/proc/{pid}/fd").iterdir()
        )
    except FileNotFoundError:  # the process or the file descriptor is gone
        return False


class _Planted:
    """An object whose pickle creates a file as soon as somebody loads the pickle."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.path, "w")
