"""The page, file and API of the capacity report agree. The report shows that the classes of GPU time add up to the
capacity."""

from __future__ import annotations

import csv
import io
from datetime import timedelta
from decimal import Decimal

import pytest

from accounting.core.calendar import HOUR, start_of_hour
from accounting.core.clock import now_from_database
from portal.wording import money
from scheduling.leases.actions import bill_running
from scheduling.models import Lease
from tests.accounting.booking import close_hours
from tests.portal.scene import Scene

# The period is long, because a past hour may be in last month on the day when the test runs.
WIDE = "period=dates&from=2020-01-01&to=2199-12-31"


@pytest.fixture
def closed(scene: Scene) -> Scene:
    """Returns the scene with its bookings in closed hours, as if its cluster had a thousand A100."""
    hour = start_of_hour(now_from_database())
    close_hours(scene.people, hour - 6 * HOUR, hour + HOUR, book=scene.world.cluster.pk)
    return scene


def test_page_file_and_api_say_the_same_and_the_books_close(closed: Scene, browser_of) -> None:
    browser = browser_of(closed.people.olga)
    html = browser.get(f"/usage/capacity/?{WIDE}").content.decode()
    assert "The costs add up to capacity × price" in html
    assert "Every GPU-second is in exactly one class" in html
    told = browser.get(f"/api/v1/capacity?{WIDE}").json()
    (identity,) = told["identities"]
    assert identity["closes"] is True
    tenants = {one["tenant"]: Decimal(one["cost"]) for one in identity["tenants"]}
    assert set(tenants) == {"Astro", "Bio"}
    borne = [Decimal(identity[name]) for name in ("written_off", "unallocated", "drained", "down")]
    assert sum(tenants.values()) + sum(borne) == Decimal(identity["value"])
    file = browser.get(f"/usage/capacity.csv?{WIDE}").content.decode()
    assert browser.get(f"/api/v1/capacity?{WIDE}&format=csv").content.decode() == file
    lines = list(csv.reader(io.StringIO(file)))
    bearers = {line[0]: Decimal(line[1]) for line in lines[lines.index([]) + 2 :]}
    assert bearers["Capacity x price"] == Decimal(identity["value"])
    for name, amount in tenants.items():
        assert bearers[name] == amount
        assert f">{money(amount, '', 6)}</td>" in html


def test_a_team_called_unallocated_is_a_team_like_any_other(closed: Scene, browser_of) -> None:
    note = "This cost includes"
    olga = browser_of(closed.people.olga)
    assert olga.get(f"/usage/capacity/?{WIDE}").content.decode().count(note) == 1
    type(closed.people.astro).objects.filter(pk=closed.people.astro.pk).update(name="Unallocated")
    assert olga.get(f"/usage/capacity/?{WIDE}").content.decode().count(note) == 1


def test_one_cluster_is_chosen_by_its_name(closed: Scene, browser_of) -> None:
    browser = browser_of(closed.people.ada)
    name = closed.world.cluster.name
    assert browser.get(f"/api/v1/capacity?{WIDE}&cluster={name}").json()["generations"]
    assert browser.get("/usage/capacity/?cluster=elsewhere").status_code == 404


def test_without_a_closed_hour_the_page_says_so(scene: Scene, browser_of) -> None:
    html = browser_of(scene.people.olga).get("/usage/capacity/").content.decode()
    assert "No hour of this period is closed yet" in html


def test_the_report_names_what_keeps_an_hour_open(scene: Scene, browser_of) -> None:
    hour = start_of_hour(now_from_database()) - 2 * HOUR
    close_hours(scene.people, hour - HOUR, hour, book=scene.world.cluster.pk)
    lease = scene.world.lease(scene.job)
    Lease.objects.filter(pk=lease.pk).update(
        held_from=hour, last_seen_at=hour + timedelta(minutes=3), billed_until=None
    )
    html = browser_of(scene.people.olga).get("/usage/capacity/").content.decode()
    assert "cannot be closed yet" in html
    assert scene.job.name in html


def test_the_report_names_what_the_ledger_refuses(scene: Scene, browser_of) -> None:
    """The report names a running job whose usage cannot be booked, because the usage begins within a closed hour."""
    hour = start_of_hour(now_from_database()) - 3 * HOUR
    book = scene.world.cluster.pk
    close_hours(scene.people, hour - HOUR, hour, book=book)
    lease = scene.world.lease(scene.job)
    Lease.objects.filter(cluster=book).exclude(pk=lease.pk).update(billed_until=now_from_database() + HOUR)
    Lease.objects.filter(pk=lease.pk).update(
        held_from=hour - HOUR / 2, last_seen_at=now_from_database(), billed_until=None
    )
    assert bill_running(cluster_id=book) == 0
    html = browser_of(scene.people.olga).get("/usage/capacity/").content.decode()
    held = f"{scene.job.name}</a> on cluster {scene.world.cluster.name} held GPUs in this hour"
    assert f"{held}, and its usage is not booked yet. The job still runs." in html


def test_only_operators_are_shown_the_way_there(scene: Scene, browser_of) -> None:
    for viewer, shown in ((scene.people.alice, False), (scene.people.olga, True)):
        assert ("/usage/capacity/" in browser_of(viewer).get("/usage/").content.decode()) is shown
