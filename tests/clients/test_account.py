"""Logging in, several portals, where the token is kept, and how errors end the program."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import httpx2
import pytest

from fairlot_client.cli.app import App, exit_code_of
from fairlot_client.cli.config import Access, Config, config_path
from fairlot_client.errors import ConnectionFailed, error_of
from portal.models import Scope, TerminalLogin
from portal.tokens.actions import create_token
from portal.tokens.terminal_logins import decide_login
from tests.clients.conftest import URL
from tests.portal.scene import Scene


def token_of(scene: Scene) -> str:
    return create_token(actor=scene.people.bob, name="pasted", scopes=Scope.values, days=1)[1]


class TestLogin:
    @pytest.mark.parametrize("how", ["stdin", "variable"])
    def test_a_token_is_checked_and_kept_where_only_the_user_reads_it(
        self, scene: Scene, fairlot, how: str
    ) -> None:
        token = token_of(scene)
        words = ["login", URL + "/", *(["--with-token"] if how == "stdin" else [])]
        env = {"FAIRLOT_TOKEN": token} if how == "variable" else {}
        done = fairlot(None, *words, input=f"{token}\n", env=env)
        assert done.exit_code == 0
        assert f"Logged in to {URL} as bob." in done.stderr
        assert "has no TLS" in done.stderr
        assert token not in done.output
        path = config_path()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert [one.name for one in path.parent.iterdir()] == [path.name]
        assert fairlot(None, "whoami", "-o", "name").stdout == "bob\n"

    def test_a_token_is_allowed_in_the_browser(self, scene: Scene, fairlot, monkeypatch) -> None:
        opened: list[str] = []
        monkeypatch.setattr("click.launch", opened.append)

        def in_the_browser() -> None:
            code = TerminalLogin.objects.get().user_code
            decide_login(actor=scene.people.bob, user_code=code, allowed=True, scopes=["work"], days=1)

        done = fairlot(None, "login", URL, terminal=True, pause=in_the_browser)
        assert done.exit_code == 0, done.output
        assert opened[0] in done.stderr
        assert f"Logged in to {URL} as bob." in done.stderr
        assert fairlot(None, "whoami", "-o", "name").stdout == "bob\n"

    def test_a_program_that_is_denied_says_so(self, scene: Scene, fairlot, monkeypatch) -> None:
        monkeypatch.setattr("click.launch", lambda url: None)

        def in_the_browser() -> None:
            code = TerminalLogin.objects.get().user_code
            decide_login(actor=scene.people.bob, user_code=code, allowed=False)

        done = fairlot(None, "login", URL, terminal=True, pause=in_the_browser)
        assert (done.exit_code, config_path().exists()) == (1, False)
        assert "You denied it. Run `fairlot login" in done.stderr

    def test_a_wrong_token_is_not_kept(self, scene: Scene, fairlot) -> None:
        done = fairlot(None, "login", URL, "--with-token", input="fairlot_x\n")
        assert (done.exit_code, config_path().exists()) == (3, False)
        assert "unknown, has expired or was revoked" in done.stderr
        assert fairlot(None, "login", URL, "--with-token", input="two words\n").exit_code == 2

    def test_without_a_terminal_nothing_is_asked(self, scene: Scene, fairlot) -> None:
        done = fairlot(None, "login", URL)
        assert done.exit_code == 2
        assert "Use --with-token" in done.stderr

    def test_who_is_not_logged_in_is_told_what_to_do(self, fairlot) -> None:
        done = fairlot(None, "list")
        assert done.exit_code == 1
        assert "Run `fairlot login URL`" in done.stderr
        assert "FAIRLOT_TOKEN is not" in fairlot(None, "list", env={"FAIRLOT_URL": URL}).stderr

    def test_logging_out_deletes_the_token_here(self, scene: Scene, fairlot) -> None:
        fairlot(None, "login", URL, "--with-token", input=token_of(scene))
        done = fairlot(None, "logout")
        assert "stays valid until you revoke it" in done.stderr
        assert Config.load() == Config()
        assert fairlot(None, "logout").exit_code == 2


class TestContexts:
    @pytest.fixture
    def saved(self, scene: Scene, fairlot) -> str:
        token = token_of(scene)
        Config("other", {"lab": Access(URL, token), "other": Access(URL, "fairlot_other")}).save()
        return token

    def test_they_are_listed_chosen_and_used(self, saved: str, fairlot) -> None:
        assert [
            one["current"] for one in json.loads(fairlot(None, "context", "list", "-o", "json").stdout)
        ] == [
            False,
            True,
        ]
        assert fairlot(None, "--context", "lab", "whoami").exit_code == 0
        assert fairlot(None, "whoami", env={"FAIRLOT_CONTEXT": "lab"}).exit_code == 0
        assert fairlot(None, "whoami").exit_code == 3
        assert fairlot(None, "context", "use", "lab").exit_code == 0
        assert fairlot(None, "whoami").exit_code == 0

    @pytest.mark.parametrize("words", [["context", "use", "moon"], ["--context", "moon", "whoami"]])
    def test_an_unknown_one_is_refused_with_those_that_exist(
        self, saved: str, fairlot, words: list[str]
    ) -> None:
        done = fairlot(None, *words)
        assert done.exit_code in {1, 2}
        assert 'There is no context "moon". Available: lab, other.' in done.stderr

    def test_a_saved_token_is_never_sent_to_another_url(self, saved: str, fairlot) -> None:
        done = fairlot(None, "whoami", env={"FAIRLOT_URL": "http://evil"})
        assert (done.exit_code, "FAIRLOT_TOKEN is not" in done.stderr) == (1, True)

    def test_a_damaged_file_is_named(self, saved: str, fairlot) -> None:
        config_path().write_text("{")
        done = fairlot(None, "whoami")
        assert (done.exit_code, str(config_path()) in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("url", "expected"),
    [("fairlot.example/", "https://fairlot.example"), ("http://localhost:8000", "http://localhost:8000")],
)
def test_a_url_without_a_scheme_is_https(url: str, expected: str) -> None:
    from fairlot_client.cli.config import normal_url  # noqa: PLC0415 - beside its test

    assert normal_url(url) == expected


@pytest.mark.parametrize("url", ["ftp://x", "https://", ""])
def test_what_is_no_url_is_refused(fairlot, url: str) -> None:
    done = fairlot(None, "login", url)
    assert (done.exit_code, "Write it like https://" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, 3), (403, 3), (404, 4), (409, 1), (422, 2), (429, 5), (503, 5), (500, 5), (400, 1)],
)
def test_each_error_has_an_exit_code(status: int, code: int) -> None:
    assert exit_code_of(error_of(status, None)) == code
    assert exit_code_of(ConnectionFailed("refused")) == 5


def test_a_portal_that_cannot_be_reached_is_one_line(
    fairlot, monkeypatch: pytest.MonkeyPatch, portal_transport: httpx2.WSGITransport
) -> None:
    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("Connection refused")

    monkeypatch.setattr(portal_transport, "handle_request", refuse)
    done = fairlot(None, "whoami", env={"FAIRLOT_URL": "http://gone", "FAIRLOT_TOKEN": "t"})
    assert (done.exit_code, done.stdout) == (5, "")
    assert done.stderr == "Error: http://gone cannot be reached: Connection refused\n"


def test_ctrl_c_ends_quietly(scene: Scene, fairlot, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: App) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(App, "client", property(interrupt))
    done = fairlot(None, "whoami")
    assert (done.exit_code, done.stderr) == (130, "Interrupted.\n")


@pytest.mark.parametrize(("words", "env"), [(["--no-color"], {}), ([], {"NO_COLOR": "1"})])
def test_colours_are_left_out_on_request(
    scene: Scene, fairlot, monkeypatch: pytest.MonkeyPatch, words: list[str], env: dict[str, str]
) -> None:
    from click.testing import CliRunner  # noqa: PLC0415 - only here

    from fairlot_client.cli.main import cli  # noqa: PLC0415 - only here

    fairlot(None, "login", URL, "--with-token", input=token_of(scene))
    plain = CliRunner().invoke(cli, [*words, "list"], env=env, color=True)
    assert "\x1b" not in plain.output
    assert "\x1b[32m" in CliRunner().invoke(cli, ["list"], color=True).output


def test_the_file_lies_in_the_home_if_no_other_folder_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert config_path() == Path.home() / ".config" / "fairlot" / "config.json"
