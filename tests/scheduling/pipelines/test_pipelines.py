"""Users create, cancel and repeat pipelines; the controller submits steps in their order and skips the others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from accounting.actions import archive_tenant, set_quota
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent, Membership, Quota
from scheduling.backends.base import BackendError, End, Input
from scheduling.core.event_texts import end_text_of, text_of
from scheduling.departures.actions import Fate, settle_work
from scheduling.execution.operations import describe_gang
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.secrets import create_secret
from scheduling.leases import history
from scheduling.models import Cluster, ClusterAccess, Job, Lease, Pipeline, PipelineStep, StepNeed
from scheduling.pipelines import controller
from scheduling.pipelines.actions import cancel_pipeline, definition_of, run_again
from scheduling.pipelines.controller import Verdict, pipelines_to_step, verdict
from scheduling.pipelines.definition import Definition
from scheduling.pipelines.preview import Preview, preview_pipeline
from scheduling.retention import remove_files
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.storage import delete_files
from scheduling.tasks import step_pipelines
from tests.make import membership, user
from tests.scheduling.piped import defined, make, states, step
from tests.scheduling.schedules.test_schedules_at_once import at_once, killed_at
from tests.scheduling.swept import end, run
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    return world(v100=4)


def job_of(pipeline: Pipeline, name: str) -> Job:
    job = pipeline.steps.get(name=name).job
    assert job
    return job


def finish(lab: World, pipeline: Pipeline, **ends: End) -> Pipeline:
    """Takes steps of the controller until the pipeline has ended; `ends` says how steps end, by name with `_` for
    `-`; the others succeed."""
    for _ in range(20):
        if step(pipeline).ended_at:
            return pipeline
        running = [job.pk for job in run(lab)]
        for one in pipeline.steps.filter(job__in=running).select_related("job"):
            if one.job:
                end(lab, one.job, ends.get(one.name.replace("-", "_"), End.SUCCEEDED))
    raise AssertionError(states(pipeline))


# --- what people do --------------------------------------------------------------------------------


def test_steps_become_jobs_one_after_another(lab: World) -> None:
    pipeline = step(make(lab))
    assert (pipeline.owner, pipeline.name, pipeline.state) == (lab.people.bob, "digits", "running")
    assert states(pipeline) == {"prepare": "active", "train": "pending", "report": "pending"}
    first = job_of(pipeline, "prepare")
    assert (first.name, first.pipeline, first.step_index) == ("digits-prepare", pipeline, 0)
    assert text_of(first.events.get(kind="submitted")) == "Submitted as step prepare of the pipeline “digits”"
    run(lab)
    assert states(step(pipeline))["train"] == "pending"
    end(lab, first)
    assert states(step(pipeline)) == {"prepare": "succeeded", "train": "active", "report": "pending"}
    finish(lab, pipeline)
    assert (pipeline.state, pipeline.counts) == ("succeeded", {"succeeded": 3})
    assert not pipelines_to_step().exists()
    assert AuditEvent.objects.get(verb="pipeline.create").after == {"steps": 3}


def test_the_same_request_again_gives_the_same_pipeline(lab: World) -> None:
    assert make(lab, request_key="k") == make(lab, request_key="k")
    assert PipelineStep.objects.count() == 3
    assert make(lab) != make(lab)


def test_a_stored_pipeline_has_the_definition_that_was_written(lab: World) -> None:
    other = lab.submit(lab.people.alice, lab.people.astro)
    needs: dict[str, list[Any]] = {"a": [other.pk], "b": [{"step": "a", "when": "always", "files": False}]}
    assert definition_of(make(lab, needs)).to_yaml() == defined(needs).to_yaml()


@pytest.mark.parametrize(
    ("how", "skipped", "state"),
    [
        (End.SUCCEEDED, {"on-failure"}, "succeeded"),
        (End.FAILED, {"on-success", "after-success"}, "failed"),
        ("cancelled", {"on-success", "after-success", "on-failure"}, "failed"),
    ],
)
def test_the_end_of_a_step_decides_which_steps_follow(
    lab: World, how: End | str, skipped: set[str], state: str
) -> None:
    needs: dict[str, list[Any]] = {
        "first": [],
        "on-success": ["first"],
        "on-failure": [{"step": "first", "when": "failure"}],
        "always": [{"step": "first", "when": "always"}],
        "after-success": ["on-success"],
        "last": [{"step": "after-success", "when": "always"}, {"step": "on-failure", "when": "always"}],
    }
    pipeline = step(make(lab, needs))
    if isinstance(how, End):
        run(lab)
        end(lab, job_of(pipeline, "first"), how)
    else:
        cancel_job(actor=lab.people.bob, job=job_of(pipeline, "first"))
    finish(lab, pipeline)
    assert {name for name, found in states(pipeline).items() if found == "skipped"} == skipped
    assert states(pipeline)["last"] == states(pipeline)["always"] == "succeeded"
    assert pipeline.state == state


def test_a_skipped_step_says_why(lab: World) -> None:
    pipeline = finish(lab, make(lab), prepare=End.FAILED)
    assert list(pipeline.steps.values_list("reason", flat=True)) == [
        "",
        "prepare failed, and this step needs its success",
        "train was skipped, and this step needs its success",
    ]
    assert pipeline.state == "failed"


def test_a_step_waits_for_jobs_of_its_team(lab: World) -> None:
    people = lab.people
    first, second = (lab.submit(people.alice, people.astro) for _ in range(2))
    pipeline = step(make(lab, {"after": [first.pk, {"job": second.pk, "when": "failure"}]}))
    assert states(pipeline) == {"after": "pending"}
    run(lab)
    end(lab, first)
    assert states(step(pipeline)) == {"after": "pending"}
    end(lab, second, End.FAILED)
    step_pipelines()
    assert states(pipeline) == {"after": "active"}
    late = step(make(lab, {"after": [second.pk]}))
    assert (states(late), late.state) == ({"after": "skipped"}, "succeeded")
    assert late.steps.get().reason == f"job {second.pk} failed, and this step needs its success"


def test_jobs_of_other_teams_and_clusters_are_refused_by_number(lab: World) -> None:
    theirs = lab.submit(lab.people.charlie, lab.people.bio)
    for number in (theirs.pk, 2**40):
        with pytest.raises(SpecError) as refused:
            make(lab, {"a": [number]})
        assert refused.value.problems == {
            "steps.a.needs": f"job {number} is no job of Astro in {lab.cluster}"
        }
    far = lab.submit(lab.people.bob, lab.people.astro)
    Job.objects.filter(pk=far.pk).update(cluster=Cluster.objects.create(name="far", quantum_seconds=60))
    with pytest.raises(SpecError, match="is no job of Astro in"):
        make(lab, {"a": [far.pk]})


@pytest.mark.parametrize("who", ["charlie", "olga", "viewer"])
def test_users_make_pipelines_only_for_their_own_teams(lab: World, who: str) -> None:
    actor = user("vera") if who == "viewer" else getattr(lab.people, who)
    if who == "viewer":
        membership(actor, lab.people.astro, role="viewer")
    with pytest.raises(NotAllowed, match="members of Astro"):
        make(lab, actor=actor)


@pytest.mark.parametrize(
    ("fields", "path"),
    [({"generations": ["K80"]}, "generations"), ({"secrets": {"TOKEN": "hers"}}, "secrets.TOKEN")],
)
def test_what_the_cluster_does_not_accept_is_refused_by_step_and_field(
    lab: World, fields: dict[str, Any], path: str
) -> None:
    definition = defined(defaults={"command": "go"} | fields)
    with pytest.raises(SpecError) as refused:
        make(lab, definition=definition)
    assert next(iter(refused.value.problems)).startswith(f"steps.prepare.{path.split('.', maxsplit=1)[0]}")
    assert not Pipeline.objects.exists()


def test_a_step_that_could_never_run_is_refused_if_asked(lab: World) -> None:
    definition = defined(defaults={"command": "go", "gpus_per_worker": 64})
    with pytest.raises(Refused, match=r"prepare: .*64"):
        make(lab, definition=definition, even_if_never=False)
    assert make(lab, definition=definition)


def test_who_sees_and_who_may_change(lab: World) -> None:
    people, pipeline = lab.people, make(lab)
    viewer, member = user("vera"), user("mia")
    membership(viewer, people.astro, role=Membership.Role.VIEWER)
    membership(member, people.astro)
    see = [name for name in (people.alice, people.bob, viewer, member, people.olga, people.charlie)
           if Pipeline.objects.visible_to(name).exists()]  # fmt: skip
    assert see == [people.alice, people.bob, viewer, member, people.olga]
    for other in (viewer, member, people.charlie):
        for act in (cancel_pipeline, run_again):
            with pytest.raises(NotAllowed):
                act(actor=other, pipeline=pipeline)
    assert cancel_pipeline(actor=people.alice, pipeline=pipeline).state == "cancelled"


# --- cancelling and running again ------------------------------------------------------------------


def test_cancelling_ends_the_jobs_and_skips_the_rest(lab: World) -> None:
    pipeline = step(make(lab, {"a": [], "b": [], "c": ["a", {"step": "b", "when": "always"}]}))
    run(lab)
    for _ in range(2):
        cancel_pipeline(actor=lab.people.bob, pipeline=pipeline)
        step(pipeline)
    assert states(pipeline) == {"a": "active", "b": "active", "c": "skipped"}
    lab.carry_out()
    step(pipeline)
    assert (states(pipeline)["a"], pipeline.state, bool(pipeline.ended_at)) == (
        "cancelled",
        "cancelled",
        True,
    )
    assert end_text_of(job_of(pipeline, "a")) == "Cancelled with the pipeline “digits” by bob"
    assert pipeline.steps.get(name="c").reason == "the pipeline was cancelled"
    assert AuditEvent.objects.filter(verb="pipeline.cancel").count() == 1


def test_a_pipeline_that_is_cancelled_before_its_first_step_submits_nothing(lab: World) -> None:
    pipeline = make(lab)
    cancel_pipeline(actor=lab.people.bob, pipeline=pipeline)
    assert step(pipeline).ended_at
    assert not Job.objects.exists()


def test_a_failed_pipeline_runs_again_and_keeps_what_succeeded(lab: World) -> None:
    pipeline = step(make(lab))
    with pytest.raises(Refused, match="has not ended"):
        run_again(actor=lab.people.bob, pipeline=pipeline)
    finish(lab, pipeline, train=End.FAILED)
    kept, failed = job_of(pipeline, "prepare"), job_of(pipeline, "train")
    run_again(actor=lab.people.alice, pipeline=pipeline)
    assert states(step(pipeline)) == {"prepare": "succeeded", "train": "active", "report": "pending"}
    assert job_of(pipeline, "prepare") == kept
    assert (job_of(pipeline, "train") != failed, job_of(pipeline, "train").owner) == (True, lab.people.bob)
    assert pipeline.steps.get(name="train").attempts == 2
    finish(lab, pipeline)
    assert pipeline.state == "succeeded"
    with pytest.raises(Refused, match="No step of this pipeline has failed"):
        run_again(actor=lab.people.bob, pipeline=pipeline)
    with pytest.raises(Refused, match="predict is no step"):
        run_again(actor=lab.people.bob, pipeline=pipeline, step="predict")


def test_running_from_a_step_repeats_all_that_need_it(lab: World) -> None:
    needs: dict[str, list[Any]] = {"a": [], "b": ["a"], "c": ["b"], "d": ["a"]}
    pipeline = finish(lab, make(lab, needs))
    run_again(actor=lab.people.bob, pipeline=pipeline, step="b")
    assert states(pipeline) == {"a": "succeeded", "b": "pending", "c": "pending", "d": "succeeded"}
    assert finish(lab, pipeline).counts == {"succeeded": 4}
    assert dict(pipeline.steps.values_list("name", "attempts")) == {"a": 1, "b": 2, "c": 2, "d": 1}


def test_a_cancelled_pipeline_runs_again(lab: World) -> None:
    pipeline = step(make(lab))
    cancel_pipeline(actor=lab.people.bob, pipeline=pipeline)
    step(pipeline)
    assert step(pipeline).ended_at
    run_again(actor=lab.people.bob, pipeline=pipeline)
    assert finish(lab, pipeline).counts == {"succeeded": 3}
    assert pipeline.cancelled_by is None


# --- files -----------------------------------------------------------------------------------------


def inputs_of_next(lab: World, pipeline: Pipeline, name: str) -> list[Input]:
    run(lab)
    lease = Lease.objects.select_related("job__cluster", "generation").get(job=job_of(pipeline, name))
    return list(describe_gang(lease, JobSpec.stored(lease.job.spec), 1000).inputs)


def test_a_step_gets_the_files_of_what_it_needs_and_of_nothing_else(lab: World) -> None:
    other = lab.submit(lab.people.alice, lab.people.astro)
    needs: dict[str, list[Any]] = {
        "a-1": [], "b": [], "c": [],
        "d": ["a-1", {"step": "b", "files": False}, {"step": "never", "when": "always"}, other.pk],
        "never": [{"step": "c", "when": "failure"}],
    }  # fmt: skip
    pipeline = step(make(lab, needs))
    run(lab)
    for job in (other, *(job_of(pipeline, name) for name in ("a-1", "b", "c"))):
        end(lab, job)
    step(pipeline)
    first = job_of(pipeline, "a-1")
    found = inputs_of_next(lab, pipeline, "d")
    assert found == [Input("a-1", first.pk), Input(f"job-{other.pk}", other.pk)]
    assert [one.variable for one in found] == ["FAIRLOT_INPUT_A_1", f"FAIRLOT_INPUT_JOB_{other.pk}"]
    Job.objects.filter(pk=first.pk).update(files_removed_at=first.created_at)
    with pytest.raises(BackendError, match=r"files of a-1 .* have been deleted"):
        inputs_of_next(lab, pipeline, "d")


def test_files_stay_as_long_as_a_pipeline_may_need_them(lab: World, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[int] = []
    monkeypatch.setattr("scheduling.retention.remove_files_of", lambda job: not removed.append(job.pk))
    other, lone = (lab.submit(lab.people.bob, lab.people.astro) for _ in range(2))
    pipeline = step(make(lab, {"a": [], "b": ["a", other.pk], "c": ["b"]}))
    run(lab)
    for job in (other, lone, job_of(pipeline, "a")):
        end(lab, job)
    step(pipeline)
    assert remove_files(after=timedelta(0)) == 1
    assert removed == [lone.pk]
    for job in (other, job_of(pipeline, "a")):
        with pytest.raises(Refused, match="pipeline or session that has not ended"):
            delete_files(actor=lab.people.bob, job=job)
    finish(lab, pipeline)
    assert remove_files(after=timedelta(0)) == 5
    delete_files(actor=lab.people.bob, job=job_of(pipeline, "a"))
    with pytest.raises(Refused, match=r"files of a have been deleted\. Begin with a"):
        run_again(actor=lab.people.bob, pipeline=pipeline, step="b")
    run_again(actor=lab.people.bob, pipeline=pipeline, step="c")
    with pytest.raises(SpecError, match="files: false"):
        make(lab, {"x": [job_of(pipeline, "a").pk]})
    assert make(lab, {"x": [{"job": job_of(pipeline, "a").pk, "files": False}]})


def previewed(lab: World, definition: Definition) -> Preview:
    return preview_pipeline(
        actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, definition=definition
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"generations": ["A9000"]},
        {"secrets": {"TOKEN": "nobody/has-it"}},
        {"volumes": [{"name": "nowhere"}]},
        {"code": {"upload": f"sha256:{'0' * 64}"}},
    ],
)
def test_a_preview_names_what_creating_would_refuse(lab: World, fields: dict[str, Any]) -> None:
    definition = defined({"a": [], "b": ["a"]}, defaults={"command": "go", **fields})
    with pytest.raises(SpecError) as refused:
        make(lab, definition=definition)
    problems = previewed(lab, definition).problems
    assert {path: problems[path] for path in refused.value.problems} == refused.value.problems
    assert {path.split(".")[1] for path in problems} == {"a", "b"}, "each step that is wrong is named"


def test_a_preview_names_jobs_that_are_missing_and_steps_that_could_never_run(lab: World) -> None:
    theirs = lab.submit(lab.people.charlie, lab.people.bio)
    definition = defined({"a": [theirs.pk]})
    with pytest.raises(SpecError) as refused:
        make(lab, definition=definition)
    assert previewed(lab, definition).problems == refused.value.problems
    large = defined({"a": [], "b": ["a"]}, defaults={"command": "go", "gpus_per_worker": 64})
    found = previewed(lab, large)
    assert (found.problems, [*found.never]) == ({}, ["a", "b"])
    assert "GPU" in found.never["a"]


def test_a_cluster_that_cannot_pass_files_on_says_so(lab: World) -> None:
    Cluster.objects.update(backend="kubernetes")
    lab.cluster.refresh_from_db()
    definition = defined(defaults={"command": "go", "environment": "registry.local/image:1"})
    with pytest.raises(SpecError) as refused:
        make(lab, definition=definition)
    assert "no claim for checkpoints" in refused.value.problems["steps.train.needs"]
    assert "no claim for checkpoints" in previewed(lab, definition).problems["steps.train.needs"]
    without = defined(
        {"a": [], "b": [{"step": "a", "files": False}]},
        defaults={"command": "go", "environment": "registry.local/image:1"},
    )
    assert previewed(lab, without).problems == {}
    assert make(lab, definition=without)
    ClusterAccess.objects.create(
        cluster=lab.cluster, sealed_kubeconfig=b"", server="https://k", checkpoint_claim="kept"
    )
    assert make(lab, definition=definition)


# --- refusals and departures -----------------------------------------------------------------------


def test_a_limit_on_waiting_jobs_lets_in_as_many_as_fit(lab: World) -> None:
    set_quota(actor=lab.people.ada, tenant=lab.people.astro, kind=Quota.Kind.QUEUED_JOBS, limit=1)
    pipeline = step(make(lab, {"a": [], "b": []}))
    assert states(pipeline) == {"a": "active", "b": "pending"}
    assert pipeline.trouble.startswith("b: ")
    run(lab)
    step(pipeline)
    assert (states(pipeline)["b"], pipeline.trouble) == ("active", "")


@pytest.mark.parametrize("what", ["archived", "left", "detached"])
def test_what_refuses_every_job_is_told_and_tried_again(lab: World, what: str) -> None:
    people, pipeline = lab.people, make(lab)
    role = Membership.objects.get(user=people.bob)
    if what == "archived":
        archive_tenant(actor=people.ada, tenant=people.astro)
    elif what == "left":
        Membership.objects.filter(pk=role.pk).update(role=Membership.Role.VIEWER)
    else:
        Cluster.objects.update(detached_at=pipeline.created_at)
    step_pipelines()
    pipeline.refresh_from_db()
    assert states(pipeline)["prepare"] == "pending"
    assert {"archived": "Astro is archived", "left": "bob", "detached": "is detached"}[
        what
    ] in pipeline.trouble
    if what == "archived":
        type(people.astro).objects.update(archived_at=None)
    Membership.objects.filter(pk=role.pk).update(role=Membership.Role.MEMBER)
    Cluster.objects.update(detached_at=None)
    step(pipeline)
    assert (states(pipeline)["prepare"], pipeline.trouble) == ("active", "")


def test_the_work_of_a_user_who_leaves_is_cancelled_or_handed_over(lab: World) -> None:
    people = lab.people
    create_secret(actor=people.bob, name="token", values={"value": "his"})
    secret = {"command": "go", "secrets": {"TOKEN": "token"}}
    bound = step(make(lab, definition=defined(steps={"a": {}, "b": secret}, name="bound")))
    pipeline = step(make(lab))
    done = settle_work(
        actor=people.alice, user=people.bob, tenant=people.astro, fate=Fate.HAND_OVER, to=people.alice
    )
    assert done is not None
    assert done.pipelines == 1
    assert "bound" in done.kept
    pipeline.refresh_from_db()
    bound.refresh_from_db()
    assert (pipeline.owner, bound.owner) == (people.alice, people.bob)
    settle_work(actor=people.ada, user=people.alice, tenant=people.astro, fate=Fate.CANCEL)
    assert (step(pipeline).state, bool(pipeline.ended_at)) == ("cancelled", True)
    assert bound.ended_at is None


def test_what_happens_to_a_job_wakes_the_controller(lab: World, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []
    monkeypatch.setattr(history, "wake_pipeline", woken.append)
    pipeline = step(make(lab))
    run(lab)
    woken.clear()
    end(lab, job_of(pipeline, "prepare"))
    assert woken == [pipeline.pk]


# --- faults ----------------------------------------------------------------------------------------

STEPS = ["a", "b", "c", "d", "e"]
ACTS = ["step", "step", "run", "succeed", "fail", "cancel a job", "killed", "cancel", "again", "from"]


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[Any]]:
    """Draws a graph in which each step needs some earlier ones."""
    when = st.sampled_from(["success", "success", "failure", "always"])
    return {
        name: [
            {"step": other, "when": draw(when)}
            for other in draw(st.lists(st.sampled_from(STEPS[:place]), unique=True, max_size=3))
        ]
        if place
        else []
        for place, name in enumerate(STEPS)
    }


@given(graphs(), st.lists(st.tuples(st.sampled_from(ACTS), st.integers(1, 40)), max_size=25))
@settings(max_examples=25, derandomize=True, phases=[Phase.explicit, Phase.generate], deadline=None)
def test_whatever_happens_steps_keep_their_order_and_end(
    needs: dict[str, list[Any]], acts: list[tuple[str, int]]
) -> None:
    before = transaction.savepoint()
    try:
        _interleave(needs, acts)
    finally:
        transaction.savepoint_rollback(before)


def _interleave(needs: dict[str, list[Any]], acts: list[tuple[str, int]]) -> None:
    lab = world(v100=3)
    pipeline = make(lab, needs)
    for act, number in acts:
        _act(lab, pipeline, act, number)
        _holds(pipeline)
    finish(lab, pipeline)
    _holds(pipeline)
    assert not Job.objects.filter(pipeline=pipeline).unfinished().exists()
    assert not set(states(pipeline).values()) & {"pending", "active"}
    bad = set(states(pipeline).values()) & {"failed", "cancelled"}
    assert pipeline.state in ({"failed", "cancelled"} if bad else {"succeeded", "cancelled"})
    for one in pipeline.steps.all():
        assert Job.objects.filter(pipeline=pipeline, step_index=one.index).count() == one.attempts


def _act(lab: World, pipeline: Pipeline, act: str, number: int) -> None:
    active = list(Job.objects.filter(pipeline=pipeline).unfinished().order_by("pk"))
    if act == "step":
        step(pipeline)
    elif act == "run":
        run(lab)
    elif act in {"succeed", "fail"}:
        if running := [job for job in run(lab) if job.pipeline_id == pipeline.pk]:
            end(lab, running[number % len(running)], End.FAILED if act == "fail" else End.SUCCEEDED)
    elif act == "cancel a job" and active:
        cancel_job(actor=lab.people.bob, job=active[number % len(active)])
    elif act == "cancel" and number > 30:
        cancel_pipeline(actor=lab.people.bob, pipeline=pipeline)
    elif act == "killed":
        _step_and_die(pipeline, number)
    elif act in {"again", "from"}:
        pipeline.refresh_from_db()
        if pipeline.ended_at and (act == "from" or pipeline.state == "failed"):
            name = STEPS[number % len(STEPS)] if act == "from" else ""
            run_again(actor=lab.people.bob, pipeline=pipeline, step=name)


def _holds(pipeline: Pipeline) -> None:
    """Asserts what is true at any time: each job's needs were met when it was submitted, and still are."""
    pipeline.refresh_from_db()
    steps = {one.pk: one for one in pipeline.steps.select_related("job")}
    needs = list(StepNeed.objects.filter(step__pipeline=pipeline))
    for one in steps.values():
        its = [(need, steps[need.on_id]) for need in needs if need.step_id == one.pk and need.on_id]
        if one.job is not None:
            assert all(verdict(need.when, other.state) is Verdict.MET for need, other in its)
            assert all(need.job_id == other.job_id for need, other in its)
        elif one.state == "skipped" and pipeline.state != "cancelled":
            assert any(verdict(need.when, other.state) is Verdict.LOST for need, other in its)
    living = list(Job.objects.filter(pipeline=pipeline).unfinished())
    assert {job.pk for job in living} <= {one.job_id for one in steps.values() if one.state == "active"}
    assert sum(pipeline.counts.values()) == len(STEPS)


class Died(Exception):
    pass


def _step_and_die(pipeline: Pipeline, statement: int) -> None:
    """Takes a step that dies at its SQL statement number `statement`, if it has so many."""
    seen = 0

    def count(execute: Callable[..., Any], *args: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == statement:
            raise Died
        return execute(*args)

    try:
        with connection.execute_wrapper(count):
            controller.step_pipeline(pipeline_id=pipeline.pk)
    except Died:
        pass


@pytest.mark.django_db(transaction=True)
def test_several_workers_submit_each_step_once() -> None:
    lab = world(v100=4)
    pipeline = make(lab, {name: [] for name in STEPS})
    act = lambda: controller.step_pipeline(pipeline_id=pipeline.pk)  # noqa: E731
    assert at_once(*[act] * 4) == [None] * 4
    assert Job.objects.filter(pipeline=pipeline).count() == len(STEPS)


@pytest.mark.django_db(transaction=True)
def test_killed_at_any_statement_nothing_is_submitted_twice_and_nothing_is_lost() -> None:
    lab = world(v100=4)
    statement = 1
    while True:
        pipeline = make(lab, {"a": [], "b": []})
        died = killed_at(statement, lambda: controller.step_pipeline(pipeline_id=pipeline.pk))  # noqa: B023 - called at once
        step(pipeline)
        assert states(pipeline) == {"a": "active", "b": "active"}
        assert Job.objects.filter(pipeline=pipeline).count() == 2
        if not died:
            break
        cancel_pipeline(actor=lab.people.bob, pipeline=pipeline)
        statement += 5
    assert statement > 10
