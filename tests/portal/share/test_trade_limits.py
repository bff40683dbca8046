"""Managers limit their team's trades on the page and in the API."""

from __future__ import annotations

from decimal import Decimal

from django.test import Client

from scheduling.models import TradeLimit
from tests.portal.scene import Scene

PAGE, SHARE = "/trades/limits/astro/", "/share/?team=astro"
API = "/api/v1/trade-limits?team=astro"


def put(client: Client, body: list) -> object:
    return client.put(API, body, content_type="application/json")


def test_a_manager_sets_limits_and_members_read_them(scene: Scene, browser_of) -> None:
    people = scene.people
    alice, bob, charlie = (browser_of(who) for who in (people.alice, people.bob, people.charlie))
    assert "No trade limits" in bob.get(SHARE).content.decode()
    a100 = people.a100.pk
    posted = {f"trades-{a100}": "yes", f"gpus-{a100}": "1.5", f"percent-{a100}": "25", "trades-all": "no"}
    assert alice.post(PAGE, posted).status_code == 302
    rows = TradeLimit.objects.values_list("generation__name", "trades", "most_gpus", "most_part")
    assert list(rows) == [("A100", True, Decimal("1.5"), Decimal("0.25")), (None, False, None, None)]
    told = bob.get(SHARE).content.decode()
    assert "at most 1.5 GPUs given away in trades, at most 25 % of the team" in told
    assert PAGE not in told
    assert PAGE in alice.get(SHARE).content.decode()
    form = alice.get(PAGE).content.decode()
    assert 'value="1.5"' in form
    assert 'value="25"' in form
    for stranger in (bob, charlie):
        assert stranger.post(PAGE, {"trades-all": "yes"}).status_code == 404
    assert TradeLimit.objects.count() == 2


def test_a_refusal_stands_beside_its_field(scene: Scene, browser_of) -> None:
    a100 = scene.people.a100.pk
    answer = browser_of(scene.people.alice).post(
        PAGE, {f"trades-{a100}": "yes", f"percent-{a100}": "lots", "trades-all": "no"}
    )
    html = answer.content.decode()
    assert answer.status_code == 422
    assert "must be a number" in html
    assert 'value="lots"' in html
    posted = {f"trades-{a100}": "", f"gpus-{a100}": "2", "trades-all": "yes"}
    answer = browser_of(scene.people.alice).post(PAGE, posted)
    assert (
        "Choose “Yes” to limit how many A100 GPUs the team gives to other teams." in answer.content.decode()
    )
    over = {f"trades-{a100}": "yes", f"percent-{a100}": "101", "trades-all": "yes"}
    assert browser_of(scene.people.alice).post(PAGE, over).status_code == 422
    assert not TradeLimit.objects.exists()


def test_a_team_sees_what_teams_above_it_allow(scene: Scene, browser_of) -> None:
    TradeLimit.objects.create(tenant=scene.people.uni, trades=False)
    bob, alice = browser_of(scene.people.bob), browser_of(scene.people.alice)
    assert "limit set by a team above" in bob.get(SHARE).content.decode()
    assert ", also limits trades" in alice.get(PAGE).content.decode()


def test_the_api_says_and_takes_the_same(scene: Scene, browser_of) -> None:
    alice, bob, charlie = (
        browser_of(who) for who in (scene.people.alice, scene.people.bob, scene.people.charlie)
    )
    wanted = [
        {"generation": "A100", "trades": True, "most_gpus": "2.000", "most_part": None},
        {"generation": "", "trades": False, "most_gpus": None, "most_part": None},
    ]
    assert put(alice, wanted).json() == wanted
    assert bob.get(API).json() == wanted
    assert put(bob, []).status_code == 403
    assert put(charlie, []).status_code == 404
    assert charlie.get(API).status_code == 404
    assert put(alice, [{"generation": "H900"}]).status_code == 409
    assert TradeLimit.objects.count() == 2
    assert put(alice, []).json() == []
    assert not TradeLimit.objects.exists()
