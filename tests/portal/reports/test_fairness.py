"""The page, file and API of the fairness report agree and show no team that the reader may not see."""

from __future__ import annotations

import csv
import io
from datetime import datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import actions
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent, Generation
from fairshare.fairness import jain
from portal.reports.fairness import COLUMNS, MOST_POINTS, edges
from portal.reports.index_chart import HEIGHT, draw_indices
from portal.reports.periods import ReportPeriod
from scheduling.models import FinishTime, JobSpeed, ShareInterval
from tests.portal.scene import Scene
from tests.query_counts import queries_of

# The period is long, because the scene's hour may be in last month on the day when the test runs.
WIDE = "period=dates&from=2020-01-01&to=2199-12-31"
PAGE, CSV, API = "/usage/fairness/", "/usage/fairness.csv", "/api/v1/fairness"


@pytest.fixture
def scene(scene: Scene) -> Scene:
    """Returns the scene with data for the fairness report: an A100 counts as four V100, and two jobs have ended.

    Bob's job is twice as fast on an A100 as on a V100.
    """
    people = scene.people
    actions.set_weight(actor=people.olga, generation=people.a100, weight=Decimal(4))
    ShareInterval.objects.exclude(
        entitled__in=[3600, 7200]
    ).delete()  # intervals of the seconds in which the scene was created
    ShareInterval.objects.filter(tenant=people.bio).update(received=7200)
    for generation, steps in ((people.v100, 100), (people.a100, 200)):
        JobSpeed.objects.update_or_create(
            job=scene.job, generation=generation, defaults={"steps": steps, "seconds": 100}
        )
    now = now_from_database()
    for job, rho in ((scene.job, 1.5), (scene.waiting, None)):
        FinishTime.objects.create(
            job=job, cluster=scene.world.cluster, tenant=people.astro, ended_at=now, seconds=60, rho=rho
        )
    return scene


def tables(file: str) -> list[list[dict[str, str]]]:
    """Returns the tables of a CSV file, each as a list of rows. A row is a dictionary with the column headings as
    keys."""
    found = []
    for part in "\n".join(file.splitlines()).split("\n\n"):
        head, *rows = csv.reader(io.StringIO(part))
        found.append([dict(zip(head, row, strict=True)) for row in rows])
    return found


def test_page_file_and_api_say_the_same(scene: Scene, browser_of) -> None:
    olga = browser_of(scene.people.olga)
    told = olga.get(f"{API}?{WIDE}").json()
    file = olga.get(f"{CSV}?{WIDE}").content.decode()
    assert olga.get(f"{API}?{WIDE}&format=csv").content.decode() == file
    rows, weights, compared, indices, finished = tables(file)
    names = {"astro": "Astro", "bio": "Bio", "uni": "Uni"}
    for one, row in zip(told["rows"], rows, strict=True):
        assert (names[one["team"]], one["generation"]) == (row["team"], row["gpu"])
        assert [one["amounts"][name] for name in COLUMNS] == [
            float(row[f"{name}_gpu_seconds"]) for name in COLUMNS
        ]
    assert {row["gpu"]: Decimal(row["published_weight"]) for row in weights} == {"A100": 4, "V100": 1}
    for one, row in zip(told["compared"], compared, strict=True):
        assert one["amounts"]["received"] == float(row["received_weighted_gpu_seconds"])
        assert one["amounts"]["delivered"] == float(row["delivered"])
    assert told["indices"]["jain"] == float(indices[0]["jain"])
    assert len(told["over_time"]) == len(indices) - 1
    assert told["finished"][0]["worst"] == float(finished[0]["rho_worst"]) == 1.5
    html = olga.get(f"{PAGE}?{WIDE}").content.decode()
    assert f">{told['indices']['jain']:.3f}<" in html
    assert f">{told['indices']['max_min']:.3f}<" in html
    assert "style=" not in html


def test_teams_are_compared_by_published_weights(scene: Scene, browser_of) -> None:
    told = browser_of(scene.people.olga).get(f"{API}?{WIDE}&cluster=lab").json()
    astro, bio = (next(one for one in told["compared"] if one["team"] == team) for team in ("astro", "bio"))
    # V100: 7200 entitled, 1800 lent, 5400 received. A100: 3600 entitled, 1800 sold, 1800 received.
    assert astro["amounts"]["entitled"] == pytest.approx(7200 + 4 * 3600)
    assert astro["amounts"]["received"] == pytest.approx(5400 + 4 * 1800)
    assert astro["amounts"]["delivered"] == pytest.approx(1.0)
    assert bio["amounts"]["due"] == pytest.approx(9000)
    assert bio["amounts"]["delivered"] == pytest.approx(0.8)
    assert bio["amounts"]["owed"] == pytest.approx(1800)
    assert told["indices"]["jain"] == pytest.approx(jain([1.0, 0.8]))
    assert told["indices"]["max_min"] == pytest.approx(0.8)


def test_a_teams_figures_use_its_own_speeds_whatever_the_weights(scene: Scene, browser_of) -> None:
    bob = browser_of(scene.people.bob)
    told = bob.get(f"{API}?{WIDE}").json()["statement"]
    speeds = {one["generation"]: (one["speed"], one["jobs"]) for one in told["generations"]}
    assert speeds == {"A100": (2.0, 1), "V100": (1.0, 1)}
    assert told["total"]["received"] == pytest.approx(5400 + 2 * 1800)
    Generation.objects.update(weight=Decimal(17))
    assert bob.get(f"{API}?{WIDE}").json()["statement"] == told
    JobSpeed.objects.all().delete()
    assert [one["speed"] for one in bob.get(f"{API}?{WIDE}").json()["statement"]["generations"]] == [
        None,
        None,
    ]


def test_measured_speeds_change_nothing_of_the_comparison(scene: Scene, browser_of) -> None:
    olga = browser_of(scene.people.olga)
    before = olga.get(f"{API}?{WIDE}").json()
    JobSpeed.objects.update(steps=1e6)
    after = olga.get(f"{API}?{WIDE}").json()
    assert [after[name] for name in ("rows", "compared", "indices")] == [
        before[name] for name in ("rows", "compared", "indices")
    ]


def test_members_see_their_own_figures_and_no_comparison(scene: Scene, browser_of) -> None:
    for who, team in ((scene.people.bob, "astro"), (scene.people.charlie, "bio")):
        browser = browser_of(who)
        told = browser.get(f"{API}?{WIDE}").json()
        assert {row["team"] for row in told["rows"]} == {team}
        assert (told["compared"], told["indices"], told["over_time"]) == ([], None, [])
        assert told["statement"]["team"] == team
        html = browser.get(f"{PAGE}?{WIDE}").content.decode()
        assert "Jain" not in html
        assert "Teams compared" not in html
        assert len([table for table in tables(browser.get(f"{CSV}?{WIDE}").content.decode()) if table]) <= 3


def test_jobs_that_are_left_out_are_counted(scene: Scene, browser_of) -> None:
    (told,) = browser_of(scene.people.alice).get(f"{API}?{WIDE}").json()["finished"]
    assert told == {
        "team": "astro", "ended": 2, "rated": 1, "told": 1, "median": 1.5, "worst": 1.5, "worse_off": 1, "left_out": 1,
    }  # fmt: skip


def test_only_operators_set_weights_and_the_audit_trail_has_it(scene: Scene, browser_of) -> None:
    people = scene.people
    address = f"/usage/fairness/weights/{people.a100.pk}/"
    assert browser_of(people.alice).post(address, {"weight": "2"}).status_code == 404
    olga = browser_of(people.olga)
    assert olga.post(address, {"weight": "2.5"}).status_code == 302
    refused = olga.post(address, {"weight": "0"})
    assert refused.status_code == 422
    assert "A weight must be greater than 0." in refused.content.decode()
    event = AuditEvent.objects.filter(verb="generation.set_weight").latest("pk")
    assert (event.actor, event.before, event.after) == (people.olga, {"weight": "4.0000"}, {"weight": "2.5"})
    with pytest.raises(NotAllowed):
        actions.set_weight(actor=people.alice, generation=people.a100, weight=Decimal(1))
    with pytest.raises(Refused):
        actions.set_weight(actor=people.olga, generation=people.a100, weight=Decimal(-1))


def test_more_teams_and_hours_need_no_more_queries(scene: Scene, browser_of) -> None:
    browser = browser_of(scene.people.olga)

    def read() -> None:
        with queries_of("the fairness report"):
            browser.get(f"{PAGE}?{WIDE}")

    read()
    one = ShareInterval.objects.filter(tenant=scene.people.astro).first()
    for hour in range(20):
        one.pk, one.round_id = None, scene.world.cluster.rounds.latest("number").pk
        one.tenant = scene.people.uni if hour % 2 else scene.people.bio
        one.begins, one.ends = (moment - timedelta(hours=hour + 2) for moment in (one.begins, one.ends))
        ShareInterval.objects.filter(round=one.round, tenant=one.tenant, generation=one.generation).delete()
        one.save()
    read()


def test_without_shares_the_page_says_so(scene: Scene, browser_of) -> None:
    html = (
        browser_of(scene.people.olga)
        .get(f"{PAGE}?period=dates&from=2001-01-01&to=2001-01-02")
        .content.decode()
    )
    assert "No team had a share of the GPUs in this period" in html


def test_all_users_see_a_link_to_the_report(scene: Scene, browser_of) -> None:
    assert PAGE in browser_of(scene.people.bob).get("/usage/").content.decode()


@given(st.lists(st.none() | st.floats(0, 2), min_size=1, max_size=20))
def test_lines_stay_inside_the_frame_and_break_where_nothing_is_known(values: list[float | None]) -> None:
    chart = draw_indices({"jain": values})
    path = chart.lines["jain"]
    known = [value is not None for value in values]
    starts = sum(here and not before for here, before in zip(known, [False, *known], strict=False))
    assert path.count("M") == starts
    ys = [float(part.split("H")[0].split(",")[-1]) for part in path.replace("M", "V").split("V")[1:]]
    assert all(0 <= y <= HEIGHT for y in ys)
    assert chart.width == len(values)


@given(st.dates(datetime(2020, 1, 1).date(), datetime(2027, 1, 1).date()), st.integers(0, 3000))
def test_stretches_cover_the_period_and_are_not_too_many(first, days: int) -> None:
    zone = ZoneInfo("Europe/Berlin")
    period = ReportPeriod("dates", first, first + timedelta(days=days), zone, {})
    moments = edges(period)
    assert (moments[0], moments[-1]) == (period.begins, period.ends)
    assert moments == sorted(set(moments))
    assert 2 <= len(moments) <= MOST_POINTS + 2
