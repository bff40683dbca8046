"""Who holds what, and the top consumers: on the cluster pages, and in the API."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounting.core.clock import now_from_database
from accounting.models import User
from accounting.models.tenants import visible_tenants
from accounting.reports.consumers import top_consumers
from accounting.reports.usage import By, usage_report
from scheduling.models import GpuUse, HeldGpu, Node
from scheduling.reports import holders
from scheduling.reports.holders import Narrow, WhoHolds
from tests.portal.administration.test_clusters import text_of
from tests.portal.scene import Scene, secrets_in

FRESH = timedelta(minutes=3)


def who_holds(viewer: User, narrow: Narrow, *, by_user: bool) -> WhoHolds:
    return holders.who_holds(
        viewer, narrow, teams=visible_tenants(viewer), by_user=by_user, measured_within=FRESH
    )


def rows(scene: Scene, viewer, narrow: Narrow | None = None, **choice) -> dict[tuple[str | None, ...], dict]:
    """Returns the numbers of GPUs by GPU type of each holder, by (team, user)."""
    found = who_holds(viewer, narrow or Narrow(), by_user=choice.get("by_user", True))
    return {
        (one.tenant, one.user): {name: held.gpus for name, held in one.by_generation.items()}
        for one in found.holders
    }


def test_holders_add_up_to_the_held_gpus(scene: Scene) -> None:
    held = HeldGpu.objects.filter(during__isnull=False, during__endswith__isnull=True)
    names = ("lease__job__tenant__name", "lease__job__owner__username", "lease__generation__name")
    expected = Counter(held.values_list(*names))
    assert sum(expected.values()) == 8
    counted = {
        (team, user, kind): gpus
        for (team, user), kinds in rows(scene, scene.people.olga).items()
        for kind, gpus in kinds.items()
    }
    assert counted == dict(expected)
    by_team = rows(scene, scene.people.olga, by_user=False)
    assert {team: sum(kinds.values()) for (team, _), kinds in by_team.items()} == {"Astro": 4, "Bio": 4}


def test_teams_that_a_user_may_not_see_are_one_row_with_their_gpus_only(scene: Scene) -> None:
    found = who_holds(scene.people.charlie, Narrow(), by_user=True).holders
    assert [(one.tenant, one.user, one.gpus, one.jobs, one.idle) for one in found] == [
        ("Bio", "charlie", 4, 1, 0),
        (None, None, 4, 0, 0),
    ]


def test_a_node_a_type_and_a_team_narrow_the_rows(scene: Scene) -> None:
    olga, astro = scene.people.olga, scene.people.astro
    of_bob = HeldGpu.objects.filter(lease__job=scene.job, during__isnull=False).select_related("node").first()
    assert of_bob is not None
    kind = of_bob.node.generation.name
    only_bob = {("Astro", "bob"): {kind: 4}}
    assert rows(scene, olga, Narrow(generation=kind)) == only_bob
    assert rows(scene, olga, Narrow(node=of_bob.node.name[:-2].upper())) == only_bob
    assert rows(scene, olga, Narrow(tenants=[astro.pk])) == only_bob
    assert rows(scene, olga, Narrow(cluster=scene.world.cluster.name, node=of_bob.node.name)) == only_bob
    assert rows(scene, olga, Narrow(cluster="elsewhere")) == rows(scene, olga, Narrow(node="%")) == {}


def test_a_team_is_entitled_only_by_team_and_not_to_nodes(scene: Scene) -> None:
    """The entitlements of both teams are all GPUs, and a team without GPUs has a row as well."""
    alice, olga = scene.people.alice, scene.people.olga

    def entitled(viewer, **narrow) -> dict[str | None, float | None]:
        found = who_holds(viewer, Narrow(**narrow), by_user=False).holders
        sums = {
            one.tenant: [held.entitled for held in one.by_generation.values() if held.entitled is not None]
            for one in found
        }
        return {team: sum(parts) if parts else None for team, parts in sums.items()}

    assert sum(filter(None, entitled(olga).values())) == pytest.approx(8)
    assert set(entitled(alice)) == {"Astro", None}
    assert entitled(alice)[None] is None
    assert set(entitled(olga, node="v100").values()) == {None}
    assert set(entitled(olga, tenants=[scene.people.bio.pk])) == {"Bio"}


def test_gpus_are_idle_after_a_recent_measurement_of_this_attempt(scene: Scene) -> None:
    lease, now = scene.world.lease(scene.job), now_from_database()
    use = GpuUse.objects.create(
        job=scene.job,
        lease=lease,
        measured_until=now,
        measure="gpu",
        percent=0,
        idle_since=now,
        idle_for=timedelta(0),
    )

    def idle(narrow: Narrow) -> int:
        found = who_holds(scene.people.olga, narrow, by_user=False).holders
        return next(one.idle for one in found if one.tenant == "Astro")

    assert lease.state == "running"
    for narrow in (Narrow(), Narrow(node=lease.held_gpus.first().node.name)):
        assert idle(narrow) == 4
    GpuUse.objects.filter(pk=use.pk).update(measured_until=now - timedelta(hours=1))
    assert idle(Narrow()) == 0


def test_the_queries_do_not_grow_with_the_holders(scene: Scene) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as asked:
            who_holds(scene.people.alice, Narrow(), by_user=False)
        return len(asked)

    before = queries()
    Node.objects.create(
        cluster=scene.world.cluster, name="v100-more", generation=scene.people.v100, gpus=8, state="ready"
    )
    for number in range(4):
        scene.world.submit(scene.people.bob, scene.people.astro, gpus=1, name=f"supernova-{number}")
    scene.world.quantum()
    scene.world.carry_out()
    assert queries() == before <= 6


def test_consumers_add_up_to_the_usage_report(scene: Scene) -> None:
    ends = now_from_database()
    begins = ends - timedelta(days=1)
    for viewer in (scene.people.olga, scene.people.bob, scene.people.charlie):
        [total] = usage_report(viewer, begins, ends).totals
        for by_user in (False, True):
            found = top_consumers(viewer, begins, ends, by_user=by_user)
            assert sum(one.held for one in found) == total.gpu_seconds > 0
            assert sum(one.cost for one in found) == total.cost
    by_user = usage_report(scene.people.olga, begins, ends, by=(By.USER,)).rows
    found = top_consumers(scene.people.olga, begins, ends, by_user=True)
    assert {one.user: one.held for one in found} == {row.user: row.gpu_seconds for row in by_user}
    assert found[0].user == "bob"
    [only] = top_consumers(scene.people.olga, begins, ends, by_user=True, generation="A100")
    assert (only.user, only.held, only.tenant) == ("bob", Decimal(4 * 45 * 60), "Astro")


def test_the_pages_show_a_user_only_what_the_user_may_see(scene: Scene, browser_of) -> None:
    charlie, bob, olga = (browser_of(getattr(scene.people, who)) for who in ("charlie", "bob", "olga"))
    for query in ("", "?by=user", "?period=day", "?period=day&by=user", "?period=week"):
        html = charlie.get(f"/cluster/consumers/{query}").content.decode()
        assert secrets_in(html) == [], query
        assert "Bio" in html
    assert secrets_in(charlie.get("/cluster/?by=user").content.decode()) == []
    assert "Teams that you cannot see" in text_of(charlie.get("/cluster/"))
    assert "Teams that you cannot see" not in text_of(olga.get("/cluster/"))
    shown = text_of(bob.get("/cluster/consumers/?period=day&by=user"))
    assert "bob Astro" in shown
    assert "charlie" not in shown
    for path in ("/api/v1/holders?by=user", "/api/v1/consumers?by=user&period=week"):
        assert secrets_in(charlie.get(path).content.decode()) == [], path
    [mine, others] = charlie.get("/api/v1/holders").json()["holders"]
    assert (mine["team"], mine["jobs"], others["team"], others["jobs"]) == ("bio", 1, None, None)


def test_the_filter_of_the_cluster_page_narrows_the_map_as_well(scene: Scene, browser_of) -> None:
    olga = browser_of(scene.people.olga)

    def drawn(query: str) -> set[str]:
        html = olga.get(f"/cluster/?{query}").content.decode()
        return {node.name for node in Node.objects.all() if f'aria-label="GPUs of {node.name}"' in html}

    of_bob = scene.world.lease(scene.job).held_gpus.first().node
    assert len(drawn("")) == 2
    assert drawn("team=astro") == drawn(f"generation={of_bob.generation.name}") == {of_bob.name}
    assert drawn(f"node={of_bob.name[:3]}") == {of_bob.name}
    assert drawn("node=nowhere") == set()
    assert "No node of this cluster fits the filter." in text_of(olga.get("/cluster/?node=nowhere"))


def test_gpus_of_a_node_that_left_are_still_held(scene: Scene, browser_of) -> None:
    """A node may leave the cluster while a job holds its GPUs, and be the last one of its GPU type."""
    Node.objects.update(gone_at=now_from_database(), gpus=0)
    found = who_holds(scene.people.olga, Narrow(), by_user=False)
    assert (found.sizes, found.totals) == ([], {"A100": 4, "V100": 4})
    for page in ("/cluster/", "/cluster/consumers/", "/cluster/?by=user&team=astro", "/api/v1/holders", "/"):
        assert browser_of(scene.people.olga).get(page).status_code == 200, page


def test_gpu_types_have_one_order_in_all_rows(scene: Scene) -> None:
    found = who_holds(scene.people.olga, Narrow(), by_user=False).holders
    assert [list(one.by_generation) for one in found] == [["A100", "V100"]] * 2
