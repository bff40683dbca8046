"""How a job uses its GPUs, and what happens if they are idle, for pages and the API."""

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
    """The use of an unfinished job. `terms` is the idle rule that applies to it; None: none does."""

    use: GpuUse
    terms: Terms | None
    is_present: bool  # whether it was measured recently, as far as possible
    is_warned: bool = False
    is_of_this_turn: bool = False  # whether it still holds the GPUs that were measured
    acts_at: datetime | None = None  # the earliest time of the next step, if the GPUs stay idle
    grace_left: timedelta | None = None  # remaining idle time until then
    is_snoozed: bool = False
    snooze_ends: datetime | None = None  # until when it can be snoozed; None: no longer

    @property
    def is_idle(self) -> bool:
        return self.use.idle_since is not None

    @property
    def yields(self) -> bool:
        """Returns whether it becomes preemptible then, rather than being stopped."""
        return self.terms is not None and self.terms.then is Step.PREEMPTIBLE


def idle_uses(uses: Iterable[GpuUse]) -> list[IdleUse]:
    """Returns the use of jobs that were read with their tenants and leases; at most three queries."""
    found = list(uses)
    if not found:
        return []
    now = now_from_database()
    rules = IdleRules.read() if any(use.idle_since for use in found) else None
    return [_idle_use(use, rules, now) for use in found]


def _idle_use(use: GpuUse, rules: IdleRules | None, now: datetime) -> IdleUse:
    # Until its next attempt is measured, the last measurement counts.
    since = max(use.measured_until, use.job.state_since)
    is_present = use.job.state != Job.State.RUNNING or now - since <= STALE
    terms = rules.terms_of(use.job) if rules and use.idle_since else None
    idle = idleness_of(use)
    if terms is None:
        return IdleUse(use, None, is_present, is_of_this_turn=idle.is_of_this_turn)
    ends = idle.snooze_ends(terms, now)
    return IdleUse(
        use=use,
        terms=terms,
        is_present=is_present,
        is_warned=idle.is_warned(terms),
        is_of_this_turn=idle.is_of_this_turn,
        acts_at=idle.acts_at(terms, now),
        grace_left=idle.grace_left(terms),
        is_snoozed=use.snoozed_until is not None and use.snoozed_until > now,
        snooze_ends=ends if ends > now else None,
    )


def use_of(job: Job) -> IdleUse | None:
    """Returns the use of a job; None if it has ended or was never measured."""
    if job.has_ended or job.state == Job.State.CANCELLING:
        return None
    use = GpuUse.objects.filter(job=job).select_related("snoozed_by", "lease").first()
    if use is None:
        return None
    use.job = job
    return idle_uses([use])[0]
