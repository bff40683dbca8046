"""Which shells are open in a job, for pages and the API."""

from __future__ import annotations

from dataclasses import dataclass

from accounting.core.clock import now_from_database
from accounting.models import User
from scheduling.jobs.entering import may_enter
from scheduling.models import Job, Terminal
from scheduling.terminals.actions import is_attached


@dataclass(frozen=True)
class Shell:
    """An open terminal, as the user sees it."""

    terminal: Terminal
    is_own: bool
    is_attached: bool  # somebody has it open in a client
    may_end: bool


def shells_of(job: Job, user: User) -> list[Shell]:
    """Returns the open terminals of the job, the newest first. Empty for users who may neither enter nor cancel it."""
    found = Terminal.objects.visible_to(user).open().filter(job=job).select_related("user")
    endable = set(found.changeable_by(user).values_list("pk", flat=True))
    now = now_from_database()
    shown = [
        Shell(one, one.user_id == user.pk, is_attached(one, now), one.pk in endable)
        for one in found.order_by("-opened_at")
    ]
    return shown if may_enter(user, job) or any(one.may_end for one in shown) else []
