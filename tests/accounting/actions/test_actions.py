"""Tests of every public action: who may call the action, what it changes, and that it writes exactly one audit
event."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.hashers import check_password
from django.contrib.auth.models import AnonymousUser

from accounting import actions
from accounting.core.errors import NotAllowed, Refused
from accounting.models import (
    AuditEvent,
    Budget,
    Generation,
    LedgerHead,
    Membership,
    Price,
    Quota,
    Tenant,
    User,
)
from tests import make
from tests.accounting.booking import NOON, book, trade
from tests.make import Cast


@dataclass(frozen=True)
class Case:
    """A test case for one action: its arguments, the verb of its audit event, and the roles besides admin that may call
    it."""

    arguments: Callable[[Cast], dict[str, Any]]
    verb: str
    managers: bool = False
    operators: bool = False


def archived(tenant: Tenant) -> Tenant:
    return actions.archive_tenant(actor=None, tenant=tenant)


def bobs(cast: Cast) -> Membership:
    return Membership.objects.get(user=cast.bob, tenant=cast.astro)


def a_quota(cast: Cast) -> Quota:
    return Quota.objects.create(tenant=cast.astro, kind="gpus", limit=4)


def stopped(why: str) -> dict[str, Any]:
    """Makes sealing stop: creates a ledger head (record of the last seal) that is two days old.

    Returns the arguments of the action resume_sealing, with the reason `why`.
    """
    at = datetime.now(UTC) - timedelta(days=2)
    LedgerHead.objects.create(number=1, at=at, book=0, seal=0, seal_digest=b"", digest=b"")
    return {"reason": why}


def a_budget(cast: Cast) -> Budget:
    return Budget.objects.create(tenant=cast.astro, amount=4, percentages=[80])


def planned(cast: Cast) -> Price:
    start = datetime(2100, 1, 1, tzinfo=UTC)
    return make.generation("H200", price="9", since=start).prices.get()


CASES = {
    "add_member": Case(lambda c: {"tenant": c.astro, "user": c.charlie}, "member.add", managers=True),
    "archive_tenant": Case(lambda c: {"tenant": c.astro}, "tenant.archive"),
    "change_membership": Case(
        lambda c: {"membership": bobs(c), "tickets": 5}, "member.change", managers=True
    ),
    "create_generation": Case(lambda c: {"name": "H100"}, "generation.create"),
    "create_tenant": Case(lambda c: {"name": "Chem", "parent": c.uni}, "tenant.create"),
    "create_user": Case(lambda c: {"username": "dora"}, "user.create"),
    "deactivate_user": Case(lambda c: {"user": c.bob}, "user.deactivate"),
    "delete_generation": Case(lambda c: {"generation": c.v100}, "generation.delete"),
    "delete_tenant": Case(lambda c: {"tenant": make.tenant("Geo", parent=c.astro)}, "tenant.delete"),
    "invite": Case(lambda c: {"tenant": c.astro}, "invitation.create", managers=True),
    "move_tenant": Case(lambda c: {"tenant": c.astro, "parent": None}, "tenant.move"),
    "reactivate_user": Case(
        lambda c: {"user": User.objects.create(username="dora", is_active=False)}, "user.reactivate"
    ),
    "remove_budget": Case(lambda c: {"budget": a_budget(c)}, "budget.remove", managers=True),
    "remove_member": Case(lambda c: {"membership": bobs(c)}, "member.remove", managers=True),
    "remove_price": Case(lambda c: {"price": planned(c)}, "price.remove"),
    "remove_quota": Case(lambda c: {"quota": a_quota(c)}, "quota.remove"),
    "rename_tenant": Case(lambda c: {"tenant": c.astro, "name": "Astronomy"}, "tenant.rename"),
    "reset_password": Case(lambda c: {"user": c.bob}, "user.reset_password"),
    "restore_tenant": Case(lambda c: {"tenant": archived(c.bio)}, "tenant.restore"),
    "resume_sealing": Case(lambda c: stopped("why"), "ledger.resume_sealing"),
    "revoke_invitation": Case(
        lambda c: {"invitation": actions.invite(actor=None, tenant=c.astro)},
        "invitation.revoke",
        managers=True,
    ),
    "set_budget": Case(lambda c: {"tenant": c.astro, "amount": Decimal(4)}, "budget.set", managers=True),
    "describe_user": Case(
        lambda c: {"user": c.bob, "first_name": "Bob", "last_name": "Brown", "email": "bob@example.org"},
        "user.describe",
    ),
    "set_portal_role": Case(lambda c: {"user": c.bob, "portal_role": "operator"}, "user.set_portal_role"),
    "set_price": Case(lambda c: {"generation": c.a100, "per_gpu_hour": Decimal(4)}, "price.set"),
    "set_quota": Case(lambda c: {"tenant": c.astro, "kind": "gpus", "limit": 4}, "quota.set"),
    "set_weight": Case(
        lambda c: {"generation": c.a100, "weight": Decimal(4)}, "generation.set_weight", operators=True
    ),
    "set_tickets": Case(lambda c: {"tenant": c.astro, "tickets": 7}, "tenant.set_tickets"),
    "take_back_trade": Case(lambda c: {"trade": trade(c), "reason": "why"}, "ledger.correct"),
    "take_back_usage": Case(lambda c: {"segments": book(c), "reason": "why"}, "ledger.correct"),
}


def test_every_public_action_has_its_case() -> None:
    # Actions that every user may do for themselves are tested elsewhere.
    own = {"accept_invitation", "set_preferences", "subscribe_to_report", "unsubscribe_from_report"}
    assert sorted(CASES) == sorted(set(actions.__all__) - own)
    for name in actions.__all__:
        parameters = inspect.signature(getattr(actions, name)).parameters.values()
        assert all(parameter.kind == inspect.Parameter.KEYWORD_ONLY for parameter in parameters)
        assert "actor" in {parameter.name for parameter in parameters}


@pytest.mark.parametrize("name", CASES)
def test_an_action_writes_exactly_one_audit_event(cast: Cast, name: str) -> None:
    arguments = CASES[name].arguments(cast)
    last = AuditEvent.objects.first()
    getattr(actions, name)(actor=cast.ada, **arguments)
    (event,) = AuditEvent.objects.filter(pk__gt=last.pk if last else 0)
    assert (event.actor, event.actor_name, event.verb) == (cast.ada, "ada", CASES[name].verb)
    assert event.target_name
    assert "password" not in event.before | event.after


@pytest.mark.parametrize("name", CASES)
def test_an_action_obeys_those_only_who_may(cast: Cast, name: str) -> None:
    others = [cast.bob, cast.charlie, AnonymousUser()]
    if not CASES[name].operators:
        others.append(cast.olga)
    if not CASES[name].managers:
        others.append(cast.alice)
    gone = make.user("gone", portal_role=User.PortalRole.ADMIN)
    gone.is_active = False
    arguments = CASES[name].arguments(cast)
    before = AuditEvent.objects.count()
    for actor in (*others, gone):
        with pytest.raises(NotAllowed):
            getattr(actions, name)(actor=actor, **arguments)
    assert AuditEvent.objects.count() == before
    if CASES[name].managers:
        getattr(actions, name)(actor=cast.alice, **arguments)
    if CASES[name].operators:
        getattr(actions, name)(actor=cast.olga, **arguments)


def test_a_manager_changes_only_the_own_tenants_members(cast: Cast) -> None:
    actions.change_membership(actor=cast.alice, membership=bobs(cast), role="viewer", tickets=30)
    assert (bobs(cast).role, bobs(cast).tickets) == ("viewer", 30)
    charlies = Membership.objects.get(user=cast.charlie)
    with pytest.raises(NotAllowed):
        actions.change_membership(actor=cast.alice, membership=charlies, role="viewer")
    make.membership(cast.charlie, cast.uni, role=Membership.Role.MANAGER)
    actions.change_membership(actor=cast.charlie, membership=bobs(cast), role="member")  # a manager above


def test_the_last_manager_of_a_team_cannot_leave_it_without_one(cast: Cast) -> None:
    alices = cast.alice.memberships.get()
    events = AuditEvent.objects.count()

    def refused() -> None:
        told = "Astro would then have no manager. Make another member a manager first, or ask an admin."
        for role in ("member", "viewer"):
            with pytest.raises(Refused) as error:
                actions.change_membership(actor=cast.alice, membership=alices, role=role)
            assert (str(error.value), error.value.field) == (told, "role")
        with pytest.raises(Refused) as removal:
            actions.remove_member(actor=cast.alice, membership=alices)
        assert (str(removal.value), removal.value.field) == (told, None)

    refused()
    actions.change_membership(actor=cast.alice, membership=alices, role="manager", tickets=7)
    gone = make.membership(make.user("gone"), cast.astro, role=Membership.Role.MANAGER)
    User.objects.filter(pk=gone.user_id).update(is_active=False)
    refused()
    assert AuditEvent.objects.count() == events + 1
    above = make.membership(cast.charlie, cast.uni, role=Membership.Role.MANAGER)
    actions.change_membership(actor=cast.alice, membership=alices, role="member")
    assert Membership.objects.get(pk=alices.pk).role == "member"
    above.delete()
    Membership.objects.filter(pk=alices.pk).update(role="manager")
    actions.remove_member(actor=cast.ada, membership=alices)  # admins may
    assert not Membership.objects.filter(pk=alices.pk).exists()


def test_the_audit_trail_is_seen_by_managers_of_its_tenant(cast: Cast) -> None:
    actions.set_tickets(actor=cast.ada, tenant=cast.astro, tickets=7)
    (event,) = AuditEvent.objects.visible_to(cast.alice)
    assert (event.before, event.after, event.tenant) == ({"tickets": 100}, {"tickets": 7}, cast.astro)
    for other in (cast.bob, cast.charlie):
        assert not AuditEvent.objects.visible_to(other).exists()
    assert AuditEvent.objects.visible_to(cast.olga).count() == 1


class TestTree:
    def paths(self) -> dict[str, str]:
        names = {tenant.pk: tenant.name for tenant in Tenant.objects.all()}
        return {
            tenant.name: "/".join(names[int(step)] for step in tenant.path.split("/")[:-1])
            for tenant in Tenant.objects.all()
        }

    def test_moving_takes_the_whole_subtree_along(self, cast: Cast) -> None:
        stars = actions.create_tenant(actor=cast.ada, name="Stars", parent=cast.astro)
        actions.create_tenant(actor=cast.ada, name="Dwarfs", parent=stars)
        actions.move_tenant(actor=cast.ada, tenant=cast.astro, parent=cast.bio)
        assert self.paths() == {
            "Uni": "Uni", "Bio": "Uni/Bio", "Astro": "Uni/Bio/Astro", "Stars": "Uni/Bio/Astro/Stars",
            "Dwarfs": "Uni/Bio/Astro/Stars/Dwarfs",
        }  # fmt: skip
        actions.move_tenant(actor=cast.ada, tenant=stars, parent=None)
        assert self.paths() == {
            "Uni": "Uni", "Bio": "Uni/Bio", "Astro": "Uni/Bio/Astro", "Stars": "Stars",
            "Dwarfs": "Stars/Dwarfs",
        }  # fmt: skip
        assert Tenant.objects.get(name="Stars").parent is None

    def test_a_tenant_is_never_below_itself(self, cast: Cast) -> None:
        for below in (cast.uni, cast.astro):
            with pytest.raises(Refused, match="below itself"):
                actions.move_tenant(actor=cast.ada, tenant=cast.uni, parent=below)

    def test_the_tree_has_a_greatest_depth(self, cast: Cast) -> None:
        longest = f"/{cast.bio.pk}/".rjust(254, "9")
        Tenant.objects.filter(pk=cast.bio.pk).update(path=longest)
        with pytest.raises(Refused, match="too many teams above it"):
            actions.create_tenant(actor=cast.ada, name="Deep", parent=cast.bio)
        assert not Tenant.objects.filter(name="Deep").exists()

    def test_names_are_taken_once(self, cast: Cast) -> None:
        for name in ("Astro", "ASTRO", " astro "):
            with pytest.raises(Refused, match="already") as refusal:
                actions.create_tenant(actor=cast.ada, name=name, parent=None)
            assert refusal.value.field == "name"
        with pytest.raises(Refused, match="already"):
            actions.rename_tenant(actor=cast.ada, tenant=cast.bio, name="Astro")
        for name in ("", "***", "x" * 81):
            with pytest.raises(Refused):
                actions.create_tenant(actor=cast.ada, name=name, parent=None)

    def test_a_tenant_with_active_tenants_below_is_not_archived(self, cast: Cast) -> None:
        with pytest.raises(Refused, match="Astro, Bio"):
            actions.archive_tenant(actor=cast.ada, tenant=cast.uni)
        for tenant in (cast.astro, cast.bio, cast.uni):
            assert actions.archive_tenant(actor=cast.ada, tenant=tenant).archived_at
        with pytest.raises(Refused, match=r"the team above .*, is archived"):
            actions.restore_tenant(actor=cast.ada, tenant=cast.bio)
        with pytest.raises(Refused, match="is archived"):
            actions.create_tenant(actor=cast.ada, name="Chem", parent=cast.uni)
        with pytest.raises(Refused, match="is archived"):
            actions.add_member(actor=cast.ada, tenant=cast.bio, user=cast.bob)

    def test_what_is_referenced_is_not_deleted_and_the_reason_is_told(self, cast: Cast) -> None:
        book(cast)
        with pytest.raises(Refused, match="Uni cannot be deleted, because it is used by 2 tenants"):
            actions.delete_tenant(actor=cast.ada, tenant=cast.uni)
        told = "it is used by 2 ledger accounts, 2 memberships, 1 usage segment."
        with pytest.raises(Refused, match=told):
            actions.delete_tenant(actor=cast.ada, tenant=cast.astro)
        with pytest.raises(Refused, match="A100 cannot be deleted"):
            actions.delete_generation(actor=cast.ada, generation=cast.a100)
        assert Price.objects.filter(generation=cast.a100).exists()

    def test_a_tenant_without_history_is_deleted_and_its_trail_stays(self, cast: Cast) -> None:
        made = actions.create_tenant(actor=cast.ada, name="Chem", parent=None)
        actions.delete_tenant(actor=cast.ada, tenant=made)
        trail = AuditEvent.objects.filter(target_name="Chem").values_list("verb", flat=True)
        assert set(trail) == {"tenant.create", "tenant.delete"}


class TestUsers:
    def test_a_made_password_is_random_and_works(self, cast: Cast) -> None:
        one = actions.create_user(actor=cast.ada, username="dora")
        assert len(one.password) >= 20
        assert check_password(one.password, one.user.password)
        again = actions.reset_password(actor=cast.ada, user=one.user)
        assert again.password != one.password
        assert User.objects.get(username="dora").check_password(again.password)

    @pytest.mark.parametrize(
        ("wrong", "field"),
        [
            ({"username": "Bob"}, "username"),
            ({"username": "no spaces"}, "username"),
            ({"username": ""}, "username"),
            ({"password": "12345678"}, "password"),
            ({"portal_role": "king"}, "portal_role"),
            ({"email": "nowhere"}, "email"),
        ],
    )
    def test_a_bad_user_is_refused_with_the_field(
        self, cast: Cast, wrong: dict[str, str], field: str
    ) -> None:
        with pytest.raises(Refused) as refusal:
            actions.create_user(actor=cast.ada, **({"username": "dora"} | wrong))
        assert refusal.value.field == field

    def test_the_last_admin_stays(self, cast: Cast) -> None:
        for last in (
            lambda: actions.set_portal_role(actor=cast.ada, user=cast.ada, portal_role="user"),
            lambda: actions.deactivate_user(actor=cast.ada, user=cast.ada),
        ):
            with pytest.raises(Refused, match="last active admin"):
                last()
        olga = actions.set_portal_role(actor=cast.ada, user=cast.olga, portal_role="admin")
        actions.deactivate_user(actor=olga, user=cast.ada)
        with pytest.raises(Refused, match="last active admin"):
            actions.deactivate_user(actor=olga, user=olga)

    def test_preferences_are_everyones_own(self, cast: Cast) -> None:
        actions.set_preferences(actor=cast.bob, theme="dark")
        bob = actions.set_preferences(actor=cast.bob, time_zone="Asia/Kolkata")
        assert (bob.theme, bob.time_zone) == ("dark", "Asia/Kolkata")
        assert AuditEvent.objects.filter(actor=cast.bob, verb="user.set_preferences").count() == 2
        assert not AuditEvent.objects.filter(verb="user.set_job_order").exists()
        bob = actions.set_preferences(actor=cast.bob, job_order="even")
        assert (bob.job_order, bob.theme) == ("even", "dark")
        (event,) = AuditEvent.objects.filter(actor=cast.bob, verb="user.set_job_order")
        assert (event.before, event.after) == ({"job_order": "strict"}, {"job_order": "even"})
        for wrong in ({"theme": "pink"}, {"time_zone": "Mars/Base"}, {"job_order": "best"}):
            with pytest.raises(Refused):
                actions.set_preferences(actor=cast.bob, **wrong)
        with pytest.raises(NotAllowed):
            actions.set_preferences(actor=AnonymousUser(), theme="dark")  # type: ignore[arg-type]


class TestQuotas:
    def test_a_quota_is_set_again_in_place(self, cast: Cast) -> None:
        for limit in (4, 8):
            quota = actions.set_quota(
                actor=cast.ada, tenant=cast.astro, kind="gpus", generation=cast.a100, limit=limit
            )
        assert Quota.objects.get() == quota
        event = AuditEvent.objects.first()
        assert event is not None
        assert (event.before["limit"], event.after["limit"]) == ("4.000", "8")

    @pytest.mark.parametrize(
        ("wrong", "field"),
        [
            ({"kind": "beer"}, "kind"),
            ({"limit": Decimal(-1)}, "limit"),
            ({"limit": Decimal("1.5")}, "limit"),
            ({"limit": Decimal("NaN")}, "limit"),
            ({"kind": "gpu_hours", "limit": Decimal("1e20")}, "limit"),
        ],
    )
    def test_a_bad_quota_is_refused_with_the_field(
        self, cast: Cast, wrong: dict[str, Any], field: str
    ) -> None:
        usual = {"tenant": cast.astro, "kind": "gpus", "limit": Decimal(4)}
        with pytest.raises(Refused) as refusal:
            actions.set_quota(actor=cast.ada, **(usual | wrong))
        assert refusal.value.field == field

    def test_a_removed_quota_cannot_be_removed_again(self, cast: Cast) -> None:
        quota = a_quota(cast)
        actions.remove_quota(actor=cast.ada, quota=Quota.objects.get(pk=quota.pk))
        with pytest.raises(Refused, match="no longer exists"):
            actions.remove_quota(actor=cast.ada, quota=quota)


def test_a_generation_is_made_once(cast: Cast) -> None:
    with pytest.raises(Refused, match="already"):
        actions.create_generation(actor=cast.ada, name="A100")
    assert Generation.objects.filter(name="A100").count() == 1


def test_a_member_is_added_once_and_active(cast: Cast) -> None:
    with pytest.raises(Refused, match="bob is already a member of Astro"):
        actions.add_member(actor=cast.ada, tenant=cast.astro, user=cast.bob)
    for wrong in ({"role": "king"}, {"tickets": 0}):
        with pytest.raises(Refused):
            actions.add_member(actor=cast.ada, tenant=cast.bio, user=cast.bob, **wrong)
    actions.deactivate_user(actor=cast.ada, user=cast.bob)
    with pytest.raises(Refused, match="deactivated"):
        actions.add_member(actor=cast.ada, tenant=cast.bio, user=User.objects.get(pk=cast.bob.pk))


def test_removing_a_member_keeps_the_history(cast: Cast) -> None:
    (segment,) = book(cast, begins=NOON)
    actions.remove_member(actor=cast.ada, membership=bobs(cast))
    segment.refresh_from_db()
    assert (segment.user, segment.user_name) == (cast.bob, "bob")
