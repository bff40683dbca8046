"""Limits of teams and users apply at submit and in rounds, with each action that can be set for a limit."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.actions import set_quota
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.models import AuditEvent, NotificationEvent, Price, Quota
from fairshare.entitlement import entitlements
from fairshare.model import Reason
from fairshare.policies import policy_of
from scheduling import tasks
from scheduling.backends.base import End, Phase
from scheduling.core.event_texts import end_text_of, text_of
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.editing import edit_job
from scheduling.jobs.explain import explain
from scheduling.jobs.submitting import submit_job
from scheduling.jobs.time_limit import end_by_limit, end_overlong, notice
from scheduling.limits.queue_slots import QueuePlaces
from scheduling.models import Cluster, Job, JobEvent, JobStorage, Lease
from scheduling.shares.snapshot import read_snapshot
from scheduling.spec.job_spec import JobSpec
from tests.accounting.ledger.test_at_once import at_once
from tests.clock import real_now, set_clock
from tests.query_counts import queries_of
from tests.scheduling import piped, swept
from tests.scheduling.world import World, start, world

Kind = Quota.Kind


@pytest.fixture
def lab(db: None) -> World:
    return world(v100=4)


def limit(lab: World, limit: str | int, **which: object) -> Quota:
    return set_quota(actor=None, limit=limit, **({"tenant": lab.people.astro} | which))


def states(lab: World, *jobs: Job) -> list[tuple[str, int]]:
    found = Job.objects.in_bulk([job.pk for job in jobs])
    return [(found[job.pk].state, found[job.pk].reason) for job in jobs]


def held(lab: World) -> dict[str, int]:
    gpus: dict[str, int] = {}
    for lease in lab.holding(Lease.State.STARTING, Lease.State.RUNNING):
        name = lease.job.owner.get_username()
        gpus[name] = gpus.get(name, 0) + lease.gpus
    return gpus


class TestInRounds:
    def test_a_users_limit_binds_only_that_user(self, lab: World) -> None:
        limit(lab, 1, kind=Kind.GPUS, tenant=lab.people.uni, user=lab.people.bob)
        jobs = [lab.submit(lab.people.bob, lab.people.astro) for _ in range(3)]
        lab.submit(lab.people.alice, lab.people.astro, gpus=3)
        lab.quantum()
        assert held(lab) == {"bob": 1, "alice": 3}
        assert states(lab, *jobs)[1] == (Job.State.QUEUED, Reason.QUOTA_IN_USE)

    def test_each_user_is_limited_alone(self, lab: World) -> None:
        limit(lab, 1, kind=Kind.GPUS, each_user=True)
        for user in (lab.people.alice, lab.people.bob, lab.people.bob):
            lab.submit(user, lab.people.astro)
        lab.quantum()
        assert held(lab) == {"bob": 1, "alice": 1}

    def test_gangs_do_not_take_the_last_hour_together(self, lab: World) -> None:
        """A round counts the GPU-hours that the gangs it starts will use until the next round.

        Here the limit leaves enough for three GPUs until the next round, so the fourth job waits.
        """
        limit(lab, "0.05", kind=Kind.GPU_HOURS)
        jobs = [lab.submit(lab.people.bob, lab.people.astro) for _ in range(4)]
        lab.quantum()
        assert held(lab) == {"bob": 3}
        wide = lab.submit(lab.people.bob, lab.people.astro, gpus=4)
        lab.quantum()
        assert states(lab, wide) == [(Job.State.QUEUED, Reason.HOURS_SPENT)]
        assert Job.objects.filter(pk__in=[job.pk for job in jobs], reason=Reason.QUOTA_IN_USE).count() == 1

    @pytest.mark.django_db
    def test_money_is_given_out_once_whichever_generations_it_goes_to(self) -> None:
        lab = world(v100=4, a100=4)
        limit(lab, "0.06", kind=Kind.MONEY)
        for _ in range(8):
            lab.submit(lab.people.bob, lab.people.astro)
        lab.quantum()
        prices = {price.generation_id: price.per_gpu_hour for price in Price.objects.all()}
        leases = lab.holding(Lease.State.STARTING, Lease.State.RUNNING)
        an_hour = sum(lease.gpus * prices[lease.generation_id] for lease in leases)
        cost = an_hour * Decimal(lab.cluster.effective_quantum)
        assert Decimal("0.04") * 3600 < cost <= Decimal("0.06") * 3600

    @pytest.mark.parametrize("of_v100", [False, True])
    def test_money_that_lasts_for_three_gpus_to_the_cent_starts_three(
        self, lab: World, of_v100: bool
    ) -> None:
        Price.objects.update(per_gpu_hour="0.18")
        limit(lab, "0.009", kind=Kind.MONEY, generation=lab.people.v100 if of_v100 else None)
        lab.submit(lab.people.bob, lab.people.astro, gpus=3)
        lab.quantum()
        assert held(lab) == {"bob": 3}

    def test_cost_limits_use_the_prices_of_the_time(self, lab: World) -> None:
        """Limits on money use the prices of the time. Ten minutes on four V100, at 1.20 per GPU-hour, cost 0.80: a
        limit of 0.81 lets the job run on, and a limit of 0.79 stops it."""
        job = start(lab, gpus=4)
        lab.age(lab.lease(job), 600)
        limit(lab, "0.81", kind=Kind.MONEY, period="rolling", days=3)
        lab.fill()
        assert states(lab, job)[0][0] == Job.State.RUNNING
        limit(lab, "0.79", kind=Kind.MONEY, period="rolling", days=3)
        lab.quantum()
        lab.carry_out()
        lab.quantum()
        assert states(lab, job) == [(Job.State.SUSPENDED, Reason.HOURS_SPENT)]
        job.refresh_from_db()
        assert explain(job).sentence.endswith("of 0.79 EUR in the last 3 days.")

    def test_beyond_an_opportunistic_limit_a_job_runs_until_others_want_its_gpus(self, lab: World) -> None:
        limit(lab, 0, kind=Kind.GPU_HOURS, at_limit="idle")
        with pytest.MonkeyPatch.context() as patch:
            set_clock(patch, real_now())  # while the clock stands, the job uses nothing
            job = start(lab, gpus=4)
            assert explain(job).detail == ("Astro has used 0 of 0 GPU-hours per calendar month (UTC)",)
        other = lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
        lab.quantum()
        lab.carry_out()
        lab.quantum()
        lab.carry_out()
        assert [state for state, _ in states(lab, job, other)] == [Job.State.SUSPENDED, Job.State.RUNNING]
        job.refresh_from_db()
        assert (job.reason, "runs only on GPUs that no other job can use" in explain(job).sentence) == (
            Reason.PREEMPTIBLE,
            True,
        )

    def test_a_limit_that_warns_only_tells(self, lab: World, monkeypatch: pytest.MonkeyPatch) -> None:
        set_clock(monkeypatch, real_now())  # while the clock stands, the job uses nothing
        limit(lab, 0, kind=Kind.GPU_HOURS, at_limit="warn")
        limit(lab, 1, kind=Kind.GPUS, at_limit="warn")
        job = start(lab, gpus=4)
        assert explain(job).detail[0].startswith("Astro has used 0 of 0 GPU-hours")

    def test_no_team_borrows_beyond_its_limit(self, lab: World) -> None:
        limit(lab, "0.5", kind=Kind.BORROWED)
        jobs = [lab.submit(lab.people.bob, lab.people.astro) for _ in range(4)]
        lab.submit(lab.people.charlie, lab.people.bio)
        lab.quantum()
        assert held(lab) == {"bob": 3, "charlie": 1}
        waiting = Job.objects.get(pk__in=[job.pk for job in jobs], state=Job.State.QUEUED)
        assert waiting.reason == Reason.BORROWED_ENOUGH
        said = "Astro has borrowed 0.5 times its entitlement, and the limit is 0.5 times. This job needs 1 more GPU."
        assert explain(waiting).sentence == said

    def test_gpus_at_once_are_counted_over_all_clusters(self, lab: World) -> None:
        limit(lab, 5, kind=Kind.GPUS)
        other = World(lab.people, Cluster.objects.create(name="other"))
        other.node("other-0", lab.people.v100)
        for place in (lab, other):
            for _ in range(4):
                place.submit(lab.people.bob, lab.people.astro)
        lab.quantum()
        other.quantum()
        assert (held(lab), held(other)) == ({"bob": 4}, {"bob": 1})


class TestOverspent:
    """An account that has used more than its limit gets no GPUs. Other accounts then get as much as if the account had
    used exactly its limit."""

    @pytest.mark.parametrize("at_limit", ["block", "idle"])
    @pytest.mark.parametrize("kind", [Kind.GPU_HOURS, Kind.MONEY])
    def test_siblings_get_what_an_overspent_account_cannot_take(
        self, lab: World, kind: str, at_limit: str
    ) -> None:
        job = start(lab, gpus=4)
        lab.age(lab.lease(job), 3600 * 50)
        limit(lab, "0.1", kind=kind, at_limit=at_limit)
        lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
        snapshot, legend = read_snapshot(lab.cluster, now=now_from_database())
        entitled, share = entitlements(snapshot), policy_of(snapshot.settings).divide(snapshot)
        teams = {tenant: t for t, (tenant, user) in enumerate(legend.accounts) if user is None}
        for gpus in (entitled, share):
            assert gpus[teams[lab.people.astro.pk]].sum() == pytest.approx(0, abs=1e-6)
            assert gpus[teams[lab.people.bio.pk]].sum() == pytest.approx(4)

    def test_overuse_on_another_cluster_takes_nothing_here(self, lab: World) -> None:
        """If a team exceeds its limit by GPUs on another cluster, other teams get no fewer GPUs here.

        The other cluster gave the team four GPUs before its limit became one GPU.
        """
        other = World(lab.people, Cluster.objects.create(name="other"))
        other.node("other-0", lab.people.v100)
        start(other, gpus=4)
        limit(lab, 1, kind=Kind.GPUS)
        lab.submit(lab.people.bob, lab.people.astro)
        lab.submit(lab.people.charlie, lab.people.bio, gpus=2)
        snapshot, legend = read_snapshot(lab.cluster, now=now_from_database())
        share = policy_of(snapshot.settings).divide(snapshot)
        assert share[legend.accounts.index((lab.people.bio.pk, None))].sum() == 2


class TestBeingStopped:
    """A gang that is being stopped holds its GPUs, and counts towards limits, until it has released them."""

    def all_held(self) -> int:
        return sum(lease.gpus for lease in Lease.objects.filter(state__in=Lease.HOLDING))

    @pytest.mark.parametrize(
        "which",
        [{}, {"each_user": True}, {"tenant": "uni"}, {"user": "bob"}, {"generation": "v100"}],
        ids=["of the team", "of each user", "of the team above", "of the user", "of the generation"],
    )
    @pytest.mark.django_db
    def test_a_stopping_gang_counts_until_it_has_released_its_gpus(
        self, which: dict[str, str | bool]
    ) -> None:
        lab = world(v100=8)
        named = {
            key: getattr(lab.people, name) if isinstance(name, str) else name for key, name in which.items()
        }
        limit(lab, 4, kind=Kind.GPUS, **named)
        first = start(lab, gpus=4)
        cancel_job(actor=lab.people.bob, job=first)
        second = lab.submit(lab.people.bob, lab.people.astro, gpus=4)
        lab.fill()
        assert (self.all_held(), lab.states([second])) == (4, [Job.State.QUEUED])
        lab.carry_out()
        assert lab.states([first, second]) == [Job.State.CANCELLED, Job.State.RUNNING]
        assert self.all_held() == 4

    @pytest.mark.django_db
    def test_others_do_not_wait_for_it(self) -> None:
        lab = world(v100=8)
        limit(lab, 4, kind=Kind.GPUS)
        cancel_job(actor=lab.people.bob, job=start(lab, gpus=4))
        other = lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
        lab.fill()
        assert lab.states([other]) == [Job.State.STARTING]

    def test_it_counts_on_other_clusters_too(self, lab: World) -> None:
        limit(lab, 4, kind=Kind.GPUS)
        other = World(lab.people, Cluster.objects.create(name="other"))
        other.node("other-0", lab.people.v100)
        waits = other.submit(lab.people.bob, lab.people.astro, gpus=4)
        cancel_job(actor=lab.people.bob, job=start(lab, gpus=4))
        other.fill()
        assert (self.all_held(), held(other)) == (4, {})
        lab.carry_out()
        other.fill()
        assert (self.all_held(), lab.states([waits])) == (4, [Job.State.STARTING])


class TestQueuePlaces:
    def test_as_many_may_wait_as_the_limit_says(self, lab: World) -> None:
        limit(lab, 2, kind=Kind.QUEUED_JOBS, tenant=lab.people.uni)
        lab.submit(lab.people.bob, lab.people.astro)
        lab.submit(lab.people.charlie, lab.people.bio)
        with pytest.raises(
            Refused, match="The number of waiting jobs has reached a limit of a team above Astro"
        ):
            lab.submit(lab.people.bob, lab.people.astro)
        lab.quantum()
        lab.carry_out()
        assert lab.submit(lab.people.bob, lab.people.astro).pk

    def test_a_limit_of_each_user_counts_the_own_jobs_of_the_team(self, lab: World) -> None:
        limit(lab, 1, kind=Kind.QUEUED_JOBS, each_user=True)
        lab.submit(lab.people.bob, lab.people.astro)
        lab.submit(lab.people.alice, lab.people.astro)
        with pytest.raises(Refused, match="bob in Astro has 1 waiting job"):
            lab.submit(lab.people.bob, lab.people.astro)

    def test_a_warning_limit_is_shown_on_the_jobs_timeline(self, lab: World) -> None:
        limit(lab, 0, kind=Kind.QUEUED_JOBS, at_limit="warn")
        job = lab.submit(lab.people.bob, lab.people.astro)
        assert text_of(job.events.get(kind="warned")) == "Astro has 0 waiting jobs, and the limit is 0"


class TestFiles:
    def test_new_jobs_are_refused_while_files_take_the_limit_and_the_refusal_says_what_to_delete(
        self, lab: World
    ) -> None:
        limit(lab, 2, kind=Kind.STORAGE, each_user=True)
        waits, small, big = (lab.submit(lab.people.bob, lab.people.astro) for _ in range(3))
        takes(small, 0.25)
        takes(big, 1.5)
        assert lab.submit(lab.people.bob, lab.people.astro).pk, "1.75 GiB are less than the limit"
        takes(waits, 0.25, state=Job.State.QUEUED)
        with pytest.raises(Refused) as refused:
            lab.submit(lab.people.bob, lab.people.astro)
        assert str(refused.value) == (
            "The files of jobs of bob in Astro take 2 GiB, and the limit is 2 GiB. Delete files of ended jobs on the"
            f" page Storage; your biggest are {big.name} #{big.pk} (1.5\N{NO-BREAK SPACE}GiB),"
            f" {small.name} #{small.pk} (256\N{NO-BREAK SPACE}MiB)."
        )
        assert lab.submit(lab.people.alice, lab.people.astro).pk, "the limit is on each user"
        Job.objects.filter(pk=small.pk).update(files_removed_at=now_from_database())
        assert lab.submit(lab.people.bob, lab.people.astro).pk

    def test_a_limit_above_counts_all_teams_below_and_keeps_its_figures(self, lab: World) -> None:
        limit(lab, 1, kind=Kind.STORAGE, tenant=lab.people.uni)
        takes(lab.submit(lab.people.charlie, lab.people.bio), 1)
        with pytest.raises(Refused, match="files of jobs has reached a limit of a team above Astro"):
            lab.submit(lab.people.bob, lab.people.astro)

    def test_a_warning_limit_and_jobs_in_pods_are_not_refused(self, lab: World) -> None:
        limit(lab, 1, kind=Kind.STORAGE, at_limit="warn")
        takes(lab.submit(lab.people.bob, lab.people.astro), 3)
        job = lab.submit(lab.people.bob, lab.people.astro)
        warned = "The files of jobs of Astro take 3 GiB, and the limit is 1 GiB"
        assert text_of(job.events.get(kind="warned")) == warned
        limit(lab, 1, kind=Kind.STORAGE)
        pods = QueuePlaces(
            lab.people.astro, lab.people.bob, None, now=now_from_database(), leaves_files=False
        )
        assert pods.take() is None


def takes(job: Job, gibibytes: float, *, state: str = Job.State.CANCELLED) -> None:
    """Makes the job one in `state` whose files take this much space."""
    ended = now_from_database() if state in Job.ENDED else None
    Job.objects.filter(pk=job.pk).update(state=state, ended_at=ended)
    JobStorage.objects.create(job=job, size=int(gibibytes * 2**30), measured_at=now_from_database())


@pytest.mark.django_db(transaction=True)
class TestAtOnce:
    def test_two_submits_do_not_both_take_the_last_place(self) -> None:
        lab = world(v100=4)
        limit(lab, 3, kind=Kind.QUEUED_JOBS, tenant=lab.people.uni)
        limit(lab, 3, kind=Kind.QUEUED_JOBS)
        users = [(lab.people.bob, lab.people.astro), (lab.people.charlie, lab.people.bio)] * 3
        raised = at_once(*[lambda who=who: lab.submit(*who) for who in users])
        assert [type(error) for error in raised if error] == [Refused] * 3
        assert Job.objects.count() == 3

    def test_the_same_request_twice_takes_one_place(self) -> None:
        lab = world(v100=4)
        limit(lab, 1, kind=Kind.QUEUED_JOBS)
        spec = JobSpec(name="x", command="true")
        where = {"actor": lab.people.bob, "tenant": lab.people.astro, "cluster": lab.cluster}
        raised = at_once(*[lambda: submit_job(**where, spec=spec, request_key="a")] * 3)
        assert raised == [None] * 3
        assert Job.objects.count() == 1

    def test_two_clusters_do_not_both_give_out_the_last_gpus(self) -> None:
        lab = world(v100=4)
        other = World(lab.people, Cluster.objects.create(name="other"))
        other.node("other-0", lab.people.v100)
        limit(lab, 5, kind=Kind.GPUS)
        limit(lab, "0.1", kind=Kind.GPU_HOURS)  # enough for six GPUs until the next round
        for place in (lab, other):
            for _ in range(4):
                place.submit(lab.people.bob, lab.people.astro)
        assert at_once(lab.quantum, other.quantum) == [None, None]
        assert sum(lease.gpus for lease in Lease.objects.filter(state__in=Lease.OPEN)) == 5

    @pytest.mark.parametrize(("quantum", "hours"), [(60, "0.084"), (600, "0.7")])
    def test_two_clusters_do_not_both_give_out_the_last_hours(self, quantum: int, hours: str) -> None:
        lab = world(v100=4)
        other = World(lab.people, Cluster.objects.create(name="other", quantum_seconds=quantum))
        other.node("other-0", lab.people.v100)
        limit(lab, hours, kind=Kind.GPU_HOURS)
        for place in (other, lab):
            for _ in range(4):
                place.submit(lab.people.bob, lab.people.astro)
        assert at_once(lab.quantum, other.quantum) == [None, None]
        open_leases = Lease.objects.filter(state__in=Lease.OPEN)
        given = sum(lease.gpus * lease.cluster.effective_quantum for lease in open_leases)
        assert 0 <= float(hours) * 3600 - given < quantum, "not one more would have been within it"


class TestLongestRun:
    def ran(self, lab: World, hours: float, **fields: object) -> Job:
        job = start(lab, **fields)
        lab.age(lab.lease(job), hours * 3600)
        return job

    def test_a_job_is_stopped_when_its_time_is_over_and_says_why(self, lab: World) -> None:
        limit(lab, 24, kind=Kind.LONGEST_RUN, tenant=lab.people.uni)
        limit(lab, 12, kind=Kind.LONGEST_RUN, user=lab.people.alice)
        job = self.ran(lab, 23.9)
        tasks.end_overlong_jobs()
        assert lab.states([job]) == [Job.State.RUNNING]
        lab.age(lab.lease(job), 600)
        tasks.end_overlong_jobs()
        lab.carry_out()
        job.refresh_from_db()
        said = "Stopped: a time limit applies that is set for a team above Astro in the team tree"
        assert (job.state, end_text_of(job)) == (Job.State.CANCELLED, said)
        event = AuditEvent.objects.get(verb="job.overlong")
        assert (event.actor, event.tenant) == (None, lab.people.astro)
        assert end_overlong(job_id=job.pk) is False

    def test_turns_add_up_and_waiting_does_not_count(self, lab: World) -> None:
        job = self.ran(lab, 3)
        limit(lab, 5, kind=Kind.LONGEST_RUN)
        first = lab.lease(job)
        now = now_from_database()
        first.state, first.held_until = Lease.State.CLOSED, first.held_from + timedelta(hours=3)
        first.held_gpus.all().delete()
        first.save()
        Lease.objects.create(
            job=job, cluster=lab.cluster, epoch=9, generation=first.generation, gpus=1,
            state=Lease.State.RUNNING, held_from=now - timedelta(hours=1),
        )  # fmt: skip
        assert end_overlong(job_id=job.pk) is False
        Lease.objects.filter(epoch=9).update(held_from=now - timedelta(hours=2))
        assert end_overlong(job_id=job.pk) is True

    def test_one_that_warns_warns_once(self, lab: World) -> None:
        limit(lab, 1, kind=Kind.LONGEST_RUN, at_limit="warn")
        job = self.ran(lab, 2)
        for _ in range(2):
            tasks.end_overlong_jobs()
        assert lab.states([job]) == [Job.State.RUNNING]
        [told] = JobEvent.objects.filter(job=job, kind="warned_of_limit")
        assert text_of(told) == "The job runs longer than allowed: the time limit of Astro is 1 h"

    def test_one_of_each_user_names_the_owner(self, lab: World) -> None:
        limit(lab, 1, kind=Kind.LONGEST_RUN, at_limit="warn", each_user=True)
        job = self.ran(lab, 2)
        tasks.end_overlong_jobs()
        [told] = JobEvent.objects.filter(job=job, kind="warned_of_limit")
        assert text_of(told).endswith(f"the time limit of {job.owner.get_username()} in Astro is 1 h")

    def test_without_limits_nothing_is_asked(self, lab: World) -> None:
        self.ran(lab, 9)
        with queries_of("ends jobs at their time limit, without limits"):
            tasks.end_overlong_jobs()


class TestOwnTimeLimit:
    """A job's owner gave it a time limit."""

    def ran(self, lab: World, hours: float, **fields: object) -> Job:
        job = start(lab, **fields)
        lab.age(lab.lease(job), hours * 3600)
        return job

    def test_a_job_is_stopped_gracefully_at_its_own_limit(self, lab: World) -> None:
        job = self.ran(lab, 1.4, time_limit_hours=1.5, checkpoint_grace_seconds=120)
        unlimited = self.ran(lab, 99, gpus=1)
        tasks.end_overlong_jobs()
        assert lab.states([job]) == [Job.State.RUNNING]
        lab.age(lab.lease(job), 600)
        tasks.end_overlong_jobs()
        assert lab.lease(job).state == Lease.State.STOPPING  # its processes have the grace period
        tasks.end_overlong_jobs()
        lab.carry_out()
        job.refresh_from_db()
        said = "Stopped: the job reached its time limit of 1 h 30 min"
        assert (job.state, end_text_of(job)) == (Job.State.CANCELLED, said)
        event = AuditEvent.objects.get(verb="job.overlong")
        assert (event.actor, event.after) == (None, {"time_limit_hours": 1.5})
        assert lab.states([unlimited]) == [Job.State.RUNNING]
        assert end_overlong(job_id=job.pk) is False

    @pytest.mark.parametrize(("own", "of_team"), [(2, 5), (5, 2)])
    def test_the_shortest_of_its_own_limit_and_those_of_its_team_counts(
        self, lab: World, own: float, of_team: float
    ) -> None:
        limit(lab, of_team, kind=Kind.LONGEST_RUN)
        limit(lab, 1, kind=Kind.LONGEST_RUN, at_limit="warn")
        job = self.ran(lab, 1.9, time_limit_hours=own)
        held = lab.lease(job).held_from
        assert end_by_limit(job, lab.people.bob) == held + timedelta(hours=2)
        # The limit that warns, and the end that is near: each once.
        assert [end_overlong(job_id=job.pk) for _ in range(3)] == [True, True, False]
        lab.age(lab.lease(job), 3 * 3600)  # now both are over: the shorter one is the reason
        assert end_overlong(job_id=job.pk) is True
        job.refresh_from_db()
        assert (job.end_code == "own_time_limit") is (own < of_team)

    def test_a_waiting_job_that_has_used_a_lowered_limit_ends_without_another_start(self, lab: World) -> None:
        job = self.ran(lab, 3, time_limit_hours=9)
        assert end_by_limit(job, lab.people.bob) is not None
        lab.see(lab.lease(job), Phase.ENDED, end=End.LOST, ended_age=0.0)
        assert lab.states([job]) == [Job.State.SUSPENDED]
        job.refresh_from_db()
        assert end_by_limit(job, lab.people.bob) is None
        edit_job(actor=lab.people.alice, job=job, changes={"time_limit_hours": 2.0})
        tasks.end_overlong_jobs()
        job.refresh_from_db()
        assert (job.state, job.end_code) == (Job.State.CANCELLED, "own_time_limit")

    def test_the_owner_is_warned_once_before_the_end_and_again_after_a_change_of_the_limit(
        self, lab: World
    ) -> None:
        job = self.ran(lab, 8.9, time_limit_hours=10)
        tasks.end_overlong_jobs()
        assert not NotificationEvent.objects.exists()
        lab.age(lab.lease(job), 720)
        for _ in range(2):
            tasks.end_overlong_jobs()
        event = NotificationEvent.objects.get()
        assert (event.kind, event.concerns, event.title) == (
            "job.warned", [job.owner_id], f"Time limit ends soon: “{job.name}”",
        )  # fmt: skip
        assert event.text == (
            "The job will be stopped after another 54 min on GPUs: it then reaches its own time limit. Save a"
            " checkpoint in time, or edit the job to raise the limit."
        )
        assert text_of(job.events.get(kind="time_limit_near")) == event.text.removesuffix(".")
        edit_job(actor=lab.people.alice, job=job, changes={"time_limit_hours": 20.0})
        tasks.end_overlong_jobs()
        lab.age(lab.lease(job), 9.5 * 3600)
        tasks.end_overlong_jobs()
        assert NotificationEvent.objects.count() == 2
        assert lab.states([job]) == [Job.State.RUNNING]

    @pytest.mark.parametrize(
        ("team", "said"),
        [
            ("astro", "stopped after another 12 min on GPUs: the time limit of Astro is 2 h. Save"),
            (
                "uni",
                "will soon be stopped: a time limit applies that is set for a team above Astro in the team tree.",
            ),
        ],
    )
    def test_the_warning_names_only_limits_of_the_own_team(self, lab: World, team: str, said: str) -> None:
        limit(lab, 2, kind=Kind.LONGEST_RUN, tenant=getattr(lab.people, team))
        job = self.ran(lab, 1.805)
        assert [end_overlong(job_id=job.pk) for _ in range(2)] == [True, False]
        assert said in NotificationEvent.objects.get().text

    def test_a_waiting_job_is_not_warned(self, lab: World) -> None:
        job = self.ran(lab, 3, time_limit_hours=9)
        lab.see(lab.lease(job), Phase.ENDED, end=End.LOST, ended_age=0.0)
        edit_job(actor=lab.people.alice, job=job, changes={"time_limit_hours": 3.01})
        assert end_overlong(job_id=job.pk) is False

    @given(st.floats(0.01, 8760).map(lambda hours: timedelta(hours=hours)))
    def test_the_warning_comes_in_the_last_quarter_and_at_most_a_day_before(self, longest: timedelta) -> None:
        assert timedelta(0) < notice(longest) <= min(longest / 4, timedelta(days=1))
        assert notice(longest) >= min(longest / 10, timedelta(days=1))

    def test_a_raised_or_removed_limit_lets_the_job_run(self, lab: World) -> None:
        job = self.ran(lab, 3, time_limit_hours=2)
        edit_job(actor=lab.people.alice, job=job, changes={"time_limit_hours": 4.0})
        assert end_overlong(job_id=job.pk) is False
        edit_job(actor=lab.people.alice, job=job, changes={"time_limit_hours": None})
        lab.age(lab.lease(job), 3 * 3600)
        assert end_overlong(job_id=job.pk) is False
        job.refresh_from_db()
        assert end_by_limit(job, lab.people.bob) is None

    def test_the_end_does_not_give_away_limits_of_teams_that_the_reader_may_not_see(self, lab: World) -> None:
        limit(lab, 4, kind=Kind.LONGEST_RUN, tenant=lab.people.uni)
        job = self.ran(lab, 1)
        held = lab.lease(job).held_from
        assert end_by_limit(job, lab.people.bob) is None
        assert end_by_limit(job, lab.people.olga) == held + timedelta(hours=4)
        edit_job(actor=lab.people.alice, job=job, changes={"time_limit_hours": 5.0})
        job.refresh_from_db()
        assert end_by_limit(job, lab.people.bob) == held + timedelta(hours=5)
        assert end_by_limit(job, lab.people.olga) == held + timedelta(hours=4)

    def test_members_of_sweeps_and_steps_of_pipelines_have_it_too(self, lab: World) -> None:
        swept.step(swept.make(lab, spec=swept.spec(time_limit_hours=2)))
        defaults = {"command": "go", "time_limit_hours": 2}
        piped.step(piped.make(lab, definition=piped.defined(defaults=defaults)))
        of_which = Job.objects.values_list("sweep", "pipeline", "time_limit_hours")
        assert {(sweep is None, pipeline is None, hours) for sweep, pipeline, hours in of_which} == {
            (False, True, 2),
            (True, False, 2),
        }
