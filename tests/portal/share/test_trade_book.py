"""The trade book shows what each team gained from a trade, and that trades neither create nor lose GPU time."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import transaction

from accounting.core.clock import now_from_database
from accounting.ledger import TradedTime, book_trades
from accounting.reports.trade_totals import booked_trades
from scheduling.models import Trade
from tests.portal.scene import Scene


@pytest.fixture
def scene(scene: Scene) -> Scene:
    """Returns the scene with three trades of a minute each, all booked in the ledger as rounds book trades."""
    people, first = scene.people, scene.trade
    for number, (fast, price) in enumerate([(0.4, 2.0), (1.3, 3.3)], start=1):
        first.pk = None
        first.begins, first.ends = first.ends, first.ends + timedelta(minutes=1)
        first.fast_gpus, first.price, first.slow_gpus = fast, price, fast * price
        first.buyer_speedup = 3.5 + number
        first.save()
    for one in Trade.objects.all():
        seconds = Decimal(60)
        with transaction.atomic():
            book_trades(
                [TradedTime(
                    book=scene.world.cluster.pk, key=f"trade:{one.pk}", seller=people.astro, buyer=people.bio,
                    slow=people.v100, fast=people.a100, fast_gpu_seconds=Decimal(str(one.fast_gpus)) * seconds,
                    slow_gpu_seconds=Decimal(str(one.slow_gpus)) * seconds, begins=one.begins, ends=one.ends,
                    description="a trade",
                )]
            )  # fmt: skip
    return scene


def lines(answer) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(answer.content.decode())))


def test_the_file_has_both_sides_for_operators_and_sums_to_zero(scene: Scene, browser_of) -> None:
    rows = lines(browser_of(scene.people.olga).get("/trades.csv"))
    assert [(row["team"], row["with"]) for row in rows] == [("Astro", "Bio"), ("Bio", "Astro")] * 3
    net: dict[str, float] = defaultdict(float)
    for row in rows:
        net[row["gave"]] -= float(row["gave_gpu_seconds"])
        net[row["got"]] += float(row["got_gpu_seconds"])
        without, having = float(row["without_slow_gpus"]), float(row["with_slow_gpus"])
        assert having > without
        assert float(row["gain"]) == pytest.approx(having / without - 1)
        speedup = float(row["measured_speedup"])
        fast, slow = ("gave", "got") if row["team"] == "Astro" else ("got", "gave")
        worth = [float(row[f"{fast}_gpus"]) * speedup, float(row[f"{slow}_gpus"])]
        assert [without, having] == pytest.approx(sorted(worth))
    assert net == {"A100": pytest.approx(0, abs=1e-9), "V100": pytest.approx(0, abs=1e-9)}


def test_a_team_reads_its_own_side_only(scene: Scene, browser_of) -> None:
    rows = lines(browser_of(scene.people.charlie).get("/trades.csv"))
    assert [(row["team"], row["with"]) for row in rows] == [("Bio", "another team")] * 3
    assert browser_of(scene.people.charlie).get("/trades.csv?team=astro").status_code == 404


def test_file_api_and_page_tell_the_same_worth(scene: Scene, browser_of) -> None:
    bob = browser_of(scene.people.bob)
    told = bob.get("/api/v1/trades").json()["items"]
    rows = lines(bob.get("/trades.csv"))
    for one, row in zip(told, rows, strict=True):
        (side,) = one["sides"]
        assert (side["without"], side["with_trade"]) == (
            float(row["without_slow_gpus"]),
            float(row["with_slow_gpus"]),
        )
    (run,) = bob.get("/trades/").context["page"]
    seconds = 60.0
    assert run.sides[0].worth.without == pytest.approx(
        sum(float(row["without_slow_gpus"]) for row in rows) * seconds
    )
    assert run.sides[0].worth.with_trade == pytest.approx(
        sum(float(row["with_slow_gpus"]) for row in rows) * seconds
    )


def test_the_ledger_sums_to_zero_to_the_last_digit_and_agrees_with_the_trades(
    scene: Scene, browser_of
) -> None:
    now = now_from_database()
    everything = booked_trades(now - timedelta(days=1), now + timedelta(hours=1))
    assert [(one.generation, one.sum) for one in everything] == [("A100", 0), ("V100", 0)]
    moved = {one.generation: one.gave for one in everything}
    assert float(moved["A100"]) == pytest.approx(60 * sum(Trade.objects.values_list("fast_gpus", flat=True)))
    assert float(moved["V100"]) == pytest.approx(60 * sum(Trade.objects.values_list("slow_gpus", flat=True)))
    olga, bob, charlie = (
        browser_of(who) for who in (scene.people.olga, scene.people.bob, scene.people.charlie)
    )
    assert "Totals match: GPU time given = GPU time received" in olga.get("/trades/").content.decode()
    assert "Totals match: GPU time given = GPU time received" not in bob.get("/trades/").content.decode()
    address = "/api/v1/trades/booked"
    assert {one["generation"]: Decimal(one["sum"]) for one in olga.get(address).json()} == {
        "A100": 0,
        "V100": 0,
    }
    own, others = (
        {one["generation"]: Decimal(one["sum"]) for one in reader.get(address).json()}
        for reader in (bob, charlie)
    )
    assert own["A100"] == -moved["A100"] < 0 < own["V100"]
    assert all(own[name] + others[name] == 0 for name in own)
