"""Each exit code that docs/cli.md lists ends a command for the reason that stands there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fairlot_client.client import Fairlot
from tests.portal.scene import Scene

Run = Callable[..., Any]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
DOCUMENTED = {int(code) for code in re.findall(r"^\| (\d+) \| ", PAGE.read_text(), re.MULTILINE)}


def interrupted() -> None:
    raise KeyboardInterrupt


def refused(scene: Scene, run: Run) -> Any:
    return run(scene.people.bob, "submit", "--gpus", 64, "true")


def without_token(scene: Scene, run: Run) -> Any:
    return run(None, "list", env={"FAIRLOT_URL": "http://testserver", "FAIRLOT_TOKEN": "fairlot_x"})


PROVOKED: list[tuple[int, Callable[[Scene, Run], Any]]] = [
    (0, lambda scene, run: run(scene.people.bob, "list")),
    (1, refused),
    (2, lambda scene, run: run(scene.people.bob, "list", "--state", "moon")),
    (2, lambda scene, run: run(scene.people.bob, "submit", "--workers", 0, "true")),
    (3, without_token),
    (3, lambda scene, run: run(scene.people.alice, "limit", "set", "astro", "gpus", 5)),
    (4, lambda scene, run: run(scene.people.bob, "show", 2**40)),
    (4, lambda scene, run: run(scene.people.bob, "show", "no such name")),
    (4, lambda scene, run: run(scene.people.bob, "list", "--team", "nope")),
    (125, lambda scene, run: run(scene.people.bob, "run", "--gpus", 64, "true")),
    (130, lambda scene, run: run(scene.people.bob, "logs", "-f", "supernova-next", pause=interrupted)),
]


@pytest.mark.parametrize(("code", "provoke"), PROVOKED)
def test_a_command_ends_with_the_documented_code(
    scene: Scene, fairlot: Run, code: int, provoke: Callable[[Scene, Run], Any]
) -> None:
    done = provoke(scene, fairlot)
    assert done.exit_code == code, done.output
    if code not in {0, 130}:
        assert "Error: " in done.stderr


@pytest.mark.parametrize(
    "answer", [httpx2.ConnectError("refused"), httpx2.Response(503)], ids=["unreachable", "busy"]
)
def test_a_portal_that_does_not_answer_ends_with_5(
    scene: Scene, fairlot: Run, monkeypatch: pytest.MonkeyPatch, answer: httpx2.Response | Exception
) -> None:
    def send(self: Fairlot, request: httpx2.Request) -> httpx2.Response | httpx2.TransportError:
        return answer

    monkeypatch.setattr(Fairlot, "_send", send)
    done = fairlot(scene.people.bob, "list")
    assert (done.exit_code, "Error: " in done.stderr) == (5, True)


def test_every_documented_code_is_provoked() -> None:
    assert {code for code, _ in PROVOKED} | {5} == DOCUMENTED
