"""The words, icons and colours with which the portal shows states, reasons, times and amounts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from math import inf
from typing import Any

from accounting.core.wording import fixed
from accounting.models import Membership
from accounting.models.tenants import has_role
from scheduling.models import Job
from scheduling.models.event_codes import Cause, LeaseEnd

# Name of the URL, label, icon, and the role that sees the entry ("" is every user).
NAVIGATION = (
    ("home", "Home", "home", ""),
    ("submit", "Submit", "plus", "submitter"),
    ("jobs", "Jobs", "jobs", ""),
    ("templates", "Templates", "copy", ""),
    ("sweeps", "Sweeps", "sliders", ""),
    ("pipelines", "Pipelines", "flow", ""),
    ("sessions", "Sessions", "edit", ""),
    ("services", "Services", "link", ""),
    ("schedules", "Schedules", "calendar", ""),
    ("cluster", "Cluster", "cluster", ""),
    ("share", "Our share", "share", ""),
    ("trades", "Trades", "trades", ""),
    ("usage", "Usage", "usage", ""),
    ("storage", "Storage", "folder", ""),
    ("teams", "Team", "people", "manager"),
    ("administration", "Admin", "admin", "operator"),
)
ROLES = frozenset(role for _, _, _, role in NAVIGATION)
# The navigation entry to which a page belongs, by the beginning of the name of the page's URL.
SECTIONS = {
    "home": "home", "submit": "submit", "job": "jobs", "schedule": "schedules", "cluster": "cluster", "share": "share",
    "service": "services", "session": "sessions", "storage": "storage", "sweep": "sweeps", "trade": "trades",
    "pipeline": "pipelines", "usage": "usage", "draft": "submit", "template": "templates",
    "team": "teams", "admin": "administration", "request": "teams", "reservation": "cluster",
}  # fmt: skip

# How pages name policies; the code follows in the page of the policy.
POLICIES = {
    "gandiva_fair": "Fair share with trades",
    "market": "Market",
}
S = Job.State
# Tone and icon of each state's chip. The chip's text is the state's label.
STATES: dict[str, tuple[str, str]] = {
    S.QUEUED: ("warn", "clock"),
    S.STARTING: ("info", "starting"),
    S.RUNNING: ("info", "play"),
    S.STOPPING: ("neutral", "stopping"),
    S.SUSPENDED: ("warn", "pause"),
    S.CANCELLING: ("neutral", "stopping"),
    S.SUCCEEDED: ("good", "check-circle"),
    S.FAILED: ("bad", "x-circle"),
    S.CANCELLED: ("neutral", "slash"),
}


def section_of(url_name: str | None) -> str:
    """Returns the navigation entry of the page with this URL name, or "" if the page belongs to no entry."""
    return next((name for start, name in SECTIONS.items() if (url_name or "").startswith(start)), "")


def may_open(user: Any, role: str, *, may_submit: bool) -> bool:
    """Returns whether the side bar shows `user` an entry that requires `role`. Does not grant access to the page.

    `may_submit`: whether `user` may submit jobs.
    """
    if role == "submitter":
        return may_submit
    if role == "manager":
        return has_role(user, Membership.Role.MANAGER)
    return role == "" or user.is_operator


DAY = 86_400
STEPS = ((60, 1, "s"), (3600, 60, "min"), (DAY, 3600, "h"), (365 * DAY, DAY, "d"), (inf, 365 * DAY, "y"))


def relative(moment: datetime, now: datetime) -> str:
    """Returns a time relative to `now`, such as "5 min ago" or "in 2 h", or "now" if it differs by less than 10
    seconds.

    static/js/app.js later updates this text with the same words.
    """
    seconds = (now - moment).total_seconds()
    ahead, seconds = seconds < 0, abs(seconds)
    if seconds < 10:
        return "now"
    # A future time is rounded, so that 11 h 59 min is 12 h. A past time counts full units.
    counts = [(int(seconds / size + (0.5 if ahead else 0)), size, limit, unit) for limit, size, unit in STEPS]
    count, unit = next((count, unit) for count, size, limit, unit in counts if count * size < limit)
    return f"in {count} {unit}" if ahead else f"{count} {unit} ago"


def lasting(since: datetime, now: datetime) -> str:
    """Returns the time that has passed since `since`, such as "5 min", or "a moment" below 10 seconds.

    static/js/app.js later updates this text.
    """
    text = relative(since, now)
    return "a moment" if text == "now" else text.removesuffix(" ago")


# Why a lease ended, in a few words.
LEASE_ENDS: Mapping[str, str] = {
    "": "",
    LeaseEnd.SUCCEEDED: "succeeded",
    LeaseEnd.FAILED: "failed",
    LeaseEnd.STOPPED: "suspended",
    LeaseEnd.FROZEN: "suspended, frozen",
    LeaseEnd.LOST: "vanished",
    LeaseEnd.START_FAILED: "job could not start",
    LeaseEnd.DELETED: "deleted",
    LeaseEnd.NEVER_STARTED: "job stopped before it started",
    LeaseEnd.WITHDRAWN: "plan changed",
    LeaseEnd.CANCELLED: "cancelled",
    LeaseEnd.DRAINED: "node drained",
    LeaseEnd.NODE_CLOSED: "node closed",
    LeaseEnd.NOT_NEEDED: "GPUs not needed any more",
    LeaseEnd.OWNER_MAY_NOT: "owner may no longer run jobs",
    LeaseEnd.SHUTDOWN: "portal stopped",
}
# Causes that are shown instead of "suspended" for a lease that was stopped.
LEASE_STOPS: Mapping[str, str] = {
    Cause.DRAINED: "node drained",
    Cause.PORTAL_STOPPED: "portal stopped",
    Cause.RESIZED: "resized",
}


def money_digits(amounts: Iterable[Decimal]) -> int:
    """Returns how many decimals a column of amounts needs, so that no amount looks like 0 although it is not.

    The number depends on the smallest amount that is not 0. It is 2 if this amount is at least 0.01, and 4 if it is at
    least 0.0001. Otherwise it is 6.
    """
    least = min((abs(amount) for amount in amounts if amount), default=Decimal(1))
    return next((digits for digits in (2, 4) if least >= Decimal(1).scaleb(-digits)), 6)


def money(amount: Decimal, currency: str, digits: int | None = None) -> str:
    digits = money_digits([amount]) if digits is None else digits
    text = fixed(amount, digits)
    return f"{text} {currency}" if currency else text
