"""A portal that runs jobs on its own machine serves only that machine, unless configured otherwise."""

import pytest
from django.conf import LazySettings
from django.test import Client
from django.urls import reverse

from scheduling.models import Cluster

pytestmark = pytest.mark.django_db
ELSEWHERE = "203.0.113.7"


@pytest.fixture
def _local_cluster() -> None:
    Cluster.objects.create(name="lab", backend=Cluster.Backend.LOCAL)


@pytest.mark.usefixtures("_local_cluster")
def test_requests_from_elsewhere_are_refused_with_the_reason(client: Client) -> None:
    answer = client.get(reverse("login"), REMOTE_ADDR=ELSEWHERE)
    assert answer.status_code == 403
    assert b"FAIRLOT_LOCAL_BEYOND_LOOPBACK" in answer.content
    refused = client.get("/api/v1/me", REMOTE_ADDR=ELSEWHERE)
    assert (refused.status_code, refused["Content-Type"]) == (403, "application/problem+json")
    assert "FAIRLOT_LOCAL_BEYOND_LOOPBACK" in refused.json()["detail"]


@pytest.mark.usefixtures("_local_cluster")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_this_machine_is_served(client: Client, address: str) -> None:
    assert client.get(reverse("login"), REMOTE_ADDR=address).status_code == 200


@pytest.mark.usefixtures("_local_cluster")
def test_it_can_be_permitted(client: Client, settings: LazySettings) -> None:
    settings.FAIRLOT_LOCAL_BEYOND_LOOPBACK = True
    assert client.get(reverse("login"), REMOTE_ADDR=ELSEWHERE).status_code == 200


def test_without_a_local_backend_all_clients_are_served(client: Client) -> None:
    assert client.get(reverse("login"), REMOTE_ADDR=ELSEWHERE).status_code == 200


@pytest.mark.usefixtures("_local_cluster")
def test_health_checks_pass(client: Client) -> None:
    assert client.get("/healthz", REMOTE_ADDR=ELSEWHERE).status_code == 200
