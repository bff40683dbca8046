"""Limits on wrong passwords. They stop attackers from guessing a password, and from locking out another user.

An attempt is counted before the password is checked, so that simultaneous attempts cannot exceed a limit. Each limit
applies within a window of 15 minutes, which begins with the first wrong password and is never extended:

- 5 wrong passwords for one user from one network (an IPv4 address or an IPv6 /64);
- 50 wrong passwords from one network, for all user names together;
- 5 wrong passwords for one user in a browser in which this user has signed in before. For this user in this browser, no
  other limit applies, so a stranger cannot lock the user out of it, even from the same address.

After more than 100 wrong passwords for one user from all networks together, the first limit becomes stricter for this
user: 1 wrong password from each network instead of 5. This slows down an attacker with many machines, but the user can
still sign in.

User names that do not exist are counted like all others, so the limits do not reveal which names exist.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self

from django.conf import settings
from django.core import signing
from django.db import connection, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Greatest, Now
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from accounting.access import audit
from accounting.access.permissions import require
from accounting.core.errors import Refused
from accounting.models import User
from portal.addresses import network_of
from portal.models import PasswordTries

logger = logging.getLogger(__name__)

WINDOW = timedelta(minutes=15)
MOST_OF_USER_AND_NETWORK = 5
MOST_OF_BROWSER = 5
MOST_OF_NETWORK = 50
MANY_OF_USER = 100
MOST_LISTED = 500
MOST_CHARACTERS = PasswordTries._meta.get_field("username").max_length
COOKIE = "fairlot_browser"
COOKIE_LASTS = timedelta(days=180)
_IS_CURRENT = Q(since__gt=Now() - WINDOW)
# shown instead of an unknown name, because people type passwords into the field for the name
STRANGE = "(no such user)"


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt to enter a password, with the user, network and browser for which the attempt is counted."""

    username: str
    network: str
    browser: str  # id of a browser in which this user has signed in before; empty for any other
    is_refused: bool
    is_last: bool  # whether the next attempt is refused if this password is wrong
    ends: datetime  # end of the window; from then on, attempts are accepted again
    failures: int  # attempts for this user in the window, including this one: in all networks, or in the known browser
    is_news: bool  # whether the audit trail gets this attempt if it fails

    @classmethod
    def judged(cls, where: tuple[str, str, str], most: int, counter: tuple[int, datetime]) -> Self:
        """Returns an attempt. Its `is_refused` is True if the limit was already reached before this attempt.

        - `where`: (user, network, browser) of the attempt.
        - `most`: the number of wrong passwords that the limit allows.
        - `counter`: (number of attempts including this one, start of the window).
        """
        failures, since = counter
        if failures == most + 1:
            logger.warning("too many wrong passwords from %s", where[1])
        is_news = failures in {most, most + 1} or _is_power_of_ten(failures)
        return cls(*where, failures > most, failures >= most, since + WINDOW, failures, is_news)

    def among(self, failures: int) -> Self:
        """Returns this attempt as one of `failures` attempts for the user in all networks.

        An attack from many networks could lock each of them, so the trail does not get these locks.
        """
        is_news = (self.is_last and failures <= MANY_OF_USER) or _is_power_of_ten(failures)
        return replace(self, failures=failures, is_news=is_news)


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock: a limit on wrong passwords that a user or a network has reached. The admins' list of locks shows it."""

    pk: int
    username: str  # empty if the lock is for a whole network
    user: User | None
    place: str
    tries: int
    since: datetime
    until: datetime


def begin(request: HttpRequest, username: str) -> Try:
    """Counts an attempt to enter this user's password, and returns the attempt.

    The attempt's `is_refused` is True if a limit was already reached.
    """
    username = username[:MOST_CHARACTERS]  # no user has a longer name, but strangers may send one
    network, browser = network_of(request.META.get("REMOTE_ADDR", "")), known_browser(request, username)
    tried = partial(Try.judged, (username, network, browser))
    with transaction.atomic():
        if browser:
            return tried(MOST_OF_BROWSER, _count(username=username, browser=browser))
        # The network is counted first, so that once it is locked, new names add no rows. Each transaction that locks
        # several rows takes the network's row before the row of the user in this network, so that no two deadlock.
        whole = tried(MOST_OF_NETWORK, _count(network=network))
        if whole.is_refused:
            return replace(whole, is_news=False)  # it counts names, and few of them are users'
        is_attacked = _row(username=username).filter(_IS_CURRENT, failures__gt=MANY_OF_USER).exists()
        own = tried(
            1 if is_attacked else MOST_OF_USER_AND_NETWORK, _count(username=username, network=network)
        )
        if own.is_refused:
            _row(network=network).update(failures=F("failures") - 1)
            return replace(own, is_news=own.is_news and not is_attacked)
        of_user, _ = _count(username=username)
        return own.among(of_user)


def forget(tried: Try) -> None:
    """Removes attempts of the user from the counters of wrong passwords, after the right password was entered.

    If `tried` is from a known browser, removes the user's attempts in this browser. Otherwise removes the user's
    attempts from the same network.
    """
    _take_back(tried, None)


def take_back(tried: Try) -> None:
    """Subtracts the attempt `tried` from all counters that include it. Called if an error occurred before the password
    was checked."""
    _take_back(tried, 1)


def known_browser(request: HttpRequest, username: str) -> str:
    """Returns the browser's id from its cookie, if the cookie proves that this user has signed in with this browser;
    otherwise ""."""
    try:
        return _signer(username).unsign(request.COOKIES.get(COOKIE, ""), max_age=COOKIE_LASTS)
    except signing.BadSignature:
        return ""


def remember_browser(request: HttpRequest, response: HttpResponse, username: str) -> None:
    """Sets a cookie which proves that this user has signed in with this browser."""
    browser = known_browser(request, username) or secrets.token_hex(8)
    response.set_cookie(
        COOKIE,
        _signer(username).sign(browser),
        max_age=COOKIE_LASTS,
        path=reverse("login").removesuffix("login/"),
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )


def locks() -> list[Lock]:
    """Returns the current locks: the limits on wrong passwords that are reached. Returns at most MOST_LISTED of them.

    The lock whose window started last comes first.
    """
    rows = list(_locked().order_by("-since")[:MOST_LISTED])
    users = User.objects.in_bulk({row.username for row in rows if row.username}, field_name="username")
    return [
        Lock(
            row.pk,
            _shown_name(row.username, users),
            users.get(row.username),
            _place(row),
            row.failures,
            row.since,
            row.since + WINDOW,
        )
        for row in rows
    ]


@transaction.atomic(durable=True)
def lift(*, actor: User, pk: int) -> None:
    """Lifts a lock (a reached limit on wrong passwords) by deleting its counter, whose primary key is `pk`.

    For a lock of a user, deletes all counters of that user, so that all locks of the user end. For a lock of a network,
    deletes only this counter. Raises Refused if the lock has already ended.
    """
    require(actor, "user.change")
    row = _locked().filter(pk=pk).first()
    if row is None:
        raise Refused("This sign-in lock has already ended.")
    user = User.objects.filter(username=row.username).first() if row.username else None
    if row.username:
        lift_of_user(row.username)
    else:
        row.delete()
    audit.record(
        actor=actor,
        verb="login.unlock",
        target=user or row,
        after={"address": row.network or "all", "tries": row.failures},
    )


def lift_of_user(username: str) -> int:
    """Deletes all counters of this user's wrong passwords, and returns the number of locks that this lifts.

    Runs in the caller's transaction.
    """
    locked = _locked().filter(username=username).count()
    rows = PasswordTries.objects.filter(username=username)
    # Locks the rows with a network first, as `begin` does, so that the two cannot deadlock.
    rows.filter(
        pk__in=list(rows.select_for_update().order_by("-network").values_list("pk", flat=True))
    ).delete()
    return locked


def forget_ended() -> None:
    """Deletes the counters of wrong passwords that no longer apply: those that began to count at least 15 minutes ago.

    Skips rows that another transaction has locked.
    """
    with transaction.atomic():
        ended = PasswordTries.objects.filter(since__lte=Now() - WINDOW).select_for_update(skip_locked=True)
        PasswordTries.objects.filter(pk__in=ended.values("pk")).delete()


def _count(*, username: str = "", network: str = "", browser: str = "") -> tuple[int, datetime]:
    """Adds 1 to one counter. Returns the counter's new value and the start of its window.

    The arguments select the counter. With only `network`, for example, it counts the attempts of all users in this
    network. A counter whose window has ended restarts at 1.
    """
    values: dict[str, Any] = {"username": username, "network": network, "browser": browser, "window": WINDOW}
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO portal_passwordtries AS tries (username, network, browser, failures, since)
            VALUES (%(username)s, %(network)s, %(browser)s, 1, clock_timestamp())
            ON CONFLICT (username, network, browser) DO UPDATE SET
                failures = CASE WHEN tries.since <= clock_timestamp() - %(window)s THEN 1
                                ELSE least(tries.failures + 1, 1000000000) END,
                since = CASE WHEN tries.since <= clock_timestamp() - %(window)s THEN clock_timestamp()
                             ELSE tries.since END
            RETURNING failures, since
            """,
            values,
        )
        failures, since = cursor.fetchone()
    return failures, since


def _take_back(tried: Try, most: int | None) -> None:
    """Subtracts attempts of the user from all counters that include them.

    If `tried` is from a known browser, these are the attempts in this browser; otherwise, those from the same network.
    At most `most` attempts are subtracted; None means all of them.
    """
    if tried.browser:
        own, others = _row(username=tried.username, browser=tried.browser), []
    else:
        own = _row(username=tried.username, network=tried.network)
        # the whole network, and the user in all networks
        others = [_row(network=tried.network), _row(username=tried.username)]
    with transaction.atomic():
        for counter in (*others[:1], own):  # locks rows in the same order as `begin`
            failures = counter.select_for_update().values_list("failures", flat=True).first() or 0
        taken = failures if most is None else min(failures, most)
        for counter in (own, *others):
            counter.update(failures=Greatest(F("failures") - taken, 0))
        own.filter(failures=0).delete()


def _is_power_of_ten(number: int) -> bool:
    return str(number).rstrip("0") == "1"


def _row(*, username: str = "", network: str = "", browser: str = "") -> QuerySet[PasswordTries]:
    return PasswordTries.objects.filter(username=username, network=network, browser=browser)


def _locked() -> QuerySet[PasswordTries]:
    return PasswordTries.objects.filter(
        _IS_CURRENT,
        Q(browser="", failures__gte=MOST_OF_USER_AND_NETWORK) & ~Q(username="") & ~Q(network="")
        | Q(username="", failures__gte=MOST_OF_NETWORK)
        | Q(network="", browser="", failures__gt=MANY_OF_USER)
        | ~Q(browser="") & Q(failures__gte=MOST_OF_BROWSER),
    )


def _signer(username: str) -> signing.TimestampSigner:
    # With the name in the key, the cookie does not reveal the name, and is valid for no other user.
    return signing.TimestampSigner(salt=f"fairlot.browser:{username}")


def _shown_name(username: str, users: Mapping[str, User]) -> str:
    return username if username in users or not username else STRANGE


def _place(row: PasswordTries) -> str:
    if row.browser:
        return "only one browser, in which this user has signed in before"
    return row.network or "each network address, after one wrong password"
