"""Teams request tickets or limits, get them as soon as an operator approves, and lose them when the grant ends."""

from __future__ import annotations

import smtplib
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from django.core import mail as outgoing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting import tasks as accounting_tasks
from accounting.actions import (
    archive_tenant,
    create_tenant,
    delete_generation,
    delete_tenant,
    move_tenant,
    remove_member,
    remove_quota,
    restore_tenant,
    set_quota,
    set_tickets,
)
from accounting.actions.requests import ask, decline_request, withdraw_request
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.core.wording import exact
from accounting.limits.temporary_tickets import ticket_ends
from accounting.models import AuditEvent, Mail, Membership, Quota, Request, Tenant, User
from accounting.notifications import mail
from accounting.notifications.outbox import MOST_ATTEMPTS
from fairshare.model import Reason
from scheduling import tasks
from scheduling.grants import approve_request, end_grant
from scheduling.jobs.explain import explain
from scheduling.models import Cluster, JobEvent, Lease
from scheduling.models.event_codes import EventCode
from tests import make
from tests.accounting.ledger.test_at_once import at_once
from tests.make import Cast
from tests.notified import mails
from tests.scheduling.world import world


@pytest.fixture
def cast(db: None) -> Cast:
    return make.cast()


SOON = timedelta(hours=1)
LIMIT = {"kind": "gpus", "limit": "2"}


def asked(cast: Cast, kind: str = "tickets", **changes: object) -> Request:
    usual: dict[str, object] = {
        "tickets": {"tickets": 300},
        "limit": LIMIT,
        "team": {"name": "Stars", "tickets": 50},
    }
    arguments = {
        "actor": cast.alice, "tenant": cast.astro, "kind": kind, "reason": "a deadline",
        "wanted": usual.get(kind, {}),
    } | changes  # fmt: skip
    return ask(**arguments)


def granted(
    cast: Cast, kind: str = "tickets", *, ends: timedelta | None = SOON, **changes: object
) -> Request:
    until = None if ends is None else now_from_database() + ends
    return approve_request(actor=cast.olga, request=asked(cast, kind, **changes), until=until)


def run_out(*requests: Request) -> None:
    """Sets the end of these requests' grants to now, and ends the grants."""
    Request.objects.filter(pk__in=[one.pk for one in requests]).update(ends_at=now_from_database())
    tasks.end_grants()


def tickets(cast: Cast) -> int:
    return Tenant.objects.get(pk=cast.astro.pk).tickets


def test_a_manager_asks_an_operator_approves_and_it_ends_when_it_said(cast: Cast) -> None:
    request = asked(cast)
    assert (request.state, tickets(cast)) == ("open", 100)
    until = now_from_database() + SOON
    request = approve_request(actor=cast.olga, request=request, answer="fine", until=until)
    assert (request.state, request.is_in_force, tickets(cast)) == ("approved", True, 300)
    tasks.end_grants()
    assert tickets(cast) == 300
    run_out(request)
    request.refresh_from_db()
    assert (tickets(cast), request.ending, request.is_in_force) == (
        100,
        "the former value 100 was restored",
        False,
    )
    verbs = list(AuditEvent.objects.order_by("pk").values_list("verb", "actor__username"))
    assert verbs == [
        ("request.ask", "alice"),
        ("tenant.set_tickets", "olga"),
        ("request.approve", "olga"),
        ("tenant.set_tickets", None),
        ("request.end", None),
    ]
    run_out(request)
    assert AuditEvent.objects.count() == 5


def test_rounds_consider_grants_at_once(db: None) -> None:
    lab = world(v100=4)
    set_quota(actor=None, tenant=lab.people.astro, kind=Quota.Kind.GPUS, limit=1)
    for _ in range(3):
        lab.submit(lab.people.bob, lab.people.astro)
    lab.quantum()
    Cluster.objects.update(round_wanted_at=None)
    request = granted(lab.people, "limit")
    assert Cluster.objects.get().round_wanted_at is not None
    tasks.run_due_rounds()
    assert len(lab.holding(Lease.State.STARTING)) == 2
    Cluster.objects.update(round_wanted_at=None)
    run_out(request)
    assert Cluster.objects.get().round_wanted_at is not None
    assert Quota.objects.get().limit == 1


def test_a_limit_that_was_not_there_goes_again(cast: Cast) -> None:
    wanted = {"kind": "gpu_hours", "limit": "10", "user_id": cast.bob.pk, "period": "rolling", "days": 7}
    request = granted(cast, "limit", wanted=wanted)
    quota = Quota.objects.get()
    assert (quota.user, quota.days, quota.limit) == (cast.bob, 7, 10)
    run_out(request)
    assert not Quota.objects.exists()


def test_an_operator_may_grant_something_else_or_say_no_with_a_reason(cast: Cast) -> None:
    request = approve_request(actor=cast.olga, request=asked(cast), granted={"tickets": 150})
    assert (tickets(cast), request.wanted, request.granted) == (150, {"tickets": 300}, {"tickets": 150})
    other = asked(cast)
    with pytest.raises(Refused) as refusal:
        decline_request(actor=cast.olga, request=other, answer=" ")
    assert refusal.value.field == "answer"
    assert decline_request(actor=cast.olga, request=other, answer="too much").state == "declined"
    with pytest.raises(Refused, match="already declined"):
        approve_request(actor=cast.olga, request=other)


def test_a_granted_team_is_managed_by_its_requester_and_archived_at_its_end(cast: Cast) -> None:
    request = granted(cast, "team")
    stars = Tenant.objects.get(name="Stars")
    assert (stars.parent, stars.tickets) == (cast.astro, 50)
    assert stars.memberships.get().user == cast.alice
    run_out(request)
    stars.refresh_from_db()
    assert stars.archived_at is not None


def test_more_time_is_asked_for_and_given(cast: Cast) -> None:
    base = granted(cast)
    later = now_from_database() + timedelta(days=2)
    more = asked(cast, "extension", extends=base, until=later)
    approve_request(actor=cast.olga, request=more, until=later)
    base.refresh_from_db()
    assert base.ends_at == later
    run_out(base)
    assert tickets(cast) == 100
    with pytest.raises(Refused, match="only before it ends"):
        asked(cast, "extension", extends=base, until=later)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"kind": "beer"}, "kind"),
        ({"reason": " "}, "reason"),
        ({"wanted": {"tickets": 0}}, "tickets"),
        ({"wanted": {"tickets": True}}, "tickets"),
        ({"kind": "limit", "wanted": {"kind": "gpus", "limit": "x"}}, "limit"),
        ({"kind": "team", "wanted": {"name": "", "tickets": 5}}, "name"),
    ],
)
def test_a_request_that_cannot_be_granted_is_refused_with_its_field(
    cast: Cast, wrong: dict, field: str
) -> None:
    with pytest.raises(Refused) as refusal:
        asked(cast, **wrong)
    assert refusal.value.field == field
    with pytest.raises(Refused) as refusal:
        asked(cast, until=now_from_database() - SOON)
    assert refusal.value.field == "until"


def test_only_managers_ask_and_only_operators_answer(cast: Cast) -> None:
    for stranger in (cast.bob, cast.charlie, cast.olga):
        with pytest.raises(NotAllowed):
            asked(cast, actor=stranger)
    request = asked(cast)
    for other in (cast.alice, cast.bob, cast.charlie):
        with pytest.raises(NotAllowed):
            approve_request(actor=other, request=request)
        with pytest.raises(NotAllowed):
            decline_request(actor=other, request=request, answer="no")
    assert withdraw_request(actor=cast.alice, request=request).state == "withdrawn"
    seen = {
        name: Request.objects.visible_to(getattr(cast, name)).count()
        for name in ("alice", "bob", "charlie", "olga")
    }
    assert seen == {"alice": 1, "bob": 0, "charlie": 0, "olga": 1}


def test_a_value_changed_since_stays(cast: Cast) -> None:
    request = granted(cast)
    set_tickets(actor=cast.ada, tenant=cast.astro, tickets=70)
    run_out(request)
    request.refresh_from_db()
    assert (tickets(cast), request.ending) == (
        70,
        "the granted value was not reset, because somebody has changed it since the grant",
    )
    limited = granted(cast, "limit")
    Quota.objects.all().delete()
    run_out(limited)
    assert not Quota.objects.exists()


def test_a_team_that_was_archived_by_hand_is_left(cast: Cast) -> None:
    request = granted(cast, "team")
    archive_tenant(actor=cast.ada, tenant=Tenant.objects.get(name="Stars"))
    run_out(request)
    request.refresh_from_db()
    assert request.ending == "team Stars had already been archived"


def test_a_team_with_one_below_it_is_archived_when_that_is_gone(cast: Cast) -> None:
    request = granted(cast, "team")
    stars = Tenant.objects.get(name="Stars")
    dwarfs = create_tenant(actor=cast.ada, name="Dwarfs", parent=stars)
    run_out(request)
    tasks.end_grants()
    request.refresh_from_db()
    assert (request.is_in_force, "Dwarfs" in request.ending) == (True, True)
    assert AuditEvent.objects.filter(verb="request.overdue").count() == 1
    archive_tenant(actor=cast.ada, tenant=dwarfs)
    tasks.end_grants()
    request.refresh_from_db()
    stars.refresh_from_db()
    assert (request.is_in_force, request.ending) == (False, "team Stars was archived")
    assert stars.archived_at is not None
    assert AuditEvent.objects.filter(verb="request.end").count() == 1


def test_more_time_for_a_team_that_could_not_be_archived_clears_the_note(cast: Cast) -> None:
    request = granted(cast, "team")
    create_tenant(actor=cast.ada, name="Dwarfs", parent=Tenant.objects.get(name="Stars"))
    run_out(request)
    later = now_from_database() + timedelta(days=2)
    approve_request(
        actor=cast.olga, request=asked(cast, "extension", extends=request, until=later), until=later
    )
    request.refresh_from_db()
    assert (request.is_in_force, request.ends_at, request.ending) == (True, later, "")


def test_jobs_of_a_team_hold_no_gpus_after_its_end_and_go_on_when_it_is_restored(
    transactional_db: None,
) -> None:
    lab = world(v100=4)
    request = granted(lab.people, "team")
    stars = Tenant.objects.get(name="Stars")
    jobs = [lab.submit(lab.people.alice, stars, gpus=2) for _ in range(3)]
    lab.quantum()
    lab.carry_out()
    assert len(lab.holding(Lease.State.RUNNING)) == 2
    run_out(request)
    lab.quantum()
    told = JobEvent.objects.filter(job__in=jobs, code=EventCode.TEAM_ARCHIVED)
    assert told.count() == 2
    lab.carry_out()
    lab.quantum()
    assert not lab.holding(*Lease.OPEN)
    for job in jobs:
        job.refresh_from_db()
        assert (job.reason, "Stars is archived" in explain(job).sentence) == (Reason.TEAM_ARCHIVED, True)
    restore_tenant(actor=lab.people.ada, tenant=stars)
    lab.quantum()
    lab.carry_out()
    assert len(lab.holding(Lease.State.RUNNING)) == 2


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_original_values_return_in_whatever_order_grants_end(cast: Cast, data: st.DataObject) -> None:
    """When several grants have changed a team's tickets, the tickets are those of the latest grant that has not ended,
    in whatever order the grants end. After the last end, the original tickets are back."""
    Request.objects.all().delete()
    Tenant.objects.filter(pk=cast.astro.pk).update(tickets=100)
    values = data.draw(st.lists(st.integers(101, 120), min_size=1, max_size=4, unique=True))
    pile = [granted(cast, wanted={"tickets": value}) for value in values]
    living = list(zip(pile, values, strict=True))
    for one in data.draw(st.permutations(list(living))):
        run_out(one[0])
        living.remove(one)
        assert tickets(cast) == (living[-1][1] if living else 100)


class Ends:
    """A value of Astro that grants change, with a model of what the value should be.

    The model consists of the last value that was set by hand and the grants since then.
    """

    def __init__(self, cast: Cast, kind: str) -> None:
        self.cast, self.kind = cast, kind
        self.beneath: int | None = 100 if kind == "tickets" else None
        self.pile: list[tuple[Request, int]] = []
        self.overtaken: list[Request] = []

    @property
    def expected(self) -> int | None:
        return self.pile[-1][1] if self.pile else self.beneath

    @property
    def found(self) -> int | None:
        if self.kind == "tickets":
            return tickets(self.cast)
        return next((int(quota.limit) for quota in Quota.objects.all()), None)

    def grant(self, value: int) -> None:
        wanted = {"tickets": value} if self.kind == "tickets" else LIMIT | {"limit": str(value)}
        self.pile.append((granted(self.cast, self.kind, wanted=wanted), value))

    def set_by_hand(self, value: int) -> None:
        if self.kind == "tickets":
            set_tickets(actor=self.cast.ada, tenant=self.cast.astro, tickets=value)
        else:
            set_quota(actor=self.cast.ada, tenant=self.cast.astro, kind=Quota.Kind.GPUS, limit=value)
        self.hand(value)

    def remove_by_hand(self) -> None:
        if self.kind == "limit" and self.found is not None:
            remove_quota(actor=self.cast.ada, quota=Quota.objects.get())
            self.hand(None)

    def hand(self, value: int | None) -> None:
        self.overtaken += [one for one, _ in self.pile]
        self.beneath, self.pile = value, []

    def end(self, one: Request) -> None:
        is_overtaken = one in self.overtaken
        self.pile = [(other, value) for other, value in self.pile if other != one]
        run_out(one)
        one.refresh_from_db()
        assert one.ended_at is not None
        assert (
            one.ending == "the granted value was not reset, because somebody has changed it since the grant"
        ) is is_overtaken
        trail = AuditEvent.objects.filter(verb="request.end").latest("pk")
        assert (trail.target_id, trail.after["ending"]) == (str(one.pk), one.ending)

    def disturb(self, data: st.DataObject) -> None:
        """Moves, archives and restores the team, which must not change the value.

        Sometimes also ends a grant while the team is archived.
        """
        astro, ada = Tenant.objects.get(pk=self.cast.astro.pk), self.cast.ada
        move_tenant(actor=ada, tenant=astro, parent=data.draw(st.sampled_from([None, self.cast.bio])))
        archive_tenant(actor=ada, tenant=astro)
        if self.pile and data.draw(st.booleans()):
            self.end(self.pile[0][0])
        restore_tenant(actor=ada, tenant=Tenant.objects.get(pk=astro.pk))


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.sampled_from(["tickets", "limit"]), st.data())
def test_the_end_of_a_grant_takes_back_only_what_it_set(cast: Cast, kind: str, data: st.DataObject) -> None:
    Request.objects.all().delete()
    Quota.objects.all().delete()
    # If hypothesis aborts an example, the team may be left archived.
    Tenant.objects.filter(pk=cast.astro.pk).update(tickets=100, archived_at=None)
    ends = Ends(cast, kind)
    values = st.integers(1, 3)  # few values, so that grants and people often set the same value
    for verb in data.draw(
        st.lists(st.sampled_from(["grant", "grant", "end", "set", "remove", "disturb"]), max_size=12)
    ):
        open_ends = [one for one, _ in ends.pile] + [one for one in ends.overtaken if one.ended_at is None]
        match verb:
            case "grant":
                ends.grant(data.draw(values))
            case "end" if open_ends:
                ends.end(data.draw(st.sampled_from(open_ends)))
            case "set":
                ends.set_by_hand(data.draw(values))
            case "remove":
                ends.remove_by_hand()
            case "disturb":
                ends.disturb(data)
        assert ends.found == ends.expected


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from([None, 1, 2, 3, 4, "by hand"])), max_size=6))
def test_the_coming_ends_of_tickets_are_those_that_happen(cast: Cast, steps: list) -> None:
    """Grants of 1 to 3 tickets that end after some hours or never, and tickets set by hand, in any order."""
    Request.objects.all().delete()
    Tenant.objects.filter(pk=cast.astro.pk).update(tickets=100)
    for value, hours in steps:
        if hours == "by hand":
            set_tickets(actor=cast.ada, tenant=cast.astro, tickets=value)
            continue
        granted(cast, ends=hours and timedelta(hours=hours), wanted={"tickets": value})
    cast.astro.refresh_from_db()
    told = ticket_ends([cast.astro, cast.bio])
    assert cast.bio.pk not in told
    coming = {one.request: one.after for one in told.get(cast.astro.pk, [])}
    assert [one.at for one in told.get(cast.astro.pk, [])] == sorted(
        one.at for one in told.get(cast.astro.pk, [])
    )
    for request in Request.objects.in_force().exclude(ends_at=None).order_by("ends_at", "pk"):
        before = tickets(cast)
        run_out(request)
        assert tickets(cast) == coming.get(request.pk, before)


def test_a_hand_that_sets_the_same_means_it_to_stay(cast: Cast) -> None:
    request = granted(cast)
    set_tickets(actor=cast.ada, tenant=cast.astro, tickets=70)
    set_tickets(actor=cast.ada, tenant=cast.astro, tickets=300)
    run_out(request)
    request.refresh_from_db()
    assert (tickets(cast), request.ending) == (
        300,
        "the granted value was not reset, because somebody has changed it since the grant",
    )


def test_a_limit_of_a_generation_that_is_gone_comes_to_its_end(cast: Cast) -> None:
    new = make.generation("H100")
    request = granted(cast, "limit", wanted=LIMIT | {"generation_id": new.pk})
    remove_quota(actor=cast.ada, quota=Quota.objects.get())
    delete_generation(actor=cast.ada, generation=new)
    run_out(request)
    request.refresh_from_db()
    assert (request.is_in_force, request.ending) == (
        False,
        "the granted value was not reset, because somebody has changed it since the grant",
    )


def test_a_team_that_was_restored_is_not_archived_again(cast: Cast) -> None:
    request = granted(cast, "team")
    stars = Tenant.objects.get(name="Stars")
    archive_tenant(actor=cast.ada, tenant=stars)
    restore_tenant(actor=cast.ada, tenant=stars)
    run_out(request)
    request.refresh_from_db()
    stars.refresh_from_db()
    assert (stars.archived_at, request.ending) == (
        None,
        "team Stars was not archived again, because somebody had restored it from the archive",
    )


def test_a_team_that_was_moved_is_archived_where_it_is(cast: Cast) -> None:
    request = granted(cast, "team")
    move_tenant(actor=cast.ada, tenant=Tenant.objects.get(name="Stars"), parent=cast.bio)
    run_out(request)
    assert Tenant.objects.get(name="Stars").archived_at is not None


def test_a_team_that_was_deleted_leaves_nothing_to_end(cast: Cast) -> None:
    request = granted(cast, "team")
    stars = Tenant.objects.get(name="Stars")
    remove_member(actor=cast.ada, membership=stars.memberships.get())
    delete_tenant(actor=cast.ada, tenant=stars)
    run_out(request)
    request.refresh_from_db()
    assert (request.is_in_force, request.ending) == (False, "the team had already been deleted")


def test_more_time_only_ever_makes_it_longer_and_is_over_with_what_it_extends(cast: Cast) -> None:
    base = granted(cast)
    until = [base.ends_at + timedelta(days=days) for days in (1, 2, 3)]
    first, second, third = [asked(cast, "extension", extends=base, until=one) for one in until]
    approve_request(actor=cast.olga, request=second, until=until[1])
    with pytest.raises(Refused, match="later than the present end"):
        approve_request(actor=cast.olga, request=first, until=until[0])
    approve_request(actor=cast.olga, request=third, until=None)
    with pytest.raises(Refused, match="has no end"):
        approve_request(actor=cast.olga, request=first, until=until[2])
    run_out(base)
    for one in (second, third):
        one.refresh_from_db()
        assert (one.is_in_force, one.ending) == (
            False,
            f"this extension ended, because the grant of request {base.pk} ended",
        )


def test_a_value_changed_since_is_not_extended(cast: Cast) -> None:
    base = granted(cast)
    later = base.ends_at + SOON
    more = asked(cast, "extension", extends=base, until=later)
    set_tickets(actor=cast.ada, tenant=cast.astro, tickets=70)
    with pytest.raises(Refused, match="because somebody has changed the granted value"):
        approve_request(actor=cast.olga, request=more, until=later)


def test_nothing_is_granted_to_a_team_that_was_archived_since(cast: Cast) -> None:
    request = asked(cast)
    archive_tenant(actor=cast.ada, tenant=cast.astro)
    with pytest.raises(Refused, match="Astro is archived"):
        approve_request(actor=cast.olga, request=request)


@pytest.mark.django_db(transaction=True)
class TestAtOnce:
    def test_a_request_is_answered_once(self) -> None:
        cast = make.cast()
        request = asked(cast)
        raised = at_once(
            lambda: approve_request(actor=cast.olga, request=request),
            lambda: approve_request(actor=cast.ada, request=request),
            lambda: decline_request(actor=cast.olga, request=request, answer="no"),
        )
        assert [type(error) for error in raised if error] == [Refused, Refused]
        assert AuditEvent.objects.filter(verb__in=["request.approve", "request.decline"]).count() == 1

    def test_an_end_and_a_change_at_once_leave_the_change(self) -> None:
        cast = make.cast()
        request = granted(cast)
        Request.objects.update(ends_at=now_from_database())
        raised = at_once(
            lambda: end_grant(request_id=request.pk),
            lambda: set_tickets(actor=cast.ada, tenant=cast.astro, tickets=70),
            lambda: end_grant(request_id=request.pk),
        )
        assert raised == [None] * 3
        assert tickets(cast) == 70
        assert AuditEvent.objects.filter(verb="request.end").count() == 1

    def test_an_end_and_a_removal_of_a_limit_at_once_leave_none(self) -> None:
        cast = make.cast()
        set_quota(actor=None, tenant=cast.astro, kind=Quota.Kind.GPUS, limit=9)
        request = granted(cast, "limit")
        Request.objects.update(ends_at=now_from_database())
        quota = Quota.objects.get()
        raised = at_once(
            lambda: end_grant(request_id=request.pk), lambda: remove_quota(actor=cast.ada, quota=quota)
        )
        assert raised == [None] * 2
        assert not Quota.objects.exists()

    def test_ends_that_stand_on_each_other_do_not_lock_each_other_out(self) -> None:
        cast = make.cast()
        pile = [granted(cast, wanted={"tickets": value}) for value in (200, 300, 400)]
        Request.objects.update(ends_at=now_from_database())
        assert at_once(*[lambda one=one: end_grant(request_id=one.pk) for one in pile]) == [None] * 3
        assert tickets(cast) == 100


class TestMail:
    @pytest.fixture(autouse=True)
    def _server(self, settings, cast: Cast) -> None:
        settings.EMAIL_HOST = "mail.example.org"
        for name in ("alice", "bob", "charlie", "olga", "ada"):
            User.objects.filter(username=name).update(email=f"{name}@example.org")
        make.membership(cast.charlie, cast.astro, role=Membership.Role.MANAGER)

    def test_those_concerned_get_a_mail_once(self, cast: Cast) -> None:
        request = asked(cast)
        assert set(mails().values_list("address", flat=True)) == {
            "olga@example.org",
            "ada@example.org",
        }
        mails().all().delete()
        decline_request(actor=cast.olga, request=request, answer="too much")
        for _ in range(2):
            accounting_tasks.notify()
            accounting_tasks.send_mails()
        assert sorted(to for sent in outgoing.outbox for to in sent.to) == [
            "alice@example.org",
            "charlie@example.org",
        ]
        [subject] = {sent.subject for sent in outgoing.outbox}
        assert subject == "[Fairlot] Tickets for Astro: declined"
        assert f"/requests/{request.pk}/" in outgoing.outbox[0].body
        assert "too much" in outgoing.outbox[0].body

    def mail_to(self, name: str) -> tuple[str, list[str]]:
        """Returns (subject, lines of the text) of the only mail to the user `name`, and deletes the mail."""
        the_mail = mails().get(address=f"{name}@example.org")
        mails().all().delete()
        return the_mail.subject, the_mail.text.split("\n")

    def test_mails_say_who_what_and_until_when_in_the_readers_zone(self, cast: Cast) -> None:
        User.objects.filter(username="alice").update(time_zone="Asia/Tokyo")
        User.objects.filter(username="olga").update(time_zone="Europe/Berlin")
        until = datetime(2099, 6, 1, 20, 0, tzinfo=UTC)
        request = asked(cast, until=until)
        subject, lines = self.mail_to("olga")
        assert subject == "[Fairlot] Tickets for Astro: requested"
        assert lines[:7] == [
            "alice has made a request, which an operator can grant or decline.",
            "",
            "Team: Astro",
            "Requested change: 100 → 300 tickets",
            "Requested end: Monday, 1 June 2099, 22:00:00 CEST",
            "Requested by: alice",
            "Reason for the request: a deadline",
        ]
        earlier = until - timedelta(hours=6)
        approve_request(
            actor=cast.olga, request=request, granted={"tickets": 150}, until=earlier, answer="half"
        )
        subject, lines = self.mail_to("alice")
        assert subject == "[Fairlot] Tickets for Astro: approved with changes"
        assert lines[0] == (
            "olga has granted 150 tickets instead of 300 tickets, until Monday, 1 June 2099, 14:00:00 UTC."
        )
        assert lines[4] == "Requested end: Tuesday, 2 June 2099, 05:00:00 JST"
        assert lines[7:-5] == [
            "Granted change: 150 tickets",
            "End of the grant: Monday, 1 June 2099, 23:00:00 JST",
            "Approved by: olga",
            "Answer: half",
        ]
        run_out(request)
        subject, lines = self.mail_to("alice")
        assert subject == "[Fairlot] Tickets for Astro: ended"
        assert "Result: the former value 100 was restored" in lines
        assert "Granted change: 150 tickets" in lines

    def test_a_mail_says_whether_the_grant_equals_the_request(self, cast: Cast) -> None:
        until = now_from_database() + SOON
        for ends, said in ((until, "approved"), (until + SOON, "approved with changes")):
            request = asked(cast, until=until)
            mails().all().delete()
            approve_request(actor=cast.olga, request=request, until=ends)
            assert self.mail_to("alice")[0] == f"[Fairlot] Tickets for Astro: {said}"

    def test_a_mail_about_more_time_says_for_what_and_until_when(self, cast: Cast) -> None:
        base = granted(cast, "limit")
        more = asked(cast, "extension", extends=base, until=base.ends_at + SOON)
        mails().all().delete()
        approve_request(actor=cast.olga, request=more, until=more.until)
        _, lines = self.mail_to("alice")
        what = f"more time for request {base.pk} (Astro: limit of 2 GPUs at once; when the limit is reached: block)"
        assert lines[3] == f"Requested change: {what}"
        assert lines[7:9] == [f"Granted change: {what}", f"End of the grant: {exact(more.until)}"]

    def test_people_are_notified_once_before_an_end_and_again_before_a_later_one(self, cast: Cast) -> None:
        day = timedelta(days=1)
        short, overtaken, long = (
            granted(cast),
            granted(cast, "limit", ends=2 * day),
            granted(cast, ends=2 * day),
        )
        remove_quota(actor=cast.ada, quota=Quota.objects.get())
        mails().all().delete()
        accounting_tasks.tell_of_ends()
        assert not mails().exists()
        decided = now_from_database() - 2 * day
        Request.objects.filter(pk__in=[overtaken.pk, long.pk]).update(
            decided_at=decided, ends_at=now_from_database() + SOON
        )
        for _ in range(2):
            accounting_tasks.tell_of_ends()
        subject, lines = self.mail_to("alice")
        assert subject == "[Fairlot] Tickets for Astro: ends soon"
        assert f"/requests/{long.pk}/" in lines[-4]
        assert short.is_in_force
        later = now_from_database() + day - SOON
        more = asked(cast, "extension", extends=long, until=later)
        approve_request(actor=cast.olga, request=more, until=later)
        mails().all().delete()
        for _ in range(2):
            accounting_tasks.tell_of_ends()
        assert f"End of the grant: {exact(later)}" in self.mail_to("alice")[1]

    def test_a_requester_who_left_the_team_is_not_notified(self, cast: Cast) -> None:
        request = asked(cast)
        remove_member(actor=cast.ada, membership=cast.alice.memberships.get())
        mails().all().delete()
        approve_request(actor=cast.olga, request=request)
        assert list(mails().values_list("address", flat=True)) == ["charlie@example.org"]

    def test_a_mail_that_the_server_refuses_is_retried_unchanged(self, cast: Cast, monkeypatch) -> None:
        asked(cast)
        the_mail = mails().order_by("pk")[0]
        with monkeypatch.context() as patched:
            patched.setattr(mail.EmailMessage, "send", _refuse)
            assert mail.send(mail_id=the_mail.pk) is False
        the_mail.refresh_from_db()
        assert (the_mail.attempts, the_mail.error, the_mail.sent_at) == (1, "busy", None)
        assert the_mail.not_before > now_from_database()
        Mail.objects.update(not_before=now_from_database())
        assert mail.send(mail_id=the_mail.pk) is True
        [sent] = outgoing.outbox
        assert sent.extra_headers["Message-ID"].startswith(f"<{the_mail.identity}@")

    @pytest.mark.parametrize(
        ("address", "subject"),
        [
            ("olga@exämple..org", "an address"),
            ("olga@example.org\nBcc: x@example.org", "a header"),
            ("olga@example.org", "two\nlines"),
        ],
    )
    def test_a_mail_that_cannot_be_written_is_given_up_and_the_others_leave_once(
        self, cast: Cast, address: str, subject: str
    ) -> None:
        bad = Mail.objects.create(address=address, subject=subject, text="")
        good = Mail.objects.create(address="ada@example.org", subject="good", text="")
        for _ in range(2):
            Mail.objects.update(not_before=now_from_database())
            accounting_tasks.send_mails()
        assert [sent.subject for sent in outgoing.outbox] == ["good"]
        bad.refresh_from_db()
        good.refresh_from_db()
        assert (bad.attempts, bad.sent_at, bool(bad.error)) == (MOST_ATTEMPTS, None, True)
        assert (good.attempts, good.error) == (1, "")

    @pytest.mark.parametrize("trouble", [smtplib.SMTPRecipientsRefused({}), RuntimeError("a bug")])
    def test_an_address_that_is_refused_holds_up_no_other_and_is_given_up_in_the_end(
        self, cast: Cast, monkeypatch: pytest.MonkeyPatch, trouble: Exception
    ) -> None:
        send = mail.EmailMessage.send

        def choosy(message: mail.EmailMessage) -> int:
            if message.to == ["nobody@example.org"]:
                raise trouble
            return send(message)

        monkeypatch.setattr(mail.EmailMessage, "send", choosy)
        bad = Mail.objects.create(address="nobody@example.org", subject="bad", text="")
        Mail.objects.create(address="ada@example.org", subject="good", text="")
        for _ in range(MOST_ATTEMPTS + 2):
            Mail.objects.update(not_before=now_from_database())
            with suppress(RuntimeError):
                accounting_tasks.send_mails()
        assert [sent.subject for sent in outgoing.outbox] == ["good"]
        bad.refresh_from_db()
        assert (bad.attempts, bad.sent_at) == (MOST_ATTEMPTS, None)

    def test_a_name_of_two_lines_makes_a_subject_of_one(self, cast: Cast) -> None:
        Tenant.objects.filter(pk=cast.astro.pk).update(name="As\ntro")
        cast.astro.refresh_from_db()
        asked(cast)
        assert set(mails().values_list("subject", flat=True)) == {"[Fairlot] Tickets for As tro: requested"}

    def test_a_change_that_fails_leaves_no_mail(self, cast: Cast) -> None:
        with pytest.raises(Refused):
            asked(cast, wanted={"tickets": 0})
        assert not mails().exists()

    def test_without_a_server_no_mail_is_written(self, cast: Cast, settings) -> None:
        settings.EMAIL_HOST = ""
        asked(cast)
        assert not mails().exists()


def _refuse(message: object) -> None:
    raise smtplib.SMTPException("busy")
