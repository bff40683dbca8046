"""Every list can be sorted by its columns in both directions, by a parameter in the URL.

Sorting keeps the filters, and screen readers are given the order.
"""

import re
from html import unescape

import pytest
from django.test import Client

from accounting.models import Membership, Tenant, User
from scheduling.clusters.actions import pause_cluster
from scheduling.models import Cluster
from scheduling.sessions.actions import start_session
from scheduling.spec.job_spec import JobSpec
from scheduling.sweeps.actions import Rules, create_sweep
from scheduling.sweeps.parameters import Parameters
from tests.portal.scene import Scene
from tests.scheduling.piped import make

LISTS = (
    "/jobs/", "/services/", "/sessions/", "/schedules/", "/sweeps/", "/pipelines/", "/requests/", "/account/tokens/",
    "/admin/tenants/", "/admin/users/", "/admin/clusters/", "/admin/nodes/", "/admin/clusters/1/",
)  # fmt: skip
HEADING = re.compile(r'<th scope="col"([^>]*)>(<a class="sort" href="([^"]*)"[^>]*>)?')
SORTED = re.compile(r'<th scope="col"[^>]* aria-sort="(\w+)"><a class="sort" href="([^"]*)"')


@pytest.fixture
def ada(scene: Scene, browser_of) -> Client:
    people = scene.people
    spec = JobSpec(name="supernova-notes", command="serve", port=8000)
    start_session(actor=people.bob, tenant=people.astro, cluster=scene.world.cluster, spec=spec)
    create_sweep(
        actor=people.bob,
        tenant=people.astro,
        cluster=scene.world.cluster,
        spec=JobSpec(name="supernova-tune", command="true"),
        parameters=Parameters("array", count=2),
        rules=Rules(),
    )
    make(scene.world)
    browser_of(people.ada).post("/account/tokens/", {"name": "nightly", "days": "30"})
    return browser_of(people.ada)


def test_each_column_sorts_both_ways_and_keeps_the_filters(scene: Scene, ada: Client, browser_of) -> None:
    alice = browser_of(scene.people.alice)
    for reader, path in [*((ada, path) for path in LISTS), (alice, "/account/secrets/")]:
        address = path.replace("/1/", f"/{scene.world.cluster.pk}/")
        links = sorts(reader.get(f"{address}?q=&page=1").content.decode())
        assert len(links) >= 3, path
        for link in links:
            assert "q=" in link, path
            assert "page=" not in link, path
            page = reader.get(f"{address}{link}")
            assert page.status_code == 200, (path, link)
            [(now, back)] = SORTED.findall(page.content.decode())
            [(then, _)] = SORTED.findall(reader.get(f"{address}{unescape(back)}").content.decode())
            assert {now, then} == {"ascending", "descending"}, (path, link)


def test_rows_are_in_the_order_asked_for_and_an_unknown_one_is_the_usual(scene: Scene, ada: Client) -> None:
    for name in ("zoe", "Anna", "mia"):
        User.objects.create(username=name)
    names = [
        r[1]
        for r in re.finditer(r'href="/admin/users/\d+/">([\w]+)<', ada.get("/admin/users/").content.decode())
    ]
    assert names == sorted(names, key=str.lower)
    html = ada.get("/admin/users/?sort=-name").content.decode()
    assert re.findall(r'href="/admin/users/\d+/">([\w]+)<', html) == names[::-1]
    html = ada.get("/admin/users/?sort=password").content.decode()
    assert re.findall(r'href="/admin/users/\d+/">([\w]+)<', html) == names
    assert Membership.objects.exists()
    Tenant.objects.filter(slug="bio").update(tickets=7)
    html = ada.get("/admin/tenants/?sort=tickets").content.decode()
    assert html.index(">Bio<") < html.index(">Astro<")


def test_paused_schedules_come_last_in_reverse_order(scene: Scene, ada: Client) -> None:
    Cluster.objects.create(name="another", backend=Cluster.Backend.KUBERNETES)
    pause_cluster(actor=scene.people.ada, cluster=scene.world.cluster, reason="Cooling.")
    orders = [
        re.findall(r'<tr id="cluster-(\d+)"', ada.get(f"/admin/clusters/?sort={sort}").content.decode())
        for sort in ("state", "-state")
    ]
    assert len(orders[0]) == 2
    assert orders[0] == orders[1][::-1]


def sorts(html: str) -> list[str]:
    return [unescape(link) for _, _, link in HEADING.findall(html) if link]
