"""Functions that create users, teams and other rows for tests; `cast()` creates the users and teams that most tests
share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.utils.text import slugify

from accounting.models import Generation, Membership, Price, Tenant, User

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def user(name: str, *, portal_role: str = User.PortalRole.USER, password: str | None = None) -> User:
    """Creates a user, by default without a password, because hashing a password is slow. Such a user cannot use the
    login page."""
    return User.objects.create_user(
        username=name.lower(), first_name=name.capitalize(), portal_role=portal_role, password=password
    )


def tenant(name: str, *, parent: Tenant | None = None, tickets: int = 100) -> Tenant:
    made = Tenant.objects.create(
        name=name, slug=slugify(name), parent=parent, tickets=tickets, path=f"new {name}"
    )
    made.path = f"{parent.path if parent else ''}{made.pk}/"
    made.save(update_fields=["path"])
    return made


def membership(
    member: User, of: Tenant, *, role: str = Membership.Role.MEMBER, tickets: int = 100
) -> Membership:
    return Membership.objects.create(user=member, tenant=of, role=role, tickets=tickets)


def generation(name: str, *, price: Decimal | str | None = None, since: datetime = LONG_AGO) -> Generation:
    """Creates a generation whose GPU-hour costs `price` from `since` on; by default it has no price."""
    made = Generation.objects.create(name=name)
    if price is not None:
        Price.objects.create(generation=made, per_gpu_hour=Decimal(price), valid=DateTimeTZRange(since, None))
    return made


@dataclass(frozen=True)
class Cast:
    """The users, teams and GPU types that tests share. Alice manages Astro, Bob is a member of Astro, and Charlie is a
    member of Bio; both teams belong to Uni."""

    uni: Tenant
    astro: Tenant
    bio: Tenant
    alice: User
    bob: User
    charlie: User
    olga: User  # has the portal role operator
    ada: User  # has the portal role admin
    v100: Generation
    a100: Generation


def cast() -> Cast:
    uni = tenant("Uni")
    astro, bio = tenant("Astro", parent=uni), tenant("Bio", parent=uni)
    made = Cast(
        uni=uni,
        astro=astro,
        bio=bio,
        alice=user("alice"),
        bob=user("bob"),
        charlie=user("charlie"),
        olga=user("olga", portal_role=User.PortalRole.OPERATOR),
        ada=user("ada", portal_role=User.PortalRole.ADMIN),
        v100=generation("V100", price="1.20"),
        a100=generation("A100", price="3.00"),
    )
    membership(made.alice, astro, role=Membership.Role.MANAGER)
    membership(made.bob, astro)
    membership(made.charlie, bio)
    return made
