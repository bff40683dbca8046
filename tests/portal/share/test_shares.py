"""The share page and the trade book have correct totals and charts, and do not name the other team of a trade."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from accounting.access.visibility import visible_ids
from accounting.core.clock import now_from_database
from accounting.models import Generation
from portal.share import views
from portal.share.chart import HEIGHT, draw
from portal.share.periods import named_period, usual_period
from portal.share.verdict import Verdict, shift_of
from scheduling.core.amounts import Amounts
from scheduling.models import Cluster, Job, JobSpeed, Round, ShareBalance, ShareInterval, Trade
from scheduling.reports.trades import read_trades, seen, totals
from scheduling.shares.series import POINTS, Series, read_share
from tests.make import cast, user
from tests.portal.scene import Scene, share
from tests.query_counts import queries_of

amounts = st.builds(Amounts, *[st.floats(0, 1e6)] * 7)


def last(hours: float) -> tuple[datetime, datetime]:
    ends = now_from_database() + timedelta(seconds=1)
    return ends - timedelta(hours=hours), ends


def test_the_points_add_up_to_the_intervals(scene: Scene) -> None:
    cast = scene.people
    by_name = {
        one.generation.name: one for one in read_share(cast.bob, cast.astro, scene.world.cluster, *last(24))
    }
    v100 = by_name["V100"].total
    assert v100.entitled == pytest.approx(7200)
    assert (v100.received, v100.lent) == (pytest.approx(5400), pytest.approx(1800))
    assert v100.delivered == pytest.approx(1.0)
    assert by_name["V100"].owed == pytest.approx(720)
    assert len(by_name["V100"].points) == POINTS


def test_an_interval_across_the_border_counts_by_its_overlap(scene: Scene) -> None:
    cast = scene.people
    ends = ShareInterval.objects.latest("ends").ends  # the scene may have been created half a minute ago
    series = read_share(cast.bob, cast.astro, scene.world.cluster, ends - timedelta(minutes=30), ends)
    half = {one.generation.name: one.total for one in series}
    assert half["V100"].entitled == pytest.approx(3600, rel=0.01)
    steady = half["V100"].entitled / POINTS
    points = next(one for one in series if one.generation == cast.v100).points
    assert all(point.entitled == pytest.approx(steady, rel=0.05) for point in points[:-1])


def test_a_parent_has_the_sum_of_its_teams_and_others_stay_hidden(scene: Scene) -> None:
    cast = scene.people
    whole = sum(one.total.entitled for one in read_share(cast.ada, cast.uni, scene.world.cluster, *last(24)))
    assert whole == pytest.approx(7200 + 7200 + 3600, rel=0.01)
    assert (
        sum(
            one.total.entitled for one in read_share(cast.charlie, cast.astro, scene.world.cluster, *last(24))
        )
        == 0
    )


def test_loans_and_trades_between_teams_are_none_of_their_parent(scene: Scene) -> None:
    cast, lab = scene.people, scene.world.cluster
    of = Round.objects.get(pk=scene.trade.round_id)
    ends = ShareInterval.objects.filter(round=of).latest("ends").ends
    share(
        of, cast.astro, cast.v100, ends=ends, entitled=7200, received=3600, lent=2400, unused=1200, bought=0
    )
    share(of, cast.bio, cast.a100, ends=ends, entitled=3600, received=5400, bought=1800)

    def v100_and_a100(user, tenant) -> tuple[Amounts, Amounts]:
        by_name = {one.generation.name: one.total for one in read_share(user, tenant, lab, *last(24))}
        return by_name["V100"], by_name["A100"]

    slow, fast = v100_and_a100(cast.ada, cast.uni)
    # Bio borrowed 1800 of the 2400 that Astro lent, and bought all that Astro sold.
    assert (slow.lent, slow.borrowed, slow.unused) == (pytest.approx(600), 0, pytest.approx(1200))
    assert (fast.sold, fast.bought) == (0, 0)
    own_slow, own_fast = v100_and_a100(cast.bob, cast.astro)
    assert (own_slow.lent, own_fast.sold) == (pytest.approx(2400), pytest.approx(1800))
    assert slow.due == pytest.approx(sum(v100_and_a100(cast.ada, t)[0].due for t in (cast.astro, cast.bio)))


def test_the_number_of_queries_does_not_grow(scene: Scene) -> None:
    cast, day = scene.people, last(24)
    with queries_of("the share of a team on a day"):
        read_share(cast.bob, cast.astro, scene.world.cluster, *day)
    interval = ShareInterval.objects.filter(tenant=cast.astro).first()
    for k in range(50):
        interval.pk, interval.round = None, _round(scene, 1000 + k)
        interval.save()
    with queries_of("the share of a team on a day"):
        read_share(cast.bob, cast.astro, scene.world.cluster, *day)


def test_each_cluster_has_a_share_of_its_own(scene: Scene, browser_of) -> None:
    cast, lab = scene.people, scene.world.cluster
    far = Cluster.objects.create(name="far")
    now = now_from_database()
    elsewhere = Round.objects.get(pk=scene.trade.round_id)
    elsewhere.pk, elsewhere.cluster = None, far
    elsewhere.save()
    share(elsewhere, cast.astro, cast.v100, ends=now, entitled=36_000, received=36_000)
    ShareBalance.objects.create(cluster=far, tenant=cast.astro, user=cast.bob, generation=cast.v100, owed=99)
    here, there = (
        {one.generation.name: one.total.entitled for one in read_share(cast.bob, cast.astro, of, *last(24))}
        for of in (lab, far)
    )
    assert here["V100"] == pytest.approx(7200)
    assert there == {"V100": pytest.approx(36_000)}
    browser = browser_of(cast.bob)
    pages = {name: browser.get(f"/share/?cluster={name}") for name in ("lab", "far")}
    assert [round(page.context["total"].entitled) for page in pages.values()] == [10_800, 36_000]
    assert pages["far"].context["verdict"].balance == 99
    assert "<option selected>far</option>" in pages["far"].content.decode()
    assert browser.get("/share/").context["cluster"] == far  # the first cluster by name
    assert browser.get("/share/?cluster=nowhere").status_code == 404
    api = browser.get("/api/v1/share?team=astro&cluster=lab").json()
    assert (api["cluster"], {one["generation"] for one in api["generations"]}) == ("lab", {"A100", "V100"})
    assert browser.get("/api/v1/share?team=astro&cluster=nowhere").status_code == 404


def test_one_cluster_needs_no_choice(scene: Scene, browser_of) -> None:
    browser = browser_of(scene.people.bob)
    assert 'id="cluster"' not in browser.get("/share/").content.decode()


def test_without_a_cluster_the_page_says_so(db: None, browser_of) -> None:
    browser = browser_of(cast().bob)
    assert "There is no cluster yet" in browser.get("/share/").content.decode()
    assert browser.get("/api/v1/share?team=astro").json()["cluster"] is None


def _round(scene: Scene, number: int):
    first = scene.world.cluster.rounds.earliest("number")
    first.pk, first.number = None, number
    first.save()
    return first


@given(st.lists(amounts, min_size=1, max_size=20))
def test_the_picture_stays_inside_its_frame(points: list[Amounts]) -> None:
    chart = draw(Series(Generation(name="V100"), points, 0.0), seconds_per_point=60.0)
    assert 2 <= len(chart.ticks) <= 12
    assert all(0 <= y <= HEIGHT for _, y in chart.ticks)
    paths = "".join([chart.entitled, *(layer.path for layer in chart.layers)])
    ys = [float(part.split("H")[0].rstrip("Z")) for part in paths.replace("M0,", "V").split("V")[1:]]
    assert all(-1 <= y <= HEIGHT + 1 for y in ys)


def test_a_number_below_zero_has_its_sign() -> None:
    lent = Amounts(entitled=60.0, received=60.0, lent=60.0)
    chart = draw(Series(Generation(name="V100"), [lent], 0.0), seconds_per_point=60.0)
    assert [mark.label for mark, _ in chart.ticks] == ["−1", "−0.5", "0", "0.5", "1"]


GRAIN = 60.0  # GPU-seconds of one GPU in a round
balances = st.floats(-1e5, 1e5)


@given(balances, balances)
def test_what_is_owed_is_repaid_lost_or_less_than_a_gpu_for_a_round(owed: float, balance: float) -> None:
    verdict = Verdict(owed, balance, GRAIN)
    assert sum((verdict.is_even, verdict.is_ahead, verdict.repaid > 0)) == 1
    assert verdict.lost >= 0
    assert owed <= verdict.repaid + verdict.lost + GRAIN


@given(st.dictionaries(st.sampled_from("abcd"), balances))
def test_what_moved_between_gpu_types_is_told_from_both_sides(owed: dict[str, float]) -> None:
    found = shift_of(owed, due=1000.0, grain=GRAIN)
    if found is None:
        less, more = (sum(max(0.0, sign * amount) for amount in owed.values()) for sign in (1, -1))
        assert min(less, more) < GRAIN
    else:
        assert found.amount >= GRAIN
        assert all(owed[name] > 0 for name in found.less)
        assert all(owed[name] < 0 for name in found.more)
        assert found.less
        assert found.more


def test_the_page_says_that_one_gpu_type_was_given_in_place_of_another(scene: Scene, browser_of) -> None:
    cast = scene.people
    lab = scene.world.cluster
    now = now_from_database()
    for generation, received in ((cast.a100, 0.0), (cast.v100, 7200.0)):
        share(
            Round.objects.filter(cluster=lab).latest("pk"), cast.astro, generation,
            ends=now + timedelta(seconds=1), entitled=3600, received=received,
        )  # fmt: skip
    shown = browser_of(cast.bob).get("/share/?cluster=lab&period=1h").content.decode()
    assert re.search(r"received [^.]* on V100 in place of A100\.", " ".join(shown.split()))


def test_the_page_says_what_of_the_owed_time_is_not_repaid(scene: Scene, browser_of) -> None:
    """The page calls nobody ahead of its share for a balance of seconds, and names the shortfall that is lost."""
    cast, lab = scene.people, scene.world.cluster
    of = Round.objects.get(pk=scene.trade.round_id)
    ends = ShareInterval.objects.filter(round=of).latest("ends").ends
    ShareInterval.objects.all().delete()
    share(of, cast.astro, cast.v100, ends=ends, entitled=3600, received=1800)
    balance = ShareBalance.objects.filter(cluster=lab, tenant=cast.astro)

    def said(owed: float) -> str:
        balance.delete()
        balance.create(cluster=lab, tenant=cast.astro, user=cast.bob, generation=cast.v100, owed=owed)
        return words(browser_of(cast.bob).get("/share/?period=24h"))

    even = said(-25)
    assert "50 % of 1 GPU-h due in the last 24 hours" in even
    assert ">Even<" in even
    assert "other teams go first" not in even
    assert "Astro received 0.5 GPU-h less than was due. The next rounds do not repay it" in even
    assert "The next rounds repay 0.2 GPU-h of it, and not the rest" in said(720)
    assert "0.2 GPU-h to come" in said(720)
    assert "less than was due" not in said(1800)
    assert "other teams go first until" in said(-720)


@pytest.mark.parametrize("period", ["1h", "24h", "7d", "30d", "nonsense"])
def test_the_page_shows_every_period(scene: Scene, browser_of, period: str) -> None:
    html = browser_of(scene.people.bob).get(f"/share/?period={period}").content.decode()
    assert html.count('class="chart"') == 2
    assert "style=" not in html


def words(answer) -> str:
    """Returns the HTML of the response `answer` on one line, without `<strong>` tags."""
    return " ".join(answer.content.decode().replace("<strong>", "").replace("</strong>", "").split())


def again(of: Trade, **other: object) -> Trade:
    """Creates and returns a copy of a trade, with other values for the fields in `other`."""
    trade = Trade.objects.get(pk=of.pk)
    trade.pk = None
    for name, value in other.items():
        setattr(trade, name, value)
    trade.save()
    return trade


def test_trades_that_follow_each_other_are_one_row(scene: Scene, browser_of) -> None:
    cast, one = scene.people, scene.trade
    minute = timedelta(minutes=1)
    again(one, begins=one.ends, ends=one.ends + minute, price=2.5, slow_gpus=2.25)
    third = again(one, begins=one.ends + minute, ends=one.ends + 2 * minute)
    later = again(one, begins=one.ends + 5 * minute, ends=one.ends + 6 * minute)
    other = again(one, seller=cast.uni, begins=one.ends, ends=one.ends + minute)
    bob = browser_of(cast.bob)
    newest, run = bob.get("/trades/").context["page"]
    assert (newest.first, newest.count) == (later.pk, 1)
    assert (run.first, run.last, run.count) == (one.pk, third.pk, 3)
    assert (run.begins, run.ends) == (one.begins, third.ends)
    assert (run.lowest_price, run.highest_price) == (2.19, 2.5)
    [side] = run.sides
    assert side.gave == pytest.approx(3 * 0.9 * 60)
    assert side.got == pytest.approx((2 * 1.971 + 2.25) * 60)
    assert side.gain == pytest.approx(side.got / (side.gave * 1.2) - 1)
    single = bob.get(f"/trades/?run={third.pk}").context
    assert [trade.id for trade in single["trades"]][::2] == [third.pk, one.pk]
    assert bob.get(f"/trades/?run={other.pk}").status_code == 404
    assert bob.get("/trades/?run=x").status_code == 404


def test_an_unfinished_run_goes_on(scene: Scene, browser_of) -> None:
    again(scene.trade, begins=scene.trade.ends, ends=None)
    [run] = browser_of(scene.people.charlie).get("/trades/").context["page"]
    assert (run.count, run.ends) == (2, None)
    assert run.sides[0].gave == pytest.approx(30 * 60 * 1.971, rel=0.05)


def test_a_user_who_sees_both_sides_sees_the_traded_amounts(scene: Scene, browser_of) -> None:
    olga, bob = (words(browser_of(who).get("/trades/")) for who in (scene.people.olga, scene.people.bob))
    assert "changed hands between teams" in olga
    assert "changed hands" not in bob
    assert "got 0.033 GPU-h, gave 0 GPU-h" in bob


def test_a_trade_is_shown_from_the_readers_side(scene: Scene, browser_of) -> None:
    bob = browser_of(scene.people.bob)
    row = words(bob.get("/trades/"))
    assert "You gave another team 0.015 GPU-h A100 for 0.033 GPU-h V100" in row
    assert "+83 %" in row
    assert "Bio" not in row
    told = words(bob.get(f"/trades/?run={scene.trade.pk}"))
    assert "You gave 0.9 A100 for 1.97 V100 for 1 min at an exchange rate of 2.19" in told
    assert (
        "Measured speed-up of your team's jobs on the faster GPU type: 1.20. Gain by the trade: 83 %." in told
    )
    assert "another team" in told
    assert "Bio" not in told


def test_charlie_reads_the_other_side_of_the_same_trade(scene: Scene, browser_of) -> None:
    charlie = browser_of(scene.people.charlie)
    told = words(charlie.get(f"/trades/?run={scene.trade.pk}"))
    assert "gave another team" in words(charlie.get("/trades/"))
    assert "1.20" not in words(charlie.get("/trades/"))
    assert "You gave 1.97 V100 for 0.9 A100" in told
    assert "your team's jobs on the faster GPU type: 4. " in told or "GPU type: 4.00. " in told
    assert "1.20" not in told  # the other side may not see Astro's speed-up
    [api] = browser_of(scene.people.charlie).get("/api/v1/trades").json()["items"]
    assert [side["team"] for side in api["sides"]] == ["bio"]
    assert api["counterpart"] == "another team"


def test_an_admin_reads_both_names(scene: Scene, browser_of) -> None:
    ada = browser_of(scene.people.ada)
    assert "Astro gave Bio 0.015 GPU-h A100 for 0.033 GPU-h V100" in words(ada.get("/trades/"))
    html = ada.get(f"/trades/?run={scene.trade.pk}").content.decode()
    assert "<strong>Astro</strong> gave" in html
    assert "<strong>Bio</strong> gave" in html


def test_both_sides_gain_and_the_totals_agree(scene: Scene) -> None:
    cast = scene.people
    mine = visible_ids(cast.bob)
    trades = read_trades(cast.bob, *last(24))
    [trade] = seen(trades, mine)
    assert trade.sides[0].gain == pytest.approx(0.825)
    assert {one.generation: (one.gave, one.got) for one in totals(trades, mine)} == {
        "A100": (pytest.approx(54), 0.0),
        "V100": (0.0, pytest.approx(1.971 * 60)),
    }
    everybody = totals(read_trades(cast.ada, *last(24)), visible_ids(cast.ada))
    assert all(one.net == pytest.approx(0) for one in everybody)


def test_trades_are_filtered(scene: Scene) -> None:
    cast = scene.people
    assert read_trades(cast.bob, *last(24), generation="A100").count() == 1
    assert read_trades(cast.bob, *last(24), generation="K80").count() == 0
    assert read_trades(cast.bob, *last(0.1)).count() == 0


def test_a_user_in_no_team_sees_that_and_chooses_one(scene: Scene, browser_of) -> None:
    olga, bob = (
        browser_of(who).get("/share/").content.decode() for who in (scene.people.olga, scene.people.bob)
    )
    assert "You are in no team. Choose the team whose share you want to see." in olga
    assert "<h1>Shares of the teams</h1>" in olga
    assert "<h1>Our share</h1>" in bob
    assert "You are in no team" not in bob


def test_a_user_in_no_team_sees_no_trades(scene: Scene, browser_of) -> None:
    answer = browser_of(user("nobody")).get("/trades/")
    assert (answer.status_code, list(answer.context["page"])) == (200, [])


def test_share_and_trades_begin_with_the_same_period(scene: Scene, browser_of) -> None:
    bob = browser_of(scene.people.bob)

    def periods() -> list[str]:
        return [bob.get(page).context["period"].key for page in ("/share/", "/trades/")]

    ShareInterval.objects.update(begins=now_from_database() - timedelta(minutes=30))
    assert periods() == ["1h", "1h"]
    ShareInterval.objects.update(begins=now_from_database() - timedelta(hours=2))
    usual = usual_period(now_from_database(), is_young=False)
    assert usual in {"today", "24h"}
    assert periods() == [usual, usual]


@pytest.mark.parametrize(
    ("now", "usual", "begins"),
    [("2026-11-28T15:00+01:00", "today", "2026-11-28T00:00+01:00"),
     ("2026-11-28T00:30+01:00", "24h", "2026-11-28T00:00+01:00"),
     ("2026-11-28T00:00+01:00", "today", "2026-11-27T00:00+01:00"),
     ("2026-03-29T09:00+02:00", "today", "2026-03-29T00:00+01:00")],
)  # fmt: skip
def test_charts_begin_with_the_day_of_the_reader(now: str, usual: str, begins: str) -> None:
    with timezone.override("Europe/Berlin"):
        moment = datetime.fromisoformat(now)
        assert usual_period(moment, is_young=False) == usual
        assert usual_period(moment, is_young=True) == "1h"
        assert named_period("today", moment).in_words == "today"
        assert named_period("7d", moment).in_words == "in the last 7 days"
        assert named_period("today", moment).begins == datetime.fromisoformat(begins)


def test_today_ends_now_also_for_a_team_that_has_not_run_today(
    scene: Scene, browser_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob, now = browser_of(scene.people.bob), now_from_database()
    monkeypatch.setattr(views, "last_round", lambda teams, cluster: (now, now - timedelta(days=2)))
    asked = bob.get("/share/?team=astro&period=today").context["period"]
    assert (asked.key, asked.ends) == ("today", now)
    assert bob.get("/share/?team=astro&period=24h").context["period"].ends == now - timedelta(days=2)
    days = bob.get("/usage/?period=today").context["period"]
    assert (days.key, days.first) == ("today", days.last)


@pytest.mark.parametrize(
    "address", ["/trades/?generation=%00", "/trades/?team=%00x", "/share/?team=%00x", "/usage/?team=%00x"]
)
def test_a_nul_in_the_address_is_refused(scene: Scene, browser_of, address: str) -> None:
    assert browser_of(scene.people.bob).get(address).status_code == 400


def test_a_team_whose_speed_ups_rise_as_it_begins_to_trade_is_flagged(scene: Scene, browser_of) -> None:
    cast, lab = scene.people, scene.world
    first, flagged = scene.trade.begins, "Teams whose speed-ups changed when they began to trade"
    page = browser_of(cast.bob).get("/trades/").content.decode()
    assert flagged not in page
    for hours, speed_up in ((-30, 2.0), (-20, 2.0), (-10, 2.0), (0.1, 3.0), (0.2, 3.0), (0.3, 3.0)):
        job = lab.submit(cast.bob, cast.astro, labels={"model": "bert"})
        created = first + timedelta(hours=hours)
        Job.objects.filter(pk=job.pk).update(created_at=created)
        for generation, rate in ((cast.v100, 1.0), (cast.a100, speed_up)):
            JobSpeed.objects.create(
                job=job, generation=generation, steps=100 * rate, seconds=100, updated_at=created
            )
    page = browser_of(cast.bob).get("/trades/").content.decode()
    assert flagged in page
    assert "1.50" in page
    assert flagged not in browser_of(cast.charlie).get("/trades/").content.decode()
