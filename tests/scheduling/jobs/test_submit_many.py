"""A bulk submit has the same effect as submitting the jobs one by one, but needs few queries."""

from __future__ import annotations

from typing import Any

import pytest

from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent
from scheduling.jobs.submitting import NotAllSubmitted, submit_job, submit_jobs
from scheduling.models import Job, JobEvent, JobLabel, LabelKey
from scheduling.spec.job_spec import JobSpec, SpecError
from tests.query_counts import queries_of
from tests.scheduling.limits.test_blocking import Kind, limit
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    return world(v100=4, a100=2)


def spec(number: int, **fields: object) -> JobSpec:
    return JobSpec.parse({"name": f"sweep {number}", "command": "python train.py", **fields})


def astro(lab: World) -> dict[str, Any]:
    return {"actor": lab.people.bob, "tenant": lab.people.astro, "cluster": lab.cluster}


SPECS = (
    spec(0),
    spec(1, workers=2, gpus_per_worker=2, generations=["A100"], priority=3, labels={"project": "apollo"}),
    spec(2, preemptible=True, labels={"project": "gemini", "run": "7"}),
    spec(3, gpus_per_worker=64),  # can never run, but is queued anyway
)
# Columns that differ even between jobs with the same spec.
OWN = {"id", "created_at", "state_since", "request_key"}


def written(first: int) -> list[Any]:
    """Returns the rows that were written for the job with the id `first` and all later jobs.

    Leaves out the columns that differ for every job, such as the id.
    """
    jobs = Job.objects.filter(pk__gte=first).order_by("pk")
    rows = [{name: value for name, value in row.items() if name not in OWN} for row in jobs.values()]
    events = JobEvent.objects.filter(job__in=jobs).order_by("job_id", "pk")
    labels = JobLabel.objects.filter(job__in=jobs).order_by("job_id", "key")
    trail = AuditEvent.objects.filter(target_type="job", target_id__in=[str(job.pk) for job in jobs])
    return [
        rows,
        list(events.values_list("job__name", "kind", "code", "epoch", "detail")),
        list(labels.values_list("job__name", "key", "value")),
        list(
            trail.order_by("pk").values_list(
                "actor", "actor_name", "verb", "target_name", "tenant", "before", "after"
            )
        ),
        set(LabelKey.objects.values_list("tenant", "key")),
    ]


def test_many_at_once_are_as_one_after_the_other(lab: World) -> None:
    limit(lab, 1, kind=Kind.QUEUED_JOBS, at_limit="warn")
    limit(lab, 2, kind=Kind.GPUS, at_limit="warn")
    singly = [submit_job(**astro(lab), spec=one) for one in SPECS]
    one_by_one = written(singly[0].pk)
    assert one_by_one[1][-1][1] == "warned"  # the warnings are about the number of queued jobs and about GPUs
    Job.objects.update(state=Job.State.CANCELLED)
    together = submit_jobs(**astro(lab), specs=SPECS)
    assert written(together[0].pk) == one_by_one


def test_a_job_more_costs_no_statement(lab: World) -> None:
    with queries_of("submits jobs, one or many"):
        submit_job(**astro(lab), spec=spec(0), even_if_never=False)
    for count in (2, 200):
        with queries_of("submits jobs, one or many"):
            made = submit_jobs(
                **astro(lab), specs=[spec(number) for number in range(count)], even_if_never=False
            )
        assert len({job.pk for job in made}) == count


class TestLimits:
    def test_each_job_of_the_call_counts_for_the_next(self, lab: World) -> None:
        limit(lab, 3, kind=Kind.QUEUED_JOBS)
        submit_job(**astro(lab), spec=spec(0))
        found = submit_jobs(**astro(lab), specs=[spec(number) for number in range(4)], all_or_none=False)
        assert [type(one) for one in found] == [Job, Job, Refused, Refused]
        assert str(found[2]).startswith("Astro has 3 waiting jobs, and the limit is 3.")
        assert Job.objects.count() == 3

    def test_none_is_queued_where_not_all_may(self, lab: World) -> None:
        limit(lab, 3, kind=Kind.QUEUED_JOBS)
        with pytest.raises(NotAllSubmitted) as refused:
            submit_jobs(**astro(lab), specs=[spec(number) for number in range(5)])
        assert sorted(refused.value.refusals) == [3, 4]
        assert not Job.objects.exists()
        assert not AuditEvent.objects.filter(verb="job.submit").exists()

    def test_a_member_does_not_see_limits_above_the_team(self, lab: World) -> None:
        limit(lab, 1, kind=Kind.QUEUED_JOBS, tenant=lab.people.uni)
        found = submit_jobs(**astro(lab), specs=[spec(0), spec(1)], all_or_none=False)
        assert str(found[1]).startswith(
            "The number of waiting jobs has reached a limit of a team above Astro."
        )


def test_one_that_is_refused_refuses_all_or_itself_alone(lab: World) -> None:
    mixed = [spec(0), spec(1, generations=["K80"]), spec(2, gpus_per_worker=64), spec(3)]
    with pytest.raises(NotAllSubmitted) as refused:
        submit_jobs(**astro(lab), specs=mixed, even_if_never=False)
    assert {at: type(one) for at, one in refused.value.refusals.items()} == {1: SpecError, 2: Refused}
    assert not Job.objects.exists()
    found = submit_jobs(**astro(lab), specs=mixed, even_if_never=False, all_or_none=False)
    assert [type(one) for one in found] == [Job, SpecError, Refused, Job]
    assert list(Job.objects.order_by("pk").values_list("name", flat=True)) == ["sweep 0", "sweep 3"]


def test_the_same_requests_again_are_the_same_jobs(lab: World) -> None:
    limit(lab, 3, kind=Kind.QUEUED_JOBS)
    keys = ["k#0", "k#1"]
    first = submit_jobs(**astro(lab), specs=[spec(0), spec(1)], request_keys=keys)
    again = submit_jobs(**astro(lab), specs=[spec(0), spec(1), spec(2)], request_keys=[*keys, "k#2"])
    assert [job.pk for job in again[:2]] == [job.pk for job in first]
    assert Job.objects.count() == 3


@pytest.mark.parametrize("who", ["charlie", "olga"])
def test_users_submit_only_for_their_own_teams(lab: World, who: str) -> None:
    place = astro(lab) | {"actor": getattr(lab.people, who)}
    with pytest.raises(NotAllowed, match="members of Astro"):
        submit_jobs(**place, specs=[spec(0)])
    assert not Job.objects.exists()


def test_no_more_than_a_thousand_at_once(lab: World) -> None:
    with pytest.raises(ValueError, match="1001 specs are too many for one call; at most 1000 are accepted"):
        submit_jobs(**astro(lab), specs=[spec(0)] * 1001)
