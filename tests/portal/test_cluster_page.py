"""Who holds which GPU: coloured and numbered by team, with a legend of what is drawn and nothing else."""

import re

from accounting.models import Membership
from tests.portal.scene import Scene


def drawn(html: str) -> tuple[dict[int, str], dict[str, str]]:
    """By job the colour and number in which it is drawn, by team those of the legend."""
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
    assert "another team</li>" in html
    nodes = scene.world.cluster.nodes
    nodes.create(name="spare", generation=scene.people.v100, gpus=2)
    nodes.create(name="broken", generation=scene.people.v100, gpus=1, state="down")
    html = browser_of(scene.people.olga).get("/cluster/").content.decode()
    assert kinds(html) == {"own", "free", "away"}


def kinds(html: str) -> set[str]:
    """Those of the legend, which are those of the cells."""
    legend = set(re.findall(r'<li><span class="gpu gpu-(\w+)', html))
    assert legend == set(re.findall(r'<li class="gpu gpu-(\w+)', html))
    return legend
