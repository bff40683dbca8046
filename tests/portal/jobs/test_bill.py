"""A job's bill shows every line. Admins can reverse lines of the bill, or charge them to another team."""

from __future__ import annotations

import pytest
from django.db import transaction

from accounting.closing.class_prices import TimeByClass, price_hour
from accounting.closing.hours import open_book
from accounting.core.calendar import HOUR, first_of_month, start_of_day, start_of_hour
from accounting.models import ClassCharge, ClosedBook, JobDay, Price, UsageSegment
from portal.templatetags.figures import gpu_hours
from portal.wording import money
from tests.portal.scene import Scene


def correct(browser, scene: Scene, **fields: str):
    return browser.post(f"/jobs/{scene.job.pk}/bill/correct/", {"reason": "wrong team"} | fields)


def standing(scene: Scene) -> list[tuple[str, str]]:
    lines = UsageSegment.objects.uncorrected().filter(job_id=scene.job.pk).order_by("period")
    return list(lines.values_list("tenant__name", "user__username"))


def test_every_line_of_the_bill_is_shown(scene: Scene, browser_of) -> None:
    html = browser_of(scene.people.bob).get(f"/jobs/{scene.job.pk}/bill/").content.decode()
    lines = UsageSegment.objects.filter(job_id=scene.job.pk)
    assert lines
    for line in lines:
        assert f">{gpu_hours(line.gpu_seconds)}" in html
    assert "Correct the bill" not in html


def test_admins_correct_lines_and_all_who_see_the_job_see_why(scene: Scene, browser_of) -> None:
    count = len(standing(scene))
    assert count
    assert correct(browser_of(scene.people.ada), scene, reason="").status_code == 422
    assert len(standing(scene)) == count
    assert correct(browser_of(scene.people.ada), scene).status_code == 302
    assert standing(scene) == []
    html = browser_of(scene.people.bob).get(f"/jobs/{scene.job.pk}/bill/").content.decode()
    assert html.count("taken back") == count
    assert "by ada. Reason: wrong team" in html


def test_lines_are_billed_to_another_team(scene: Scene, browser_of) -> None:
    browser, count = browser_of(scene.people.ada), len(standing(scene))
    same = correct(browser, scene, team=str(scene.people.astro.pk))
    assert same.status_code == 422
    assert "All chosen lines are already billed to Astro." in same.content.decode()
    correct(browser, scene, team=str(scene.people.bio.pk))
    owner = scene.job.owner.username
    assert standing(scene) == [("Bio", owner)] * count
    # Bob sees which lines his team no longer pays, but not what the other team does.
    html = browser_of(scene.people.bob).get(f"/jobs/{scene.job.pk}/bill/").content.decode()
    assert "taken back" in html
    assert "Bio" not in html.partition("Billed GPU time")[2].partition("</table>")[0]


@pytest.mark.parametrize("bounds", [{"from": "2199-01-01T00:00"}, {"to": "2001-01-01T00:00"}])
def test_only_lines_between_the_moments_are_taken_back(
    scene: Scene, browser_of, bounds: dict[str, str]
) -> None:
    count = len(standing(scene))
    answer = correct(browser_of(scene.people.ada), scene, **bounds)
    assert answer.status_code == 422
    assert "no billed usage to correct" in answer.content.decode()
    assert len(standing(scene)) == count


def test_archived_lines_are_mentioned_and_not_corrected_by_mistake(scene: Scene, browser_of) -> None:
    first = UsageSegment.objects.filter(job_id=scene.job.pk).earliest("period")
    until = start_of_hour(first.period.lower)
    with transaction.atomic():
        open_book(book=first.book, since=until - HOUR)
    ClosedBook.objects.update(details_since=until)
    assert (
        "are archived" not in browser_of(scene.people.bob).get(f"/jobs/{scene.job.pk}/bill/").content.decode()
    )
    before = {
        name: getattr(first, name) for name in ("book", "tenant", "user", "generation", "job_id", "job_name")
    }
    hour = until - 24 * HOUR
    JobDay.objects.create(
        **before, transaction_id=0, month=first_of_month(hour), hour=start_of_day(hour), gpu_seconds=1, assembling=0,
        idle=0, cost=1, currency="EUR", segments=1,
    )  # fmt: skip
    assert "are archived" in browser_of(scene.people.bob).get(f"/jobs/{scene.job.pk}/bill/").content.decode()
    answer = correct(browser_of(scene.people.ada), scene)
    assert (answer.status_code, "are archived and cannot be corrected" in answer.content.decode()) == (
        422,
        True,
    )


def test_only_admins_correct_bills(scene: Scene, browser_of) -> None:
    for viewer in (scene.people.alice, scene.people.bob, scene.people.olga):
        assert correct(browser_of(viewer), scene).status_code == 404
    assert standing(scene)


def test_time_with_another_price_says_so_and_costs_that(scene: Scene, browser_of) -> None:
    first = UsageSegment.objects.filter(job_id=scene.job.pk).earliest("period")
    Price.objects.filter(generation=first.generation).update(preemptible=first.price_per_gpu_hour * 2)
    hour = start_of_hour(first.period.lower)
    everything = {first.lease_id: [(hour, hour + HOUR)]}
    with transaction.atomic():
        ClosedBook.objects.update_or_create(
            book=first.book, defaults={"since": hour, "until": hour + HOUR, "priced_until": hour}
        )
        price_hour(book=first.book, hour=hour, how=TimeByClass({}, everything, {}))
    charge = ClassCharge.objects.get(segment=first)
    html = browser_of(scene.people.bob).get(f"/jobs/{scene.job.pk}/bill/").content.decode()
    assert (
        f"{gpu_hours(first.gpu_seconds)} GPU-h preemptible at {money(charge.preemptible_price, '')}" in html
    )
    assert f">{money(first.cost + charge.amount, first.currency)}<" in html
