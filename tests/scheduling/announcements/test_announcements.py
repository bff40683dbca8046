"""Announcements are shown from one time to another to the users whom they concern, until they dismiss them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent, Membership, User
from scheduling.announcements.actions import (
    MOST_STANDING,
    announce,
    change_announcement,
    dismiss_announcement,
    withdraw_announcement,
)
from scheduling.jobs.actions import cancel_job
from scheduling.models import Announcement, AnnouncementDismissal, Job
from scheduling.models.announcements import shown_to
from tests.make import Cast
from tests.scheduling.world import World, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> World:
    return world(v100=4)


def readers(cast: Cast, one: Announcement) -> set[str]:
    everybody = (cast.alice, cast.bob, cast.charlie, cast.olga, cast.ada)
    return {user.username for user in everybody if one.pk in {shown.pk for shown in shown_to(user)}}


def say(lab: World, **values: Any) -> Announcement:
    return announce(**{"actor": lab.people.olga, "text": "new switch"} | values)


def test_without_a_target_everybody_sees_it_except_users_who_cannot_sign_in(lab: World) -> None:
    made = say(lab)
    assert readers(lab.people, made) == {"alice", "bob", "charlie", "olga", "ada"}
    User.objects.filter(username="bob").update(is_active=False)
    assert "bob" not in readers(lab.people, made)


def test_a_team_is_its_members_those_below_and_the_managers_above(lab: World) -> None:
    cast = lab.people
    of_astro, of_uni = say(lab, teams=[cast.astro]), say(lab, teams=[cast.uni])
    assert readers(cast, of_astro) == {"alice", "bob"}
    assert readers(cast, of_uni) == {"alice", "bob", "charlie"}
    Membership.objects.create(user=cast.olga, tenant=cast.uni, role="viewer")
    assert readers(cast, of_astro) == {"alice", "bob", "olga"}


def test_roles_count_in_teams_and_in_the_portal(lab: World) -> None:
    assert readers(lab.people, say(lab, roles=["manager"])) == {"alice"}
    assert readers(lab.people, say(lab, roles=["operator", "member"])) == {"bob", "charlie", "olga"}


def test_users_of_a_cluster_are_those_with_unfinished_work_there_and_operators(lab: World) -> None:
    cast = lab.people
    job = lab.submit(cast.charlie, cast.bio, gpus=1)
    made = say(lab, clusters=[lab.cluster])
    assert readers(cast, made) == {"charlie", "olga", "ada"}
    cancel_job(actor=cast.charlie, job=job)
    assert Job.objects.get().state in Job.ENDED
    assert readers(cast, made) == {"olga", "ada"}


def test_each_kind_of_target_must_fit(lab: World) -> None:
    cast = lab.people
    made = say(lab, teams=[cast.astro], roles=["member"])
    assert readers(cast, made) == {"bob"}


@given(
    begins=st.integers(-3, 3),
    lasts=st.one_of(st.none(), st.integers(1, 3)),
    withdrawn=st.booleans(),
    dismissed=st.booleans(),
    dismissible=st.booleans(),
)
def test_it_is_shown_exactly_while_it_is_current_and_not_dismissed(
    begins: int, lasts: int | None, withdrawn: bool, dismissed: bool, dismissible: bool
) -> None:
    olga, _ = User.objects.get_or_create(username="olga", portal_role="operator")
    now = now_from_database()
    starts = now + timedelta(hours=begins, minutes=-30)
    made = Announcement.objects.create(
        text="new switch",
        begins_at=starts,
        ends_at=None if lasts is None else starts + timedelta(hours=lasts),
        withdrawn_at=now if withdrawn else None,
        dismissible=dismissible,
    )
    if dismissed:
        AnnouncementDismissal.objects.create(announcement=made, user=olga)
    current = begins <= 0 and (lasts is None or begins + lasts > 0) and not withdrawn
    assert (made.state_at(now) == "shown") == current
    shown = made.pk in {one.pk for one in shown_to(olga)}
    assert shown == (current and not (dismissed and dismissible))


def test_a_dismissal_is_of_one_user_and_ends_with_a_change_of_the_text(lab: World) -> None:
    cast = lab.people
    made = say(lab)
    dismiss_announcement(actor=cast.bob, announcement=made)
    dismiss_announcement(actor=cast.bob, announcement=made)
    assert readers(cast, made) == {"alice", "charlie", "olga", "ada"}
    same = {"severity": "critical", "begins_at": None, "ends_at": None, "dismissible": True}
    same |= {"roles": [], "teams": [], "clusters": []}
    change_announcement(actor=cast.olga, announcement=made, text="new switch", **same)
    assert "bob" not in readers(cast, made)
    change_announcement(actor=cast.olga, announcement=made, text="new switch on Monday", **same)
    assert "bob" in readers(cast, made)


def test_one_that_must_stay_cannot_be_dismissed(lab: World) -> None:
    made = say(lab, dismissible=False)
    with pytest.raises(Refused):
        dismiss_announcement(actor=lab.people.bob, announcement=made)


def test_the_most_severe_comes_first(lab: World) -> None:
    for severity in ("info", "critical", "warning"):
        say(lab, severity=severity)
    assert [one.severity for one in shown_to(lab.people.bob)] == ["critical", "warning", "info"]


def test_only_operators_announce_and_the_trail_says_what(lab: World) -> None:
    for person in (lab.people.alice, lab.people.bob):
        with pytest.raises(NotAllowed):
            say(lab, actor=person)
    made = say(lab, teams=[lab.people.astro])
    withdraw_announcement(actor=lab.people.ada, announcement=made)
    withdraw_announcement(actor=lab.people.ada, announcement=made)
    assert readers(lab.people, made) == set()
    trail = AuditEvent.objects.filter(verb__startswith="announcement").order_by("pk")
    assert [event.verb for event in trail] == ["announcement.create", "announcement.withdraw"]
    assert trail[0].after["teams"] == ["Astro"]


def test_wrong_values_are_refused_beside_their_field(lab: World) -> None:
    now = now_from_database()
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("text", {"text": " \n "}),
        ("text", {"text": "x" * 501}),
        ("text", {"text": "a\u202eb"}),
        ("severity", {"severity": "loud"}),
        ("roles", {"roles": ["king"]}),
        ("ends_at", {"ends_at": now - timedelta(hours=1)}),
        ("ends_at", {"begins_at": now + timedelta(hours=2), "ends_at": now + timedelta(hours=1)}),
    ]
    for field, values in wrong:
        with pytest.raises(Refused) as refused:
            say(lab, **values)
        assert refused.value.field == field, values


def test_the_number_of_standing_announcements_is_bounded(lab: World) -> None:
    now = now_from_database()
    Announcement.objects.bulk_create(Announcement(text="one", begins_at=now) for _ in range(MOST_STANDING))
    with pytest.raises(Refused):
        say(lab)
    withdraw_announcement(actor=lab.people.olga, announcement=Announcement.objects.first())
    say(lab)
