"""A round records which policy decided and the policy's state, and it refuses invalid plans of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from django.core.management import call_command

from accounting.actions import set_preferences
from accounting.core.clock import now_from_database
from fairshare import policies
from fairshare.codec import decode_decision, decode_snapshot, encode
from fairshare.entitlement import entitlements
from fairshare.model import NOWHERE, Decision, Floats, Snapshot
from fairshare.policies.base import Happened, Need, State, option
from fairshare.policies.gandiva_fair_1.policy import GandivaFair1
from fairshare.tree import Tree
from fairshare.validate import InvalidPlan
from scheduling.jobs.actions import cancel_job
from scheduling.models import (
    Cluster,
    Job,
    JobSpeed,
    Lease,
    Node,
    PolicyState,
    Round,
    RoundRecord,
    ShareBalance,
)
from scheduling.rounds.actions import run_round
from scheduling.shares.situations import Memory, situation_now, situation_of_record
from scheduling.shares.snapshot import read_snapshot, with_candidate
from scheduling.tasks import run_due_rounds
from tests.clock import real_now, set_clock
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db(transaction=True)

RECORDS = Path(__file__).parents[2] / "fairshare" / "policies" / "records"


@dataclass(frozen=True)
class CountingOptions:
    by: float = option(1.0, "How much is counted a second", least=0.0)


class Counting:
    """A policy that decides like version 1 of gandiva_fair. In its state it also keeps two running totals for every
    account:

    - `known`: the seconds since the policy first saw the account, times the option `by`.
    - `got`: the GPU-seconds of each generation that the account and all accounts below it received.
    """

    name: ClassVar[str] = "counting"
    version: ClassVar[int] = 3
    needs: ClassVar[frozenset[Need]] = frozenset()
    options_type: ClassVar[type[CountingOptions]] = CountingOptions
    asks: ClassVar[float | None] = None

    def __init__(self, options: CountingOptions) -> None:
        self.options = options
        self._inner = GandivaFair1(GandivaFair1.options_type())

    def start(self, view: Snapshot) -> State:
        shape = view.accounts.owed.shape
        return {"known": np.zeros(shape[0]), "got": np.zeros(shape), "owed": np.zeros(shape)}

    def observe(self, state: State, happened: Happened, view: Snapshot) -> State:
        got = Tree.of(view.accounts.parent).sums(happened.received - happened.corrected)
        return {
            "known": state["known"] + self.options.by * happened.seconds,
            "got": state["got"] + got,
            "owed": state["owed"],
        }

    def decide(self, state: State, view: Snapshot, random: np.random.Generator) -> Decision:
        plan = self._inner.decide({"owed": state["owed"]}, view, random)
        return replace(plan, guaranteed=plan.share / 2, ask_again=self.asks)

    def divide(self, view: Snapshot) -> Floats:
        return self._inner.divide(view)


@pytest.fixture
def lab(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setitem(policies._BY_VERSION, ("counting", 3), Counting)
    # The policy counts seconds, and a slow machine must not add any.
    set_clock(monkeypatch, real_now())
    return world(v100=4)


def remembered(lab: World) -> Memory:
    memory = Memory.read(lab.cluster)
    assert memory is not None
    return memory


def of(memory: Memory, name: str) -> Mapping[Any, Any]:
    return dict(zip(memory.axes.accounts, memory.state[name].tolist(), strict=True))


def quantum_later(lab: World, seconds: float = 60) -> Round:
    for lease in lab.holding(Lease.State.RUNNING):
        lab.age(lease, seconds)
    lab.pass_time(seconds)
    round_ = lab.quantum()
    assert round_ is not None
    return round_


def test_a_round_says_which_version_of_which_policy_decided_with_which_options(lab: World) -> None:
    lab.submit(lab.people.bob, lab.people.astro)
    round_ = lab.quantum()
    assert (round_.policy, round_.policy_version) == (
        "gandiva_fair",
        policies.policy_type("gandiva_fair").version,
    )
    assert round_.policy_options["ordering"] == "stride"
    Cluster.objects.update(policy="counting", policy_options={"by": 2.5, "gone": 1})
    after = lab.quantum()
    assert (after.policy, after.policy_version, after.policy_options) == ("counting", 3, {"by": 2.5})
    for number in (round_.number, after.number):
        call_command("verify_round", number)


def test_rounds_of_the_market_are_verified(lab: World, capsys: pytest.CaptureFixture) -> None:
    Cluster.objects.update(policy="market", policy_options={"memory": 600.0})
    lab.submit(lab.people.bob, lab.people.astro, gpus=4)
    lab.quantum()
    lab.carry_out()
    lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    for round_ in (lab.fill(), quantum_later(lab)):
        assert (round_.policy, round_.policy_version) == ("market", 1)
        call_command("verify_round", round_.number)
        assert "the repeated decision matches" in capsys.readouterr().out


def test_reports_tell_the_same_entitlement_whichever_policy_decided(lab: World) -> None:
    """Reports show the same entitlement whichever policy decided the round.

    The policy "counting" divides each generation only among the accounts that may use it, so the entitlement in its own
    decision differs from the reports.
    """
    lab.node("a100-0", lab.people.a100)
    lab.submit(lab.people.bob, lab.people.astro)
    lab.submit(lab.people.charlie, lab.people.bio, generations=["V100"])
    found = []
    for policy in ("gandiva_fair", "counting"):
        Cluster.objects.update(policy=policy)
        round_ = lab.quantum()
        call_command("verify_round", round_.number)
        found.append([(one["tenant"], one["generation"], one["entitled"]) for one in round_.shares])
    assert found[0] == found[1]
    assert {entitled for _, _, entitled in found[0]} == {2.0}
    own = decode_decision(bytes(round_.record.decision)).entitled
    assert own is not None
    assert not own.all()


def test_a_round_whose_plan_contains_entitlements_is_verified(lab: World) -> None:
    lab.submit(lab.people.bob, lab.people.astro)
    round_ = lab.quantum()
    plan = decode_decision(bytes(round_.record.decision))
    told = replace(plan, entitled=entitlements(decode_snapshot(bytes(round_.record.snapshot))))
    RoundRecord.objects.filter(round=round_).update(decision=encode(told))
    call_command("verify_round", round_.number)


def test_a_round_that_the_first_release_stored_is_verified_by_the_version_that_decided_it(
    lab: World, capsys: pytest.CaptureFixture
) -> None:
    """`verify_round` can still verify a round that the first release stored. It uses the policy version of that
    release.

    The first release stored the policy's options and state inside the snapshot, not in separate columns.
    """
    lab.submit(lab.people.bob, lab.people.astro)
    for ordering in ("stride", "lottery"):
        round_ = lab.quantum()
        Round.objects.filter(pk=round_.pk).update(
            seed=20260101, ordering=ordering, policy="gandiva_fair", policy_version=1, policy_options=None
        )
        RoundRecord.objects.filter(round=round_).update(
            snapshot=(RECORDS / f"{ordering}.snapshot").read_bytes(),
            decision=(RECORDS / f"{ordering}.decision").read_bytes(),
            state=None,
        )
        call_command("verify_round", round_.number)
        assert "the repeated decision matches" in capsys.readouterr().out


def test_a_policys_state_follows_accounts_that_come_and_go(lab: World) -> None:
    people = lab.people
    Cluster.objects.update(policy="counting", policy_options={"by": 2})
    astro, bio = (people.astro.pk, None), (people.bio.pk, None)
    bob, charlie = (people.astro.pk, people.bob.pk), (people.bio.pk, people.charlie.pk)
    lab.submit(people.charlie, people.bio)
    lab.quantum()
    lab.carry_out()
    quantum_later(lab)
    known = of(remembered(lab), "known")
    assert known[charlie] == known[bio] == pytest.approx(120)
    lab.submit(people.bob, people.astro)  # sorts before the accounts that exist already
    lab.fill()
    lab.carry_out()
    quantum_later(lab)
    known, got = of(remembered(lab), "known"), of(remembered(lab), "got")
    assert known[charlie] == pytest.approx(240)
    assert known[bob] == known[astro] == pytest.approx(120)
    assert got[bio][0] == got[charlie][0] == pytest.approx(120)
    assert got[astro][0] == pytest.approx(60)


def test_usage_of_a_former_member_still_counts_above(lab: World) -> None:
    people = lab.people
    Cluster.objects.update(policy="counting", policy_options={})
    lab.submit(people.charlie, people.bio)
    leaves = lab.submit(people.bob, people.astro, gpus=2)
    lab.quantum()
    lab.carry_out()
    for lease in lab.holding(Lease.State.RUNNING):
        lab.age(lease, 60)
    lab.pass_time(60)
    cancel_job(actor=people.bob, job=leaves)
    lab.carry_out()
    lab.quantum()
    memory = remembered(lab)
    assert of(memory, "got")[people.astro.pk, None][0] == pytest.approx(120)
    lab.quantum()
    assert (people.astro.pk, None) not in remembered(lab).axes.accounts
    assert not ShareBalance.objects.filter(user=people.bob).exclude(share=0, owed=0).exists()


def test_corrections_reach_the_policy_once(lab: World) -> None:
    people = lab.people
    Cluster.objects.update(policy="counting", policy_options={})
    lab.submit(people.charlie, people.bio)
    lab.quantum()
    ShareBalance.objects.filter(user=people.charlie).update(corrected=-500.0)
    for _ in range(2):
        lab.pass_time(10)
        lab.quantum()
        assert of(remembered(lab), "got")[people.bio.pk, None][0] == pytest.approx(500, abs=30)
    assert not ShareBalance.objects.exclude(corrected=0).exists()


def test_debts_on_equal_generations_are_one_amount(lab: World) -> None:
    """GPU time on equally fast generations is interchangeable: a team that is owed time on one of them can receive it
    on another."""
    lab.node("a100-0", lab.people.a100)
    for _ in range(2):
        lab.submit(lab.people.bob, lab.people.astro, gpus=4)
        lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    lab.quantum()
    lab.carry_out()
    drifts = False
    for _ in range(4):
        quantum_later(lab)
        lab.carry_out()
        state = remembered(lab)
        for (tenant, user), total in of(state, "total").items():
            if user is None:
                continue
            rows = ShareBalance.objects.filter(tenant=tenant, user=user).values_list("owed", flat=True)
            assert sum(rows) == pytest.approx(total, abs=1e-6)
            assert min(rows) * max(rows) >= 0
            own = of(state, "owed")[tenant, user]
            drifts |= min(own) < -10 < 10 < max(own)
    assert drifts


def test_a_new_policy_starts_with_existing_debts(lab: World) -> None:
    lab.submit(lab.people.bob, lab.people.astro)
    Cluster.objects.update(policy="counting")
    lab.quantum()
    ShareBalance.objects.update(owed=77.0)
    Cluster.objects.update(policy="gandiva_fair")
    round_ = lab.quantum()
    row = situation_of_record(round_).state["owed"][-1]
    assert row.tolist() == [pytest.approx(77, abs=30)]
    assert PolicyState.objects.get().policy == "gandiva_fair"


def test_forecasts_use_the_policys_state(lab: World) -> None:
    lab.submit(lab.people.bob, lab.people.astro)
    Cluster.objects.update(policy="counting", policy_options={"by": 2})
    lab.quantum()
    lab.pass_time(60)
    lab.quantum()
    cluster = Cluster.objects.get()
    view, legend = read_snapshot(cluster, now=now_from_database())
    known = situation_now(cluster, view, legend.axes).state["known"]
    assert known.tolist() == pytest.approx([120] * len(known), rel=0.05)


def test_an_invalid_plan_is_logged_and_not_committed(
    lab: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro)

    def twice(self: Counting, state: State, view: Snapshot, random: np.random.Generator) -> Decision:
        plan = self._inner.decide({"owed": state["owed"]}, view, random)
        return replace(plan, place_node=plan.place_node + 5)

    monkeypatch.setattr(Counting, "decide", twice)
    Cluster.objects.update(policy="counting")
    with pytest.raises(InvalidPlan, match="node that does not exist"):
        lab.quantum()
    assert "what round 1 decided is refused" in caplog.text
    assert not Round.objects.exists()
    assert not Lease.objects.filter(job=job).exists()
    run_due_rounds()
    assert "the plan of a round was invalid: InvalidPlan" in Cluster.objects.get().failure


@pytest.mark.parametrize("reclaims", [False, True])
def test_a_round_between_two_quanta_takes_surplus_back_where_the_policy_can(
    lab: World, monkeypatch: pytest.MonkeyPatch, reclaims: bool
) -> None:
    monkeypatch.setattr(Counting, "needs", frozenset({Need.RECLAIM} if reclaims else ()))
    Cluster.objects.update(policy="counting")
    lab.submit(lab.people.bob, lab.people.astro)
    seen = [situation_of_record(round_).view.settings for round_ in (lab.fill(), lab.quantum())]
    assert [(one.may_preempt, one.reclaim) for one in seen] == [(reclaims, reclaims), (True, False)]


def test_a_policy_is_asked_when_it_wants_to_be_though_nothing_happens(
    lab: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counting, "asks", 20.0)
    Cluster.objects.update(policy="counting")
    lab.submit(lab.people.bob, lab.people.astro)
    lab.quantum()
    lab.carry_out()
    assert run_round(cluster_id=lab.cluster.pk) is None
    lab.pass_time(21)
    round_ = run_round(cluster_id=lab.cluster.pk)
    assert round_ is not None
    assert round_.kind == Round.Kind.FILL
    call_command("verify_round", round_.number)
    assert run_round(cluster_id=lab.cluster.pk) is None
    monkeypatch.setattr(Counting, "asks", None)
    lab.pass_time(21)
    assert run_round(cluster_id=lab.cluster.pk) is not None
    lab.pass_time(15)
    assert run_round(cluster_id=lab.cluster.pk) is None


@pytest.mark.parametrize("seconds", [60.0, 1e12, 1e300])
def test_a_policy_that_wants_to_be_asked_when_the_quantum_is_over_is_not_asked_for_it(
    lab: World, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(Counting, "asks", seconds)
    Cluster.objects.update(policy="counting")
    lab.submit(lab.people.bob, lab.people.astro)
    call_command("verify_round", lab.quantum().number)
    assert Cluster.objects.get().ask_again_at is None


def test_a_policy_sees_which_jobs_are_not_to_be_time_sliced(lab: World) -> None:
    people = lab.people
    lab.submit(people.bob, people.astro)
    cluster = Cluster.objects.get()
    view, legend = read_snapshot(cluster, now=now_from_database())
    assert view.jobs.keeps is None
    session = lab.submit(people.bob, people.astro)
    Job.objects.filter(pk=session.pk).update(kind=Job.Kind.SESSION)
    view, legend = read_snapshot(cluster, now=now_from_database())
    assert view.jobs.keeps.tolist() == [job == session.pk for job in legend.jobs]
    candidate = Job(cluster=cluster, tenant=people.astro, owner=people.bob, workers=1, gpus_per_worker=1)
    assert with_candidate(view, legend, candidate).jobs.keeps.tolist() == [False, True, False]


def test_a_policy_sees_accounts_that_share_evenly_and_the_time_of_their_jobs(lab: World) -> None:
    people = lab.people
    ran = lab.submit(people.bob, people.astro, gpus=2)
    lab.fill()
    lab.carry_out()
    lab.age(lab.lease(ran), 100)
    lab.submit(people.bob, people.astro)
    other = lab.submit(people.charlie, people.bio)
    cluster = Cluster.objects.get()
    view, _ = read_snapshot(cluster, now=now_from_database())
    assert (view.accounts.evenly, view.jobs.attained) == (None, None)
    set_preferences(actor=people.bob, job_order="even")
    view, legend = read_snapshot(cluster, now=now_from_database())
    evenly = dict(zip(legend.accounts, view.accounts.evenly.tolist(), strict=True))
    assert [account for account, is_even in evenly.items() if is_even] == [(people.astro.pk, people.bob.pk)]
    assert view.jobs.attained[:, 0].tolist() == [pytest.approx(200, abs=10), 0, 0]
    assert legend.jobs[-1] == other.pk
    candidate = Job(cluster=cluster, tenant=people.bio, owner=people.bob, workers=1, gpus_per_worker=1)
    seen = with_candidate(view, legend, candidate)
    assert (len(seen.jobs.attained), len(seen.accounts.evenly)) == (4, len(seen.accounts.parent))


def test_a_policy_that_needs_it_sees_the_time_of_all_jobs_by_generation(
    lab: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = lab.people
    lab.node("a100-0", people.a100)
    ran = lab.submit(people.bob, people.astro, gpus=2, generations=["A100"])
    lab.submit(people.charlie, people.bio)
    lab.fill()
    lab.carry_out()
    lab.age(lab.lease(ran), 100)
    monkeypatch.setattr(Counting, "needs", frozenset({Need.ATTAINED}))
    for settings in ({"policy": "counting"}, {"policy": "gandiva_fair", "shadow": ["counting", 3]}):
        Cluster.objects.update(**settings)
        view, legend = read_snapshot(Cluster.objects.get(), now=now_from_database())
        a100 = legend.generations.index(people.a100.pk)
        assert view.jobs.attained[:, a100].tolist() == [pytest.approx(200, abs=10), 0]
        assert view.jobs.attained.sum(axis=0)[1 - a100] == pytest.approx(0, abs=10)
    Node.objects.update(generation=people.v100)
    view, legend = read_snapshot(Cluster.objects.get(), now=now_from_database())
    assert legend.generations == [people.v100.pk]
    assert view.jobs.attained[:, 0] == pytest.approx([200, 0], abs=20), "it had it all the same"
    Cluster.objects.update(shadow=None)
    assert read_snapshot(Cluster.objects.get(), now=now_from_database())[0].jobs.attained is None


def test_a_policy_that_needs_them_sees_measured_speeds(lab: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro)
    JobSpeed.objects.create(job=job, generation=lab.people.v100, steps=30, seconds=10)
    Cluster.objects.update(policy="counting")
    for needs, rate in ((frozenset(), np.nan), (frozenset({Need.RATES}), 3.0)):
        monkeypatch.setattr(Counting, "needs", needs)
        view, _ = read_snapshot(Cluster.objects.get(), now=now_from_database())
        np.testing.assert_array_equal(view.jobs.rate, [[rate]])


def test_a_policy_sees_when_it_is_and_when_jobs_were_submitted(lab: World) -> None:
    people = lab.people
    first = lab.submit(people.bob, people.astro)
    Job.objects.filter(pk=first.pk).update(created_at=first.created_at - timedelta(hours=1))
    cluster, now = Cluster.objects.get(), now_from_database()
    view, legend = read_snapshot(cluster, now=now)
    assert view.now - view.jobs.submitted == pytest.approx(3600, abs=10)
    assert view.now == now.timestamp()
    candidate = Job(cluster=cluster, tenant=people.astro, owner=people.bob, workers=1, gpus_per_worker=1)
    assert with_candidate(view, legend, candidate).jobs.submitted[-1] == view.now
    again = decode_snapshot(encode(view))
    assert (again.now, again.jobs.submitted.tolist()) == (view.now, view.jobs.submitted.tolist())


def test_a_policy_sees_how_long_jobs_will_run_and_by_when_they_should_have_ended(lab: World) -> None:
    people = lab.people
    lab.submit(people.bob, people.astro)
    cluster = Cluster.objects.get()
    view, legend = read_snapshot(cluster, now=now_from_database())
    assert (view.jobs.expected, view.jobs.deadline) == (None, None)
    planned = Job(
        cluster=cluster,
        tenant=people.astro,
        owner=people.bob,
        workers=1,
        gpus_per_worker=1,
        expected_seconds=60.0,
    )
    assert with_candidate(view, legend, planned).jobs.expected.tolist() == [
        pytest.approx(np.nan, nan_ok=True),
        60,
    ]
    lab.submit(people.bob, people.astro, expected_hours=2)
    lab.submit(people.charlie, people.bio, deadline_hours=0.5)
    view, legend = read_snapshot(cluster, now=now_from_database())
    none = pytest.approx(np.nan, nan_ok=True)
    assert view.jobs.expected.tolist() == [none, 7200, none]
    assert (view.jobs.deadline - view.jobs.submitted).tolist() == [np.inf, np.inf, pytest.approx(1800)]
    assert with_candidate(view, legend, planned).jobs.deadline.tolist() == [*view.jobs.deadline, np.inf]
    assert decode_snapshot(encode(view)).jobs.deadline.tolist() == view.jobs.deadline.tolist()


def test_a_policy_sees_which_nodes_are_parts_of_one_machine(lab: World) -> None:
    cluster = Cluster.objects.get()
    lab.submit(lab.people.bob, lab.people.astro)
    assert read_snapshot(cluster, now=now_from_database())[0].cluster.machine is None
    for slices in ("m-1g", "m-2g"):
        Node.objects.filter(pk=lab.node(slices, lab.people.a100).pk).update(host="m")
    assert read_snapshot(cluster, now=now_from_database())[0].cluster.machine.tolist() == [0, 1, 1]


def test_a_policy_sees_the_models_of_jobs_and_the_operators_speed_table(lab: World) -> None:
    people = lab.people
    lab.submit(people.bob, people.astro)
    cluster = Cluster.objects.get()
    view, _ = read_snapshot(cluster, now=now_from_database())
    assert (view.jobs.model, view.cluster.table) == (None, None)
    first = lab.submit(people.bob, people.astro, labels={"model": "bert"})
    lab.submit(people.charlie, people.bio, labels={"model": "resnet"})
    last = lab.submit(people.charlie, people.bio, labels={"model": "bert"})
    view, legend = read_snapshot(cluster, now=now_from_database())
    assert view.jobs.model.tolist() == [NOWHERE, 0, 1, 0]
    assert [legend.jobs[1], legend.jobs[3]] == [first.pk, last.pk]
    candidate = Job(cluster=cluster, tenant=people.bio, owner=people.bob, workers=1, gpus_per_worker=1)
    assert len(with_candidate(view, legend, candidate).jobs.model) == 5
    assert decode_snapshot(encode(view)).jobs.model.tolist() == view.jobs.model.tolist()
