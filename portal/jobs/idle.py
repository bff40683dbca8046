"""The measured GPU use of jobs, and how the idle rules act on it, for pages and the API."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from accounting.core.clock import now_from_database
from scheduling.idle.actions import IdleRules, idleness_of
from scheduling.idle.steps import STALE, Step, Terms
from scheduling.models import GpuUse, Job


@dataclass(frozen=True)
class IdleUse:
    """The measured GPU use of an unfinished job, and the idle rule that applies to it.

    The rule is in `terms`, which is None if no rule applies. `why_none` then says why, unless the GPUs are in use.
    """

    use: GpuUse
    terms: Terms | None
    is_present: bool  # whether the last measurement of a running job is recent; always true while the job does not run
    is_warned: bool = False
    is_of_this_attempt: bool = False  # whether the measured GPUs are those that the job holds now
    acts_at: datetime | None = None  # earliest time at which idle GPUs make the rule act
    grace_left: timedelta | None = None  # further idle time until the job is stopped or becomes preemptible
    is_snoozed: bool = False
    # Latest time until which the job can be snoozed; None if it cannot be snoozed any more.
    snooze_ends: datetime | None = None
    why_none: str = ""

    @property
    def is_idle(self) -> bool:
        return self.use.idle_since is not None

    @property
    def yields(self) -> bool:
        """Returns whether the idle rule makes the job preemptible after the grace period.

        Returns False if no rule applies, and for a rule with another action, such as one that stops the job.
        """
        return self.terms is not None and self.terms.then is Step.PREEMPTIBLE


def idle_uses(uses: Iterable[GpuUse]) -> list[IdleUse]:
    """Returns an IdleUse for each of the measurements `uses`, in the same order, with at most three queries.

    The caller must read `uses` with the related jobs, tenants and leases, for example with `select_related`.
    """
    found = list(uses)
    if not found:
        return []
    now = now_from_database()
    rules = IdleRules.read() if any(use.idle_since for use in found) else None
    return [_idle_use(use, rules, now) for use in found]


def _idle_use(use: GpuUse, rules: IdleRules | None, now: datetime) -> IdleUse:
    # A job that has just started keeps its last measurement until its new attempt is measured.
    since = max(use.measured_until, use.job.state_since)
    is_present = use.job.state != Job.State.RUNNING or now - since <= STALE
    terms = rules.terms_of(use.job) if rules and use.idle_since else None
    idle = idleness_of(use)
    if terms is None:
        why = rules.why_none(use.job) if rules and use.idle_since else ""
        return IdleUse(use, None, is_present, is_of_this_attempt=idle.is_of_this_attempt, why_none=why)
    ends = idle.snooze_ends(terms, now)
    return IdleUse(
        use=use,
        terms=terms,
        is_present=is_present,
        is_warned=idle.is_warned(terms),
        is_of_this_attempt=idle.is_of_this_attempt,
        acts_at=idle.acts_at(terms, now),
        grace_left=idle.grace_left(terms),
        is_snoozed=use.snoozed_until is not None and use.snoozed_until > now,
        snooze_ends=ends if ends > now else None,
    )


def use_of(job: Job) -> IdleUse | None:
    """Returns the measured GPU use of a job.

    Returns None if the job has ended, is being cancelled, or was never measured.
    """
    if job.has_ended or job.state == Job.State.CANCELLING:
        return None
    use = GpuUse.objects.filter(job=job).select_related("snoozed_by", "lease").first()
    if use is None:
        return None
    use.job = job
    return idle_uses([use])[0]
