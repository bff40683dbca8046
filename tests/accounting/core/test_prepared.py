"""Tests that a prepared query returns the same rows as Django's query, for any values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.db.models import Count, F, Q, Value
from django.db.models.functions import Greatest, Least

from accounting.core.prepared import MOST_QUESTIONS, MOST_SHAPES, KeyedQuery, Prepared, RowLimit, Sql
from accounting.models import Membership, Tenant, User
from accounting.models.tenants import (
    has_role,
    ids_with_role,
    sees_every_tenant,
    tenants_visible_to,
)
from tests.make import Cast, cast, membership, tenant, user
from tests.query_counts import queries_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def people() -> Cast:
    return cast()


def test_objects_come_with_what_they_are_related_to_and_what_is_annotated(people: Cast) -> None:
    def build(user: int) -> Any:
        found = Membership.objects.filter(user=user).select_related("tenant__parent", "user")
        return found.annotate(twice=F("tickets") * 2).order_by("pk")

    ask = Prepared(build)
    for person in (people.bob, people.charlie, people.bob):
        expected = list(build(person.pk))
        with queries_of("a prepared read with its relations"):
            found = ask(person.pk)
            assert found == expected
            for one, other in zip(found, expected, strict=True):
                assert (one.twice, one.tickets, one.role) == (other.twice, other.tickets, other.role)
                assert (one.user.username, one.tenant.name) == (person.username, other.tenant.name)
                assert one.tenant.parent == other.tenant.parent
                assert not one.get_deferred_fields()


def test_texts_lists_tuples_and_fields_that_are_left_out(people: Cast) -> None:
    by_name = Prepared(lambda name: User.objects.filter(username=name).only("username"))
    for name in ("bob", "alice", "nobody", "o'brien %s"):
        assert [one.username for one in by_name(name)] == ([name] if name in {"bob", "alice"} else [])
    with queries_of("a prepared read and a field that it left out"):
        bob = by_name.first("bob")
        assert bob.get_deferred_fields() >= {"password", "email"}
        assert bob.time_zone == "UTC"
    names = Prepared(lambda ids, slug: Tenant.objects.filter(pk__in=ids, slug=slug).values_list("pk", "name"))
    for ids in ([], [people.astro.pk], [people.bio.pk, people.astro.pk], [people.astro.pk, people.astro.pk]):
        assert names(ids, "astro") == ([(people.astro.pk, "Astro")] if people.astro.pk in ids else [])
    counted = Prepared(lambda: Membership.objects.order_by().values_list("role").annotate(Count("pk")))
    assert dict(counted()) == dict(Membership.objects.order_by().values_list("role").annotate(Count("pk")))


def test_moments_in_any_zone_and_values_that_stand_twice(people: Cast) -> None:
    def build(since: datetime, until: datetime, name: str) -> Any:
        found = Tenant.objects.filter(Q(created_at__gte=since) | Q(name=name), created_at__lt=until)
        told = Greatest("created_at", Value(since)), Least(Value(until), Value(since)), F("name")
        return found.order_by("pk").values_list(*told)

    ask = Prepared(build)
    now = people.bio.created_at
    moments = [now - timedelta(days=1), now, now + timedelta(microseconds=1), now + timedelta(days=400)]
    zones = [UTC, ZoneInfo("Asia/Kolkata")]
    for since, until, zone, name in product(moments, moments, zones, ("Astro", "nobody's")):
        values = since.astimezone(zone), until.astimezone(UTC), name
        assert ask(*values) == list(build(*values))
    assert len(ask._made) == 1
    with pytest.raises(ValueError, match="does not use the arguments"):
        Prepared(lambda at: Tenant.objects.filter(created_at__gt=at - timedelta(days=1)))(now)


def test_of_questions_only_those_asked_last_are_kept(people: Cast) -> None:
    built: list[int] = []

    def question(number: int) -> KeyedQuery:
        def build(keys: list[int] | None) -> Sql | None:
            built.append(number)
            if keys == []:
                return None
            listed = ", ".join(["%s"] * len(keys or ()))
            rest = f" WHERE id IN ({listed})" if listed else ""
            sql = f"SELECT id, %s FROM accounting_tenant{rest} ORDER BY id"  # noqa: S608 - own names
            return sql, [number, *(keys or ())]

        return KeyedQuery(("a test", number), build)

    some, every = [people.astro.pk, people.bio.pk], sorted(Tenant.objects.values_list("pk", flat=True))
    for keys, found in (
        (some, sorted(some)),
        (some[::-1], sorted(some)),
        (some[:1], some[:1]),
        ([], []),
        (None, every),
    ):
        assert question(1).ask(keys) == [(key, 1) for key in found]
    assert built == [1, 1, 1, 1], "the second time nothing is built"
    for number in range(2, MOST_QUESTIONS + 2):
        assert question(number).ask(some[:1]) == [(some[0], number)]
    assert question(1).ask(some[:1]) == [(some[0], 1)]
    assert built == [1, 1, 1, 1, *range(2, MOST_QUESTIONS + 2), 1]


def test_a_limit_is_part_of_the_sql(people: Cast) -> None:
    ask = Prepared(lambda above, most: User.objects.filter(pk__gt=above).order_by("pk")[:most])
    everybody = list(User.objects.order_by("pk"))
    for most in (1, 2, 1, len(everybody) + 1):
        assert ask(0, RowLimit(most)) == everybody[:most]
        assert ask(everybody[0].pk, RowLimit(most)) == everybody[1:][:most]
    assert len(ask._made) == 3


def test_of_endless_lengths_of_lists_only_some_are_kept(people: Cast) -> None:
    def known() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_prepared_statements")
            return int(cursor.fetchone()[0])

    ask = Prepared(lambda ids: Tenant.objects.filter(pk__in=ids).values_list("pk"))
    ask([people.astro.pk])  # the first call also deallocates unused statements of the connection
    before = known() - 1
    for length in range(1, MOST_SHAPES + 20):
        assert ask([people.astro.pk, *range(10_000, 10_000 + length - 1)]) == [(people.astro.pk,)]
    assert len(ask._made) == MOST_SHAPES
    assert known() - before == MOST_SHAPES, "the others are not left in the connection"


def test_what_does_not_pass_its_values_on_is_refused() -> None:
    with pytest.raises(ValueError, match="does not use the arguments"):
        Prepared(lambda pk: Tenant.objects.filter(pk__gt=pk + 1))(1)
    with pytest.raises(ValueError, match="cannot use prefetch_related"):
        Prepared(lambda: Tenant.objects.prefetch_related("children"))()


class TestKeptRoles:
    def test_what_is_seen_is_the_same_in_fewer_statements(self, people: Cast) -> None:
        below = tenant("Stars", parent=people.astro)
        viewer = user("vera")
        membership(viewer, people.astro, role="viewer")
        membership(viewer, below, role="manager")
        gone = user("gone")
        membership(gone, people.astro)
        gone.is_active = False
        gone.save()
        everybody = (people.alice, people.bob, people.charlie, people.olga, viewer, gone)
        for person in everybody:
            keeps = keeping(person)
            for role in (None, *Membership.Role.values):
                expected = list(Tenant.objects.visible_to(person, role=role))
                assert list(Tenant.objects.visible_to(keeps, role=role)) == expected
                assert set(Tenant.objects.filter(pk__in=tenants_visible_to(keeps, role))) == set(expected)
                if role is not None or not sees_every_tenant(keeps):
                    assert ids_with_role(keeps, role) == [one.pk for one in expected]
                assert role is None or has_role(keeps, role) == bool(expected)

    def test_roles_are_read_once_for_each_user(self, people: Cast) -> None:
        bob, charlie = keeping(people.bob), keeping(people.charlie)
        with queries_of("the roles of two users, each asked for twice"):
            assert ids_with_role(bob) == ids_with_role(bob, "member")
            assert ids_with_role(charlie) != ids_with_role(bob)
            assert has_role(bob, "member")

    def test_another_object_of_the_user_sees_a_change(self, people: Cast) -> None:
        before = keeping(people.bob)
        assert people.bio.pk not in ids_with_role(before)
        membership(people.bob, people.bio)
        assert people.bio.pk not in ids_with_role(before)
        assert people.bio.pk in ids_with_role(people.bob)
        assert people.bio.pk in ids_with_role(keeping(people.bob))


def keeping(person: User) -> User:
    """Returns another object of the same user, which caches the user's roles."""
    other = User.objects.get(pk=person.pk)
    other.keep_roles()
    return other
