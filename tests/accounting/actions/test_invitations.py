"""Invitations let in as many people as they say, while they are valid, and with the right of who made them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.core import mail as outgoing
from django.db import connection

from accounting import actions
from accounting.actions.invitations import ENDED, MOST_OPEN, find_invitation, join_with_new_account
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent, Invitation, Mail, Membership, User
from accounting.notifications import mail
from tests import make
from tests.make import Cast
from tests.threads import let_go

pytestmark = pytest.mark.django_db
PASSWORD = "kelvin-helmholtz-1868"


def token_of(invitation: Invitation) -> str:
    return invitation.link().rstrip("/").rpartition("/")[2]


def accept(user: User, invitation: Invitation) -> Membership:
    return actions.accept_invitation(actor=user, token=token_of(invitation))


def test_whoever_has_the_link_joins_with_the_given_role_and_the_trail_says_who_invited(cast: Cast) -> None:
    made = actions.invite(actor=cast.alice, tenant=cast.astro, role="viewer", tickets=7)
    joined = accept(cast.charlie, made)
    assert (joined.tenant, joined.role, joined.tickets) == (cast.astro, "viewer", 7)
    event = AuditEvent.objects.get(verb="member.add")
    assert (event.actor, event.tenant) == (cast.charlie, cast.astro)
    assert event.after["invitation"] == made.pk
    assert event.after["invited_by"] == "alice"


def test_accepting_again_changes_nothing_and_uses_nothing_up(cast: Cast) -> None:
    made = actions.invite(actor=cast.alice, tenant=cast.astro, role="viewer", most_uses=2)
    assert accept(cast.bob, made).role == "member"  # a member stays what he is
    accept(cast.charlie, made)
    accept(cast.charlie, made)
    made.refresh_from_db()
    assert made.uses == 1


@pytest.mark.parametrize(
    "ended",
    [
        {"expires_at": timedelta(seconds=-1)},
        {"revoked_at": timedelta(0)},
        {"uses": 1},
    ],
    ids=["expired", "revoked", "used"],
)
def test_an_invitation_that_ended_lets_nobody_in(cast: Cast, ended: dict[str, timedelta | int]) -> None:
    made = actions.invite(actor=cast.alice, tenant=cast.astro)
    now = now_from_database()
    values = {name: now + one if isinstance(one, timedelta) else one for name, one in ended.items()}
    assert find_invitation(token_of(made)) == made
    Invitation.objects.filter(pk=made.pk).update(**values)
    assert find_invitation(token_of(made)) is None
    with pytest.raises(Refused, match=ENDED):
        accept(cast.charlie, made)
    assert not Membership.objects.filter(user=cast.charlie, tenant=cast.astro).exists()


def test_an_invitation_ends_when_its_maker_may_no_longer_add_members(cast: Cast) -> None:
    made = actions.invite(actor=cast.alice, tenant=cast.astro)
    Membership.objects.filter(user=cast.alice).update(role="member")
    with pytest.raises(Refused, match=ENDED):
        accept(cast.charlie, made)
    Membership.objects.filter(user=cast.alice).update(role="manager")
    assert accept(cast.charlie, made).tenant == cast.astro


def test_the_link_that_a_member_came_by_does_not_undo_the_members_removal(cast: Cast) -> None:
    made = actions.invite(actor=cast.alice, tenant=cast.astro, most_uses=5)
    joined = accept(cast.charlie, made)
    actions.remove_member(actor=cast.alice, membership=joined)
    with pytest.raises(Refused, match="You were removed from this team"):
        accept(cast.charlie, made)
    assert accept(cast.ada, made).tenant == cast.astro
    later = actions.invite(actor=cast.alice, tenant=cast.astro)
    assert accept(cast.charlie, later).tenant == cast.astro


def test_a_token_cannot_be_made_from_what_the_database_has(cast: Cast, settings) -> None:
    made = actions.invite(actor=cast.alice, tenant=cast.astro)
    token = token_of(made)
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_jsonb(one)::text FROM accounting_invitation one")
        assert token[16:] not in cursor.fetchone()[0]
    for wrong in (made.nonce, f"{made.nonce}{'0' * 64}", f"{token}0", token.upper(), f"{token}\0", ""):
        assert find_invitation(wrong) is None
    settings.SECRET_KEY = "another " * 8
    assert find_invitation(token) is None


def test_members_without_the_right_and_the_signed_out_are_refused(cast: Cast) -> None:
    for person in (cast.bob, cast.charlie, cast.olga):
        with pytest.raises(NotAllowed):
            actions.invite(actor=person, tenant=cast.astro)
    made = actions.invite(actor=cast.alice, tenant=cast.astro)
    with pytest.raises(NotAllowed):
        actions.revoke_invitation(actor=cast.bob, invitation=made)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"role": "king"}, "role"),
        ({"tickets": 0}, "tickets"),
        ({"most_uses": 0}, "most_uses"),
        ({"most_uses": 101}, "most_uses"),
        ({"days": 0}, "days"),
        ({"days": 91}, "days"),
        ({"email": "dora@example.org"}, "email"),  # no mail server
    ],
)
def test_wrong_values_are_refused_beside_their_field(
    cast: Cast, wrong: dict[str, object], field: str
) -> None:
    with pytest.raises(Refused) as refused:
        actions.invite(actor=cast.alice, tenant=cast.astro, **wrong)
    assert refused.value.field == field


def test_a_team_has_a_bounded_number_of_open_invitations(cast: Cast) -> None:
    now = now_from_database()
    Invitation.objects.bulk_create(
        Invitation(tenant=cast.astro, expires_at=now + timedelta(days=1)) for _ in range(MOST_OPEN)
    )
    with pytest.raises(Refused, match="open invitations"):
        actions.invite(actor=cast.alice, tenant=cast.astro)
    Invitation.objects.filter(pk=Invitation.objects.first().pk).update(expires_at=now)
    actions.invite(actor=cast.alice, tenant=cast.astro)


class TestByMail:
    @pytest.fixture(autouse=True)
    def server(self, settings) -> None:
        settings.EMAIL_HOST = "mail.example.org"

    def test_the_link_is_in_the_mail_that_leaves_but_not_in_the_database(self, cast: Cast) -> None:
        made = actions.invite(actor=cast.alice, tenant=cast.astro, email=" dora@example.org ")
        stored = Mail.objects.get()
        assert (stored.address, made.email) == ("dora@example.org", "dora@example.org")
        assert made.nonce not in stored.text
        assert mail.send(mail_id=stored.pk)
        assert made.link() in outgoing.outbox[0].body

    def test_a_revoked_invitation_takes_its_mail_back(self, cast: Cast) -> None:
        made = actions.invite(actor=cast.alice, tenant=cast.astro, email="dora@example.org")
        actions.revoke_invitation(actor=cast.alice, invitation=made)
        actions.revoke_invitation(actor=cast.alice, invitation=made)
        assert not Mail.objects.exists()
        assert AuditEvent.objects.filter(verb="invitation.revoke").count() == 1

    def test_a_mail_is_for_one_person_at_a_valid_address(self, cast: Cast) -> None:
        for wrong in ({"email": "dora"}, {"email": "dora@example.org", "most_uses": 2}):
            with pytest.raises(Refused):
                actions.invite(actor=cast.alice, tenant=cast.astro, **wrong)


class TestWithNewAccount:
    def test_an_invited_person_makes_an_account_where_the_portal_allows_it(
        self, cast: Cast, settings
    ) -> None:
        token = token_of(actions.invite(actor=cast.alice, tenant=cast.astro))
        with pytest.raises(Refused, match="Only admins"):
            join_with_new_account(token=token, username="dora", password=PASSWORD)
        settings.FAIRLOT_ACCOUNTS_BY_INVITATION = True
        made = join_with_new_account(token=token, username="dora", password=PASSWORD)
        assert made.user.portal_role == User.PortalRole.USER
        assert made.user.check_password(PASSWORD)
        assert Membership.objects.get(user=made.user).tenant == cast.astro
        with pytest.raises(Refused, match=ENDED):
            join_with_new_account(token=token, username="emil", password=PASSWORD)

    def test_its_address_is_the_one_to_which_the_invitation_was_sent(self, cast: Cast, settings) -> None:
        settings.FAIRLOT_ACCOUNTS_BY_INVITATION, settings.EMAIL_HOST = True, "mail.example.org"
        for email in ("dora@example.org", ""):
            made = actions.invite(actor=cast.alice, tenant=cast.astro, email=email)
            name = f"person{made.pk}"
            joined = join_with_new_account(token=token_of(made), username=name, password=PASSWORD)
            assert joined.user.email == email

    def test_a_refused_account_uses_nothing_up(self, cast: Cast, settings) -> None:
        settings.FAIRLOT_ACCOUNTS_BY_INVITATION = True
        made = actions.invite(actor=cast.alice, tenant=cast.astro)
        for wrong in ({"username": "BOB"}, {"password": "12345678"}, {"username": ""}):
            with pytest.raises(Refused):
                join_with_new_account(
                    **{"token": token_of(made), "username": "dora", "password": PASSWORD} | wrong
                )
        made.refresh_from_db()
        assert made.uses == 0
        assert not User.objects.filter(username="dora").exists()


@pytest.mark.django_db(transaction=True)
def test_people_who_accept_at_once_are_never_more_than_the_invitation_is_for(cast: Cast) -> None:
    made = actions.invite(actor=cast.alice, tenant=cast.astro, most_uses=2)
    people = [make.user(f"person{number}") for number in range(5)]

    def joins(person: User) -> bool:
        try:
            accept(person, made)
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(5) as pool:
        assert sum(pool.map(lambda person: let_go(lambda: joins(person)), people)) == 2
    assert Membership.objects.filter(user__in=people).count() == 2
