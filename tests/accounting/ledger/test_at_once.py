"""Tests of admins who act at the same moment, each on a separate database connection."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import connection

from accounting import actions
from accounting.core.errors import Refused
from accounting.models import Tenant, User
from tests import make
from tests.make import Cast
from tests.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cast(transactional_db: None) -> Cast:
    return make.cast()


def at_once(*verbs: Callable[[], object]) -> list[BaseException | None]:
    """Runs the functions at the same time in threads. Returns, for each function, the exception that it raised, or
    None."""
    barrier = Barrier(len(verbs))

    def run(verb: Callable[[], object]) -> None:
        try:
            connection.ensure_connection()
            barrier.wait(timeout=PATIENCE)
            verb()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(verbs)) as pool:
        return [work.exception(timeout=PATIENCE) for work in [pool.submit(run, verb) for verb in verbs]]


def test_two_admins_who_demote_each_other_leave_one(cast: Cast) -> None:
    other = make.user("other", portal_role=User.PortalRole.ADMIN)
    raised = at_once(
        lambda: actions.deactivate_user(actor=cast.ada, user=other),
        lambda: actions.set_portal_role(actor=other, user=cast.ada, portal_role="user"),
    )
    assert sorted(type(error) for error in raised if error) == [Refused]
    assert User.objects.filter(portal_role="admin", is_active=True).count() == 1


def test_two_moves_make_no_circle(cast: Cast) -> None:
    raised = at_once(
        lambda: actions.move_tenant(actor=cast.ada, tenant=cast.astro, parent=cast.bio),
        lambda: actions.move_tenant(actor=cast.ada, tenant=cast.bio, parent=cast.astro),
    )
    assert [type(error) for error in raised if error] == [Refused]
    for tenant in Tenant.objects.select_related("parent"):
        assert tenant.path == f"{tenant.parent.path if tenant.parent else ''}{tenant.pk}/"


def test_a_tenant_made_below_one_that_moves_moves_along(cast: Cast) -> None:
    raised = at_once(
        lambda: actions.move_tenant(actor=cast.ada, tenant=cast.astro, parent=cast.bio),
        lambda: actions.create_tenant(actor=cast.ada, name="Stars", parent=cast.astro),
    )
    assert raised == [None, None]
    stars = Tenant.objects.select_related("parent").get(name="Stars")
    assert stars.parent is not None
    assert stars.path == f"{cast.uni.pk}/{cast.bio.pk}/{cast.astro.pk}/{stars.pk}/"


def test_a_name_is_given_once(cast: Cast) -> None:
    raised = at_once(*[lambda: actions.create_tenant(actor=cast.ada, name="Chem", parent=None)] * 2)
    assert [type(error) for error in raised if error] == [Refused]


def test_a_tenant_is_not_archived_while_one_is_made_below_it(cast: Cast) -> None:
    raised = at_once(
        lambda: actions.archive_tenant(actor=cast.ada, tenant=cast.astro),
        lambda: actions.create_tenant(actor=cast.ada, name="Stars", parent=cast.astro),
    )
    assert [type(error) for error in raised if error] == [Refused]
