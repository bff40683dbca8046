"""Only managers set trade limits, invalid limits are refused, and the next round respects the limits."""

from __future__ import annotations

from decimal import Decimal

import pytest
from django.db import IntegrityError, transaction

from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent
from fairshare import codec
from scheduling.limits.actions import Allowance, set_trade_limits
from scheduling.models import Cluster, Job, JobSpeed, Trade, TradeLimit
from scheduling.rounds.actions import decisions_equal, redraw, run_round
from scheduling.shares.snapshot import read_snapshot, with_candidate
from tests import make
from tests.accounting.ledger.test_at_once import at_once
from tests.fairshare.build import decide
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lab(transactional_db: None) -> World:
    """Returns a world in which Astro sells A100 time to Bio, whose jobs run four times as fast on A100s as on V100s."""
    made = world(v100=4, a100=4, trading=True)
    fill(made)
    return made


def fill(made: World) -> None:
    people = made.people
    for owner, tenant, fast in ((people.bob, people.astro, 1.0), (people.charlie, people.bio, 4.0)):
        for _ in range(8):
            job = made.submit(owner, tenant)
            JobSpeed.objects.create(job=job, generation=people.v100, steps=100, seconds=100)
            JobSpeed.objects.create(job=job, generation=people.a100, steps=fast * 100, seconds=100)


@pytest.fixture
def other(lab: World) -> World:
    """Returns a second cluster, on which the same teams would trade in the same way."""
    made = World(lab.people, Cluster.objects.create(name="other", trading=True))
    made.node("other-v", lab.people.v100)
    made.node("other-a", lab.people.a100)
    fill(made)
    return made


def traded(lab: World) -> list[tuple[float, float]]:
    """Runs a round, which must be due. Returns (fast GPUs, slow GPUs) of each trade that is in force after it."""
    assert run_round(cluster_id=lab.cluster.pk) is not None
    in_force = Trade.objects.filter(round__cluster=lab.cluster, ends=None)
    return [(trade.fast_gpus, trade.slow_gpus) for trade in in_force]


def given_now() -> float:
    """Returns how many fast GPUs are sold in all trades that are in force, on all clusters together."""
    return sum(Trade.objects.filter(ends=None).values_list("fast_gpus", flat=True))


def limit(lab: World, *allowances: Allowance) -> list[TradeLimit]:
    return set_trade_limits(actor=lab.people.alice, tenant=lab.people.astro, allowances=allowances)


def fast(trades: list[tuple[float, float]]) -> float:
    return sum(gpus for gpus, _ in trades)


def test_a_limit_holds_from_the_next_round_which_does_not_wait_for_the_quantum(lab: World) -> None:
    people = lab.people
    free = traded(lab)
    assert fast(free) >= 1
    assert run_round(cluster_id=lab.cluster.pk) is None  # no round is due
    limit(lab, Allowance(people.a100, most_gpus=Decimal("0.25")))
    assert fast(traded(lab)) == pytest.approx(0.25)
    limit(lab, Allowance(people.a100, most_part=Decimal("0.05")))
    assert fast(traded(lab)) == pytest.approx(0.1)
    limit(lab, Allowance(trades=False), Allowance(people.v100))
    assert traded(lab) == []
    limit(lab, Allowance(trades=False), Allowance(people.v100), Allowance(people.a100))
    assert traded(lab) == free
    limit(lab, Allowance(trades=False))
    assert traded(lab) == []
    limit(lab)
    assert traded(lab) == free


def test_a_trade_limit_counts_trades_on_other_clusters(lab: World, other: World) -> None:
    limit(lab, Allowance(lab.people.a100, most_gpus=Decimal("1.25")))
    free = traded(lab)
    assert fast(free) == 1
    assert fast(traded(other)) == pytest.approx(0.25)
    limit(lab, Allowance(lab.people.a100, most_gpus=Decimal(1)))
    assert traded(other) == []
    Cluster.objects.filter(pk=lab.cluster.pk).update(trading=False)
    assert traded(lab) == []
    limit(lab, Allowance(lab.people.a100, most_gpus=Decimal(2)), Allowance(most_gpus=Decimal(2)))
    assert traded(other) == free


def test_a_buyers_trade_limit_counts_other_clusters(lab: World, other: World) -> None:
    people = lab.people
    set_trade_limits(
        actor=people.ada, tenant=people.bio, allowances=[Allowance(people.v100, most_gpus=Decimal("2.5"))]
    )
    assert [slow for _, slow in traded(lab)] == [pytest.approx(2)]
    assert [slow for _, slow in traded(other)] == [pytest.approx(0.5)]


def test_a_team_aboves_trade_limit_counts_all_clusters_but_not_trades_below_it(
    lab: World, other: World
) -> None:
    people = lab.people
    free = traded(lab)
    once = [Allowance(most_gpus=Decimal(1))]
    set_trade_limits(actor=people.ada, tenant=people.uni, allowances=once)
    assert traded(lab) == traded(other) == free
    people.bio.parent, people.bio.path = None, f"{people.bio.pk}/"
    people.bio.save()
    lab.quantum()
    other.quantum()
    assert given_now() == pytest.approx(1)


def test_a_trade_limit_counts_continuing_trades_on_other_clusters(lab: World, other: World) -> None:
    limit(lab, Allowance(lab.people.a100, most_gpus=Decimal(1)))
    lab.quantum()
    first = Trade.objects.get()
    lab.quantum()
    assert Trade.objects.get() == first, "it goes on"
    other.quantum()
    assert given_now() == pytest.approx(1)


def test_rounds_of_two_clusters_at_once_do_not_both_give_the_last(lab: World, other: World) -> None:
    limit(lab, Allowance(lab.people.a100, most_gpus=Decimal(1)))
    assert at_once(lab.quantum, other.quantum) == [None, None]
    assert given_now() == pytest.approx(1)


def test_a_trade_limit_of_a_team_above_holds_for_what_leaves_it(lab: World) -> None:
    people = lab.people
    out = [Allowance(trades=False)]
    set_trade_limits(actor=people.ada, tenant=people.uni, allowances=out)
    assert fast(traded(lab)) >= 1, "Astro and Bio are both below it"
    make.tenant("Elsewhere")
    people.bio.parent, people.bio.path = None, f"{people.bio.pk}/"
    people.bio.save()
    set_trade_limits(actor=people.ada, tenant=people.uni, allowances=[*out, Allowance(people.v100)])
    assert traded(lab) == []


def test_a_round_with_limits_can_be_drawn_again(lab: World) -> None:
    limit(lab, Allowance(most_gpus=Decimal("0.5")))
    round_ = lab.fill()
    assert decisions_equal(*redraw(round_))
    accounts = codec.decode_snapshot(bytes(round_.record.snapshot)).accounts
    astro = round_.record.legend["accounts"].index((lab.people.astro.pk, None))
    assert accounts.give_most[astro].tolist() == [0.5, 0.5]


def test_without_limits_a_snapshot_has_none(lab: World) -> None:
    accounts = codec.decode_snapshot(bytes(lab.fill().record.snapshot)).accounts
    assert (accounts.deals, accounts.give_most, accounts.give_part) == (None, None, None)


def test_a_managers_limits_are_in_the_audit_trail_once_and_wake_the_rounds(lab: World) -> None:
    people = lab.people
    limit(
        lab, Allowance(trades=False), Allowance(people.a100, most_gpus=Decimal(2), most_part=Decimal("0.5"))
    )
    limit(
        lab, Allowance(trades=False), Allowance(people.a100, most_gpus=Decimal(2), most_part=Decimal("0.5"))
    )
    (event,) = AuditEvent.objects.filter(verb="tenant.set_trade_limits")
    assert (event.actor, event.tenant, event.before) == (people.alice, people.astro, {})
    assert event.after == {
        "A100": "at most 2 GPUs given away in trades, "
        "at most 50 % of the team's entitlement given away in trades",
        "other GPUs": "not traded",
    }
    assert Cluster.objects.get(pk=lab.cluster.pk).round_wanted_at is not None


@pytest.mark.parametrize("who", ["bob", "charlie", "olga"])
def test_only_managers_and_admins_limit_trades(lab: World, who: str) -> None:
    with pytest.raises(NotAllowed):
        set_trade_limits(actor=getattr(lab.people, who), tenant=lab.people.astro, allowances=[])
    assert not TradeLimit.objects.exists()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"most_gpus": Decimal(-1)}, "most_gpus"),
        ({"most_part": Decimal("1.01")}, "most_part"),
        ({"trades": False, "most_gpus": Decimal(1)}, "trades"),
    ],
)
def test_limits_that_make_no_sense_are_refused_by_the_action_and_by_the_database(
    lab: World, given: dict, field: str
) -> None:
    with pytest.raises(Refused) as refused:
        limit(lab, Allowance(lab.people.a100, **given))
    assert refused.value.field == field
    with pytest.raises(IntegrityError), transaction.atomic():
        TradeLimit.objects.create(tenant=lab.people.astro, **{"trades": True} | given)


def test_two_limits_for_one_generation_are_refused(lab: World) -> None:
    with pytest.raises(Refused):
        limit(lab, Allowance(trades=False), Allowance(most_gpus=Decimal(1)))
    with pytest.raises(IntegrityError), transaction.atomic():
        TradeLimit.objects.bulk_create(TradeLimit(tenant=lab.people.astro, trades=False) for _ in range(2))


def test_a_job_of_a_team_that_had_none_is_checked_beside_limits(lab: World) -> None:
    people = lab.people
    limit(lab, Allowance(trades=False))
    dora, chem = make.user("dora"), make.tenant("Chem")
    make.membership(dora, chem)
    snapshot, legend = read_snapshot(lab.cluster, now=now_from_database())
    job = Job(tenant=chem, owner=dora, workers=1, gpus_per_worker=1, generation_ids=[], cluster=lab.cluster)
    accounts = with_candidate(snapshot, legend, job).accounts
    shape = accounts.owed.shape
    assert accounts.deals.shape == accounts.give_most.shape == accounts.give_part.shape == shape
    assert not accounts.deals[legend.accounts.index((people.astro.pk, None))].any()
    assert accounts.deals[-2:].all()
    assert len(decide(with_candidate(snapshot, legend, job), seed=0).reason) == len(snapshot.jobs) + 1
