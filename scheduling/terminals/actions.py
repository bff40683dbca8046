"""Opens and closes terminals in running jobs. The backend has the shells; these rows say who may reach which."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now

from accounting.access import audit
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import User
from scheduling.backends.base import BackendError
from scheduling.clusters.backend_factory import backend_for
from scheduling.jobs.entering import may_enter
from scheduling.models import Job, Terminal

logger = logging.getLogger(__name__)
# A terminal whose user was not seen for this long is closed. The backend ends its shell a little earlier.
LOST_AFTER = timedelta(minutes=16)
SEEN_WITHIN = timedelta(seconds=45)  # a terminal that is open in a client is seen more often
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
        raise Refused(f"The job has {most} open terminals. End one of them first.")
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
    return bool(Terminal.objects.open().filter(pk=terminal.pk).update(seen_at=Now(), left_at=None))


@transaction.atomic(durable=True)
def leave_terminal(*, terminal: UUID) -> None:
    """Notes that nobody has the terminal open any more. Its shell waits for its user for a while."""
    Terminal.objects.open().filter(pk=terminal, left_at=None).update(left_at=Now())


def end_terminal(*, actor: User, job: Job, key: UUID) -> None:
    """Ends the terminal `key` in the job, with its shell. Does nothing if it has ended.

    Its user may, and users who may cancel the job. Raises NotAllowed for others who may see the job. If the shell
    cannot be reached now, it ends when its client is next looked at, or with the time that it may wait.
    """
    if not Terminal.objects.filter(pk=key, job=job).changeable_by(actor).exists():
        raise NotAllowed("Only its user, and those who may cancel the job, may end a terminal.")
    close_terminal(terminal=key, reason=f"ended by {actor.get_username()}", actor=actor)
    try:
        backend_for(job.cluster).end_terminal(job_id=job.pk, key=str(key))
    except BackendError as error:
        logger.warning("terminal %s of job %s: %s", key, job.pk, error)


def forbidden_terminals() -> list[Terminal]:
    """Returns the terminals that wait for a user who may not come back, for example because the user left the team."""
    waiting = Terminal.objects.open().filter(left_at__isnull=False).select_related("user", "job__cluster")
    return [one for one in waiting if not may_enter(one.user, one.job)]


def end_forbidden(terminal: Terminal) -> None:
    """Ends a terminal whose user may not have it any more. Raises BackendError if its shell cannot be reached."""
    backend_for(terminal.job.cluster).end_terminal(job_id=terminal.job_id, key=str(terminal.pk))
    close_terminal(terminal=terminal.pk, reason="no longer allowed")


def is_attached(terminal: Terminal, now: datetime) -> bool:
    """Returns whether somebody has the terminal open in a client."""
    return terminal.left_at is None and terminal.seen_at > now - SEEN_WITHIN


@transaction.atomic(durable=True)
def close_terminal(
    *, terminal: UUID, reason: str, at_last_sight: bool = False, actor: User | None = None
) -> bool:
    """Notes that a terminal has ended, and why. Returns False if that was noted before.

    - `at_last_sight`: the terminal ended when its user was last seen, not now.
    - `actor`: who ended it; None if its user did, or nobody.
    """
    locked = Terminal.objects.select_for_update(of=("self",))
    found = locked.open().select_related("user").filter(pk=terminal).first()
    if found is None:
        return False
    found.closed_at = found.seen_at if at_last_sight else now_from_database()
    found.save(update_fields=["closed_at"])
    lasted = found.closed_at - found.opened_at
    audit.record(
        actor=actor or found.user,
        verb="terminal.close",
        target=found.job,
        tenant=found.job.tenant,
        after={
            "worker": found.worker,
            "from": found.origin,
            **({"user": found.user.get_username()} if actor and actor != found.user else {}),
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
