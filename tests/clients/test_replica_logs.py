"""The logs of a service's replicas by the API and in the terminal."""

from __future__ import annotations

import pytest

from fairlot_client.errors import ApiError
from scheduling.services.actions import remove_service
from tests.portal.scene import Scene
from tests.portal.services.test_replica_logs import NOON, end, replicas, started


def test_the_command_writes_the_lines_of_all_replicas_and_follows_them_to_the_end(
    scene: Scene,
    fairlot,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = started(scene, monkeypatch)
    bob, service = scene.people.bob, scene.service
    one, two = replicas(service)
    held.write(one.pk, "first\n", NOON)
    held.write(two.pk, "second\n", NOON + 1000)
    shown = fairlot(bob, "service", "logs", service.pk)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == f"{one.name}| first\n{two.name}| second\n"
    assert fairlot(bob, "service", "logs", service.pk, "--recent", "-t").stdout.startswith(
        "2026-03-01T12:00:00Z "
    )
    assert fairlot(scene.people.charlie, "service", "logs", service.pk).exit_code == 4
    held.broken.add(two.pk)
    assert "the node is lost" in fairlot(bob, "service", "logs", service.pk).output

    def last_words(*_: object) -> None:
        held.write(one.pk, "bye\n", NOON + 2000)
        remove_service(actor=bob, service=service)
        for job in (one, two):
            end(scene, job)

    shown = fairlot(bob, "service", "logs", "-f", service.pk, pause=last_words)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == f"{one.name}| first\n{one.name}| bye\n"
    assert shown.output.count("the node is lost") == 1


def test_a_position_of_something_else_is_refused(scene: Scene, client_of) -> None:
    client = client_of(scene.people.bob)
    assert client.read_service_log_lines(scene.service.pk) == {
        "items": [], "next": "", "complete": False, "problems": [],
    }  # fmt: skip
    with pytest.raises(ApiError, match="not the `next`"):
        client.read_service_log_lines(scene.service.pk, after="nonsense")
