"""The marks of charts say their values, and lead to the jobs behind them."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client
from django.utils.timezone import now
from hypothesis import given
from hypothesis import strategies as st

from portal.jobs.filters import JobFilter, jobs_in, period_of
from portal.marks import columns
from scheduling.models import Job, Lease
from scheduling.shares.series import POINTS
from tests.portal.administration.test_clusters import text_of
from tests.portal.scene import Scene, secrets_in

MARK = re.compile(r'<(a|g) data-mark tabindex="(-?\d)"(?: href="([^"]*)")?[^>]* aria-label="([^"]*)"')


WRONG = (
    "yesterday",
    "2026-01-02T00:00Z",
    "2026-01-02T00:00/2026-01-03T00:00",
    "0001-01-01T00:00Z/2026-01-01T00:00Z",
    "2026-01-03T00:00Z/2026-01-02T00:00Z",
)


def marks(html: str) -> list[tuple[str, str, str]]:
    """Returns the tab index, the address and the text of each mark of a page."""
    return [(tab, unescape(href), unescape(text)) for _, tab, href, text in MARK.findall(html)]


def test_every_chart_in_the_templates_has_marks_and_a_line_that_says_them() -> None:
    pictures = re.compile(r'<svg class="(?:chart|day-chart|heat|held-bar|classes)"')
    found = {
        path: len(pictures.findall(text))
        for path in Path(settings.BASE_DIR, "templates").rglob("*.html")
        if (text := path.read_text()) and pictures.search(text)
    }
    assert len(found) >= 9
    for path, number in found.items():
        text = path.read_text()
        assert text.count("{% chart_marks ") == number, path
        assert text.count("data-marks") == text.count("parts/chart_value.html") == number, path


@given(count=st.integers(0, 300))
def test_columns_fill_the_width_without_gaps(count: int) -> None:
    made = columns((str(place), "") for place in range(count))
    assert [one.text for one in made] == list(map(str, range(count)))
    for place, one in enumerate(made):
        assert float(one.x[:-1]) == pytest.approx(100 * place / count, abs=0.01)
        assert float(one.width[:-1]) == pytest.approx(100 / count, abs=0.01)


def test_each_point_of_a_share_leads_to_the_jobs_that_held_gpus_then(scene: Scene, browser_of) -> None:
    bob: Client = browser_of(scene.people.bob)
    Lease.objects.filter(job=scene.job).update(held_from=now() - timedelta(minutes=50))
    html = bob.get("/share/?team=astro&period=1h").content.decode()
    shown = [
        one for one in marks(html) if f"generation={scene.world.lease(scene.job).generation.name}" in one[1]
    ]
    assert len(shown) == POINTS
    assert [tab for tab, _, _ in shown] == ["0"] + ["-1"] * (POINTS - 1)
    assert re.search(r"\d\d:\d\d to \d\d:\d\d, GPUs: entitled \d+\.\d, received \d+\.\d", shown[-1][2])
    assert "supernova" in text_of(bob.get(shown[-1][1]))
    assert "No matching jobs" in text_of(bob.get(shown[0][1]))
    charlie: Client = browser_of(scene.people.charlie)
    assert secrets_in(charlie.get(shown[-1][1].replace("team=astro&", "")).content.decode()) == []


def test_a_day_of_the_statement_leads_to_the_usage_of_its_jobs(scene: Scene, browser_of) -> None:
    alice: Client = browser_of(scene.people.alice)
    days = [
        one for one in marks(alice.get("/usage/statement/?team=astro").content.decode()) if "by=job" in one[1]
    ]
    assert days
    for _, href, text in days:
        assert re.search(r"\d{4}: \d+\.\d GPU-h$", text)
        assert "supernova" in text_of(alice.get(href))


def test_jobs_are_found_by_the_time_in_which_they_held_gpus(scene: Scene) -> None:
    lease, moment = scene.world.lease(scene.job), now()
    Lease.objects.filter(pk=lease.pk).update(
        held_from=moment - timedelta(hours=3), held_until=moment - timedelta(hours=2)
    )
    hour = timedelta(hours=1)

    def found(hours_ago: float, generation: str = "") -> bool:
        begins = moment - hours_ago * hour
        chosen = JobFilter(held=f"{begins.isoformat()}/{(begins + hour).isoformat()}", generation=generation)
        return chosen.narrow(Job.objects.filter(pk=scene.job.pk)).exists()

    assert [found(hours) for hours in (5, 4, 3.5, 3, 2.5, 2, 1)] == [
        False,
        False,
        True,
        True,
        True,
        False,
        False,
    ]
    assert found(3, lease.generation.name)
    assert not found(3, "H100")


def test_a_wrong_period_is_named_and_has_no_effect(scene: Scene, browser_of) -> None:
    bob: Client = browser_of(scene.people.bob)
    for text in WRONG:
        assert period_of(text) is None
        answer = text_of(bob.get("/jobs/", {"held": text}))
        assert "There is no period" in answer
        assert "supernova" in answer
    address = jobs_in(now() - timedelta(days=1), now(), team="astro")
    assert "Held GPUs" in text_of(bob.get(address))
