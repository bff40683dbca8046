"""Analyses of sharing anomalies use the recorded state of each past moment, and judge each team separately. A crash
neither loses nor repeats an analysis."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from accounting import actions as accounting_actions
from accounting.core.calendar import start_of_day
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.ledger import Usage, book_usage
from accounting.limits.periods import period_of
from accounting.models import AuditEvent, Membership, Quota, QuotaChange, TicketChange
from scheduling import tasks
from scheduling.anomalies.actions import (
    AnalysisSteps,
    continue_analyses,
    finish_analysis,
    repeat_analysis,
    request_analysis,
    request_nightly,
)
from scheduling.anomalies.history_reader import read_past
from scheduling.anomalies.spent_hours import SpentHours, spent_hours, when_spent
from scheduling.models import (
    AnomalyHolder,
    ClusterPause,
    Job,
    JobSpeed,
    Lease,
    NodeChange,
    SharingAnalysis,
    SharingAnomaly,
    SharingPart,
)
from scheduling.retention import prune
from tests.ledger_guard import without_triggers
from tests.scheduling.bygone import backdated, changed, hours, newest, ran, there_since, waited
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db(transaction=True)
C = SharingAnomaly.Cause


@pytest.fixture
def lab(transactional_db: None) -> World:
    """Returns a world with two nodes of four V100; Astro and Bio have equal tickets."""
    made = world(v100=4)
    made.node("v100-1", made.people.v100, 4)
    return made


@pytest.fixture
def begins(lab: World) -> datetime:
    """Returns the start of the day before yesterday. The nodes existed throughout that day."""
    moment = start_of_day(now_from_database()) - timedelta(days=2)
    there_since(moment - hours(1))
    return moment


def analyse(lab: World, begins: datetime) -> SharingAnalysis:
    """Analyses the day that starts at `begins`, and returns the finished analysis."""
    ends = begins + timedelta(days=1)
    analysis = request_analysis(actor=lab.people.olga, cluster=lab.cluster, begins=begins, ends=ends)
    while continue_analyses(seconds=60, at_once=1):
        pass
    analysis.refresh_from_db()
    assert analysis.finished_at is not None
    return analysis


def found(analysis: SharingAnalysis) -> list[tuple[Job, str]]:
    anomalies = SharingAnomaly.objects.filter(part__analysis=analysis).order_by("job_id")
    return [(one.job, one.cause) for one in anomalies]


def hog(lab: World, begins: datetime, until_hour: float = 5) -> Job:
    """Creates a job of Bio that held all GPUs from `begins` for `until_hour` hours."""
    job = waited(lab, lab.people.charlie, lab.people.bio, begins, workers=2)
    ran(job, begins, begins + hours(until_hour), *lab.cluster.nodes.order_by("name"))
    return job


def test_where_each_team_had_its_own_half_nothing_is_found(lab: World, begins: datetime) -> None:
    one, other = lab.cluster.nodes.order_by("name")
    ran(waited(lab, lab.people.bob, lab.people.astro, begins), begins, begins + hours(5), one)
    ran(waited(lab, lab.people.charlie, lab.people.bio, begins), begins, begins + hours(6), other)
    analysis = analyse(lab, begins)
    assert found(analysis) == []
    parts = analysis.parts.order_by("tenant").values_list("tenant", "gpus", "judged", "trouble")
    assert list(parts) == [
        (lab.people.astro.pk, {"V100": 4}, 1, ""),
        (lab.people.bio.pk, {"V100": 4}, 1, ""),
    ]


def test_over_borrowing_is_found_with_its_holders_and_its_delay(lab: World, begins: datetime) -> None:
    held = hog(lab, begins)
    job = waited(lab, lab.people.bob, lab.people.astro, begins + hours(1))
    ran(job, begins + hours(5), begins + hours(6), lab.cluster.nodes.first())
    (anomaly,) = SharingAnomaly.objects.filter(part__analysis=analyse(lab, begins))
    assert (anomaly.job, anomaly.cause, anomaly.late_seconds) == (job, C.OVER_BORROWING, 4 * 3600)
    assert (anomaly.private_started_at, anomaly.started_at) == (begins + hours(1), begins + hours(5))
    assert (anomaly.private_ended_at, anomaly.ended_at) == (begins + hours(2), begins + hours(6))
    (holder,) = anomaly.holders.all()
    assert (holder.job, holder.gpu_seconds) == (held, pytest.approx(8 * 4 * 3600))


def test_a_quota_in_the_way_is_found(lab: World, begins: datetime) -> None:
    cast, node = lab.people, lab.cluster.nodes.first()
    accounting_actions.set_quota(actor=cast.ada, tenant=cast.uni, kind=Quota.Kind.GPUS, limit=2)
    backdated(newest(QuotaChange), begins)
    first = waited(lab, cast.bob, cast.astro, begins, gpus=2)
    ran(first, begins, begins + hours(5), node)
    job = waited(lab, cast.alice, cast.astro, begins + hours(1), gpus=2)
    ran(job, begins + hours(5), begins + hours(6), node)
    assert found(analyse(lab, begins)) == [(job, C.QUOTA)]


def test_a_limit_that_left_a_job_to_idle_gpus_is_found(lab: World, begins: datetime) -> None:
    """If a job waits because a used-up limit made it preemptible, the analysis names the limit as the cause.

    The limits have the action "idle": beyond the limit, jobs run only on GPUs that nobody else can use. The test covers
    a limit on GPUs at the same time and a limit on GPU-hours.
    """
    cast, (one, other) = lab.people, lab.cluster.nodes.order_by("name")
    for kind, period, limit in ((Quota.Kind.GPUS, "", 2), (Quota.Kind.GPU_HOURS, "month", 0)):
        quota = accounting_actions.set_quota(
            actor=cast.ada, tenant=cast.astro, kind=kind, period=period, limit=limit, at_limit="idle"
        )
        backdated(newest(QuotaChange), begins + hours(0 if kind == Quota.Kind.GPUS else 12))
        accounting_actions.remove_quota(actor=cast.ada, quota=quota)
        backdated(newest(QuotaChange), begins + hours(12 if kind == Quota.Kind.GPUS else 24))
    late = []
    for hour in (0, 13):
        for who, tenant, gpus, node in (
            (cast.charlie, cast.bio, 4, one), (cast.charlie, cast.bio, 2, other), (cast.bob, cast.astro, 2, other),
        ):  # fmt: skip
            job = waited(lab, who, tenant, begins + hours(hour), gpus=gpus)
            ran(job, begins + hours(hour), begins + hours(hour + 5), node)
        job = waited(lab, cast.bob, cast.astro, begins + hours(hour + 1), gpus=2)
        ran(job, begins + hours(hour + 5), begins + hours(hour + 6), other)
        late.append(job)
    assert found(analyse(lab, begins)) == [(job, C.IDLE_LIMIT) for job in late]


def test_a_quota_counts_as_it_was_then(lab: World, begins: datetime) -> None:
    """The analysis uses the limit that applied at each past moment. Here the limit is 2 GPUs for five hours, then 8
    GPUs. By the time of the analysis it has been removed."""
    cast, node = lab.people, lab.cluster.nodes.first()
    for limit, hour in ((2, 0), (8, 5)):
        quota = accounting_actions.set_quota(
            actor=cast.ada, tenant=cast.uni, kind=Quota.Kind.GPUS, limit=limit, each_user=True
        )
        backdated(newest(QuotaChange), begins + hours(hour))
    accounting_actions.remove_quota(actor=cast.ada, quota=quota)
    first = waited(lab, cast.bob, cast.astro, begins, gpus=2)
    ran(first, begins, begins + hours(9), node)
    job = waited(lab, cast.bob, cast.astro, begins + hours(1), gpus=2)
    ran(job, begins + hours(5), begins + hours(6), node)
    again = waited(lab, cast.bob, cast.astro, begins + hours(7), gpus=2)
    ran(again, begins + hours(9), begins + hours(10), node)
    assert found(analyse(lab, begins)) == [(job, C.QUOTA), (again, C.UNEXPLAINED)]
    (holder,) = AnomalyHolder.objects.filter(anomaly__job=job)
    assert holder.job == first
    limits = read_past(lab.cluster, begins, begins + hours(24)).past.limits
    spans = {(one.user, one.gpus, one.begins, one.ends) for one in limits}
    assert spans == {(0, 2.0, 0.0, 5 * 3600.0), (0, 8.0, 5 * 3600.0, 24 * 3600.0)}
    assert read_past(lab.cluster, begins - hours(24), begins).past.limits == ()


def test_hours_count_as_spent_only_while_their_limit_was_in_force(lab: World, begins: datetime) -> None:
    cast = lab.people
    for limit, hour in ((0, 2), (5, 4)):
        accounting_actions.set_quota(
            actor=cast.ada, tenant=cast.astro, kind=Quota.Kind.GPU_HOURS, period="month", limit=limit
        )
        backdated(newest(QuotaChange), begins + hours(hour))
    (spent,) = spent_hours(begins, begins + hours(24))
    assert (spent.tenant, spent.begins, spent.ends) == (cast.astro.pk, begins + hours(2), begins + hours(4))


def test_tickets_count_as_long_as_they_were_held(lab: World, begins: datetime) -> None:
    """Tickets are weighted by time: Astro had 100 of 200 tickets for a quarter of the day, then 300 of 400."""
    cast = lab.people
    waited(lab, cast.alice, cast.astro, begins)
    waited(lab, cast.bob, cast.astro, begins)
    waited(lab, cast.charlie, cast.bio, begins)
    accounting_actions.set_tickets(actor=cast.ada, tenant=cast.astro, tickets=300)
    backdated(newest(TicketChange), begins + hours(6))
    membership = Membership.objects.get(user=cast.bob, tenant=cast.astro)
    accounting_actions.change_membership(actor=cast.ada, membership=membership, tickets=500)
    backdated(newest(TicketChange), begins + hours(12))
    seen = read_past(lab.cluster, begins, begins + hours(24))
    parts = dict(zip(seen.tenants, seen.past.parts, strict=True))
    assert parts[cast.astro.pk] == pytest.approx(0.25 * 0.5 + 0.75 * 0.75)
    assert sum(seen.past.parts) == pytest.approx(1)
    assert sorted(usual_tickets(lab, begins)[cast.astro.pk]) == [100, 300]
    earlier = read_past(lab.cluster, begins - hours(1), begins + hours(6))
    assert dict(zip(earlier.tenants, earlier.past.parts, strict=True))[cast.astro.pk] == pytest.approx(0.5)


def test_a_former_member_has_the_tickets_that_rounds_give_nonmembers(lab: World, begins: datetime) -> None:
    cast = lab.people
    waited(lab, cast.bob, cast.astro, begins)
    membership = Membership.objects.get(user=cast.bob, tenant=cast.astro)
    accounting_actions.change_membership(actor=cast.ada, membership=membership, tickets=300)
    backdated(newest(TicketChange), begins - hours(1))
    accounting_actions.remove_member(actor=cast.ada, membership=membership)
    backdated(newest(TicketChange), begins + hours(12))
    assert usual_tickets(lab, begins)[cast.astro.pk] == (200,)


def usual_tickets(lab: World, begins: datetime) -> dict[int, tuple[float, ...]]:
    seen = read_past(lab.cluster, begins, begins + hours(24))
    return dict(zip(seen.tenants, seen.past.user_tickets, strict=True))


def test_a_team_counts_for_as_long_as_it_was_in_use(lab: World, begins: datetime) -> None:
    cast = lab.people
    waited(lab, cast.bob, cast.astro, begins)

    def parts() -> dict[int, float]:
        seen = read_past(lab.cluster, begins, begins + hours(24))
        assert sum(seen.past.parts) == pytest.approx(1)
        return dict(zip(seen.tenants, seen.past.parts, strict=True))

    assert parts() == {cast.uni.pk: 0, cast.astro.pk: 0.5, cast.bio.pk: 0.5}
    new = accounting_actions.create_tenant(actor=cast.ada, name="New", parent=cast.uni, tickets=200)
    assert parts() == {cast.uni.pk: 0, cast.astro.pk: 0.5, cast.bio.pk: 0.5}
    backdated(newest(TicketChange), begins + hours(12))
    accounting_actions.archive_tenant(actor=cast.ada, tenant=cast.bio)
    backdated(newest(TicketChange), begins + hours(18))
    last = parts()
    assert last[cast.astro.pk] == pytest.approx(0.5 * 0.5 + 0.25 * 0.25 + 0.25 / 3)
    assert last[cast.bio.pk] == pytest.approx(0.5 * 0.5 + 0.25 * 0.25)
    assert last[new.pk] == pytest.approx(0.25 * 0.5 + 0.25 * 2 / 3)
    accounting_actions.restore_tenant(actor=cast.ada, tenant=cast.bio)
    assert parts() == last


def test_a_user_with_jobs_who_is_no_member_has_the_tickets_that_rounds_gave(
    lab: World, begins: datetime
) -> None:
    cast = lab.people
    waited(lab, cast.olga, cast.astro, begins)
    accounting_actions.add_member(actor=cast.ada, tenant=cast.astro, user=cast.olga, tickets=900)
    assert usual_tickets(lab, begins)[cast.astro.pk] == (100,)


def test_history_that_was_brought_here_later_has_the_tickets_of_today(lab: World, begins: datetime) -> None:
    cast = lab.people
    waited(lab, cast.bob, cast.astro, begins)
    waited(lab, cast.charlie, cast.bio, begins)
    backdated(TicketChange.objects.all(), begins + hours(30))
    seen = read_past(lab.cluster, begins, begins + hours(24))
    assert dict(zip(seen.tenants, seen.past.parts, strict=True))[cast.astro.pk] == 0.5


def test_hours_of_the_month_that_were_spent_are_a_quota(lab: World, begins: datetime) -> None:
    cast, node = lab.people, lab.cluster.nodes.first()
    month, _ = period_of("month", None, begins)
    since = max(month, begins - hours(2))
    with transaction.atomic():
        book_usage(
            [Usage(
                book=lab.cluster.pk, lease_id=9001, job_id=1, job_name="before", tenant=cast.astro, user=cast.bob,
                generation=cast.v100, gpus=1, begins=since, ends=since + hours(1), running_from=since,
            )]
        )  # fmt: skip
    accounting_actions.set_quota(
        actor=cast.ada,
        tenant=cast.uni,
        kind=Quota.Kind.GPU_HOURS,
        period="month",
        limit=1,
        generation=cast.v100,
    )
    backdated(newest(QuotaChange), begins)
    spent = [(one.tenant, one.begins) for one in spent_hours(begins, begins + hours(1))]
    assert sorted(spent) == sorted((t.pk, begins) for t in (cast.uni, cast.astro, cast.bio))
    job = waited(lab, cast.bob, cast.astro, begins + hours(1))
    ran(job, begins + hours(5), begins + hours(6), node)
    assert found(analyse(lab, begins)) == [(job, C.QUOTA)]


def test_rolling_days_hours_are_spent_until_the_oldest_expire(lab: World, begins: datetime) -> None:
    """When the limit on GPU-hours of a rolling day is used up, it stays used up until the oldest usage is a day old.

    The limit applies to each user separately.
    """
    cast, since = lab.people, begins - hours(20)
    for lease, (who, first) in enumerate([(cast.bob, 0), (cast.bob, 5), (cast.alice, 7)]):
        held = since + hours(first)
        with transaction.atomic():
            book_usage(
                [Usage(
                    book=lab.cluster.pk, lease_id=9001 + lease, job_id=1, job_name="before", tenant=cast.astro,
                    user=who, generation=cast.v100, gpus=1, begins=held, ends=held + hours(1), running_from=held,
                )]
            )  # fmt: skip
    accounting_actions.set_quota(
        actor=cast.ada, tenant=cast.uni, kind=Quota.Kind.GPU_HOURS, period="rolling", days=1, limit=2,
        each_user=True,
    )  # fmt: skip
    backdated(newest(QuotaChange), since)
    (spent,) = spent_hours(begins, begins + hours(9))
    assert (spent.tenant, spent.user, spent.generation) == (cast.astro.pk, cast.bob.pk, None)
    assert (spent.begins, spent.ends) == (begins, since + hours(25))


def test_a_job_has_hours_left_as_long_as_one_of_its_generations_has(begins: datetime) -> None:
    one, other, month = begins, begins + hours(3), begins + hours(99)
    spent = [SpentHours(7, 1, one, month), SpentHours(7, 2, other, month)]
    assert list(when_spent(spent, [1])) == [(one, month)]
    assert list(when_spent(spent, [1, 2])) == [(other, month)]
    assert list(when_spent(spent, [1, 2, 3])) == []
    assert list(when_spent([*spent, SpentHours(7, None, begins + hours(1), month)], [1, 2, 3])) == [
        (begins + hours(1), month)
    ]


def test_starts_that_fail_and_nodes_that_are_down_are_found(lab: World, begins: datetime) -> None:
    cast, (one, other) = lab.people, lab.cluster.nodes.order_by("name")
    ran(waited(lab, cast.charlie, cast.bio, begins), begins, begins + hours(5), one)
    changed(other, begins + hours(1), state="down")
    changed(other, begins + hours(4))
    late = waited(lab, cast.bob, cast.astro, begins + hours(2))
    ran(late, begins + hours(4), begins + hours(5), other)
    tried = waited(lab, cast.alice, cast.astro, begins + hours(6))
    for i in range(2):
        at = begins + hours(6 + i)
        ran(tried, at, at + hours(0.9), other, why="start_failed", running_from=None)
    ran(tried, begins + hours(8), begins + hours(9), other)
    assert found(analyse(lab, begins)) == [(late, C.HARDWARE), (tried, C.FAILURE)]


def test_work_that_was_lost_with_a_node_and_done_again_is_found(lab: World, begins: datetime) -> None:
    node = lab.cluster.nodes.first()
    job = waited(lab, lab.people.bob, lab.people.astro, begins)
    ran(job, begins, begins + hours(3), node, why="lost", lost_from=begins + hours(1))
    ran(job, begins + hours(3), begins + hours(6), node)
    analysis = analyse(lab, begins)
    assert found(analysis) == [(job, C.LOST_WORK)]
    (anomaly,) = SharingAnomaly.objects.filter(part__analysis=analysis)
    assert (anomaly.late_seconds, anomaly.private_ended_at) == (2 * 3600, begins + hours(4))


def test_the_private_cluster_follows_the_hardware(lab: World, begins: datetime) -> None:
    """A job that waits because a node is missing is no anomaly, because the private cluster lacks the node at the same
    time.

    One node is added after five hours, and another node is removed after seventeen.
    """
    cast, (one, other) = lab.people, lab.cluster.nodes.order_by("name")
    with without_triggers("scheduling_nodechange"):
        NodeChange.objects.filter(node_id=other.pk).update(at=begins + hours(5))
    changed(one, begins + hours(17), gpus=0)
    for who, tenant in ((cast.charlie, cast.bio), (cast.bob, cast.astro)):
        ran(waited(lab, who, tenant, begins, gpus=2), begins, begins + hours(9), one)
        late = waited(lab, who, tenant, begins + hours(1), gpus=2)
        ran(late, begins + hours(5), begins + hours(18), other)
        last = waited(lab, who, tenant, begins + hours(17.5), gpus=2)
        ran(last, begins + hours(18), begins + hours(19), other)
    analysis = analyse(lab, begins)
    assert found(analysis) == []
    assert [part.judged for part in analysis.parts.all()] == [3, 3]


def test_a_pause_is_found(lab: World, begins: datetime) -> None:
    job = waited(lab, lab.people.bob, lab.people.astro, begins + hours(1))
    ran(job, begins + hours(3), begins + hours(4), lab.cluster.nodes.first())
    during = DateTimeTZRange(begins + hours(0.5), begins + hours(3))
    ClusterPause.objects.create(cluster=lab.cluster, during=during)
    assert found(analyse(lab, begins)) == [(job, C.PAUSE)]


def test_gpus_that_were_kept_for_a_gang_are_found(lab: World, begins: datetime) -> None:
    cast, (one, other) = lab.people, lab.cluster.nodes.order_by("name")
    ran(waited(lab, cast.charlie, cast.bio, begins), begins, begins + hours(4), one)
    gang = waited(lab, cast.charlie, cast.bio, begins, workers=2)
    ran(gang, begins + hours(4), begins + hours(5), one, other, decided_at=begins)
    job = waited(lab, cast.bob, cast.astro, begins + hours(1), gpus=2)
    ran(job, begins + hours(5), begins + hours(6), other)
    analysis = analyse(lab, begins)
    assert found(analysis) == [(job, C.RESERVATION)]
    assert AnomalyHolder.objects.get(anomaly__part__analysis=analysis).job == gang


def test_a_team_above_others_has_its_own_users_jobs_as_well(lab: World, begins: datetime) -> None:
    cast = lab.people
    waited(lab, cast.olga, cast.uni, begins)
    waited(lab, cast.bob, cast.astro, begins)
    seen = read_past(lab.cluster, begins, begins + hours(24))
    parts = dict(zip(seen.tenants, seen.past.parts, strict=True))
    assert parts == {
        cast.uni.pk: pytest.approx(1 / 3),
        cast.astro.pk: pytest.approx(1 / 3),
        cast.bio.pk: pytest.approx(1 / 3),
    }
    assert sum(seen.past.parts) == pytest.approx(1)


def test_speeds_are_measured_ones_and_none_where_a_job_may_not_run(lab: World, begins: datetime) -> None:
    cast = lab.people
    lab.node("a100-0", cast.a100, 4)
    there_since(begins)
    job = waited(lab, cast.bob, cast.astro, begins)
    waited(lab, cast.bob, cast.astro, begins, generation_ids=[cast.a100.pk])
    for generation, steps in ((cast.v100, 10.0), (cast.a100, 30.0)):
        JobSpeed.objects.create(job=job, generation=generation, steps=steps, seconds=1.0)
    seen = read_past(lab.cluster, begins, begins + hours(24))
    speeds = [dict(zip(seen.generations, one.speeds, strict=True)) for one in seen.past.jobs]
    assert speeds == [{"V100": 1.0, "A100": 3.0}, {"V100": 0.0, "A100": 1.0}]


def test_a_job_from_before_and_one_that_goes_on_are_cut_to_the_period(lab: World, begins: datetime) -> None:
    job = waited(lab, lab.people.bob, lab.people.astro, begins - hours(0.5))
    lease = ran(job, begins - hours(0.5), begins + hours(30), lab.cluster.nodes.first())
    Lease.objects.filter(pk=lease.pk).update(state=Lease.State.RUNNING, held_until=None, end_reason="")
    Job.objects.filter(pk=job.pk).update(state=Job.State.RUNNING, ended_at=None, exit_code=None)
    (one,) = read_past(lab.cluster, begins, begins + hours(24)).past.jobs
    assert (one.arrival, one.carried, one.ended) == (0.0, True, None)
    assert [(attempt.begins, attempt.ends, attempt.failed) for attempt in one.attempts] == [
        (0.0, 24 * 3600.0, False)
    ]


def test_a_killed_worker_neither_loses_a_team_nor_does_it_twice(
    lab: World, begins: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    hog(lab, begins)
    job = waited(lab, lab.people.bob, lab.people.astro, begins + hours(1))
    ran(job, begins + hours(5), begins + hours(6), lab.cluster.nodes.first())
    analysis = request_analysis(actor=None, cluster=lab.cluster, begins=begins, ends=begins + hours(24))

    class Killed(BaseException):
        """Stands for a kill of the worker. The test raises it after the worker has written its findings to the database
        and before it commits them."""

    saved = SharingPart.save

    def killed(part: SharingPart, **fields: object) -> None:
        saved(part)
        raise Killed

    monkeypatch.setattr(SharingPart, "save", killed)
    with pytest.raises(Killed):
        AnalysisSteps(analysis).next()
    monkeypatch.undo()
    assert not SharingAnomaly.objects.exists()
    assert analysis.parts.filter(done_at=None).count() == 2
    assert finish_analysis(analysis) is False
    assert continue_analyses(seconds=0, at_once=1) is True  # the time limit of 0 s is over after one team
    assert SharingAnalysis.objects.with_progress().get().teams_done == 1
    while continue_analyses(seconds=60, at_once=1):
        pass
    assert found(analysis) == [(job, C.OVER_BORROWING)]
    assert continue_analyses(seconds=60, at_once=1) is False
    assert SharingAnomaly.objects.count() == 1


def test_a_team_that_cannot_be_analysed_says_so_and_the_others_are(
    lab: World, begins: datetime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hog(lab, begins)
    job = waited(lab, lab.people.bob, lab.people.astro, begins + hours(1))
    ran(job, begins + hours(5), begins + hours(6), lab.cluster.nodes.first())
    bio = lab.people.bio

    from scheduling.anomalies import actions as anomalies  # noqa: PLC0415 - what is replaced

    class Bad(anomalies.Analysis):
        def of(self, tenant: int) -> anomalies.Findings:
            if self._of_tenant[tenant][0].workers == 2:
                raise ValueError("the numbers make no sense")
            return super().of(tenant)

    monkeypatch.setattr(anomalies, "Analysis", Bad)
    analysis = analyse(lab, begins)
    assert analysis.parts.get(tenant=bio).trouble == "ValueError: the numbers make no sense"
    assert "could not be analysed" in caplog.text
    assert found(analysis) == [(job, C.OVER_BORROWING)]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Returns a set to which tests add "reading" or "replaying", the names of steps of the analysis. A step raises an
    error while its name is in the set."""
    from scheduling.anomalies import actions as anomalies  # noqa: PLC0415 - what is replaced

    wrong = set()
    read, replayed = anomalies.read_past, anomalies.Analysis.of

    def read_past(*period: Any) -> Any:
        if "reading" in wrong:
            raise TypeError("a row makes no sense")
        return read(*period)

    def of(self: anomalies.Analysis, tenant: int) -> anomalies.Findings:
        if "replaying" in wrong:
            raise AssertionError("a job makes no sense")
        return replayed(self, tenant)

    monkeypatch.setattr(anomalies, "read_past", read_past)
    monkeypatch.setattr(anomalies.Analysis, "of", of)
    return wrong


@pytest.mark.parametrize(
    ("what", "why"),
    [("reading", "TypeError: a row makes no sense"), ("replaying", "AssertionError: a job makes no sense")],
)
def test_whatever_goes_wrong_the_teams_say_so_and_are_analysed_again_when_asked(
    lab: World, begins: datetime, failing: set[str], what: str, why: str
) -> None:
    small = waited(lab, lab.people.charlie, lab.people.bio, begins)
    ran(small, begins, begins + hours(5), lab.cluster.nodes.first())
    job = waited(lab, lab.people.bob, lab.people.astro, begins + hours(1))
    ran(job, begins + hours(5), begins + hours(6), lab.cluster.nodes.first())
    failing.add(what)
    analysis = analyse(lab, begins)
    assert [(part.trouble, part.has_failed) for part in analysis.parts.all()] == [(why, True)] * 2
    failing.clear()
    repeat_analysis(actor=lab.people.olga, analysis=analysis)
    assert SharingAnalysis.objects.unfinished().get() == analysis
    while continue_analyses(seconds=60, at_once=1):
        pass
    analysis.refresh_from_db()
    assert analysis.finished_at is not None
    assert found(analysis) == [(job, C.UNEXPLAINED)]
    assert not analysis.parts.troubled().exists()
    with pytest.raises(Refused):
        repeat_analysis(actor=lab.people.olga, analysis=analysis)
    with pytest.raises(NotAllowed):
        repeat_analysis(actor=lab.people.alice, analysis=analysis)


def test_repeating_a_period_analyses_only_failed_teams_again(
    lab: World, begins: datetime, failing: set[str]
) -> None:
    hog(lab, begins)
    waited(lab, lab.people.bob, lab.people.astro, begins + hours(1))
    failing.add("replaying")
    analysis = analyse(lab, begins)
    analysis.parts.filter(tenant=lab.people.bio).update(trouble="", gpus={"V100": 4}, judged=7)
    failing.clear()
    assert analyse(lab, begins) == analysis
    judged = dict(analysis.parts.values_list("tenant", "judged"))
    assert judged == {lab.people.bio.pk: 7, lab.people.astro.pk: 1}


def test_the_next_night_repeats_analyses_without_a_result(
    lab: World, begins: datetime, failing: set[str]
) -> None:
    small = waited(lab, lab.people.charlie, lab.people.bio, begins)
    ran(small, begins, begins + hours(5), lab.cluster.nodes.first())
    failing.add("replaying")
    (last_night,) = request_nightly()
    while continue_analyses(seconds=60, at_once=1):
        pass
    earlier = {"begins": last_night.begins - hours(24), "ends": last_night.ends - hours(24)}
    SharingAnalysis.objects.filter(pk=last_night.pk).update(**earlier)
    failing.clear()
    (tonight,) = request_nightly()
    assert set(SharingAnalysis.objects.unfinished()) == {last_night, tonight}
    while continue_analyses(seconds=60, at_once=1):
        pass
    assert not SharingAnalysis.objects.unfinished().exists()
    assert not SharingPart.objects.troubled().exists()


def test_a_team_without_comparable_jobs_sees_why(lab: World, begins: datetime) -> None:
    cast, (one, other) = lab.people, lab.cluster.nodes.order_by("name")
    ran(waited(lab, cast.bob, cast.astro, begins - hours(1)), begins - hours(1), begins + hours(2), one)
    ran(waited(lab, cast.bob, cast.astro, begins, gpus=1, preemptible=True), begins, begins + hours(2), other)
    ran(
        waited(lab, cast.charlie, cast.bio, begins + hours(2), workers=2),
        begins + hours(2),
        begins + hours(3),
        one,
        other,
    )
    troubles = dict(analyse(lab, begins).parts.values_list("tenant", "trouble"))
    assert troubles == {
        cast.astro.pk: (
            "none of the team's jobs can be compared with its private cluster: 1 job submitted before the period"
            " (a longer period may help), 1 job in preemptible mode"
        ),
        cast.bio.pk: (
            "none of the team's jobs can be compared with its private cluster: 1 job larger than the team's private"
            " cluster"
        ),
    }


def test_where_nothing_is_known_of_nodes_nothing_can_be_said(lab: World, begins: datetime) -> None:
    waited(lab, lab.people.bob, lab.people.astro, begins)
    with without_triggers("scheduling_nodechange"):
        NodeChange.objects.all().delete()
    (part,) = analyse(lab, begins).parts.all()
    assert part.trouble == "it is unknown which nodes the cluster had in this period"


def test_a_period_has_one_analysis_and_only_operators_request_it(lab: World, begins: datetime) -> None:
    hog(lab, begins)
    asked = {"cluster": lab.cluster, "begins": begins, "ends": begins + hours(24)}
    first = request_analysis(actor=lab.people.olga, **asked)
    assert request_analysis(actor=lab.people.ada, **asked) == first
    assert AuditEvent.objects.filter(verb="sharing.analyse").count() == 1
    with pytest.raises(NotAllowed):
        request_analysis(actor=lab.people.alice, **asked)
    for wrong in (
        {"ends": begins},
        {"begins": begins - timedelta(days=40)},
        {"ends": now_from_database() + hours(1)},
    ):
        with pytest.raises(Refused):
            request_analysis(actor=lab.people.olga, **(asked | wrong))


def test_each_night_asks_once_for_the_week_before(lab: World, begins: datetime) -> None:
    hog(lab, begins)
    tasks.analyse_nightly()
    tasks.analyse_nightly()
    (analysis,) = SharingAnalysis.objects.all()
    assert analysis.ends - analysis.begins == timedelta(days=7)
    assert (analysis.ends.hour, analysis.asked_by) == (0, None)
    assert request_nightly() == [analysis]


def test_old_analyses_are_deleted_with_their_findings(lab: World, begins: datetime) -> None:
    hog(lab, begins)
    job = waited(lab, lab.people.bob, lab.people.astro, begins + hours(1))
    ran(job, begins + hours(5), begins + hours(6), lab.cluster.nodes.first())
    analyse(lab, begins)
    ages = {"records": timedelta(days=365), "attempts": timedelta(days=90)}
    prune(**ages)
    assert AnomalyHolder.objects.exists()
    SharingAnalysis.objects.update(asked_at=now_from_database() - timedelta(days=91))
    prune(**ages)
    for model in (SharingAnalysis, SharingPart, SharingAnomaly, AnomalyHolder):
        assert not model.objects.exists()


def test_no_more_workers_than_allowed_look_for_anomalies(lab: World, begins: datetime) -> None:
    hog(lab, begins)
    request_analysis(actor=None, cluster=lab.cluster, begins=begins, ends=begins + hours(24))
    assert continue_analyses(seconds=60, at_once=0) is False
    assert SharingAnalysis.objects.unfinished().exists()


def test_who_sees_what_of_it(lab: World, begins: datetime) -> None:
    cast = lab.people
    hog(lab, begins)
    job = waited(lab, cast.bob, cast.astro, begins + hours(1))
    ran(job, begins + hours(5), begins + hours(6), lab.cluster.nodes.first())
    analysis = analyse(lab, begins)
    for viewer, sees in ((cast.bob, 1), (cast.alice, 1), (cast.charlie, 0), (cast.olga, 1), (cast.ada, 1)):
        assert SharingAnomaly.objects.visible_to(viewer).count() == sees
    assert SharingPart.objects.visible_to(cast.charlie).get().tenant == cast.bio
    assert analysis in SharingAnalysis.objects.visible_to(cast.charlie)
