"""The page and the API show a team its own anomalies and name no other team."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounting.core.calendar import start_of_hour
from accounting.core.clock import now_from_database
from accounting.core.wording import percent
from accounting.models import AuditEvent
from fairshare.counterfactual.anomalies import FALSE_RATES
from scheduling.anomalies.actions import continue_analyses, request_analysis
from scheduling.models import AnomalyHolder, Job, SharingAnalysis, SharingAnomaly, SharingPart
from tests.portal.scene import Scene

PAGE, API = "/share/anomalies/", "/api/v1/share/anomalies"


@pytest.fixture
def analysis(scene: Scene) -> SharingAnalysis:
    """Returns an analysis with two anomalies: Charlie's job delayed Bob's by 2 hours, and Bob's job delayed Charlie's
    by 1 hour.

    The causes are over-borrowing and, for a minute of each delay, a limit.
    """
    ends = start_of_hour(now_from_database())
    made = SharingAnalysis.objects.create(
        cluster=scene.world.cluster, begins=ends - timedelta(days=7), ends=ends, finished_at=ends
    )
    for job, other, late in ((scene.job, scene.other, 7200.0), (scene.other, scene.job, 3600.0)):
        part = SharingPart.objects.create(
            analysis=made, tenant=job.tenant, done_at=ends, gpus={"V100": 2}, judged=2, too_large=1
        )
        anomaly(part, job, other, late)
    return made


def anomaly(part: SharingPart, job: Job, holder: Job, late: float) -> SharingAnomaly:
    begins = part.analysis.begins
    made = SharingAnomaly.objects.create(
        part=part, job=job, cause="over_borrowing", causes={"over_borrowing": late, "quota": 60.0},
        late_seconds=late, at_end=True, started_at=begins + timedelta(seconds=late),
        ended_at=begins + timedelta(seconds=2 * late), private_started_at=begins,
        private_ended_at=begins + timedelta(seconds=late),
    )  # fmt: skip
    AnomalyHolder.objects.create(anomaly=made, job=holder, gpu_seconds=4 * late)
    return made


def test_a_team_sees_its_anomalies_and_other_holders_without_names(
    scene: Scene, analysis: SharingAnalysis, browser_of
) -> None:
    bob = browser_of(scene.people.bob)
    html = bob.get(PAGE).content.decode()
    assert "supernova" in html
    assert "Other teams borrowed too much" in html
    assert "another team" in html
    assert "genome" not in html
    told = bob.get(API).json()
    (one,) = told["items"]
    assert (one["job"], one["late_seconds"], one["cause"]) == ("supernova", 7200, "over_borrowing")
    assert one["holders"] == [{"job_id": None, "job": "", "team": "another team", "gpu_seconds": 28_800}]
    assert (told["compared"], told["too_large"], told["total"]) == (2, 1, 1)


def test_the_rate_of_false_anomalies_is_shown_wherever_they_are_listed(
    scene: Scene, analysis: SharingAnalysis, browser_of
) -> None:
    bob = browser_of(scene.people.bob)
    rates = [
        f"{percent(part)} of the jobs at a cluster load of {percent(load)}" for load, part in FALSE_RATES
    ]
    facts = {fact["label"]: fact["text"] for fact in bob.get("/share/anomalies.json").json()["facts"]}
    for text in (bob.get(PAGE).content.decode(), facts["Expected rate of false anomalies"]):
        assert all(rate in text for rate in rates)
    told = bob.get(API).json()["false_rates"]
    assert [(one["load"], one["part"]) for one in told] == list(FALSE_RATES)


def test_another_team_reads_nothing_of_it(scene: Scene, analysis: SharingAnalysis, browser_of) -> None:
    charlie = browser_of(scene.people.charlie)
    html = charlie.get(PAGE).content.decode()
    assert "genome" in html
    assert "supernova" not in html
    assert [one["job"] for one in charlie.get(API).json()["items"]] == ["genome"]
    assert charlie.get(f"{PAGE}?team=astro").status_code == 404
    assert charlie.get(f"{API}?team=astro").status_code == 404


def test_operators_read_all_with_names(scene: Scene, analysis: SharingAnalysis, browser_of) -> None:
    olga = browser_of(scene.people.olga)
    html = olga.get(PAGE).content.decode()
    assert "another team" not in html
    items = olga.get(API).json()["items"]
    assert [(one["job"], one["holders"][0]["job"]) for one in items] == [
        ("supernova", "genome"),
        ("genome", "supernova"),
    ]
    assert [one["job"] for one in olga.get(f"{API}?team=bio").json()["items"]] == ["genome"]
    assert olga.get(f"{API}?cause=quota").json()["items"] == []
    assert olga.get(f"{API}?analysis=123456").status_code == 404
    assert olga.get(f"{PAGE}?analysis=123456").status_code == 404
    assert "No anomalies" in olga.get(f"{PAGE}?cause=quota").content.decode()


def test_an_analysis_in_which_no_team_of_ones_takes_part_is_not_there(
    scene: Scene, analysis: SharingAnalysis, browser_of
) -> None:
    part = analysis.parts.get(tenant=scene.people.bio)
    part.delete()
    charlie = browser_of(scene.people.charlie)
    assert charlie.get(f"{PAGE}?analysis={analysis.pk}").status_code == 404
    assert "No analyses yet" in charlie.get(PAGE).content.decode()
    assert charlie.get(API).json()["analysis"] is None


def test_operators_ask_and_see_how_far_it_is(scene: Scene, browser_of) -> None:
    olga = browser_of(scene.people.olga)
    cluster = scene.world.cluster
    answer = olga.post(f"{PAGE}analyse/", {"cluster": cluster.pk, "days": "7"})
    assert (answer.status_code, answer["Location"]) == (302, PAGE)
    analysis = SharingAnalysis.objects.get()
    assert (analysis.asked_by, analysis.ends - analysis.begins) == (scene.people.olga, timedelta(days=7))
    assert f"0 of {analysis.parts.count()} team" in olga.get(PAGE).content.decode()
    while continue_analyses(seconds=60, at_once=1):
        pass
    html = olga.get(PAGE).content.decode()
    # The scene is younger than the last full hour, unless another hour has begun during the test.
    assert any(
        told in html for told in ("No jobs were compared", "No anomalies", "Jobs that held the needed GPUs")
    )
    assert "Progress" not in html


@pytest.mark.parametrize("days", ["0", "much", "40"])
def test_a_request_that_makes_no_sense_is_refused_at_its_field(scene: Scene, browser_of, days: str) -> None:
    olga = browser_of(scene.people.olga)
    answer = olga.post(f"{PAGE}analyse/", {"cluster": scene.world.cluster.pk, "days": days})
    assert answer.status_code == 422
    assert "field-error" in answer.content.decode()
    assert not SharingAnalysis.objects.exists()


def test_a_running_analysis_is_shown_beside_earlier_findings(
    scene: Scene, analysis: SharingAnalysis, browser_of
) -> None:
    asked = request_analysis(
        actor=scene.people.olga,
        cluster=scene.world.cluster,
        begins=analysis.begins,
        ends=now_from_database(),
    )
    assert asked.parts.count() > 1
    html = browser_of(scene.people.bob).get(PAGE).content.decode()
    assert "supernova" in html
    assert f"analysis={asked.pk}" in html
    assert f"0 of {asked.parts.count()} team" in html
    assert "data-live" in html


def test_others_cannot_ask(scene: Scene, browser_of) -> None:
    for user in (scene.people.alice, scene.people.charlie):
        posted = browser_of(user).post(f"{PAGE}analyse/", {"cluster": scene.world.cluster.pk, "days": "7"})
        assert posted.status_code == 404
    assert not SharingAnalysis.objects.exists()


def test_a_team_of_which_nothing_can_be_said_is_named(
    scene: Scene, analysis: SharingAnalysis, browser_of
) -> None:
    analysis.parts.filter(tenant=scene.people.astro).update(trouble="ValueError: no sense")
    assert "ValueError: no sense" in browser_of(scene.people.bob).get(PAGE).content.decode()
    assert "ValueError" not in browser_of(scene.people.charlie).get(PAGE).content.decode()


def test_operators_have_it_analysed_again_and_others_read_when_it_is(
    scene: Scene, analysis: SharingAnalysis, browser_of
) -> None:
    cast = scene.people
    analysis.parts.filter(tenant=cast.astro).update(trouble="ValueError: no sense", gpus={}, judged=0)
    SharingAnomaly.objects.filter(part__tenant=cast.astro).delete()
    # Recent enough for the nightly repetition at any time of day.
    SharingAnalysis.objects.update(ends=analysis.ends + timedelta(days=1))
    html = browser_of(cast.bob).get(PAGE).content.decode()
    assert "No jobs were compared" in html
    assert (
        "Fairlot will repeat the analysis automatically after the next midnight (UTC). "
        "Operators can repeat the analysis now." in html
    )
    told = browser_of(cast.bob).get(API).json()["without_result"]
    assert told == [{"team": "astro", "why": "ValueError: no sense"}]
    assert browser_of(cast.charlie).get(API).json()["without_result"] == []
    olga = browser_of(cast.olga)
    assert "Analyse again" in olga.get(PAGE).content.decode()
    asked = {"analysis": analysis.pk}
    assert browser_of(cast.alice).post(f"{PAGE}again/", asked).status_code == 404
    assert olga.post(f"{PAGE}again/", asked)["Location"] == PAGE
    assert analysis.parts.get(tenant=cast.astro).done_at is None
    assert analysis.parts.get(tenant=cast.bio).done_at is not None
    assert olga.post(f"{PAGE}again/", asked).status_code == 422  # the repetition is requested already
    assert olga.post(f"{PAGE}again/", {"analysis": "12345"}).status_code == 422


def test_a_next_night_is_promised_only_if_it_covers_the_same_days(
    scene: Scene, analysis: SharingAnalysis, browser_of
) -> None:
    cast = scene.people
    analysis.parts.filter(tenant=cast.astro).update(trouble="ValueError: no sense", gpus={}, judged=0)
    SharingAnalysis.objects.update(ends=analysis.ends - timedelta(days=2))
    assert "next midnight" not in browser_of(cast.bob).get(PAGE).content.decode()
    html = browser_of(cast.olga).get(PAGE).content.decode()
    assert "next midnight" not in html
    assert "Analyse again" in html


def test_the_api_asks_for_an_analysis_as_the_page_does(scene: Scene, browser_of) -> None:
    cast, cluster = scene.people, scene.world.cluster
    asked = {"cluster": cluster.name, "days": 3}
    for user in (cast.alice, cast.charlie):
        assert browser_of(user).post(API, asked, content_type="application/json").status_code == 404
    olga = browser_of(cast.olga)
    for wrong, status in (({"days": 0}, 409), ({"days": 32}, 409), ({"cluster": "nowhere"}, 404)):
        assert olga.post(API, asked | wrong, content_type="application/json").status_code == status
    assert not SharingAnalysis.objects.exists()
    answer = olga.post(API, asked, content_type="application/json")
    made = SharingAnalysis.objects.get()
    assert (made.asked_by, made.ends - made.begins) == (cast.olga, timedelta(days=3))
    told = answer.json()
    assert answer.status_code == 202
    assert (told["analysis"], told["cluster"], told["finished_at"]) == (made.pk, cluster.name, None)


def test_the_api_has_teams_analysed_again(scene: Scene, analysis: SharingAnalysis, browser_of) -> None:
    cast, url = scene.people, f"{API}/{analysis.pk}/again"
    olga = browser_of(cast.olga)
    assert olga.post(url).status_code == 409  # each team has a result, so there is nothing to repeat
    analysis.parts.filter(tenant=cast.astro).update(trouble="ValueError: no sense", gpus={}, judged=0)
    for user in (cast.alice, cast.charlie):
        assert browser_of(user).post(url).status_code == 404
    assert analysis.parts.get(tenant=cast.astro).done_at is not None
    assert olga.post(url).status_code == 202
    assert analysis.parts.get(tenant=cast.astro).done_at is None
    assert AuditEvent.objects.latest("pk").verb == "sharing.analyse_again"
    assert olga.post(f"{API}/12345/again").status_code == 404


def test_more_anomalies_need_no_more_queries(scene: Scene, analysis: SharingAnalysis, browser_of) -> None:
    bob = browser_of(scene.people.bob)

    def queries(url: str) -> int:
        with CaptureQueriesContext(connection) as asked:
            assert bob.get(url).status_code == 200
        return len(asked)

    few = [queries(url) for url in (PAGE, API)]
    part = analysis.parts.get(tenant=scene.people.astro)
    for i in range(10):
        job = scene.world.submit(scene.people.bob, scene.people.astro, name=f"nova-{i}")
        anomaly(part, job, scene.other, 600.0 + i)
    assert [queries(url) for url in (PAGE, API)] == few


def test_the_way_there_is_a_tab_of_the_share(scene: Scene, browser_of) -> None:
    bob = browser_of(scene.people.bob)
    assert f'href="{PAGE}"' in bob.get("/share/").content.decode()
    assert 'href="/share/"' in bob.get(PAGE).content.decode()
