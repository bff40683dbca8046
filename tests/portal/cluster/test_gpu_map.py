"""The GPU map shows by colour and number which team holds which GPU, and its legend has the same colours and
numbers."""

import re
from datetime import UTC, datetime, timedelta

from django.utils.timezone import now

from accounting.models import Membership
from scheduling.backends.base import End, Phase
from scheduling.draining.actions import DrainMode, drain_node
from scheduling.jobs.actions import cancel_job
from scheduling.models import Node
from scheduling.services.replicas import step_service
from scheduling.sessions.actions import start_session
from scheduling.spec.job_spec import JobSpec
from tests.portal.administration.test_clusters import text_of
from tests.portal.scene import Scene


def drawn(html: str) -> tuple[dict[int, str], dict[str, str]]:
    """Returns "colour/number" for each job on the map, by job id, and for each team in the legend, by team name."""
    legend = html.partition('aria-label="Legend"')[2].partition("</ul>")[0]
    teams = re.findall(
        r'gpu-series-(\d)"><span class="gpu-team" aria-hidden="true">(\d+)</span></span>(\w+)', legend
    )
    cells = re.findall(
        r'gpu-series-(\d)" title="[^"]*"><a href="/jobs/(\d+)/">.*?gpu-team" aria-hidden="true">(\d+)<', html
    )
    return {int(job): f"{series}/{n}" for series, job, n in cells}, {team: f"{s}/{n}" for s, n, team in teams}


def test_jobs_have_the_colour_and_number_of_their_team(scene: Scene, browser_of) -> None:
    cast = scene.people
    jobs, teams = drawn(browser_of(cast.olga).get("/cluster/").content.decode())
    assert jobs == {scene.job.pk: teams["Astro"], scene.other.pk: teams["Bio"]}
    assert len(set(teams.values())) == 2
    Membership.objects.create(tenant=cast.bio, user=cast.bob, role="member", tickets=1)
    both, _ = drawn(browser_of(cast.bob).get("/cluster/").content.decode())
    assert len(set(both.values())) == 2


def test_the_legend_has_what_is_drawn_and_nothing_else(scene: Scene, browser_of) -> None:
    html = browser_of(scene.people.bob).get("/cluster/").content.decode()
    assert kinds(html) == {"own", "other"}
    assert "GPU of another team</li>" in html
    nodes = scene.world.cluster.nodes
    nodes.create(name="spare", generation=scene.people.v100, gpus=2)
    nodes.create(name="broken", generation=scene.people.v100, gpus=1, state="down")
    html = browser_of(scene.people.olga).get("/cluster/").content.decode()
    assert kinds(html) == {"own", "free", "away"}


def kinds(html: str) -> set[str]:
    """Returns the kinds of cells in the legend, such as "own" or "free". Fails if the map shows different kinds."""
    legend = set(re.findall(r'<li><span class="gpu gpu-(\w+)', html))
    assert legend == set(re.findall(r'<li class="gpu gpu-(\w+)', html))
    return legend


def test_a_drained_node_that_its_cluster_no_longer_has_says_so(scene: Scene, browser_of) -> None:
    olga = browser_of(scene.people.olga)
    Node.objects.filter(pk=Node.objects.first().pk).update(state="drained", state_reason="fan")
    for is_gone, told in ((False, []), (True, ["left the cluster 3 h ago"])):
        if is_gone:
            Node.objects.update(gone_at=now() - timedelta(hours=3))
        for page in ("/cluster/", "/admin/nodes/"):
            assert re.findall("left the cluster 3 h ago", text_of(olga.get(page))) == told, page


def test_drained_gpus_are_distinguished_and_are_draining_while_jobs_run_there(
    scene: Scene, browser_of
) -> None:
    """Every page says "Draining" while jobs run on a drained node, then "Drained", and counts drained GPUs apart from
    free ones.

    The node has six GPUs, of which a job holds four.
    """
    olga, cast = browser_of(scene.people.olga), scene.people
    node = scene.world.lease(scene.job).held_gpus.first().node
    Node.objects.filter(pk=node.pk).update(gpus=6, state="drained", state_reason="fan")
    for page in ("/cluster/", "/admin/nodes/"):
        assert "Draining" in olga.get(page).content.decode(), page
    kind = node.generation.name
    assert "0 free · 2 drained" in text_of(olga.get("/cluster/"))
    assert "4 of 6 GPUs busy · 0 free · 2 drained" in text_of(olga.get("/"))
    asked = browser_of(cast.bob).get(f"/jobs/{scene.waiting.pk}/")
    assert f"{kind}: 0 of 6 GPUs free, 6 drained" in text_of(asked)
    scene.world.see(scene.world.lease(scene.job), Phase.ENDED, end=End.STOPPED, ended_age=0.0)
    assert "Draining" not in olga.get("/cluster/").content.decode()
    assert "Drained" in olga.get("/cluster/").content.decode()


def test_a_removed_node_is_on_no_page_and_remove_is_offered_where_it_can_be_done(
    scene: Scene, browser_of
) -> None:
    ada = browser_of(scene.people.ada)
    node = scene.world.lease(scene.job).held_gpus.first().node
    path = f"/admin/nodes/{node.pk}/remove/"
    assert path not in ada.get("/admin/nodes/").content.decode()
    drain_node(actor=scene.people.ada, node=node, reason="sold", mode=DrainMode.NOW)
    scene.world.carry_out()
    assert path in ada.get("/admin/nodes/").content.decode()
    assert ada.post(path).status_code == 302
    for page in ("/cluster/", "/admin/nodes/", "/api/v1/gpu-map"):
        assert f">{node.name}<" not in ada.get(page).content.decode(), page
        assert f'"{node.name}"' not in ada.get(page).content.decode(), page
    assert ada.get(f"/admin/nodes/{node.pk}/drain/").status_code == 404
    assert node.name in ada.get("/usage/operations/nodes/").content.decode(), "its history stays"


def test_a_job_on_a_node_that_is_drained_says_why_and_until_when(scene: Scene, browser_of) -> None:
    """While the job runs on the node, the top of each of the job's pages says why the node is drained and until
    when."""
    bob, node = browser_of(scene.people.bob), scene.world.lease(scene.job).held_gpus.first().node
    page = f"/jobs/{scene.job.pk}/"
    assert "is being drained" not in text_of(bob.get(page))
    drain_node(actor=scene.people.ada, node=node, reason="new fan")
    told = f"At least one worker runs on node {node.name}, which is being drained: new fan."
    assert f"{told} Jobs that run on this node can run to their end." in text_of(bob.get(page))
    assert f"{node.name} is being drained: new fan; the drain does not stop the job" in text_of(
        bob.get(f"{page}events/")
    ), "names stay as they are written"
    at = datetime(2100, 1, 1, tzinfo=UTC)
    drain_node(actor=scene.people.ada, node=node, reason="new fan", mode=DrainMode.DEADLINE, deadline=at)
    for tab in (page, f"{page}events/", f"{page}log/"):
        said = text_of(bob.get(tab))
        stop = (
            "Jobs on this node will be stopped, and wait until other nodes have room for them."
            " Time of the stop: 1 Jan 2100 00:00:00"
        )
        assert f"{told} {stop}" in said, tab
    drain_node(actor=scene.people.ada, node=node, reason="new fan", mode=DrainMode.NOW)
    assert told not in text_of(bob.get(page)), "it is stopping already"


def test_a_service_and_a_session_say_so_too(scene: Scene, browser_of) -> None:
    people, world = scene.people, scene.world
    spec = JobSpec(name="notes", command="serve", port=8000, gpus_per_worker=1)
    session = start_session(actor=people.bob, tenant=people.astro, cluster=world.cluster, spec=spec)
    step_service(service_id=scene.service.pk)
    cancel_job(actor=people.bob, job=scene.job)
    cancel_job(actor=people.alice, job=scene.waiting)
    world.carry_out()
    for _ in range(3):
        world.quantum()
        world.carry_out()
    bob = browser_of(people.bob)
    for node in world.cluster.nodes.all():
        drain_node(actor=people.ada, node=node, reason=f"fan of {node.name}")
    for page in (f"/sessions/{session.pk}/", f"/services/{scene.service.pk}/"):
        assert "which is being drained: fan of" in text_of(bob.get(page)), page


def test_the_tiles_of_home_lead_to_lists_of_as_many_jobs(scene: Scene, browser_of) -> None:
    """Each tile's number is the length of the job list that it links to. These lists include replicas of services."""
    step_service(service_id=scene.service.pk)
    for who in (scene.people.bob, scene.people.olga):
        browser = browser_of(who)
        home = browser.get("/").content.decode()
        tiles = re.findall(r'<a class="tile" href="([^"]+)">.*?<span class="tile-value">(\d+)<', home)
        assert len(tiles) == 4
        for path, count in tiles:
            assert browser.get(path.replace("&amp;", "&")).context["page"].paginator.count == int(count), path
