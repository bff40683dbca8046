"""Opens and closes terminals in running jobs. The backend has the shells; these rows say who may reach which."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now

from accounting.access import audit
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import User
from scheduling.jobs.entering import may_enter
from scheduling.models import Job, Terminal

# A terminal whose user was not seen for this long is closed. The backend ends its shell a little earlier.
LOST_AFTER = timedelta(minutes=3)
KEPT = timedelta(days=1)  # how long the row of a closed terminal is kept; the audit trail is kept longer
MOST_OPENED, OPENED_WITHIN = 30, timedelta(minutes=10)  # by one user, so that nobody floods the audit trail


@transaction.atomic(durable=True)
def open_terminal(*, actor: User, job: Job, worker: int, origin: str) -> Terminal:
    """Notes that `actor` opens a terminal beside a worker of the job, and returns it. `origin`: the actor's address.

    Raises NotAllowed if the actor may not. Raises Refused if the job does not run, or has too many terminals.
    """
    if not may_enter(actor, job):
        raise NotAllowed("Only the owner and managers of the team may open a terminal in this job.")
    there = Job.objects.select_for_update(of=("self",), no_key=True).get(pk=job.pk)
    if there.state != Job.State.RUNNING:
        raise Refused("The job is not running.")
    if not 0 <= worker < there.workers:
        raise Refused(f"The job has no worker {worker}.")
    most = settings.FAIRLOT_TERMINALS_PER_JOB
    if Terminal.objects.open().filter(job=there).count() >= most:
        raise Refused(f"The job has {most} open terminals. Close one of them first.")
    recent = Terminal.objects.filter(user=actor, opened_at__gt=now_from_database() - OPENED_WITHIN)
    if recent.count() >= MOST_OPENED:
        minutes = OPENED_WITHIN // timedelta(minutes=1)
        raise Refused(f"You opened {MOST_OPENED} terminals within {minutes} minutes. Wait a few minutes.")
    terminal = Terminal.objects.create(job=there, worker=worker, user=actor, origin=origin[:64])
    audit.record(
        actor=actor,
        verb="terminal.open",
        target=there,
        tenant=job.tenant,
        after={"worker": worker, "from": terminal.origin},
    )
    return terminal


def find_terminal(*, actor: User, job: Job, key: UUID) -> Terminal:
    """Returns the actor's open terminal `key` in the job. Raises Refused if there is none."""
    found = Terminal.objects.open().select_related("user").filter(pk=key, job=job, user=actor).first()
    if found is None:
        raise Refused("The terminal has ended.")
    return found


@transaction.atomic(durable=True)
def keep_terminal(*, actor: User, terminal: Terminal) -> bool:
    """Notes that the actor still has the terminal open. Returns False if it must be closed, because the actor may no
    longer have it or it was closed."""
    if not may_enter(actor, terminal.job):
        return False
    return bool(Terminal.objects.open().filter(pk=terminal.pk).update(seen_at=Now()))


@transaction.atomic(durable=True)
def close_terminal(*, terminal: UUID, reason: str, at_last_sight: bool = False) -> bool:
    """Notes that a terminal has ended, and why. Returns False if that was noted before.

    `at_last_sight`: the terminal ended when its user was last seen, not now.
    """
    found = Terminal.objects.select_for_update(of=("self",)).open().filter(pk=terminal).first()
    if found is None:
        return False
    found.closed_at = found.seen_at if at_last_sight else now_from_database()
    found.save(update_fields=["closed_at"])
    lasted = found.closed_at - found.opened_at
    audit.record(
        actor=found.user,
        verb="terminal.close",
        target=found.job,
        tenant=found.job.tenant,
        after={
            "worker": found.worker,
            "from": found.origin,
            "seconds": round(max(lasted, timedelta(0)).total_seconds()),
            "reason": reason,
        },
    )
    return True


def lost_terminals() -> list[UUID]:
    """Returns the terminals whose web process or client has gone without a word."""
    lost = Terminal.objects.open().filter(seen_at__lt=now_from_database() - LOST_AFTER)
    return list(lost.order_by("seen_at").values_list("pk", flat=True))


@transaction.atomic(durable=True)
def forget_terminals() -> int:
    """Deletes the rows of terminals that were closed long ago. Returns their number."""
    old = Terminal.objects.filter(closed_at__lt=now_from_database() - KEPT)
    return old.delete()[0]
