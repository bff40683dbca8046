"""The traffic of a service by the API and in the terminal."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from scheduling.models import Service
from tests.portal.scene import Scene
from tests.portal.services.test_traffic import record


def test_the_api_and_the_command_give_the_same_figures(scene: Scene, fairlot, client_of) -> None:
    bob, service = scene.people.bob, scene.service
    client = client_of(bob)
    assert client.get_service_traffic(service.pk)["points"] == []
    record(service)
    found = client.get_service_traffic(service.pk)
    [point] = found["points"]
    expected = {
        "requests": 10,
        "client_errors": 1,
        "server_errors": 1,
        "no_replica": 1,
        "timed_out": 0,
        "left": 0,
    }
    assert {name: point[name] for name in expected} == expected
    assert point["requests_per_second"] == pytest.approx(10 / found["seconds"])
    assert found["whole"]["requests_per_second"] == pytest.approx(10 / 3600, rel=0.01)
    assert found["whole"]["p99_seconds"] >= found["whole"]["p95_seconds"] > 0.16
    shown = fairlot(bob, "service", "metrics", service.pk)
    assert shown.exit_code == 0, shown.output
    for text in (
        "requests/s", "latency p95", " ms", "10 %", "client errors (4xx)", "timed out",
        "10 requests. Requests that programs send",
    ):  # fmt: skip
        assert text in shown.output
    shown = fairlot(bob, "service", "metrics", "supernova-api", "-o", "json")
    assert json.loads(shown.stdout)["whole"]["requests"] == 10
    assert fairlot(scene.people.charlie, "service", "metrics", service.pk).exit_code == 4
    Service.objects.filter(pk=service.pk).update(removed_at=timezone.now() - timedelta(hours=1))
    assert client.get_service_traffic(service.pk)["points"] == []


@pytest.mark.parametrize("year", [1, 9999])
def test_any_period_of_traffic_may_be_asked_for(scene: Scene, client_of, year: int) -> None:
    record(scene.service)
    at = datetime(year, 6, 1, tzinfo=UTC).isoformat()
    client = client_of(scene.people.bob)
    assert (client.get_service_traffic(scene.service.pk, from_=at)["points"] == []) is (year == 9999)
    assert (client.get_service_traffic(scene.service.pk, to=at)["points"] == []) is (year == 1)
