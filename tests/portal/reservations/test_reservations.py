"""Pages, API and commands of advance reservations."""

from __future__ import annotations

import html
from datetime import timedelta

from accounting.core.clock import now_from_database
from portal.reservations.timeline import days_from
from portal.wording import section_of
from scheduling.models import AdvanceReservation
from tests.portal.scene import Scene

JSON = {"content_type": "application/json"}


def shown(response) -> str:
    return " ".join(html.unescape(response.content.decode()).split())


def form(scene: Scene, **other: object) -> dict[str, object]:
    begins = now_from_database() + timedelta(days=1)
    return {
        "name": "robotics",
        "team": scene.people.bio.pk,
        "cluster": scene.world.cluster.pk,
        "generation": scene.people.v100.pk,
        "gpus": "2",
        "begins": begins.isoformat(),
        "ends": (begins + timedelta(hours=2)).isoformat(),
        "lends": "on",
    } | other


def test_an_operator_previews_makes_changes_and_cancels(scene: Scene, browser_of) -> None:
    olga = browser_of(scene.people.olga)
    preview = olga.post("/reservations/new/", form(scene))
    page = shown(preview)
    assert (preview.status_code, AdvanceReservation.objects.count()) == (200, 0)
    assert "Bio has 2 × V100 on v100-0 (2 of 4)" in page
    assert "4 GPU-hours" in page
    assert scene.job.name in page  # Bob's job holds GPUs of this node
    assert olga.post("/reservations/new/", form(scene, confirmed="1")).status_code == 302
    made = AdvanceReservation.objects.get()
    assert (made.gpus, made.lends, made.tenant) == (2, True, scene.people.bio)
    refused = olga.post("/reservations/new/", form(scene, gpus="9"))
    assert (refused.status_code, "that no other reservation has" in shown(refused)) == (422, True)
    assert "robotics" in shown(browser_of(scene.people.charlie).get("/reservations/"))
    assert "robotics" not in shown(browser_of(scene.people.bob).get("/reservations/"))
    assert browser_of(scene.people.bob).get(f"/reservations/{made.pk}/").status_code == 404
    other = form(scene, gpus="3", name="longer course")
    assert "3 of 4" in shown(olga.post(f"/reservations/{made.pk}/change/", other))
    assert olga.post(f"/reservations/{made.pk}/change/", other | {"confirmed": "1"}).status_code == 302
    assert AdvanceReservation.objects.get().gpus == 3
    assert "advance.change" in shown(olga.get(f"/reservations/{made.pk}/"))
    assert "advance.change" not in shown(browser_of(scene.people.charlie).get(f"/reservations/{made.pk}/"))
    assert olga.post(f"/reservations/{made.pk}/cancel/").status_code == 302
    assert "cancelled" in shown(olga.get("/reservations/"))


def asked(scene: Scene, **other: object) -> dict[str, object]:
    begins = now_from_database() + timedelta(days=1)
    return {
        "name": "robotics",
        "team": "bio",
        "cluster": scene.world.cluster.name,
        "generation": "V100",
        "gpus": 2,
        "begins": begins.isoformat(),
        "ends": (begins + timedelta(hours=2)).isoformat(),
    } | other


def test_the_api_previews_makes_changes_and_cancels(scene: Scene, browser_of) -> None:
    olga, path = browser_of(scene.people.olga), "/api/v1/advance-reservations"
    tried = olga.post(path, asked(scene, dry_run=True), **JSON)
    assert (tried.status_code, tried.json()["id"], AdvanceReservation.objects.count()) == (200, None, 0)
    effect = tried.json()["effect"]
    assert (effect["gpu_hours"], [job["id"] for job in effect["running"]]) == (4.0, [scene.job.pk])
    made = olga.post(path, asked(scene, nodes=["v100-0"], gpus=None), **JSON)
    assert (made.status_code, made.json()["nodes"]) == (201, {"v100-0": 4})
    one = f"{path}/{made.json()['id']}"
    changed = olga.put(one, asked(scene, gpus=1), **JSON)
    assert (changed.status_code, changed.json()["gpus"], changed.json()["state"]) == (200, 1, "coming")
    for wrong in ({"team": "none"}, {"cluster": "none"}, {"generation": "K80"}, {"generation": ""},
                  {"nodes": ["none"]}, {"zone": "Mars/Base"}):  # fmt: skip
        got = olga.post(path, asked(scene, **wrong), **JSON)
        assert (got.status_code, list(got.json()["problems"])) == (409, list(wrong)), wrong
    cast = scene.people
    for who in (cast.alice, cast.bob, cast.charlie):
        client = browser_of(who)
        statuses = [
            client.post(path, asked(scene), **JSON),
            client.put(one, asked(scene), **JSON),
            client.delete(one),
        ]
        assert [response.status_code for response in statuses] == [404] * 3
    assert [row["id"] for row in browser_of(cast.charlie).get(path).json()] == [made.json()["id"]]
    assert browser_of(cast.bob).get(path).json() == []
    assert (browser_of(cast.bob).get(one).status_code, olga.delete(one).status_code) == (404, 204)
    assert olga.get(one).json()["state"] == "cancelled"


def test_the_side_bar_highlights_the_cluster_on_pages_of_reservations() -> None:
    assert {section_of(name) for name in ("reservations", "reservation_new", "reservation")} == {"cluster"}


def test_the_time_line_has_each_window_on_its_days_and_never_one_over_another(
    scene: Scene, browser_of
) -> None:
    olga = browser_of(scene.people.olga)
    now = now_from_database()
    tomorrow = (now + timedelta(days=1)).replace(hour=23, minute=0, second=0, microsecond=0)
    for hours in (2, 3):
        times = {"begins": tomorrow.isoformat(), "ends": (tomorrow + timedelta(hours=hours)).isoformat()}
        assert olga.post("/reservations/new/", form(scene, confirmed="1", **times)).status_code == 302
    days = days_from(now, now.tzinfo, AdvanceReservation.objects.all())
    assert [[len(lane) for lane in day.lanes] for day in days[:4]] == [[], [1, 1], [1, 1], []]
    [bar] = days[1].lanes[0]
    assert (bar.left, bar.width) == (95.83, 4.17)
