"""Users create and change schedules, and each due time of a schedule has a recorded outcome."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from accounting.actions import archive_tenant, deactivate_user, remove_member, set_quota
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent, Membership, Quota
from scheduling.core.event_texts import end_text_of, text_of
from scheduling.core.run_texts import run_text_of
from scheduling.jobs.secrets import create_secret
from scheduling.models import Job, Schedule, ScheduleRun
from scheduling.schedules import due_runs
from scheduling.schedules.actions import change_schedule, delete_schedule, pause_schedule, resume_schedule
from scheduling.schedules.schedule_runs import run_schedule_now
from scheduling.spec.job_spec import JobSpec, SpecError
from tests.make import membership, user
from tests.scheduling.scheduled import DAILY, DAY, HOUR, MINUTE, NOON, Clock, make, spec, terms, tick, told
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    return world(v100=4)


# --- what people do --------------------------------------------------------------------------------


def test_a_member_makes_one_and_its_first_run_is_the_next_that_is_due(lab: World, clock: Clock) -> None:
    schedule = make(lab)
    assert (schedule.owner, schedule.name, schedule.next_due_at) == (lab.people.bob, "nightly", NOON)
    event = AuditEvent.objects.get(verb="schedule.create")
    assert (event.actor, event.tenant) == (lab.people.bob, lab.people.astro)


@pytest.mark.parametrize("who", ["charlie", "olga", "viewer"])
def test_users_schedule_only_for_their_own_teams(lab: World, who: str) -> None:
    actor = user("vera") if who == "viewer" else getattr(lab.people, who)
    if who == "viewer":
        membership(actor, lab.people.astro, role="viewer")
    with pytest.raises(NotAllowed, match="members of Astro"):
        make(lab, actor=actor)


def test_the_same_request_again_gives_the_same_schedule(lab: World) -> None:
    assert make(lab, request_key="k") == make(lab, request_key="k")
    assert make(lab) != make(lab)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"expression": "* * *"}, "expression"),
        ({"time_zone": "Mars/Olympus"}, "time_zone"),
        ({"begins": NOON, "ends": NOON - DAY}, "ends"),
        ({"ends": NOON - 2 * DAY}, "ends"),
        ({"expression": "R1/2026-05-01T12:00/P1D"}, "expression"),
        # PostgreSQL can store this time in UTC, but Python cannot read it, so no page could list the schedule.
        ({"ends": datetime(9999, 12, 31, 23, 59, tzinfo=timezone(-14 * HOUR))}, "ends"),
        ({"begins": datetime(1, 1, 1, tzinfo=timezone(14 * HOUR))}, "begins"),
        ({"missed": "never"}, "missed"),
        ({"overlap": "fight"}, "overlap"),
        ({"catch_up_seconds": -1}, "catch_up_seconds"),
        ({"catch_up_seconds": 31 * 86_400}, "catch_up_seconds"),
    ],
)
def test_terms_that_make_no_sense_are_refused_by_their_field(
    lab: World, clock: Clock, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(Refused) as refused:
        make(lab, terms(**changes))
    assert refused.value.field == field
    assert not Schedule.objects.exists()


def test_a_spec_that_the_cluster_does_not_understand_is_refused(lab: World) -> None:
    with pytest.raises(SpecError, match="lab has no GPUs of type K80"):
        make(lab, spec=spec(generations=["K80"]))


@pytest.mark.parametrize("brought", [{"secrets": {"TOKEN": "hf-token"}}, {"volumes": [{"name": "imagenet"}]}])
def test_a_schedules_references_must_exist_when_it_is_created(lab: World, brought: dict[str, Any]) -> None:
    alice = lab.people.alice
    create_secret(actor=alice, name="hf-token", values={"value": "hers alone"})
    with pytest.raises(SpecError, match=r"a secret named hf-token|not granted"):
        make(lab, spec=spec(**brought))
    if "secrets" in brought:
        assert make(lab, actor=alice, spec=spec(**brought)).owner == alice


def test_who_sees_and_who_may_change(lab: World) -> None:
    people, schedule = lab.people, make(lab)
    viewer, member = user("vera"), user("mia")
    membership(viewer, people.astro, role=Membership.Role.VIEWER)
    membership(member, people.astro)
    see = [name for name in (people.alice, people.bob, viewer, member, people.olga, people.charlie)
           if Schedule.objects.visible_to(name).exists()]  # fmt: skip
    assert see == [people.alice, people.bob, viewer, member, people.olga]
    for other in (viewer, member, people.charlie):
        for act in (pause_schedule, resume_schedule, delete_schedule,
                    run_schedule_now):  # fmt: skip
            with pytest.raises(NotAllowed):
                act(actor=other, schedule=schedule)
        with pytest.raises(NotAllowed):
            change(schedule, other)
    for other in (people.alice, people.olga):
        assert pause_schedule(actor=other, schedule=schedule).paused_at
        assert not resume_schedule(actor=other, schedule=schedule).paused_at


def change(schedule: Schedule, actor: Any, **changes: Any) -> Schedule:
    asked = {"cluster": schedule.cluster, "spec": JobSpec.parse(schedule.spec), "terms": DAILY}
    return change_schedule(actor=actor, schedule=schedule, **asked | changes)


def test_only_a_change_of_the_timetable_restarts_a_schedule(lab: World, clock: Clock) -> None:
    schedule = make(lab)
    clock(NOON + 2 * DAY + HOUR)  # two runs have been missed by then
    assert change(schedule, lab.people.bob, spec=spec(name="other")).next_due_at == NOON
    changed = change(schedule, lab.people.bob, terms=terms(expression="30 12 * * *"))
    assert changed.next_due_at == NOON + 3 * DAY + 30 * MINUTE
    event = AuditEvent.objects.filter(verb="schedule.change").latest("id")
    assert event.after["expression"] == "30 12 * * *"
    assert "time_zone" not in event.after


@pytest.mark.parametrize(
    ("stored", "sent"),
    [
        ("0  12 *\t* *", "0  12 *\t* *"),
        ("0 12 * * mon-fri", "0 12 * * MON-FRI"),
        ("*/90 12 * * *", "*/90 12 * * *"),  # refused in new schedules
    ],
)
def test_a_timetable_that_was_accepted_once_stays(lab: World, clock: Clock, stored: str, sent: str) -> None:
    schedule = make(lab)
    Schedule.objects.update(expression=stored)
    clock(NOON + 2 * DAY + HOUR)
    schedule.refresh_from_db()
    assert schedule.timetable.rule.in_words()
    assert isinstance(schedule.timetable.rule.notes(), list)
    changed = change(schedule, lab.people.bob, spec=spec(name="other"), terms=terms(expression=sent))
    assert (changed.name, changed.next_due_at) == ("other", NOON)
    with pytest.raises(Refused, match=r"\*/90"):
        change(schedule, lab.people.bob, terms=terms(expression="*/90 13 * * *"))


def test_a_changed_schedule_runs_with_the_rights_of_its_editor(lab: World, clock: Clock) -> None:
    people, schedule = lab.people, make(lab, request_key="k")
    assert change(schedule, people.alice, spec=spec(command="cat secrets")).owner == people.alice
    with pytest.raises(NotAllowed, match="members of Astro"):
        change(schedule, people.olga)  # Olga is an operator and a member of no team
    clock(NOON)
    tick()
    assert Job.objects.get().owner == people.alice


def test_a_deleted_one_runs_no_more_and_keeps_its_history(lab: World, clock: Clock) -> None:
    schedule = make(lab)
    clock(NOON)
    tick()
    for _ in range(2):
        delete_schedule(actor=lab.people.bob, schedule=schedule)
    clock(NOON + DAY)
    tick()
    assert len(told(schedule)) == 1
    assert Schedule.objects.visible_to(lab.people.bob).exists()
    with pytest.raises(Refused, match="nightly has been deleted"):
        change(schedule, lab.people.bob)
    with pytest.raises(NotAllowed):
        change(schedule, lab.people.charlie)


# --- due -------------------------------------------------------------------------------------------


def test_a_due_run_is_submitted_once_as_the_owner(lab: World, clock: Clock) -> None:
    schedule = make(lab)
    tick()
    assert told(schedule) == []  # no run is due yet
    clock(NOON + MINUTE)
    tick()
    tick()
    assert told(schedule) == [("04.05. 12:00", "04.05. 12:00", "submitted")]
    job = Job.objects.get()
    assert (job.owner, job.tenant, job.name) == (lab.people.bob, lab.people.astro, "nightly")
    assert job.scheduled_as == schedule.runs.get()
    assert text_of(job.events.get()) == "Submitted by the schedule “nightly”"
    schedule.refresh_from_db()
    assert schedule.next_due_at == NOON + DAY


def test_the_database_takes_one_run_of_a_due_time_only(lab: World) -> None:
    schedule = make(lab)
    row = {"schedule": schedule, "due_at": NOON, "due_from": NOON, "outcome": "skipped"}
    ScheduleRun.objects.create(**row)
    with pytest.raises(IntegrityError, match="one_run_a_due_time"), transaction.atomic():
        ScheduleRun.objects.create(**row)
    with pytest.raises(IntegrityError, match="a_submitted_run_has_its_job"), transaction.atomic():
        ScheduleRun.objects.create(**row | {"outcome": "submitted", "due_at": NOON + DAY})


@pytest.mark.parametrize(
    ("overlap", "outcomes", "unfinished"),
    [
        ("allow", ["submitted", "submitted"], 2),
        ("forbid", ["submitted", "skipped"], 1),
        ("replace", ["submitted", "submitted"], 1),
    ],
)
def test_an_overlapping_run_follows_the_overlap_policy(
    lab: World, clock: Clock, overlap: str, outcomes: list[str], unfinished: int
) -> None:
    schedule = make(lab, terms(overlap=overlap))
    for day in range(2):
        clock(NOON + day * DAY)
        tick()
    assert [outcome for *_, outcome in told(schedule)] == outcomes
    assert Job.objects.unfinished().count() == unfinished
    first = Job.objects.earliest("id")
    if overlap == "forbid":
        assert (
            run_text_of(schedule.runs.latest("id"))
            == f"No new run was started, because job #{first.pk} of an earlier run had not ended."
        )
    if overlap == "replace":
        assert first.state == Job.State.CANCELLED
        assert "the next run of the schedule" in end_text_of(first)


def test_a_replacement_that_is_refused_leaves_the_earlier_job_alone(lab: World, clock: Clock) -> None:
    schedule = make(lab, terms(overlap="replace"))
    clock(NOON)
    tick()
    lab.cluster.nodes.update(gpus=0)
    Schedule.objects.update(spec=spec(gpus_per_worker=2).to_dict())
    clock(NOON + DAY)
    tick()
    assert [outcome for *_, outcome in told(schedule)] == ["submitted", "refused"]
    assert Job.objects.get().state == Job.State.QUEUED


# --- refused ---------------------------------------------------------------------------------------


def refused(lab: World, clock: Clock, spoil: Callable[[Schedule], object], **changes: Any) -> str:
    schedule = make(lab, **changes)
    spoil(schedule)
    clock(NOON)
    tick()
    run = schedule.runs.get()
    assert (run.outcome, run.job) == ("refused", None)
    assert not Job.objects.exists()
    return run_text_of(run)


def test_a_former_member_is_refused(lab: World, clock: Clock) -> None:
    people = lab.people
    bobs = Membership.objects.get(user=people.bob)
    text = refused(lab, clock, lambda _: remove_member(actor=people.ada, membership=bobs))
    assert text == "bob may no longer run jobs in Astro."


def test_a_deactivated_owner_is_refused(lab: World, clock: Clock) -> None:
    text = refused(lab, clock, lambda _: deactivate_user(actor=lab.people.ada, user=lab.people.bob))
    assert text == "The account of bob is deactivated."


def test_an_archived_team_is_refused(lab: World, clock: Clock) -> None:
    people = lab.people
    text = refused(lab, clock, lambda _: archive_tenant(actor=people.ada, tenant=people.astro))
    assert text.startswith("Astro is archived")


def test_a_job_that_the_hardware_can_never_run_is_refused(lab: World, clock: Clock) -> None:
    text = refused(lab, clock, lambda _: None, spec=spec(gpus_per_worker=8))
    assert "8" in text


def test_a_job_that_a_limit_can_never_allow_is_refused(lab: World, clock: Clock) -> None:
    people = lab.people
    text = refused(
        lab,
        clock,
        lambda _: set_quota(actor=people.ada, tenant=people.astro, kind=Quota.Kind.GPUS, limit=1),
        spec=spec(gpus_per_worker=2),
    )
    assert "Astro may hold at most 1 GPUs at once; this job needs 2 GPUs" in text


@pytest.mark.parametrize("kind", [Quota.Kind.GPUS, Quota.Kind.QUEUED_JOBS])
def test_a_limit_above_that_the_owner_sees_is_not_named_to_the_team_that_reads_of_the_run(
    lab: World, clock: Clock, kind: str
) -> None:
    people = lab.people
    membership(people.bob, people.uni, role="viewer")
    text = refused(
        lab,
        clock,
        lambda _: set_quota(actor=people.ada, tenant=people.uni, kind=kind, limit=0),
        spec=spec(gpus_per_worker=2),
    )
    assert "a limit of a team above Astro" in text
    assert "Uni" not in text


def test_after_some_refusals_in_a_row_it_pauses_itself_and_says_so(lab: World, clock: Clock) -> None:
    schedule = make(lab, spec=spec(gpus_per_worker=8))
    for day in range(due_runs.MOST_REFUSALS + 2):
        clock(NOON + day * DAY)
        tick()
    assert schedule.runs.count() == due_runs.MOST_REFUSALS
    schedule.refresh_from_db()
    assert schedule.paused_reason.startswith("Paused automatically after 5 consecutive refused runs: ")
    event = AuditEvent.objects.get(verb="schedule.pause")
    assert (event.actor, event.actor_name) == (None, "Fairlot")
    assert resume_schedule(actor=lab.people.bob, schedule=schedule).refusals == 0


def test_a_run_that_is_taken_ends_the_row_of_refusals(lab: World, clock: Clock) -> None:
    schedule = make(lab)
    Schedule.objects.update(refusals=due_runs.MOST_REFUSALS - 1)
    clock(NOON)
    tick()
    schedule.refresh_from_db()
    assert (schedule.refusals, schedule.paused_at) == (0, None)


# --- now -------------------------------------------------------------------------------------------


def test_a_run_besides_the_timetable_is_the_owners_and_changes_nothing_else(lab: World, clock: Clock) -> None:
    schedule = make(lab)
    run = run_schedule_now(actor=lab.people.alice, schedule=schedule, request_key="k")
    assert (run.job.owner, run.asked_by, run_text_of(run)) == (
        lab.people.bob,
        lab.people.alice,
        "Run at the request of alice.",
    )
    assert run_schedule_now(actor=lab.people.alice, schedule=schedule, request_key="k") == run
    with pytest.raises(Refused, match="had not ended"):
        run_schedule_now(actor=lab.people.alice, schedule=schedule)
    schedule.refresh_from_db()
    assert schedule.next_due_at == NOON
