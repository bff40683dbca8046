"""Advance reservations: rounds keep GPUs for a team in its windows, and operators make them within what is left."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent
from fairshare.model import Reason
from scheduling.advance.actions import (
    cancel_advance_reservation,
    change_advance_reservation,
    reserve_in_advance,
)
from scheduling.advance.ahead import windows_over
from scheduling.advance.proposals import Terms, effect_of, propose
from scheduling.advance.use import Use, use_of
from scheduling.advance.windows import Window, most_reserved, windows_of
from scheduling.backends.base import End, Phase
from scheduling.jobs.explain import explain
from scheduling.models import AdvanceReservation, Cluster, HeldGpu, Job, Lease, Round
from scheduling.rounds.actions import redraw
from scheduling.sessions.actions import start_session
from scheduling.shares.advance import lead_of
from scheduling.shares.snapshot import read_snapshot, with_candidate
from scheduling.spec.job_spec import JobSpec
from tests.fairshare.build import decide
from tests.scheduling.world import World, start, world

HOUR = timedelta(hours=1)


@pytest.fixture
def lab(db: None) -> World:
    return world(v100=4)


def terms(lab: World, *, after: timedelta = HOUR, lasts: timedelta = HOUR, **other: object) -> Terms:
    begins = now_from_database() + after
    given: dict[str, object] = {"tenant": lab.people.bio, "generation": lab.people.v100, "lends": False}
    if "nodes" not in other:
        given["gpus"] = 4
    return Terms(name="course", begins=begins, ends=begins + lasts, **given | other)  # type: ignore[arg-type]


def reserve(lab: World, **other: object) -> AdvanceReservation:
    return reserve_in_advance(actor=lab.people.olga, cluster=lab.cluster, terms=terms(lab, **other))


def goes_by(reservation: AdvanceReservation, by: timedelta) -> None:
    """Moves the windows of the reservation by `by` into the past, as if that time had passed."""
    for window in reservation.windows.all():
        window.begins, window.ends = window.begins - by, window.ends - by
        window.save()


def test_before_during_and_after_a_window(lab: World) -> None:
    cast = lab.people
    bobs = start(lab, gpus=4)
    made = reserve(lab)
    lab.quantum()
    assert lab.states([bobs]) == [Job.State.RUNNING]  # an hour ahead, gangs that take turns go on
    goes_by(made, HOUR - timedelta(minutes=1))
    lab.quantum()
    assert lab.states([bobs]) == [Job.State.STOPPING]
    lab.carry_out()
    lab.fill()
    bobs.refresh_from_db()
    assert (bobs.state, bobs.reason) == (Job.State.SUSPENDED, Reason.RESERVED)
    charlies = lab.submit(cast.charlie, cast.bio, gpus=4)
    lab.fill()
    assert lab.states([charlies]) == [Job.State.QUEUED]
    goes_by(made, timedelta(minutes=1))
    lab.fill()
    lab.carry_out()
    assert lab.states([charlies, bobs]) == [Job.State.RUNNING, Job.State.SUSPENDED]
    goes_by(made, HOUR)
    lab.see(lab.lease(charlies), Phase.ENDED, end=End.SUCCEEDED)
    lab.fill()
    lab.carry_out()
    assert lab.states([bobs]) == [Job.State.RUNNING]


def test_who_waits_reads_whose_reservation_it_is_as_far_as_they_may_see_it(lab: World) -> None:
    cast = lab.people
    reserve(lab, after=timedelta(seconds=1))
    job = lab.submit(cast.bob, cast.astro, gpus=2)
    lab.fill()
    job.refresh_from_db()
    assert job.reason == Reason.RESERVED
    assert "4 V100 GPUs for another team from" in explain(job, reader=cast.bob).sentence
    assert "for Bio (“course”)" in explain(job, reader=cast.olga).sentence
    assert "for another team" in explain(job).sentence
    AdvanceReservation.objects.get().windows.all().delete()
    assert "were reserved in advance" in explain(job, reader=cast.bob).sentence


def test_lent_gpus_are_borrowed_until_the_team_needs_them(lab: World) -> None:
    cast = lab.people
    made = reserve(lab, after=timedelta(seconds=1), lends=True)
    goes_by(made, timedelta(seconds=2))
    bobs = start(lab, gpus=4)
    lab.submit(cast.charlie, cast.bio, gpus=3)
    lab.fill()
    assert lab.states([bobs]) == [Job.State.STOPPING]
    lab.carry_out()
    held = {
        lease.job.owner_id: lease.gpus for lease in lab.holding(Lease.State.STARTING, Lease.State.RUNNING)
    }
    assert held == {cast.charlie.pk: 3}


def test_a_killed_or_repeated_round_decides_the_same(lab: World) -> None:
    cast = lab.people
    made = reserve(lab, after=timedelta(seconds=1), gpus=3)
    goes_by(made, timedelta(seconds=2))
    jobs = [lab.submit(cast.charlie, cast.bio, gpus=3), lab.submit(cast.bob, cast.astro, gpus=1)]
    round_ = lab.fill()
    assert isinstance(round_, Round)
    stored, again = redraw(round_)
    assert (stored.run.tolist(), stored.place_node.tolist()) == (
        again.run.tolist(),
        again.place_node.tolist(),
    )
    before = list(HeldGpu.objects.order_by("pk").values_list("lease__job", "gpu_index"))
    lab.fill()
    lab.fill()
    assert list(HeldGpu.objects.order_by("pk").values_list("lease__job", "gpu_index")) == before
    assert len(before) == 4
    assert len(jobs) == 2


def test_the_first_job_of_the_team_is_judged_as_its_own(lab: World) -> None:
    cast = lab.people
    goes_by(reserve(lab, after=timedelta(seconds=1)), timedelta(seconds=2))
    lab.submit(cast.bob, cast.astro, gpus=4)
    view, legend = read_snapshot(lab.cluster, now=now_from_database())
    assert (cast.bio.pk, None) not in legend.accounts
    candidate = Job(cluster=lab.cluster, tenant=cast.bio, owner=cast.charlie, workers=1, gpus_per_worker=4)
    plan = decide(with_candidate(view, legend, candidate), 1)
    assert plan.run.tolist() == [1]


def test_the_next_round_comes_when_a_window_begins(lab: World) -> None:
    reserve(lab, after=timedelta(minutes=5))
    lab.submit(lab.people.bob, lab.people.astro)
    lab.quantum()
    lab.cluster.refresh_from_db()
    ahead = lab.cluster.ask_again_at - now_from_database()
    # A quantum and two minutes before the window.
    assert timedelta(seconds=100) < ahead <= timedelta(seconds=120)


def test_a_session_starts_only_if_it_ends_before_the_window(lab: World) -> None:
    cast = lab.people
    reserve(lab, after=3 * HOUR)
    short, long = (
        start_session(
            actor=cast.bob,
            tenant=cast.astro,
            cluster=lab.cluster,
            spec=JobSpec(name=f"for {hours} h", command="true", gpus_per_worker=1, port=8888),
            longest_hours=hours,
        )
        for hours in (2, 4)
    )
    lab.fill()
    assert lab.states([short.job, long.job]) == [Job.State.STARTING, Job.State.QUEUED]
    assert Job.objects.get(pk=long.pk).reason == Reason.RESERVED


def test_reservations_of_one_time_never_exceed_the_gpus(lab: World) -> None:
    cast = lab.people
    reserve(lab, gpus=3)
    with pytest.raises(Refused, match="1 V100 GPU that no other reservation has") as refused:
        reserve(lab, gpus=2, after=HOUR * 1.5)
    assert refused.value.field == "gpus"
    reserve(lab, gpus=1, after=HOUR * 1.5)
    reserve(lab, gpus=4, after=3 * HOUR)
    node = lab.cluster.nodes.get()
    with pytest.raises(Refused, match="4 GPUs of v100-0 are reserved in this time already") as refused:
        reserve(lab, nodes=(node,), after=HOUR * 1.9)
    assert refused.value.field == "nodes"
    assert AdvanceReservation.objects.count() == 3
    lab.node("v100-1", cast.v100, 2)
    both = reserve(lab, gpus=5, after=10 * HOUR)
    assert [(one.node.name, one.gpus) for one in both.nodes.all()] == [("v100-0", 4), ("v100-1", 1)]


def test_a_weekly_reservation_keeps_its_hours_when_clocks_change() -> None:
    begins = datetime(2027, 3, 22, 8, tzinfo=UTC)  # 9 o'clock in Berlin
    found = windows_of(
        begins,
        begins + 2 * HOUR,
        weekly_until=begins + timedelta(weeks=2) - HOUR,
        zone=ZoneInfo("Europe/Berlin"),
    )
    assert [one.begins for one in found] == [begins, datetime(2027, 3, 29, 7, tzinfo=UTC)]


@pytest.mark.parametrize(
    ("wrong", "field", "said"),
    [
        ({"after": -HOUR}, "begins", "must begin in the future"),
        ({"lasts": -HOUR}, "ends", "must end after"),
        ({"lasts": timedelta(days=40)}, "ends", "at most 31 days"),
        ({"gpus": 0}, "gpus", "at least one"),
        ({"gpus": None}, "gpus", "either a number"),
        ({"lasts": timedelta(days=8), "weekly": timedelta(days=30)}, "ends", "at most a week"),
        ({"weekly": timedelta(days=600)}, "weekly_until", "at most 366 days"),
        ({"name": ""}, "name", "name"),
    ],
)
def test_invalid_terms_are_refused_at_their_field(lab: World, wrong, field: str, said: str) -> None:
    other = {name: value for name, value in wrong.items() if name in {"after", "lasts"}}
    asked = terms(lab, **other)
    if "weekly" in wrong:
        asked = replace(asked, weekly_until=asked.begins + wrong["weekly"])
    asked = replace(asked, **{name: wrong[name] for name in ("gpus", "name") if name in wrong})
    with pytest.raises(Refused, match=said) as refused:
        propose(lab.cluster, asked)
    assert refused.value.field == field


def test_a_change_and_a_cancel_hold_from_now_on_and_are_audited(lab: World) -> None:
    cast = lab.people
    asked = replace(terms(lab), weekly_until=now_from_database() + timedelta(weeks=3))
    made = reserve_in_advance(actor=cast.olga, cluster=lab.cluster, terms=asked)
    assert made.windows.count() == 3
    changed = change_advance_reservation(
        actor=cast.olga, reservation=made, terms=replace(asked, gpus=2, tenant=cast.astro, weekly_until=None)
    )
    assert (changed.windows.count(), changed.gpus, changed.tenant) == (1, 2, cast.astro)
    goes_by(changed, HOUR + timedelta(seconds=5))
    cancel_advance_reservation(actor=cast.olga, reservation=changed)
    cancel_advance_reservation(actor=cast.olga, reservation=changed)
    [window] = changed.windows.all()
    assert window.ends <= now_from_database()
    verbs = (
        AuditEvent.objects.filter(verb__startswith="advance").order_by("pk").values_list("verb", flat=True)
    )
    assert list(verbs) == ["advance.create", "advance.change", "advance.cancel"]
    with pytest.raises(Refused, match="is over"):
        change_advance_reservation(actor=cast.olga, reservation=changed, terms=asked)
    assert Cluster.objects.get().round_wanted_at is not None
    for who in (cast.alice, cast.bob):
        with pytest.raises(NotAllowed):
            reserve_in_advance(actor=who, cluster=lab.cluster, terms=asked)


def test_a_preview_says_whom_it_hits_and_what_it_costs(lab: World) -> None:
    cast = lab.people
    running = start(lab, gpus=2)
    lab.submit(cast.alice, cast.astro, gpus=4)
    lab.submit(cast.charlie, cast.bio, gpus=4)
    lab.fill()
    made = propose(lab.cluster, terms(lab, gpus=2, lasts=2 * HOUR))
    assert (made.gpus, made.gpu_hours) == (2, 4.0)
    effect = effect_of(made, cast.olga)
    assert [one.job for one in effect.running.seen] == [running]
    assert effect.waiting == [(cast.astro, 1)]
    [loss] = effect.losses
    assert (loss.tenant, loss.entitled, loss.less) == (cast.astro, 2.0, 1.0)
    assert not AdvanceReservation.objects.exists()


def test_the_use_of_a_reservation_counts_what_the_team_held_of_it_and_no_more(lab: World) -> None:
    cast = lab.people
    made = reserve(lab, gpus=3, lends=True)
    assert use_of(made, now_from_database()) == Use(0.0, 0.0)
    goes_by(made, 2 * HOUR)  # the window of an hour began an hour ago, and ended now
    charlies, bobs = lab.submit(cast.charlie, cast.bio, gpus=2), lab.submit(cast.bob, cast.astro, gpus=2)
    lab.quantum()
    lab.carry_out()
    for job in (charlies, bobs):
        lab.age(lab.lease(job), 5400)  # since before the window, and after its end
    found = use_of(made, now_from_database())
    assert (found.reserved, found.used) == pytest.approx((3.0, 2.0), abs=0.05)


def test_teams_see_their_reservations_and_others_do_not(lab: World) -> None:
    cast = lab.people
    made = reserve(lab)
    seen = [list(AdvanceReservation.objects.visible_to(who)) for who in (cast.charlie, cast.olga, cast.bob)]
    assert seen == [[made], [made], []]


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 6), st.integers(0, 1), st.integers(1, 4)), max_size=6
    ),
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), min_size=1, max_size=3),
)
def test_the_most_that_others_have_is_found_at_every_moment(others, own) -> None:
    zero = datetime(2027, 1, 1, tzinfo=UTC)

    def window(begins: int, lasts: int) -> Window:
        return Window(zero + begins * HOUR, zero + (begins + lasts) * HOUR)

    windows = [window(*one) for one in own]
    rows = [(window(begins, lasts), {node: gpus}) for begins, lasts, node, gpus in others]
    found = most_reserved(windows, rows)
    for node in (0, 1):
        sums = [
            sum(gpus.get(node, 0) for other, gpus in rows if other.begins <= moment < other.ends)
            for moment in (zero + hour * HOUR for hour in range(30))
            if any(one.begins <= moment < one.ends for one in windows)
        ]
        assert found.get(node, 0) == max(sums)


def test_a_window_of_another_team_is_known_a_day_ahead_to_what_runs_on_its_nodes(lab: World) -> None:
    people = lab.people
    job = lab.submit(people.bob, people.astro, gpus=2, name="mine")
    lab.quantum()
    lab.carry_out()
    made = reserve(lab, gpus=4)
    [one] = windows_over([None, lab.lease(job)], people.bob)
    assert (one.nodes, one.gpus, one.jobs, one.tenant) == (["v100-0"], 4, ["mine"], "")
    assert one.stops_at == made.begins - lead_of(lab.cluster)
    assert [one.tenant for one in windows_over([lab.lease(job)], people.olga)] == [people.bio.name]
    assert windows_over([lab.lease(job)], people.bob, ends=one.stops_at) == []
    waiting = lab.submit(people.bob, people.astro, gpus=4)
    assert windows_over([waiting.leases.first()], people.bob) == [], "it has no GPUs"
    Lease.objects.filter(job=job).update(state=Lease.State.STOPPING)
    assert windows_over([lab.lease(job)], people.bob) == [], "it leaves anyhow"
    Lease.objects.filter(job=job).update(state=Lease.State.RUNNING)
    AdvanceReservation.objects.update(lends=True)
    assert [one.stops_at for one in windows_over([lab.lease(job)], people.bob)] == [made.begins]
    AdvanceReservation.objects.update(tenant=people.astro)
    assert windows_over([lab.lease(job)], people.bob) == [], "it is its own team's"
    AdvanceReservation.objects.update(tenant=people.bio)
    goes_by(made, -timedelta(days=1))
    assert windows_over([lab.lease(job)], people.bob) == [], "it is further away than a day"
