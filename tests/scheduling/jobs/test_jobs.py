"""Users submit and cancel jobs, and each job's state has an explanation in words."""

import re

import pytest
from django.core.exceptions import ObjectDoesNotExist

from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent, Quota
from fairshare.model import Reason
from scheduling.backends.base import End, Phase
from scheduling.core.event_texts import end_text_of
from scheduling.core.reason_labels import SHORT
from scheduling.draining.actions import drain_node
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.explain import Explainer, explain
from scheduling.jobs.preflight import preflight
from scheduling.jobs.submitting import submit_job
from scheduling.leases.lifecycle import TRANSITIONS, Event, IllegalTransition, next_state
from scheduling.models import Job, Operation
from scheduling.spec.job_spec import JobSpec, SpecError
from tests.make import membership, user
from tests.scheduling.world import World, start, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    return world(v100=4, a100=2)


def spec(**fields: object) -> JobSpec:
    return JobSpec.parse({"name": "train", "command": "python train.py", **fields})


# --- submitting ------------------------------------------------------------------------------------


def test_a_member_submits_and_it_is_in_the_audit_trail(lab: World) -> None:
    people = lab.people
    job = submit_job(
        actor=people.bob, tenant=people.astro, cluster=lab.cluster, spec=spec(generations=["A100"])
    )
    assert (job.state, job.generation_ids) == (Job.State.QUEUED, [people.a100.pk])
    event = AuditEvent.objects.get(verb="job.submit")
    assert (event.actor, event.tenant, event.target_id) == (people.bob, people.astro, str(job.pk))


@pytest.mark.parametrize("who", ["charlie", "olga", "viewer"])
def test_users_submit_only_for_their_own_teams(lab: World, who: str) -> None:
    actor = user("vera") if who == "viewer" else getattr(lab.people, who)
    if who == "viewer":
        membership(actor, lab.people.astro, role="viewer")
    with pytest.raises(NotAllowed, match="members of Astro"):
        submit_job(actor=actor, tenant=lab.people.astro, cluster=lab.cluster, spec=spec())
    assert not Job.objects.exists()


def test_the_same_request_key_is_one_job(lab: World) -> None:
    jobs = [
        submit_job(
            actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=spec(), request_key="k"
        )
        for _ in range(2)
    ]
    assert jobs[0].pk == jobs[1].pk
    assert Job.objects.count() == 1


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"generations": ["H900"]}, "generations", "accepted: A100, V100"),
        ({"environment": "conda"}, "environment", "accepted: python, system"),
    ],
)
def test_an_unknown_generation_is_refused_with_the_available_ones(
    lab: World, fields: dict, field: str, words: str
) -> None:
    with pytest.raises(SpecError) as caught:
        submit_job(actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=spec(**fields))
    assert words in caught.value.problems[field]


def test_an_archived_team_takes_no_jobs(lab: World) -> None:
    lab.people.astro.archived_at = now_from_database()
    lab.people.astro.save()
    with pytest.raises(Refused, match="archived"):
        submit_job(actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=spec())


# --- cancelling ------------------------------------------------------------------------------------


def test_a_waiting_job_is_cancelled_at_once_and_twice_is_as_good_as_once(lab: World) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro)
    for actor in (lab.people.bob, lab.people.alice):
        assert cancel_job(actor=actor, job=job).state == Job.State.CANCELLED
    assert AuditEvent.objects.filter(verb="job.cancel").count() == 1


def test_cancelling_a_running_job_stops_it(lab: World) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro)
    lab.fill()
    lab.carry_out()
    assert cancel_job(actor=lab.people.olga, job=job).state == Job.State.CANCELLING
    assert lab.lease(job).operations.filter(verb=Operation.Verb.STOP).exists()
    job.refresh_from_db()
    assert explain(job).sentence == "Cancelled by olga; the processes of the job are being ended."
    lab.carry_out()
    job.refresh_from_db()
    assert (job.state, end_text_of(job)) == (Job.State.CANCELLED, "Cancelled by olga")


def test_a_job_that_succeeds_while_it_is_cancelled_has_succeeded(lab: World) -> None:
    job = start(lab)
    cancel_job(actor=lab.people.olga, job=job)
    lab.see(lab.lease(job), Phase.ENDED, end=End.SUCCEEDED, ended_age=0.0, exit_code=0)
    job.refresh_from_db()
    assert (job.state, job.end_message) == (Job.State.SUCCEEDED, "")


def test_charlie_cancels_nothing_of_astro(lab: World) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro)
    with pytest.raises(NotAllowed):
        cancel_job(actor=lab.people.charlie, job=job)
    assert Job.objects.get().state == Job.State.QUEUED
    with pytest.raises(ObjectDoesNotExist):
        Job.objects.visible_to(lab.people.charlie).get(pk=job.pk)


# --- the table of a job's life ------------------------------------------------------------------------


def test_an_ended_job_does_not_change() -> None:
    for state in Job.ENDED:
        for event in Event:
            with pytest.raises(IllegalTransition):
                next_state(state, event)


def test_every_state_but_the_first_can_be_reached_and_every_live_one_left() -> None:
    reached = set(TRANSITIONS.values())
    assert reached == set(Job.State.values)
    assert (
        {state for state, _ in TRANSITIONS} == set(Job.UNFINISHED) == set(Job.State.values) - set(Job.ENDED)
    )


# --- explaining -----------------------------------------------------------------------------------------


def test_every_reason_has_a_text() -> None:
    lab = world(v100=1)
    job = lab.submit(lab.people.bob, lab.people.astro)
    explainer = Explainer(lab.cluster)
    for reason in Reason:
        job.reason = reason
        explanation = explainer.explain(job)
        assert explanation.sentence
        assert SHORT[reason] == explanation.short
        assert explanation.never == reason.is_never


def test_preflight_says_never_with_numbers_for_a_gang_larger_than_the_cluster(lab: World) -> None:
    job = lab.submit(lab.people.bob, lab.people.astro, gpus=4, workers=3)
    lab.quantum()
    job.refresh_from_db()
    explanation = explain(job)
    assert explanation.never
    assert "needs 12 GPUs of one type" in explanation.sentence
    assert "2 A100 and 4 V100" in explanation.sentence


def test_preflight_says_not_now_with_numbers_for_a_job_behind_others(lab: World) -> None:
    for owner, team in ((lab.people.charlie, lab.people.bio), (lab.people.bob, lab.people.astro)):
        lab.submit(owner, team, gpus=2, generations=["V100"])
    lab.fill()
    job = lab.submit(lab.people.bob, lab.people.astro, gpus=2, generations=["V100"])
    lab.fill()
    job.refresh_from_db()
    explanation = explain(job)
    assert (explanation.never, job.reason) == (False, Reason.SHARE_IN_USE)
    assert "needs 2 GPUs (V100)" in explanation.sentence
    assert explanation.detail == ("V100: 0 of 4 GPUs free",)


def test_a_job_that_waits_for_a_drained_node_names_it(lab: World) -> None:
    drain_node(actor=lab.people.olga, node=lab.cluster.nodes.get(name="a100-0"), reason="fan", mode="now")
    job = lab.submit(lab.people.bob, lab.people.astro, generations=["A100"])
    lab.quantum()
    job.refresh_from_db()
    assert explain(job).sentence == "The job would fit if a100-0 (drained) were ready again."


# --- before submitting ------------------------------------------------------------------------------------


def test_preflight_says_now_when_gpus_are_free_and_what_it_costs(lab: World) -> None:
    found = preflight(
        actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=spec(gpus_per_worker=2)
    )
    assert found.verdict == "now"
    assert {name: (str(cost), currency) for name, (cost, currency) in found.cost_per_hour.items()} == {
        "A100": ("6.000000", "EUR"),
        "V100": ("2.400000", "EUR"),
    }
    assert not Job.objects.exists()


def test_preflight_counts_what_is_free_and_what_others_release(lab: World) -> None:
    where = {"actor": lab.people.bob, "tenant": lab.people.astro, "cluster": lab.cluster}
    wanted = spec(gpus_per_worker=2, generations=["V100"])
    found = preflight(**where, spec=wanted)
    assert found.sentences == ("The job starts within seconds (GPUs: 4 free now).",)
    assert found.detail == ("V100: 4 of 4 GPUs free",)
    ending = lab.submit(lab.people.charlie, lab.people.bio, gpus=4, generations=["V100"])
    lab.quantum()
    cancel_job(actor=lab.people.charlie, job=ending)
    found = preflight(**where, spec=wanted)
    assert found.sentences == ("The job starts within seconds (GPUs: 0 free now, 4 being freed).",)
    assert found.detail == ("V100: 0 of 4 GPUs free",)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpus_per_worker": 8}, "the largest node with A100 or V100 has 4"),
        ({"workers": 9}, "needs 9 GPUs of one type"),
        ({"workers": 2, "gpus_per_worker": 3}, "needs 6 GPUs of one type"),
    ],
)
def test_preflight_says_never_with_the_reason(lab: World, fields: dict, words: str) -> None:
    found = preflight(actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=spec(**fields))
    assert found.verdict == "never"
    assert words in found.sentences[0]


def test_preflight_knows_the_quota(lab: World) -> None:
    Quota.objects.create(tenant=lab.people.uni, kind=Quota.Kind.GPUS, limit=1)
    found = preflight(
        actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=spec(gpus_per_worker=2)
    )
    assert (found.verdict, "a limit of a team above Astro is too low" in found.sentences[0]) == (
        "never",
        True,
    )


def test_never_applies_if_a_limit_forbids_the_only_generation_that_fits(
    lab: World,
) -> None:
    """A job that needs three GPUs fits only on the V100 node, but a limit gives Uni only two V100, so the job can never
    run.

    The limit does not apply to A100s, but the A100 node is too small for the job.
    """
    Quota.objects.create(tenant=lab.people.uni, kind=Quota.Kind.GPUS, limit=2, generation=lab.people.v100)
    wanted = spec(gpus_per_worker=3)
    where = {"actor": lab.people.bob, "tenant": lab.people.astro, "cluster": lab.cluster, "spec": wanted}
    said = "The job can never run: a limit of a team above Astro is too low; this job needs 3 GPUs."
    assert preflight(**where).sentences == (said,)
    with pytest.raises(Refused) as refused:
        submit_job(**where, even_if_never=False)
    assert (refused.value.field, refused.value.message) == ("even_if_never", said)
    job = submit_job(**where)
    lab.quantum()
    job.refresh_from_db()
    assert (job.reason, explain(job).sentence) == (Reason.NEVER_OVER_QUOTA, said)


def test_a_cluster_without_nodes_says_so() -> None:
    lab = world(v100=0)
    found = preflight(actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=spec())
    assert (found.verdict, found.sentences) == ("never", ("lab has no nodes yet.",))


def test_preflight_says_now_if_others_give_gpus_back_at_once() -> None:
    lab = world(v100=4)
    for _ in range(4):
        lab.submit(lab.people.charlie, lab.people.bio)
    lab.quantum()
    lab.carry_out()
    wanted = spec(gpus_per_worker=2)
    found = preflight(actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=wanted)
    assert found.verdict == "now"
    job = submit_job(actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=wanted)
    lab.fill()
    lab.carry_out()
    assert lab.states([job]) == [Job.State.RUNNING]


def test_preflight_says_how_long_not_and_whose_jobs_go_first() -> None:
    lab = world(v100=4, quantum_seconds=30)
    for _ in range(3):
        lab.submit(lab.people.bob, lab.people.astro, gpus=4)
    lab.quantum()
    lab.carry_out()
    found = preflight(
        actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=spec(gpus_per_worker=4)
    )
    assert re.fullmatch(
        r"The job is expected to start (in .+ to|within) .+; 8 of 10 such forecasts should hold\.",
        found.sentences[0],
    )
    assert found.sentences[1] == "3 jobs of the same owner go first; 1 of them runs now."
    assert found.expected_start_seconds is not None
    earliest, latest = found.expected_start_seconds
    assert 0 <= earliest < latest
