"""Tests that actions, QuerySets and docs/permissions.md agree with the table of permissions."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from django.contrib.auth.models import AnonymousUser

from accounting.access.audit import record
from accounting.access.permissions import (
    PERMISSIONS,
    as_markdown,
    changeable_where,
    may,
    may_somewhere,
    require,
    tenants_where,
)
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed
from accounting.models import AuditEvent, Membership, Tenant
from tests import make

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parents[3]
CALLS = {
    "require": 1,
    "may": 1,
    "may_somewhere": 1,
    "tenants_where": 1,
    "changeable_where": 1,
    "permitted": 0,
    "require_permission": 1,
}


def verbs_in(source: str) -> set[str]:
    """Returns the permission verbs that the source code passes as string constants to the functions in CALLS."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        name = getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
        if name in CALLS and len(node.args) > CALLS[name]:
            verb = node.args[CALLS[name]]
            found |= {verb.value} if isinstance(verb, ast.Constant) and isinstance(verb.value, str) else set()
    return found


def test_every_row_of_the_table_is_asked_for_and_no_other() -> None:
    files = (path for room in ("accounting", "scheduling", "portal") for path in (ROOT / room).rglob("*.py"))
    asked = set[str]().union(*(verbs_in(path.read_text()) for path in files))
    templates = " ".join(path.read_text() for path in (ROOT / "templates").rglob("*.html"))
    asked |= {verb for verb in PERMISSIONS if f'user|may:"{verb}"' in templates}
    assert asked == PERMISSIONS.keys()


def test_the_documentation_has_the_table() -> None:
    text = (ROOT / "docs" / "permissions.md").read_text()
    assert as_markdown() in text, f"docs/permissions.md must have this table:\n{as_markdown()}"


def test_portal_roles_hold_everywhere_and_team_roles_in_the_team_and_below() -> None:
    cast = make.cast()
    dwarfs = make.tenant("Dwarfs", parent=cast.astro)
    assert [may(user, "tenant.change") for user in (cast.ada, cast.olga, cast.alice)] == [True, False, False]
    assert [may(user, "node.drain") for user in (cast.ada, cast.olga, cast.alice)] == [True, True, False]
    for verb in ("member.change", "budget.set"):
        assert may(cast.alice, verb, cast.astro)
        assert may(cast.alice, verb, dwarfs)
        assert not may(cast.alice, verb, cast.bio)
        assert not may(cast.alice, verb, cast.uni)
        assert not may(cast.alice, verb)
        assert may_somewhere(cast.alice, verb)
        assert not may(cast.bob, verb, cast.astro)
        assert not may_somewhere(cast.bob, verb)
        assert not may(cast.olga, verb, cast.astro)
        assert set(tenants_where(cast.alice, verb)) == {cast.astro, dwarfs}
        assert set(tenants_where(cast.ada, verb)) == set(Tenant.objects.all())
        assert not tenants_where(cast.olga, verb).exists()
    assert not may(AnonymousUser(), "job.submit", cast.astro)


def test_a_refusal_says_who_may() -> None:
    cast = make.cast()
    require(None, "ledger.correct")
    with pytest.raises(NotAllowed, match="Only admins and managers of Astro may do this"):
        require(cast.bob, "member.change", cast.astro)
    with pytest.raises(NotAllowed, match="Only admins and operators may do this"):
        require(cast.bob, "node.drain")


def test_a_refusal_without_a_team_says_so_of_what_is_done_in_teams_alone() -> None:
    with pytest.raises(NotAllowed, match="Only managers and members may do this"):
        require(make.cast().ada, "job.submit")


def test_the_trail_is_read_where_the_table_says() -> None:
    cast = make.cast()
    for tenant in (cast.astro, cast.bio):
        record(actor=cast.ada, verb="tenant.change", target=tenant, tenant=tenant)
    for user in (cast.ada, cast.olga, cast.alice, cast.bob):
        seen = AuditEvent.objects.visible_to(user).filter(tenant__in=[cast.astro, cast.bio])
        may_read = tenants_where(user, "audit.read").filter(pk__in=[cast.astro.pk, cast.bio.pk])
        assert {one.tenant for one in seen} == set(may_read)


def test_managers_change_nothing_of_archived_teams() -> None:
    cast = make.cast()
    Tenant.objects.filter(pk=cast.astro.pk).update(archived_at=now_from_database())
    assert not changeable_where(cast.alice, "budget.set").exists()
    assert cast.astro in changeable_where(cast.ada, "budget.set")
    assert cast.astro in tenants_where(cast.alice, "team.read")


def test_who_is_deactivated_may_nothing() -> None:
    cast = make.cast()
    for user in (cast.ada, cast.alice):
        user.is_active = False
    assert not may(cast.ada, "tenant.change")
    assert not may(cast.alice, "member.change", cast.astro)
    assert Membership.objects.filter(user=cast.alice).exists()
