"""The program starts quickly: it imports the HTTP library and YAML only when it needs them. Completion of the shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from fairlot_client.cli.main import cli
from tests.clients.conftest import URL
from tests.portal.scene import Scene

FOLDER = Path(__file__).resolve().parents[2] / "clients" / "python"
HEAVY = {"asyncio", "fairlot_client.client", "fairlot_client.operations", "httpx2", "rich", "yaml"}
COMPLETE = {"_FAIRLOT_COMPLETE": "bash_complete", "COMP_WORDS": "fairlot li", "COMP_CWORD": "1"}
# Runs the program, and then prints the names of the modules that it has imported.
PROGRAM = """
import atexit, json, sys
atexit.register(lambda: print("MODULES", json.dumps(sorted(sys.modules))))
from fairlot_client.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        (["--version"], {}, "fairlot, version"),
        ([], COMPLETE, "plain,list"),
        (["submit", "--help"], {}, "--workers"),
    ],
)
def test_version_help_and_completion_import_no_large_library(
    words: list[str], env: dict[str, str], said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(FOLDER), "HOME": "/"} | env,
        capture_output=True,
        text=True,
        check=True,
    )
    output, _, modules = done.stdout.partition("MODULES ")
    assert said in output
    assert set(json.loads(modules)) & HEAVY == set()


def completions(*words: str) -> list[str]:
    found = ShellComplete(cli, {}, "fairlot", "_FAIRLOT_COMPLETE").get_completions(
        list(words[:-1]), words[-1]
    )
    return [item.value for item in found]


def test_commands_options_and_choices_are_completed() -> None:
    assert "submit" in completions("su")
    assert "--workers" in completions("submit", "--wo")
    assert completions("list", "--state", "ru") == ["running"]


def test_ids_and_names_of_jobs_are_completed(scene: Scene, fairlot, monkeypatch: pytest.MonkeyPatch) -> None:
    from portal.tokens.actions import create_token  # noqa: PLC0415 - models cannot be imported earlier

    monkeypatch.setenv("FAIRLOT_URL", URL)
    monkeypatch.setenv(
        "FAIRLOT_TOKEN", create_token(actor=scene.people.bob, name="tab", scopes=(), days=1)[1]
    )
    assert completions("show", "super") == ["supernova-next", "supernova"]
    assert str(scene.job.pk) in completions("logs", "-f", "")
    assert "genome" not in completions("show", "")
    monkeypatch.setenv("FAIRLOT_TOKEN", "wrong")
    assert completions("show", "super") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(fairlot, shell: str) -> None:
    done = fairlot(None, "completion", shell)
    assert (done.exit_code, f"{shell}_complete" in done.stdout) == (0, True)


def commands(of: click.Command, path: str = "fairlot") -> list[tuple[str, click.Command]]:
    if not isinstance(of, click.Group):
        return [(path, of)]
    return [found for name, one in of.commands.items() for found in commands(one, f"{path} {name}")]


def test_every_command_says_what_it_does() -> None:
    found = commands(cli)
    assert len(found) > 15
    for path, command in found:
        assert (command.help or "").split("\n")[0].endswith("."), path
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{path} {parameter.name}"
