"""Users see which limits block their jobs, and which limits with the action "warn" are exceeded.

Users also see whose limit it is, how much of it is used, and until when it applies.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from accounting.actions import set_quota
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.limits.periods import period_of
from accounting.models import AuditEvent, Membership, Quota
from fairshare.model import Reason
from scheduling import tasks
from scheduling.core.event_texts import end_text_of, text_of
from scheduling.jobs.explain import explain
from scheduling.jobs.preflight import preflight
from scheduling.jobs.submitting import submit_job
from scheduling.models import Cluster, Job, JobEvent
from scheduling.spec.job_spec import JobSpec
from tests import make
from tests.scheduling.world import World, start, world

Kind = Quota.Kind


@pytest.fixture
def lab(db: None) -> World:
    return world(v100=8)


def limit(lab: World, limit: str | int, **which: Any) -> Quota:
    return set_quota(actor=None, limit=limit, **({"tenant": lab.people.astro} | which))


def waits(lab: World, reason: Reason, **fields: Any) -> Job:
    """Submits a job of Bob's with two GPUs, and runs a round. The job must stay queued with the reason code `reason`.
    Returns the job."""
    job = lab.submit(lab.people.bob, lab.people.astro, gpus=2, **fields)
    lab.quantum()
    job.refresh_from_db()
    assert (job.state, Reason(job.reason)) == (Job.State.QUEUED, reason)
    return job


class TestWhatBinds:
    def test_gpus_at_once_with_how_many_are_had_and_may_be(self, lab: World) -> None:
        limit(lab, 4, kind=Kind.GPUS)
        start(lab, gpus=3)
        why = explain(waits(lab, Reason.QUOTA_IN_USE))
        assert why.sentence == "Astro has 3 GPUs at once, and the limit is 4. This job needs 2 more GPUs."
        assert why.short == "Astro: limit of 4 GPUs at once"
        assert why.unblock == ("The job starts when a job of Astro ends, or when the limit is raised.",)

    def test_of_a_user_and_of_a_generation(self, lab: World) -> None:
        limit(lab, 2, kind=Kind.GPUS, each_user=True, generation=lab.people.v100)
        limit(lab, 3, kind=Kind.GPUS, user=lab.people.alice)
        start(lab)
        why = explain(waits(lab, Reason.QUOTA_IN_USE))
        said = "bob in Astro has 1 V100 at once, and the limit is 2. This job needs 2 more GPUs."
        assert why.sentence == said
        assert why.short == "bob in Astro: limit of 2 V100 at once"
        assert why.unblock == (
            "The job starts when a job of bob in Astro ends, or when the limit is raised.",
        )

    def test_a_never_reason_names_the_limit_that_forbids_the_job(self, lab: World) -> None:
        limit(lab, 1, kind=Kind.GPUS, each_user=True, generation=lab.people.v100)
        job = lab.submit(lab.people.bob, lab.people.astro, gpus=2, generations=["V100"])
        lab.quantum()
        job.refresh_from_db()
        why = explain(job)
        assert why.sentence.startswith(
            "The job can never run: each user of Astro may hold at most 1 V100 at once;"
        )
        assert why.short == "job larger than a limit allows"

    def test_all_that_bind_are_named_and_no_others(self, lab: World) -> None:
        limit(lab, 2, kind=Kind.GPUS)
        limit(lab, 2, kind=Kind.GPUS, user=lab.people.bob)
        limit(lab, 7, kind=Kind.GPUS, each_user=True)
        limit(lab, 1, kind=Kind.GPUS, at_limit="warn")
        start(lab)
        sentence = explain(waits(lab, Reason.QUOTA_IN_USE)).sentence
        assert (sentence.count("at once"), "limit is 7" in sentence, "limit is 1" in sentence) == (
            2,
            False,
            False,
        )

    def test_hours_that_are_spent(self, lab: World) -> None:
        limit(lab, "0.1", kind=Kind.GPU_HOURS, period="rolling", days=9)
        lab.age(lab.lease(start(lab, gpus=4)), 3600)
        why = explain(waits(lab, Reason.HOURS_SPENT))
        assert not why.never
        assert why.sentence.startswith("Astro has used 4")
        assert why.sentence.endswith(" of 0.1 GPU-hours in the last 9 days.")
        assert why.short == "Astro: limit of 0.1 GPU-hours is used up"

    def test_a_limit_that_does_not_last_names_the_months_end(self, lab: World) -> None:
        limit(lab, "0.02", kind=Kind.GPU_HOURS)
        before = now_from_database()
        why = explain(waits(lab, Reason.HOURS_SPENT))
        said = (
            "Astro has used 0 of 0.02 GPU-hours per calendar month (UTC); what remains of the limit is not enough for"
            " one round."
        )
        assert why.sentence == said
        assert why.short == "Astro: limit of 0.02 GPU-hours is nearly used up"
        ends = [period_of("month", None, now)[1] for now in (before, now_from_database())]
        assert why.unblock[0] in {
            f"The job starts when the limit's period is over, on {at:%Y-%m-%d} at 00:00 UTC, or when the limit is"
            " raised."
            for at in ends
        }

    def test_a_rolling_limit_names_the_hour_in_which_usage_expires(self, lab: World) -> None:
        limit(lab, "3.9", kind=Kind.GPU_HOURS, period="rolling", days=2)
        lab.age(lab.lease(start(lab, gpus=4)), 3600)
        why = explain(waits(lab, Reason.HOURS_SPENT))
        hour = now_from_database().replace(minute=0, second=0, microsecond=0)
        # All GPU-hours were used in this hour and the previous hour. Depending on the minute, the job can start when
        # only the previous hour or when both hours have expired.
        expected = {
            f"on {at:%Y-%m-%d} at {at:%H:%M} UTC"
            for at in (hour + timedelta(days=2), hour + timedelta(days=2, hours=1))
        }
        [told] = why.unblock
        assert any(one in told for one in expected), told

    def test_hours_that_others_of_the_team_use_up(self, lab: World) -> None:
        limit(lab, "0.05", kind=Kind.GPU_HOURS)
        start(lab, gpus=2)
        sentence = explain(waits(lab, Reason.QUOTA_IN_USE)).sentence
        assert (
            "of 0.05 GPU-hours per calendar month (UTC); what remains of the limit is not enough" in sentence
        )

    def test_what_leaves_it_to_idle_gpus(self, lab: World) -> None:
        limit(lab, 2, kind=Kind.GPUS, at_limit="idle")
        start(lab, gpus=2)
        lab.submit(lab.people.charlie, lab.people.bio, gpus=6)
        sentence = explain(waits(lab, Reason.PREEMPTIBLE)).sentence
        assert sentence.startswith(
            "Astro has 2 GPUs at once, and the limit is 2; the job runs only on GPUs that no other job can use"
        )

    def test_where_a_limit_has_left_room_since_none_is_named(self, lab: World) -> None:
        quota = limit(lab, 2, kind=Kind.GPUS)
        start(lab)
        job = waits(lab, Reason.QUOTA_IN_USE)
        quota.delete()
        assert (
            explain(job).sentence
            == "A limit left no room for the job in the last round; the next round checks again."
        )


class TestOfTeamsAbove:
    """If the limit of a team above blocks a job, only users who may see that team are shown its name and figures.

    Members of Astro may not see Astro's parent team, Uni.
    """

    @pytest.mark.parametrize(
        ("amount", "which", "reason"),
        [
            (3, {"kind": Kind.GPUS}, Reason.QUOTA_IN_USE),
            ("0.02", {"kind": Kind.GPU_HOURS}, Reason.HOURS_SPENT),
            ("0.02", {"kind": Kind.MONEY, "period": "rolling", "days": 3}, Reason.HOURS_SPENT),
            (1, {"kind": Kind.GPUS}, Reason.NEVER_OVER_QUOTA),
            (3, {"kind": Kind.GPUS, "each_user": True}, Reason.QUOTA_IN_USE),
        ],
    )
    def test_members_see_that_a_limit_exists(
        self, lab: World, amount: int | str, which: dict[str, Any], reason: Reason
    ) -> None:
        if reason is Reason.QUOTA_IN_USE:
            start(lab, gpus=2)
        quota = limit(lab, amount, tenant=lab.people.uni, **which)
        job = waits(lab, reason)
        for reader in (lab.people.alice, lab.people.bob, None):
            why = explain(job, reader=reader)
            said = " ".join([why.sentence, *why.detail, *why.unblock])
            assert "limit of a team above Astro" in said
            assert not any(
                word in said for word in ("Uni", "per calendar", "UTC", f"{quota.limit.normalize():f} ")
            )
        make.membership(make.user("dean"), lab.people.uni, role=Membership.Role.VIEWER)
        for reader in (lab.people.olga, Membership.objects.get(user__username="dean").user):
            why = explain(job, reader=reader)
            assert "a team above" not in f"{why.sentence} {why.unblock}"
            assert ("Uni" in why.sentence) != bool(which.get("each_user")), why.sentence

    def test_so_before_and_at_submit(self, lab: World) -> None:
        limit(lab, 1, kind=Kind.GPUS, tenant=lab.people.uni)
        spec = JobSpec(name="x", command="true", gpus_per_worker=2)
        where = {"actor": lab.people.bob, "tenant": lab.people.astro, "cluster": lab.cluster, "spec": spec}
        [sentence] = preflight(**where).sentences
        assert (
            sentence
            == "The job can never run: a limit of a team above Astro is too low; this job needs 2 GPUs."
        )
        with pytest.raises(Refused, match="a limit of a team above Astro is too low"):
            submit_job(**where, even_if_never=False)

    def test_queue_places(self, lab: World) -> None:
        limit(lab, 0, kind=Kind.QUEUED_JOBS, tenant=lab.people.uni)
        with pytest.raises(Refused) as refusal:
            lab.submit(lab.people.bob, lab.people.astro)
        full = "The number of waiting jobs has reached a limit of a team above Astro."
        said = f"{full} Submit the job after a waiting job has started."
        assert refusal.value.message == said
        make.membership(lab.people.bob, lab.people.uni, role=Membership.Role.VIEWER)
        with pytest.raises(Refused, match="Uni has 0 waiting jobs, and the limit is 0"):
            lab.submit(lab.people.bob, lab.people.astro)

    def test_recorded_events_are_visible_to_all_who_see_the_job(self, lab: World) -> None:
        for kind in (Kind.QUEUED_JOBS, Kind.GPUS, Kind.LONGEST_RUN):
            limit(lab, 0, kind=kind, tenant=lab.people.uni, at_limit="warn")
        job = start(lab)
        tasks.end_overlong_jobs()
        limit(lab, 0, kind=Kind.LONGEST_RUN, tenant=lab.people.uni)
        tasks.end_overlong_jobs()
        job.refresh_from_db()
        lines = [*map(text_of, job.events.all()), end_text_of(job)]
        assert sum("above Astro" in line for line in lines) == 4
        assert not any("Uni" in line for line in lines)
        after = AuditEvent.objects.get(verb="job.overlong").after
        assert list(after) == ["quota"]


class TestWarnings:
    """A limit with the action "warn" stops no job.

    The warning is shown once at submit. The job's page shows it while the limit is exceeded.
    """

    def told(self, job: Job) -> list[str]:
        events = JobEvent.objects.filter(job=job, kind__startswith="warned").order_by("pk")
        return [text_of(event) for event in events]

    @pytest.mark.parametrize(
        ("amount", "which", "said"),
        [
            (3, {"kind": Kind.GPUS}, "Astro has 2 GPUs at once, and the limit is 3"),
            (
                3,
                {"kind": Kind.GPUS, "each_user": True},
                "bob in Astro has 2 GPUs at once, and the limit is 3",
            ),
            (0, {"kind": Kind.GPU_HOURS}, "Astro has used 0 of 0 GPU-hours per calendar month (UTC)"),
            (
                0,
                {"kind": Kind.MONEY, "period": "quarter"},
                "Astro has used 0 of 0 EUR per calendar quarter (UTC)",
            ),
            (0, {"kind": Kind.QUEUED_JOBS}, "Astro has 0 waiting jobs, and the limit is 0"),
            (
                "0.1",
                {"kind": Kind.BORROWED},
                "Astro has borrowed 0 times its entitlement, and the limit is 0.1 times",
            ),
        ],
    )
    @pytest.mark.django_db
    def test_every_kind_of_warning_is_shown_at_submit(
        self, amount: int | str, which: dict[str, Any], said: str
    ) -> None:
        lab = world(v100=4)
        start(lab, gpus=2)
        lab.submit(lab.people.charlie, lab.people.bio, gpus=2)
        lab.quantum()  # each team is entitled to two GPUs
        limit(lab, amount, at_limit="warn", **which)
        spec = JobSpec(name="x", command="true", gpus_per_worker=2)
        before = preflight(actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=spec)
        assert said.partition(" 0 of")[0] in " ".join(before.detail)
        job = lab.submit(lab.people.bob, lab.people.astro, gpus=2)
        [line] = self.told(job)
        if which["kind"] in Quota.OF_A_PERIOD:  # a few seconds have been used by now
            assert line.partition(" has used ")[0] == "Astro"
        else:
            assert line == said
        lab.quantum()
        assert self.told(job) == [line]
        assert explain(Job.objects.get(pk=job.pk)).detail[0].startswith(said.partition(" has ")[0])

    def test_within_limits_nothing_is_shown(self, lab: World) -> None:
        limit(lab, 2, kind=Kind.GPUS, at_limit="warn")
        limit(lab, 1, kind=Kind.GPU_HOURS, at_limit="warn")
        limit(lab, 1, kind=Kind.QUEUED_JOBS, at_limit="warn")
        limit(lab, 5, kind=Kind.BORROWED, at_limit="warn")
        limit(lab, 1, kind=Kind.LONGEST_RUN, at_limit="warn")
        job = start(lab, gpus=2)
        assert (self.told(job), explain(job).detail) == ([], ())

    def test_it_runs_all_the_same_and_its_page_tells_of_all_that_is_exceeded(self, lab: World) -> None:
        for kind in (Kind.GPUS, Kind.LONGEST_RUN):
            limit(lab, 1, kind=kind, at_limit="warn")
        limit(lab, 1, kind=Kind.GPU_HOURS, at_limit="warn", period="rolling", days=2)
        job = start(lab, gpus=2)
        lab.age(lab.lease(job), 7200)
        told = explain(job).detail
        assert [line.partition(" has ")[0] for line in told] == [
            "Astro",
            "Astro",
            "The time limit of Astro is 1 h, and the job",
        ]
        tasks.end_overlong_jobs()
        assert len(self.told(job)) == 2  # about GPUs at submit, and later about the time limit
        assert lab.states([job]) == [Job.State.RUNNING]

    def test_the_same_request_again_is_not_warned_again(self, lab: World) -> None:
        limit(lab, 0, kind=Kind.QUEUED_JOBS, at_limit="warn")
        spec = JobSpec(name="x", command="true")
        where = {"actor": lab.people.bob, "tenant": lab.people.astro, "cluster": lab.cluster}
        first, again = (submit_job(**where, spec=spec, request_key="a") for _ in range(2))
        assert first.pk == again.pk
        assert len(self.told(first)) == 1

    def test_borrowed_on_another_cluster_is_no_matter_of_this_one(self, lab: World) -> None:
        other = World(lab.people, Cluster.objects.create(name="other"))
        other.node("other-0", lab.people.v100)
        start(other, gpus=3)
        other.submit(lab.people.charlie, lab.people.bio, gpus=4)
        other.quantum()
        limit(lab, 0, kind=Kind.BORROWED, at_limit="warn")
        assert self.told(lab.submit(lab.people.bob, lab.people.astro)) == []
        assert len(self.told(other.submit(lab.people.bob, lab.people.astro))) == 1
